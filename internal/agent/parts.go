package agent

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// parts is the board on which the agent's parts say how they are. It is safe for concurrent use.
type parts struct {
	mu    sync.Mutex
	state map[string]rest.PartStatus
}

func newParts() *parts { return &parts{state: map[string]rest.PartStatus{}} }

// set records a part's state; Since changes only when the state does.
func (p *parts) set(name string, state rest.State, msg string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.state[name]
	since := old.Since
	if old.State != state {
		since = time.Now()
	}
	p.state[name] = rest.PartStatus{Name: name, State: state, Msg: msg, Since: since}
}

// report sets a part to OK, or to the failure that err is.
func (p *parts) report(name string, err error, ok string) {
	if err != nil {
		p.set(name, rest.StateFailure, err.Error())
		return
	}
	p.set(name, rest.StateOk, ok)
}

// list returns all parts by name.
func (p *parts) list() []rest.PartStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]rest.PartStatus, 0, len(p.state))
	for _, s := range p.state {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b rest.PartStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
