package identities

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

// waitTimeout is how long a pod waits for whoever keeps identities to give its labels an ID, where
// this node may ask for one, before it starts with a temporary one. An ID costs one or two
// requests, milliseconds each; a store that has not answered by then is away, or so slow that the
// pod had better not wait. It is far above what a busy store takes, because a temporary identity is
// extra work for everybody, and far below what a runtime waits for a plugin.
const waitTimeout = 2 * time.Second

// releaseTimeout bounds how long an ID that nobody wants any more is given back; the allocator does
// it later if need be.
const releaseTimeout = 10 * time.Second

// pendingAllocation is the request for the ID of one set of labels. It outlives the calls that wait
// for it: what is abandoned half-way would have to start again each time, and a store that is
// slower than everybody's timeout would never give an ID. When it has an ID it holds a reference of
// its own, until nobody waits and no temporary identity stands in for it.
type pendingAllocation struct {
	text    string
	set     labels.Set
	started time.Time
	done    chan struct{}

	// The rest is guarded by pendingAllocations.mu; id and err are set when done is closed.
	id  identity.ID
	err error
	// waiting counts the calls that wait; temporary says that a temporary identity is in use for
	// the labels.
	waiting   int
	temporary bool
}

// pendingAllocations are those under way, and those that hold an ID for endpoints with temporary
// identities. It must be stopped.
type pendingAllocations struct {
	waitTimeout time.Duration // of callers
	timeout     time.Duration // of one request
	allocate    func(context.Context, labels.Set) (identity.ID, error)
	free        func(context.Context, labels.Set) error
	notify      func() // called when an ID came for which a temporary one stands in

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	byText map[string]*pendingAllocation
}

func newPendingAllocations(wait, bound time.Duration, allocate func(context.Context, labels.Set) (identity.ID, error), release func(context.Context, labels.Set) error, found func()) *pendingAllocations {
	p := &pendingAllocations{waitTimeout: wait, timeout: bound, allocate: allocate, free: release, notify: found, byText: map[string]*pendingAllocation{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// stop ends all requests and waits for them. None may start afterwards.
func (ps *pendingAllocations) stop() {
	ps.cancel()
	ps.wg.Wait()
}

// acquire returns the request for a set's ID, and starts it if there is none, or the last one
// failed. The caller must release it.
func (ps *pendingAllocations) acquire(set labels.Set) *pendingAllocation {
	text := set.KVString()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byText[text]
	if p == nil || p.failed() {
		next := &pendingAllocation{text: text, set: set, started: time.Now(), done: make(chan struct{})}
		if p != nil {
			next.temporary = p.temporary
		}
		p = next
		ps.byText[text] = p
		ps.wg.Go(func() { ps.run(p) })
	}
	p.waiting++
	return p
}

// failed must be called with mu held.
func (p *pendingAllocation) failed() bool { return p.finished() && p.err != nil }

func (p *pendingAllocation) finished() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// run asks once.
func (ps *pendingAllocations) run(p *pendingAllocation) {
	ctx, cancel := context.WithTimeout(ps.ctx, ps.timeout)
	defer cancel()
	id, err := ps.allocate(ctx, p.set)
	ps.mu.Lock()
	p.id, p.err = id, err
	close(p.done)
	relieved := p.temporary
	ps.collect(p)
	ps.mu.Unlock()
	if relieved && err == nil {
		ps.notify()
	}
}

// wait returns when the request is finished, with true, or when it has taken longer than a caller
// is to wait. If others have timed out already, nobody waits.
func (ps *pendingAllocations) wait(ctx context.Context, p *pendingAllocation) bool {
	ps.mu.Lock()
	left := ps.waitTimeout - time.Since(p.started)
	if p.temporary {
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
	return p.finished()
}

// useTemporary says that a temporary identity stands in for the ID from here on.
func (ps *pendingAllocations) useTemporary(p *pendingAllocation) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if now := ps.byText[p.text]; now != nil {
		p = now // somebody has started another since
	} else {
		ps.byText[p.text] = p
	}
	p.temporary = true
	if p.finished() && p.err == nil { // in this very moment
		ps.notify()
	}
}

// releaseTemporary says that no temporary identity stands in for the ID of a set any more.
func (ps *pendingAllocations) releaseTemporary(set labels.Set) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.byText[set.KVString()]; p != nil {
		p.temporary = false
		ps.collect(p)
	}
}

// release ends a caller's interest.
func (ps *pendingAllocations) release(p *pendingAllocation) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.waiting--
	ps.collect(p)
}

// collect forgets a request that is finished and that nobody needs, and gives its ID back. An ID
// that comes after everybody has gone is given back so. It must be called with mu held.
func (ps *pendingAllocations) collect(p *pendingAllocation) {
	if !p.finished() || p.waiting > 0 || p.temporary && p.err == nil {
		return
	}
	if ps.byText[p.text] == p {
		if p.temporary { // it failed: the next caller starts another, and need not wait
			return
		}
		delete(ps.byText, p.text)
	}
	if p.err != nil || p.id == 0 {
		return
	}
	p.id = 0
	ps.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ps.ctx, releaseTimeout)
		defer cancel()
		_ = ps.free(ctx, p.set) // the allocator does it later
	})
}

// acquireOrAllocate returns the ID of a set, makes it if there is none, and returns a temporary one
// if whoever keeps IDs does not answer in time. It takes a reference to it.
func (ids *Identities) acquireOrAllocate(ctx context.Context, set labels.Set) (identity.ID, error) {
	p := ids.pending.acquire(set)
	defer ids.pending.release(p)
	why := errors.New("there was no answer in time")
	if ids.pending.wait(ctx, p) {
		if p.err == nil {
			return ids.allocate(ctx, set) // the request holds a reference: this is at once
		}
		if errors.Is(p.err, allocator.ErrExhausted) || errors.Is(p.err, allocator.ErrClosed) || errors.Is(p.err, errInvalid) {
			return 0, p.err
		}
		why = p.err
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("waiting for an identity: %w", err)
	}
	temporary, err := ids.useTemporary(p)
	if err != nil {
		return 0, fmt.Errorf("no identity could be had for %s (%w), and %w", set, why, err)
	}
	return temporary, nil
}

// useTemporary takes a temporary identity into use while a request goes on.
func (ids *Identities) useTemporary(p *pendingAllocation) (identity.ID, error) {
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
	ids.pending.useTemporary(p)
	return temporary, nil
}

// releasePending releases a reference that a request held.
func (ids *Identities) releasePending(ctx context.Context, set labels.Set) error {
	_, err := ids.alloc.Release(ctx, k8sids.Key{Set: set})
	return err
}
