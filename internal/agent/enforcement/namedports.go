package enforcement

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/table"
)

// NamedPorts reports to the policy engine which named ports the endpoints of an identity have, all
// together, by the claims in the address cache: an egress rule may call a peer's port by its name.
type NamedPorts struct {
	log    *slog.Logger
	policy *Policy
	watch  *table.Observer[netip.Prefix, ipcache.Entry]

	mu sync.Mutex
	// byPrefix has the prefixes whose endpoints have named ports, byID how many endpoints of an
	// identity have which; both by the ports' canonical text.
	byPrefix map[netip.Prefix]portsOf
	byID     map[identity.ID]map[string]int
}

type portsOf struct {
	id   identity.ID
	text string
}

// NewNamedPorts returns one that has reported nothing yet. It must run.
func NewNamedPorts(log *slog.Logger, p *Policy, cache *ipcache.Cache) *NamedPorts {
	return &NamedPorts{log: log, policy: p, watch: cache.Table().Watch(), byPrefix: map[netip.Prefix]portsOf{}, byID: map[identity.ID]map[string]int{}}
}

// Run follows the cache until ctx ends.
func (b *NamedPorts) Run(ctx context.Context) error {
	defer b.watch.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.watch.Changed():
			b.Sync()
		}
	}
}

// Sync notifies the engine of what has changed in the cache until now.
func (b *NamedPorts) Sync() {
	b.mu.Lock()
	defer b.mu.Unlock()
	touched := map[identity.ID]bool{}
	for {
		changes, err := b.watch.Poll()
		if err != nil {
			return // closed: the agent ends
		}
		if len(changes) == 0 {
			break
		}
		for _, ch := range changes {
			b.apply(ch, touched)
		}
	}
	if len(touched) == 0 {
		return
	}
	err := b.policy.Change(func(e *policy.Engine) error {
		for id := range touched {
			var items []string
			for text := range b.byID[id] {
				items = append(items, strings.Split(text, "_")...)
			}
			slices.Sort(items)
			if err := e.SetNamedPorts(id, strings.Join(slices.Compact(items), "_")); err != nil {
				return err // texts are canonical: it cannot be
			}
		}
		return nil
	})
	if err != nil {
		b.log.Error("policy is not fully in force", "error", err)
	}
}

// apply counts one change of the cache, and notes whose ports differ by it.
func (b *NamedPorts) apply(ch table.Change[netip.Prefix, ipcache.Entry], touched map[identity.ID]bool) {
	var now portsOf
	if !ch.Deleted {
		if text := portText(ch.Value.NamedPorts()); text != "" {
			now = portsOf{ch.Value.Identity, text}
		}
	}
	old := b.byPrefix[ch.Key]
	if old == now {
		return
	}
	b.count(old, -1, touched)
	b.count(now, 1, touched)
	if now == (portsOf{}) {
		delete(b.byPrefix, ch.Key)
	} else {
		b.byPrefix[ch.Key] = now
	}
}

func (b *NamedPorts) count(p portsOf, n int, touched map[identity.ID]bool) {
	if p == (portsOf{}) {
		return
	}
	texts := b.byID[p.id]
	if texts == nil {
		texts = map[string]int{}
		b.byID[p.id] = texts
	}
	was := texts[p.text]
	texts[p.text] += n
	if texts[p.text] == 0 {
		delete(texts, p.text)
	}
	if len(texts) == 0 {
		delete(b.byID, p.id)
	}
	if was == 0 || was+n == 0 {
		touched[p.id] = true
	}
}

// portText is the canonical text of named ports; what no rule can name is left out.
func portText(ports []ipcache.NamedPort) string {
	var list []policy.NamedPort
	for _, p := range ports {
		if proto, err := datapath.ParseProto(p.Protocol); err == nil {
			list = append(list, policy.NamedPort{Name: p.Name, Proto: proto, Port: p.Port})
		}
	}
	return policy.FormatNamedPorts(list)
}
