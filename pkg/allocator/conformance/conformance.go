// Package conformance checks that an [allocator.Backend] does what an [allocator.Allocator] relies
// on. Every backend runs it in its tests, on a real store, and so does the one in memory that other
// tests use in place of one.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// Harness opens backends on one shared store, and describes their capabilities.
type Harness struct {
	// Open makes the backend of a node, with a connection of its own. What is to be closed is
	// closed when the test ends. The store may hold other keys, and the IDs of other tests.
	Open func(t *testing.T, node string) allocator.Backend
	// Key returns the key of a text, which is made of letters, digits and hyphens. Nil for
	// [allocator.StringKey].
	Key func(text string) allocator.AllocatorKey
	// IDs are those that the backend may allocate. There must be ten thousand of them.
	IDs allocator.Range
	// LoseReferences ends what the references of all nodes hang on, as their leases would. Nil if
	// they hang on nothing, because others know who uses an ID: then Release takes nothing back,
	// and RunGC fails.
	LoseReferences func(t *testing.T)
	// OwnOrder means that the backend tries IDs in an order of its own, and not those that
	// the allocator picks.
	OwnOrder bool
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	if h.Key == nil {
		h.Key = func(text string) allocator.AllocatorKey { return allocator.StringKey("app:" + text) }
	}
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"Acquire", (*suite).acquire},
		{"AcquireRefuses", (*suite).refuses},
		{"TakenIDIsPassedOver", (*suite).taken},
		{"Race", (*suite).race},
		{"Release", (*suite).release},
		{"Withdraw", (*suite).withdraw},
		{"Restore", (*suite).restore},
		{"RestoreOfAnothersID", (*suite).conflict},
		{"LostReferences", (*suite).lost},
		{"Watch", (*suite).watch},
		{"RunGC", (*suite).collect},
		{"Confirm", (*suite).confirm},
		{"EndOfContext", (*suite).cancelled},
		{"DeleteAllKeys", (*suite).deleteAll},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			test.run(&suite{T: t, h: h, ctx: ctx, name: fmt.Sprintf("%s-%d-", test.name, rand.Uint32())})
		})
	}
}

type suite struct {
	*testing.T
	h    Harness
	ctx  context.Context
	name string // in all keys of this test
}

// node is a backend that is followed.
type node struct {
	allocator.Backend
	s    *suite
	ids  *idSource
	stop func()

	mu     sync.Mutex
	known  map[allocator.ID]string // "" for one without a key
	listed int
	lost   []string
}

func (s *suite) key(text string) allocator.AllocatorKey { return s.h.Key(s.name + text) }

// open makes a node, and waits until it has observed all IDs.
func (s *suite) open(name string) *node {
	s.Helper()
	n := &node{Backend: s.h.Open(s.T, name), s: s, known: map[allocator.ID]string{}}
	n.ids = &idSource{n: n, in: s.h.IDs}
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- n.ListAndWatch(ctx, n) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) && s.ctx.Err() == nil {
				s.Errorf("%s: ListAndWatch at the end of its context: %v", name, err)
			}
		case <-time.After(time.Minute):
			s.Errorf("%s: ListAndWatch goes on after the end of its context", name)
		}
	})
	s.Cleanup(n.stop)
	s.until("the IDs are listed", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.listed > 0
	})
	return n
}

func (s *suite) until(what string, ok func() bool) {
	s.Helper()
	for !ok() {
		if s.ctx.Err() != nil {
			s.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// OnListDone implements [allocator.CacheMutations].
func (n *node) OnListDone(int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listed++
}

// OnUpsert implements [allocator.CacheMutations].
func (n *node) OnUpsert(m allocator.Mapping) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[m.ID] = ""
	if m.Key != nil {
		n.known[m.ID] = m.Key.GetKey()
	}
}

// OnDelete implements [allocator.CacheMutations].
func (n *node) OnDelete(id allocator.ID, _ int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, id)
}

// OnReferencesLost implements [allocator.CacheMutations].
func (n *node) OnReferencesLost(keys []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = append(n.lost, keys...)
}

// observes waits until the watch has delivered that an ID belongs to a key, "" for none.
func (n *node) observes(id allocator.ID, text string) {
	n.s.Helper()
	n.s.until(fmt.Sprintf("a node observes that %s is %q", id, text), func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.known[id] == text
	})
}

func (n *node) acquire(key allocator.AllocatorKey) allocator.Acquired {
	n.s.Helper()
	got, err := n.Acquire(n.s.ctx, key, n.ids)
	if err != nil {
		n.s.Fatalf("acquire %s: %v", key, err)
	}
	if !n.s.h.IDs.Contains(got.ID) {
		n.s.Fatalf("acquire %s: %s is outside of the range", key, got.ID)
	}
	return got
}

// has waits until the key has an ID in force according to the backend.
func (n *node) has(key allocator.AllocatorKey, want allocator.ID) {
	n.s.Helper()
	var got allocator.ID
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) { // some use what they have observed
		if got, err = n.Get(n.s.ctx, key); err == nil && got == want {
			return
		}
	}
	n.s.Fatalf("%s has %s, %v; want %s", key, got, err, want)
}

// belongs checks to which key an ID belongs according to the store; nil for none.
func (n *node) belongs(id allocator.ID, key allocator.AllocatorKey) {
	n.s.Helper()
	got, err := n.GetByID(n.s.ctx, id)
	switch {
	case key == nil && !errors.Is(err, allocator.ErrIdentityNonExistent):
		n.s.Fatalf("%s is %v, %v; want ErrIdentityNonExistent", id, got, err)
	case key != nil && (err != nil || got.GetKey() != key.GetKey()):
		n.s.Fatalf("%s is %v, %v; want %s", id, got, err, key)
	}
}

func (n *node) must(err error) {
	n.s.Helper()
	if err != nil {
		n.s.Fatal(err)
	}
}

// wrong reports which of the references are not in order.
func (n *node) wrong(refs ...allocator.Reference) []allocator.ID {
	n.s.Helper()
	list, err := n.Check(n.s.ctx, refs)
	n.must(err)
	var out []allocator.ID
	for _, r := range list {
		out = append(out, r.ID)
	}
	return out
}

// idSource is what an allocator offers a backend.
type idSource struct {
	n  *node
	in allocator.Range
	// first are picked before others; none ends the range.
	first []allocator.ID
	none  bool

	mu    sync.Mutex
	taken []allocator.ID
}

// Known implements [allocator.IDSource].
func (p *idSource) Known(key string) (best allocator.ID) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	for id, text := range p.n.known {
		if text == key && (best == allocator.NoID || id < best) {
			best = id
		}
	}
	return best
}

// Pick implements [allocator.IDSource].
func (p *idSource) Pick() (allocator.ID, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.first) > 0 {
		id := p.first[0]
		p.first = p.first[1:]
		return id, nil
	}
	if p.none {
		return allocator.NoID, fmt.Errorf("the test: %w", allocator.ErrExhausted)
	}
	return (p.in.Min + allocator.ID(rand.Uint64N(uint64(p.in.Max-p.in.Min)+1))) | p.in.Mask, nil
}

// Quarantined implements [allocator.IDSource].
func (p *idSource) Quarantined(allocator.ID, time.Time) {}

// Taken implements [allocator.IDSource].
func (p *idSource) Taken(id allocator.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, id)
}

func (s *suite) acquire() {
	a, b := s.open("192.0.2.1"), s.open("192.0.2.2")
	web := s.key("web")
	a.has(web, allocator.NoID)
	one := a.acquire(web)
	if !one.IsNew {
		s.Error("an ID that was not there before is not new")
	}
	a.belongs(one.ID, web)
	b.belongs(one.ID, web)
	b.observes(one.ID, web.GetKey())
	two := b.acquire(web)
	if two.ID != one.ID || two.IsNew {
		s.Errorf("another node has %+v, the first one %+v", two, one)
	}
	if again := a.acquire(web); again.ID != one.ID || again.IsNew {
		s.Errorf("acquired again: %+v, before %+v", again, one)
	}
	a.has(web, one.ID)
	b.has(web, one.ID)
	if other := b.acquire(s.key("db")); other.ID == one.ID || !other.IsNew {
		s.Errorf("another key has %+v", other)
	}
	for _, n := range []*node{a, b} {
		if wrong := n.wrong(allocator.Reference{ID: one.ID, Key: web}); len(wrong) > 0 {
			s.Errorf("not in order: %v", wrong)
		}
	}
}

func (s *suite) refuses() {
	a := s.open("192.0.2.1")
	if got, err := a.Acquire(s.ctx, allocator.StringKey(""), a.ids); err == nil {
		s.Errorf("an empty key has %+v", got)
	}
	a.belongs(s.h.IDs.Max|s.h.IDs.Mask, nil)
	if s.h.OwnOrder {
		return
	}
	a.ids.none = true
	if got, err := a.Acquire(s.ctx, s.key("web"), a.ids); !errors.Is(err, allocator.ErrExhausted) {
		s.Errorf("without an ID: %+v, %v", got, err)
	}
}

func (s *suite) taken() {
	if s.h.OwnOrder {
		return // what is picked does not matter
	}
	a, b := s.open("192.0.2.1"), s.open("192.0.2.2")
	one := a.acquire(s.key("web"))
	b.ids.first = []allocator.ID{one.ID}
	two := b.acquire(s.key("db"))
	if two.ID == one.ID || !slices.Equal(b.ids.taken, []allocator.ID{one.ID}) {
		s.Errorf("an ID that is taken was picked: got %s, reported as taken %v", two.ID, b.ids.taken)
	}
	a.belongs(one.ID, s.key("web"))
}

// race has allocators on the backends go for the same keys at once: the backend and what the
// allocator does with it make one ID for each.
func (s *suite) race() {
	const nodes, keys = 5, 12
	var all []*allocator.Allocator
	for n := range nodes {
		a, err := allocator.NewAllocator(s.key("any"), s.h.Open(s.T, fmt.Sprint("192.0.2.", n+1)), allocator.WithMin(s.h.IDs.Min), allocator.WithMax(s.h.IDs.Max),
			allocator.WithPrefixMask(s.h.IDs.Mask), allocator.WithMasterKeyProtection())
		if err != nil {
			s.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- a.Run(s.ctx) }()
		defer func() {
			a.Close()
			if err := <-ended; err != nil {
				s.Error(err)
			}
		}()
		all = append(all, a)
	}
	var mu sync.Mutex
	idOf, owner := map[string]allocator.ID{}, map[allocator.ID]string{}
	var wg sync.WaitGroup
	for n, a := range all {
		wg.Go(func() {
			for k := range keys {
				key := s.key(fmt.Sprint("key-", (k+n)%keys))
				id, _, err := a.Allocate(s.ctx, key)
				if err != nil {
					s.Errorf("allocate %s: %v", key, err)
					return
				}
				mu.Lock()
				if have, ok := idOf[key.GetKey()]; ok && have != id {
					s.Errorf("%s is %s and %s", key, have, id)
				}
				if have, ok := owner[id]; ok && have != key.GetKey() {
					s.Errorf("%s is %s and %s", id, have, key)
				}
				idOf[key.GetKey()], owner[id] = id, key.GetKey()
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func (s *suite) release() {
	a, b := s.open("192.0.2.1"), s.open("192.0.2.2")
	web := s.key("web")
	a.must(a.Release(s.ctx, allocator.NoID, web)) // there is none, and that is no fault
	id := a.acquire(web).ID
	a.observes(id, web.GetKey()) // else it could not know of it after the last reference has gone
	b.observes(id, web.GetKey())
	b.acquire(web)
	a.must(a.Release(s.ctx, id, web))
	a.must(a.Release(s.ctx, id, web))
	a.has(web, id) // the other node's
	if wrong := b.wrong(allocator.Reference{ID: id, Key: web}); len(wrong) > 0 {
		s.Errorf("another node's reference is not in order: %v", wrong)
	}
	b.must(b.Release(s.ctx, allocator.NoID, web))
	b.belongs(id, web) // until it is collected
	if s.h.LoseReferences == nil {
		return
	}
	a.has(web, allocator.NoID)
	// A release of another ID than the one that is referred to takes nothing back.
	a.acquire(web)
	a.must(a.Release(s.ctx, id+1, web))
	a.has(web, id)
}

func (s *suite) withdraw() {
	a, b := s.open("192.0.2.1"), s.open("192.0.2.2")
	web := s.key("web")
	got := a.acquire(web)
	a.must(a.Withdraw(s.ctx, web, got))
	a.belongs(got.ID, nil)
	a.observes(got.ID, "")
	a.has(web, allocator.NoID)
	// Others may have observed it, and be cut off now: no other key gets it, by whoever knows
	// nothing of it, as long as another ID is free.
	fresh := s.open("192.0.2.3")
	var conflict *allocator.ConflictError
	if err := fresh.Restore(s.ctx, allocator.Reference{ID: got.ID, Key: s.key("db")}); !errors.As(err, &conflict) || !conflict.Quarantined || conflict.Owner != web.GetKey() {
		s.Errorf("%s, which was withdrawn, is given to another key: %v", got.ID, err)
	}
	fresh.belongs(got.ID, nil)
	// Its own key takes it back.
	fresh.must(fresh.Restore(s.ctx, allocator.Reference{ID: got.ID, Key: web}))
	fresh.belongs(got.ID, web)
	got = a.acquire(web)
	b.observes(got.ID, web.GetKey())
	joined := b.acquire(web)
	if joined.ID != got.ID {
		s.Fatalf("two IDs for %s: %s and %s", web, got.ID, joined.ID)
	}
	b.must(b.Withdraw(s.ctx, web, joined))
	a.belongs(got.ID, web)
	a.has(web, got.ID)
	if wrong := a.wrong(allocator.Reference{ID: got.ID, Key: web}); len(wrong) > 0 {
		s.Errorf("what another node has taken back took this one's reference along: %v", wrong)
	}
}

func (s *suite) restore() {
	a, b := s.open("192.0.2.1"), s.open("192.0.2.2")
	web := s.key("web")
	got := a.acquire(web)
	a.must(a.Withdraw(s.ctx, web, got))
	a.observes(got.ID, "")
	ref := allocator.Reference{ID: got.ID, Key: web}
	if wrong := a.wrong(ref); !slices.Equal(wrong, []allocator.ID{got.ID}) {
		s.Errorf("an ID that is gone is in order")
	}
	a.must(a.Restore(s.ctx, ref))
	a.belongs(got.ID, web)
	a.observes(got.ID, web.GetKey())
	a.must(a.Restore(s.ctx, ref))
	if wrong := a.wrong(ref); len(wrong) > 0 {
		s.Errorf("restored, and not in order: %v", wrong)
	}
	b.has(web, got.ID)
}

func (s *suite) conflict() {
	a, b := s.open("192.0.2.1"), s.open("192.0.2.2")
	web, db := s.key("web"), s.key("db")
	one, two := a.acquire(web).ID, a.acquire(db).ID
	b.observes(one, web.GetKey())
	b.observes(two, db.GetKey())
	var conflict *allocator.ConflictError
	if err := b.Restore(s.ctx, allocator.Reference{ID: one, Key: s.key("other")}); !errors.As(err, &conflict) || conflict.Owner != web.GetKey() {
		s.Errorf("restoring an ID of another key: %v", err)
	}
	conflict = nil
	if err := b.Restore(s.ctx, allocator.Reference{ID: two, Key: web}); !errors.As(err, &conflict) || conflict.Owner != db.GetKey() && conflict.InForce != one {
		s.Errorf("restoring a second ID of a key: %v", err)
	}
	if wrong := b.wrong(allocator.Reference{ID: two, Key: web}); !slices.Equal(wrong, []allocator.ID{two}) {
		s.Error("a reference to another key's ID is in order")
	}
	a.belongs(one, web)
	a.belongs(two, db)
}

func (s *suite) lost() {
	if s.h.LoseReferences == nil {
		return // there are none
	}
	a := s.open("192.0.2.1")
	web := s.key("web")
	id := a.acquire(web).ID
	s.h.LoseReferences(s.T)
	s.until("it is notified that the reference is lost", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Contains(a.lost, web.GetKey())
	})
	ref := allocator.Reference{ID: id, Key: web}
	s.until("the reference is gone", func() bool { return len(a.wrong(ref)) == 1 })
	s.until("the reference is there again", func() bool { return a.Restore(s.ctx, ref) == nil })
	if wrong := a.wrong(ref); len(wrong) > 0 {
		s.Errorf("restored, and not in order: %v", wrong)
	}
	a.belongs(id, web)
}

func (s *suite) watch() {
	a := s.open("192.0.2.1")
	web, db := s.key("web"), s.key("db")
	before := a.acquire(web)
	late := s.open("192.0.2.2")
	late.observes(before.ID, web.GetKey())
	after := a.acquire(db)
	late.observes(after.ID, db.GetKey())
	a.must(a.Withdraw(s.ctx, db, after))
	late.observes(after.ID, "")
	late.stop()
	a.acquire(s.key("unobserved"))
}

func (s *suite) collect() {
	a := s.open("192.0.2.1")
	limit := rate.NewLimiter(rate.Inf, 0)
	used, unused, outside := s.key("used"), s.key("unused"), s.key("outside")
	ids := map[string]allocator.ID{}
	for _, k := range []allocator.AllocatorKey{used, unused, outside} {
		ids[k.GetKey()] = a.acquire(k).ID
	}
	a.must(a.Release(s.ctx, allocator.NoID, unused))
	a.must(a.Release(s.ctx, allocator.NoID, outside))
	round := func(r allocator.Range, previous map[allocator.ID]int64) (map[allocator.ID]int64, allocator.GCStats, error) {
		return a.RunGC(s.ctx, limit, r, previous)
	}
	if s.h.LoseReferences == nil {
		if _, _, err := round(s.h.IDs, nil); err == nil {
			s.Error("IDs are collected by one who does not know who uses them")
		}
		return
	}
	only := func(id allocator.ID) allocator.Range {
		return allocator.Range{Min: id &^ s.h.IDs.Mask, Max: id &^ s.h.IDs.Mask, Mask: s.h.IDs.Mask}
	}
	for _, k := range []allocator.AllocatorKey{used, unused} {
		var dead map[allocator.ID]int64
		for n := range 3 {
			if n == 1 {
				a.belongs(ids[k.GetKey()], k) // seen once is not enough
			}
			var err error
			if dead, _, err = round(only(ids[k.GetKey()]), dead); err != nil {
				s.Fatal(err)
			}
		}
	}
	a.belongs(ids[used.GetKey()], used)
	a.belongs(ids[outside.GetKey()], outside)
	a.belongs(ids[unused.GetKey()], nil)
	a.observes(ids[unused.GetKey()], "")
	if _, _, err := a.RunLocksGC(s.ctx, nil); err != nil {
		s.Error(err)
	}
}

func (s *suite) confirm() {
	a := s.open("192.0.2.1")
	stop := a.ObserveLostConfirmation(func() {})
	defer stop()
	a.must(a.Confirm(s.ctx, 1))
	a.must(a.Confirm(s.ctx, 2))
}

func (s *suite) cancelled() {
	a := s.open("192.0.2.1")
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if got, err := a.Acquire(ctx, s.key("web"), a.ids); !errors.Is(err, context.Canceled) {
		s.Errorf("acquire: %+v, %v", got, err)
	}
	if key, err := a.GetByID(ctx, s.h.IDs.Min|s.h.IDs.Mask); !errors.Is(err, context.Canceled) {
		s.Errorf("get by ID: %v, %v", key, err)
	}
}

func (s *suite) deleteAll() {
	a := s.open("192.0.2.1")
	web := s.key("web")
	id := a.acquire(web).ID
	a.must(a.DeleteAllKeys(s.ctx))
	a.observes(id, "")
	a.belongs(id, nil)
	a.has(web, allocator.NoID)
}
