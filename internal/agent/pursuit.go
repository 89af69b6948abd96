package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// patience is how long a pod waits for whoever keeps identities to give its labels a number, where
// this node may ask for one, before it starts with a temporary one. A number costs one or two
// requests, milliseconds each; a store that has not answered by then is away, or so slow that the
// pod had better not wait. It is far above what a busy store takes, because a temporary identity is
// extra work for everybody, and far below what a runtime waits for a plugin.
const patience = 2 * time.Second

// giveUpTime bounds how long a number that nobody wants any more is given back; the allocator does
// it later if need be.
const giveUpTime = 10 * time.Second

// pursuit is the search for the number of one set of labels. It goes on when those who began it
// have lost patience: what is abandoned half-way would have to be begun anew each time, and a store
// that is slower than everybody's patience would never give a number. When it has a number it holds
// a reference of its own, until nobody waits and no temporary identity stands in for it.
type pursuit struct {
	text  string
	set   labels.Set
	began time.Time
	done  chan struct{}

	// The rest is guarded by pursuits.mu; id and err are set when done is closed.
	id  identity.ID
	err error
	// waiting counts the calls that wait; relieved says that a temporary identity is in use for the
	// labels.
	waiting  int
	relieved bool
}

// pursuits are those under way, and those that hold a number for endpoints with temporary
// identities. It must be stopped.
type pursuits struct {
	patience time.Duration // of callers
	bound    time.Duration // of one search
	allocate func(context.Context, labels.Set) (identity.ID, error)
	release  func(context.Context, labels.Set) error
	found    func() // called when a number came for which a temporary one stands in

	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	byText map[string]*pursuit
}

func newPursuits(wait, bound time.Duration, allocate func(context.Context, labels.Set) (identity.ID, error), release func(context.Context, labels.Set) error, found func()) *pursuits {
	p := &pursuits{patience: wait, bound: bound, allocate: allocate, release: release, found: found, byText: map[string]*pursuit{}}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// stop ends all searches and waits for them. Nothing may be begun afterwards.
func (ps *pursuits) stop() {
	ps.end()
	ps.wg.Wait()
}

// join returns the search for a set's number, and begins it if there is none, or the last one
// failed. The caller must leave it.
func (ps *pursuits) join(set labels.Set) *pursuit {
	text := set.KVString()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byText[text]
	if p == nil || p.failed() {
		next := &pursuit{text: text, set: set, began: time.Now(), done: make(chan struct{})}
		if p != nil {
			next.relieved = p.relieved
		}
		p = next
		ps.byText[text] = p
		ps.wg.Go(func() { ps.run(p) })
	}
	p.waiting++
	return p
}

// failed must be called with mu held.
func (p *pursuit) failed() bool { return p.over() && p.err != nil }

func (p *pursuit) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// run searches once.
func (ps *pursuits) run(p *pursuit) {
	ctx, cancel := context.WithTimeout(ps.life, ps.bound)
	defer cancel()
	id, err := ps.allocate(ctx, p.set)
	ps.mu.Lock()
	p.id, p.err = id, err
	close(p.done)
	relieved := p.relieved
	ps.settle(p)
	ps.mu.Unlock()
	if relieved && err == nil {
		ps.found()
	}
}

// wait returns when the search is over, with true, or when it has taken longer than a caller is to
// wait. If others have lost patience already, nobody waits.
func (ps *pursuits) wait(ctx context.Context, p *pursuit) bool {
	ps.mu.Lock()
	left := ps.patience - time.Since(p.began)
	if p.relieved {
		left = 0
	}
	ps.mu.Unlock()
	t := time.NewTimer(max(0, left))
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
	case <-ctx.Done():
	}
	return p.over()
}

// relieve says that a temporary identity stands in for the number from here on.
func (ps *pursuits) relieve(p *pursuit) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if now := ps.byText[p.text]; now != nil {
		p = now // somebody has begun anew since
	} else {
		ps.byText[p.text] = p
	}
	p.relieved = true
	if p.over() && p.err == nil { // in this very moment
		ps.found()
	}
}

// unneeded says that no temporary identity stands in for the number of a set any more.
func (ps *pursuits) unneeded(set labels.Set) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byText[set.KVString()]; p != nil {
		p.relieved = false
		ps.settle(p)
	}
}

// leave ends a caller's interest.
func (ps *pursuits) leave(p *pursuit) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.waiting--
	ps.settle(p)
}

// settle forgets a search that is over and that nobody needs, and gives its number back. A number
// that comes after everybody has gone is given back so. It must be called with mu held.
func (ps *pursuits) settle(p *pursuit) {
	if !p.over() || p.waiting > 0 || p.relieved && p.err == nil {
		return
	}
	if ps.byText[p.text] == p {
		if p.relieved { // it failed: the next caller begins anew, and need not wait
			return
		}
		delete(ps.byText, p.text)
	}
	if p.err != nil || p.id == 0 {
		return
	}
	p.id = 0
	ps.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ps.life, giveUpTime)
		defer cancel()
		_ = ps.release(ctx, p.set) // the allocator does it later
	})
}

// acquireAny returns the number of a set, makes it if there is none, and returns a temporary one if
// whoever keeps numbers does not answer in time. It takes a reference to it.
func (ids *identities) acquireAny(ctx context.Context, set labels.Set) (identity.ID, error) {
	p := ids.pursuits.join(set)
	defer ids.pursuits.leave(p)
	why := errors.New("there was no answer in time")
	if ids.pursuits.wait(ctx, p) {
		if p.err == nil {
			return ids.allocate(ctx, set) // the search holds a reference: this is at once
		}
		if errors.Is(p.err, allocator.ErrExhausted) || errors.Is(p.err, allocator.ErrClosed) || errors.Is(p.err, errUnbelievable) {
			return 0, p.err
		}
		why = p.err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("waiting for an identity: %w", err)
	}
	temporary, err := ids.relieve(p)
	if err != nil {
		return 0, fmt.Errorf("no identity could be had for %s (%w), and %w", set, why, err)
	}
	return temporary, nil
}

// relieve takes a temporary identity into use while a search goes on.
func (ids *identities) relieve(p *pursuit) (identity.ID, error) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	temporary, err := ids.temps.Acquire(p.set)
	if err != nil {
		return 0, err
	}
	if _, had := ids.known[temporary]; !had {
		ids.log.Warn("no answer to the question for an identity yet; a temporary one is used meanwhile", "labels", p.set.String(), "identity", temporary)
	}
	ids.known[temporary] = p.set
	ids.pursuits.relieve(p)
	return temporary, nil
}

// giveBack releases a reference that a search held.
func (ids *identities) giveBack(ctx context.Context, set labels.Set) error {
	_, err := ids.alloc.Release(ctx, k8sids.Key{Set: set})
	return err
}
