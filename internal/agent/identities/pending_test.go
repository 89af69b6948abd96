package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// moody is a store that answers after a while, or fails.
type moody struct {
	kvstore.Backend
	mu    sync.Mutex
	delay time.Duration
	err   error
	txns  int
}

func (m *moody) set(delay time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delay, m.err = delay, err
}

func (m *moody) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	m.mu.Lock()
	delay, err := m.delay, m.err
	m.txns++
	m.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return kvstore.TxnResult{}, ctx.Err()
	}
	if err != nil {
		return kvstore.TxnResult{}, err
	}
	return m.Backend.Txn(ctx, txn)
}

// asked returns how many requests came.
func (m *moody) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.txns
}

// logged returns how many warnings of failed requests have all of these in them.
func (s *seeker) logged(words ...string) (n int) {
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "a request for an identity failed") && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// seeker is the identities of a node that makes IDs, on a moody store.
type seeker struct {
	*Identities
	t     *testing.T
	log   *testenv.Log
	store *moody
	stop  func()
}

func newSeeker(t *testing.T, last identity.ID) *seeker {
	t.Helper()
	return newSeekerOn(t, kvstore.NewMemory().Client(), last)
}

// newSeekerOn is newSeeker on a store.
func newSeekerOn(t *testing.T, on kvstore.Backend, last identity.ID) *seeker {
	t.Helper()
	log := &testenv.Log{}
	store := &moody{Backend: on}
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: storekeys.IdentitiesPrefix, Suffix: "192.0.2.1", KeyType: k8sids.Key{}})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := New(Config{
		Log: slog.New(slog.NewTextHandler(log, nil)), Store: b, First: 256, Last: last, Management: identity.ManagedByAgent, Timeout: 2 * time.Minute, SyncInterval: 5 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = ids.RunAllocator(ctx) })
	wg.Go(func() {
		none := sinkFunc(func(map[identity.ID]labels.Set, []identity.ID) error { return nil })
		_ = ids.Run(ctx, none, func() {}, func(labels.Set, identity.ID) {})
	})
	return &seeker{ids, t, log, store, func() {
		cancel()
		wg.Wait()
		ids.Close()
		store.Backend.Close()
	}}
}

func app(name string) labels.Set { return labels.NewSet(labels.New("k8s", "app", name)) }

// acquire returns an identity and how long it took.
func (s *seeker) acquire(set labels.Set) (identity.ID, time.Duration) {
	s.t.Helper()
	began := time.Now()
	id, err := s.Acquire(context.Background(), set)
	if err != nil {
		s.t.Fatal(err)
	}
	return id, time.Since(began)
}

func (s *seeker) give(id identity.ID, set labels.Set) {
	s.t.Helper()
	// The allocator gives back later what it cannot now.
	if err := s.Release(context.Background(), id, set); errors.Is(err, allocator.ErrNotInUse) {
		s.t.Error(err)
	}
}

// references returns how many references to IDs the store has.
func (s *seeker) references() int {
	s.t.Helper()
	l, err := s.store.List(context.Background(), storekeys.IdentitiesPrefix+"/value/")
	if err != nil {
		s.t.Fatal(err)
	}
	return len(l.Pairs)
}

// called reports whether endpoints with temporary identities were asked to look again.
func (s *seeker) called() bool {
	select {
	case <-s.Arrived:
		return true
	default:
		return false
	}
}

// quiet waits until nothing moves any more, and checks that nothing unused is held.
func (s *seeker) quiet() {
	s.t.Helper()
	s.store.set(0, nil)
	time.Sleep(30 * time.Minute) // the allocator looks after what failed
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, m := s.references(), len(s.pending); n != 0 || m != 0 || s.temps.Len() != 0 {
		s.t.Errorf("%d references, %d pending allocations and %d temporary identities are left", n, m, s.temps.Len())
	}
}

// TestPendingOfShortWait: who waits less than the store may take gets a temporary identity, too.
func TestPendingOfShortWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeeker(t, identity.ID(65535))
		defer s.stop()
		s.store.set(20*time.Second, nil)
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout/2)
		defer cancel()
		id, err := s.Acquire(ctx, app("web"))
		if err != nil || !id.IsTemporary() {
			t.Fatalf("%s, %v", id, err)
		}
		s.give(id, app("web"))
		s.quiet()
	})
}

func TestPendingAllocations(t *testing.T) {
	run := func(name string, f func(*testing.T, *seeker)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				last := identity.ID(65535)
				if name == "no ID is free" {
					last = 258
				}
				s := newSeeker(t, last)
				defer s.stop()
				f(t, s)
				s.quiet()
			})
		})
	}
	run("a store that answers", func(t *testing.T, s *seeker) {
		s.store.set(time.Second, nil) // slow, but within the timeout
		id, took := s.acquire(app("web"))
		again, at := s.acquire(app("web"))
		if id.IsTemporary() || again != id || took > waitTimeout || at != 0 {
			t.Errorf("%s after %s, then %s after %s", id, took, again, at)
		}
		s.give(id, app("web"))
		s.give(id, app("web"))
	})
	run("a store that is slow", func(t *testing.T, s *seeker) {
		s.store.set(20*time.Second, nil)
		first, took := s.acquire(app("web"))
		second, at := s.acquire(app("web"))
		if !first.IsTemporary() || second != first || took != waitTimeout || at != 0 {
			t.Errorf("%s after %s, then %s after %s", first, took, second, at)
		}
		s.called()
		for range 3 { // as those do who wait for it; none begins anew
			time.Sleep(4 * time.Second)
			id, took := s.acquire(app("web"))
			if id != first || took != 0 {
				t.Errorf("%s after %s, want %s at once", id, took, first)
			}
			s.give(id, app("web"))
		}
		s.store.mu.Lock()
		if s.store.txns != 1 {
			t.Errorf("%d requests", s.store.txns)
		}
		s.store.mu.Unlock()
		time.Sleep(10 * time.Second)
		if !s.called() {
			t.Error("nothing was notified of the ID")
		}
		var number identity.ID
		for _, temporary := range []identity.ID{first, second} {
			id, took := s.acquire(app("web"))
			if id.IsTemporary() || took != 0 {
				t.Errorf("%s after %s, want the ID at once", id, took)
			}
			s.give(temporary, app("web"))
			number = id
		}
		if n := s.references(); n != 1 {
			t.Errorf("%d references", n)
		}
		s.give(number, app("web"))
		s.give(number, app("web"))
	})
	run("an ID that comes too late", func(t *testing.T, s *seeker) {
		s.store.set(20*time.Second, nil)
		id, _ := s.acquire(app("web"))
		s.give(id, app("web"))
	})
	run("a store that is away", func(t *testing.T, s *seeker) {
		s.store.set(100*time.Hour, nil)
		id, took := s.acquire(app("web"))
		if !id.IsTemporary() || took != waitTimeout {
			t.Errorf("%s after %s", id, took)
		}
		time.Sleep(time.Hour) // requests end, and are begun again
		if same, took := s.acquire(app("web")); same != id || took != 0 {
			t.Errorf("%s after %s, want %s at once", same, took, id)
		}
		s.give(id, app("web"))
		s.store.set(0, nil)
		s.called()
		time.Sleep(time.Hour)
		again, _ := s.acquire(app("web"))
		time.Sleep(time.Minute)
		if !s.called() {
			t.Error("nothing was notified of the ID")
		}
		number, _ := s.acquire(app("web"))
		if number.IsTemporary() {
			t.Errorf("the store is back, and the identity is %s", number)
		}
		for _, x := range []identity.ID{number, again, id, id} {
			s.give(x, app("web"))
		}
	})
	run("a store that fails", func(t *testing.T, s *seeker) {
		s.store.set(0, errors.New("no quorum"))
		id, took := s.acquire(app("web"))
		if !id.IsTemporary() || took > waitTimeout {
			t.Errorf("%s after %s", id, took)
		}
		began := s.store.asked()
		time.Sleep(time.Hour)
		// A request is tried for two minutes, and a minute passes between two at most. The pauses
		// between attempts grow to 5 s.
		if n := s.store.asked() - began; n < 600 || n > 1400 {
			t.Errorf("%d requests within an hour", n)
		}
		if n := s.logged("no quorum", "app=web"); n != 1 {
			t.Errorf("an error that stays is logged %d times:\n%s", n, s.log)
		}
		s.store.set(0, errors.New("permission denied"))
		time.Sleep(5 * time.Minute)
		if n, m := s.logged("permission denied", "app=web"), s.logged("no quorum", "app=web"); n != 1 || m != 1 {
			t.Errorf("an error that changes is logged %d and %d times:\n%s", n, m, s.log)
		}
		if _, why := s.pendingOf(app("web")); why == nil || !strings.Contains(why.Error(), "permission denied") {
			t.Errorf("who does not wait reads %v", why)
		}
		s.give(id, app("web"))
	})
	run("a caller that gives up", func(t *testing.T, s *seeker) {
		s.store.set(20*time.Second, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if id, err := s.Acquire(ctx, app("web")); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, %v", id, err)
		}
	})
	run("no ID is free", func(t *testing.T, s *seeker) {
		for i := range 3 {
			if _, _, err := s.alloc.Allocate(t.Context(), k8sids.Key{Set: app(fmt.Sprint(i))}); err != nil {
				t.Fatal(err)
			}
		}
		if id, err := s.Acquire(t.Context(), app("web")); !errors.Is(err, allocator.ErrExhausted) {
			t.Errorf("%s, %v", id, err)
		}
		for i := range 3 {
			s.give(300, app(fmt.Sprint(i)))
		}
	})
}

// TestPendingAllocationsLeakNothing has endpoints come, go, and get their identities, in a store
// that is slow, away or well: what is unused is released.
func TestPendingAllocationsLeakNothing(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			s := newSeeker(t, 65535)
			defer s.stop()
			var wg sync.WaitGroup
			for e := range 12 {
				r := rand.New(rand.NewPCG(seed, uint64(e)))
				wg.Go(func() {
					for range 6 {
						set := app(fmt.Sprint(r.IntN(3)))
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(60))*time.Second)
						id, err := s.Acquire(ctx, set)
						cancel()
						if err != nil {
							continue
						}
						for range r.IntN(4) { // replaces temporary identities
							time.Sleep(time.Duration(r.IntN(10_000)) * time.Millisecond)
							if now, err := s.Acquire(context.Background(), set); err == nil {
								if id.IsTemporary() {
									id, now = now, id
								}
								s.give(now, set)
							}
						}
						time.Sleep(time.Duration(r.IntN(10_000)) * time.Millisecond)
						s.give(id, set)
					}
				})
			}
			r := rand.New(rand.NewPCG(seed, 99))
			for range 20 {
				s.store.set(time.Duration(r.IntN(8))*time.Second, []error{nil, nil, errors.New("no quorum")}[r.IntN(3)])
				time.Sleep(time.Duration(r.IntN(6000)) * time.Millisecond)
			}
			s.store.set(0, nil)
			wg.Wait()
			s.quiet()
		})
	}
}

// TestTemporaryWithoutSpace: pods start while etcd has no space for writes, with temporary
// identities where they have none yet, and these are replaced when there is room.
func TestTemporaryWithoutSpace(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{server.Endpoint()}
	store, err := etcd.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSeekerOn(t, store, 65535)
	defer s.stop()
	known, _ := s.acquire(app("known"))
	makeRoom := server.UseUpSpace()
	if id, _ := s.acquire(app("known")); id != known {
		t.Errorf("another pod of known labels has identity %d, want %d", id, known)
	}
	id, took := s.acquire(app("new"))
	if !id.IsTemporary() || took > 2*waitTimeout {
		t.Errorf("a pod of new labels has identity %d after %v, want a temporary one", id, took)
	}
	if log := s.log.String(); !strings.Contains(log, "space is exhausted") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	makeRoom()
	for deadline := time.After(time.Minute); ; {
		select {
		case <-s.Arrived: // also that of others
			if id, _ := s.acquire(app("new")); !id.IsTemporary() {
				return
			}
		case <-deadline:
			t.Fatal("the temporary identity is not replaced")
		}
	}
}
