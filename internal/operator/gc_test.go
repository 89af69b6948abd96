package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// somePods use an ID, from some time on, and until some time.
type somePods struct {
	mu    sync.Mutex
	known bool
	used  identity.ID
}

func (p *somePods) Users(context.Context, []identity.ID) (func(identity.ID) bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := p.used
	if !p.known {
		return nil, errors.New("not known yet")
	}
	return func(id identity.ID) bool { return id == used }, nil
}

func (p *somePods) set(known bool, used identity.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.used = known, used
}

// TestUsedWithoutReference collects in a store without a reference to any ID: what pods use, or
// an address has, stays, and so does everything as long as the pods are not known.
func TestUsedWithoutReference(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cfg := c.config()
	cfg.HeartbeatTimeout = 0
	o, err := New(cfg, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	store, ids, err := o.openStore(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pod, address, free := o.first, o.first+1, o.first+2
	for _, id := range []identity.ID{pod, address, free} {
		c.must(kvstore.Put(c.ctx, store, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, id), fmt.Appendf(nil, "k8s:app=%d;", id), kvstore.Permanent))
	}
	place := kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace, "10.0.0.1")
	c.must(kvstore.Put(c.ctx, store, place, fmt.Appendf(nil, `{"IP":"10.0.0.1","HostIP":"192.0.2.1","ID":%d}`, address), kvstore.Permanent))

	pods := &somePods{used: pod}
	looked := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = o.collectIdentities(ctx, store, ids, rate.NewLimiter(rate.Inf, 1), func(ctx context.Context, numbers []allocator.ID) (func(allocator.ID) bool, error) {
			looked <- struct{}{}
			return usersOfKeys(ctx, store, pods, numbers)
		})
	}()
	defer func() { cancel(); <-done }()
	look := func(n int) {
		for range n {
			select {
			case <-looked:
			case <-c.ctx.Done():
				t.Fatal("the collector does not run")
			}
		}
	}
	left := func() (out []string) {
		l, err := store.List(c.ctx, storekeys.IdentitiesPrefix+"/id/")
		c.must(err)
		for _, kv := range l.Pairs {
			out = append(out, kv.Key[len(storekeys.IdentitiesPrefix+"/id/"):])
		}
		return out
	}
	want := func(when string, ids ...identity.ID) {
		t.Helper()
		var names []string
		for _, id := range ids {
			names = append(names, fmt.Sprint(uint32(id)))
		}
		if got := left(); fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("%s there are %v, want %v", when, got, names)
		}
	}
	look(4)
	want("while pods are not known", pod, address, free)
	pods.set(true, pod)
	c.eventually(func() string {
		if n := len(left()); n != 2 {
			return fmt.Sprintf("%d identities", n)
		}
		return ""
	})
	want("when pods are known", pod, address)
	for len(looked) > 0 {
		<-looked
	}
	look(5)
	want("five looks later", pod, address)
	pods.set(true, 0)
	c.must(kvstore.Delete(c.ctx, store, place))
	c.eventually(func() string {
		if n := len(left()); n != 0 {
			return fmt.Sprintf("%d unused identities", n)
		}
		return ""
	})
}

// TestUnusedKeysAreSpared collects where the operator makes identities: what is unused goes when
// it was unused for the heartbeat timeout, at once if hardly any ID is free.
func TestUnusedKeysAreSpared(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cfg := c.config()
	cfg.HeartbeatTimeout = time.Hour
	o, err := New(cfg, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	store, ids, err := o.openStore(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	c.must(kvstore.Put(c.ctx, store, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, o.first), []byte("k8s:app=job;"), kvstore.Permanent))
	there := func() bool {
		_, err := store.Get(c.ctx, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, o.first))
		return err == nil
	}
	// rounds has some rounds go by, or waits until the ID is gone.
	rounds := func(n int) {
		ctx, cancel := context.WithCancel(c.ctx)
		done, looked := make(chan struct{}), make(chan struct{}, 100)
		go func() {
			defer close(done)
			_ = o.collectIdentities(ctx, store, ids, rate.NewLimiter(rate.Inf, 1), func(context.Context, []allocator.ID) (func(allocator.ID) bool, error) {
				looked <- struct{}{}
				return func(allocator.ID) bool { return false }, nil
			})
		}()
		defer func() { cancel(); <-done }()
		for range n {
			select {
			case <-looked:
			case <-c.ctx.Done():
				t.Fatal("the collector does not run")
			}
		}
	}
	if rounds(4); !there() {
		t.Error("it was collected within the timeout")
	}
	o.last = o.first // all IDs are taken
	if rounds(4); there() {
		t.Error("it was not collected though no ID is free")
	}
	c.must(kvstore.Put(c.ctx, store, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, o.first), []byte("k8s:app=job;"), kvstore.Permanent))
	o.last, o.cfg.HeartbeatTimeout = o.first+1000, 2*time.Second
	if rounds(6); there() {
		t.Error("it was not collected after the timeout")
	}
}

// collector returns a store in memory with so many unreferenced identities, from the first
// ID on, and what collects them.
func collector(t *testing.T, o *Operator, n int) (*kvstore.MemoryClient, *allocator.Allocator) {
	t.Helper()
	store := kvstore.NewMemory().Client()
	t.Cleanup(func() { store.Close() })
	for id := o.first; id < o.first+identity.ID(n); id++ {
		err := kvstore.Put(t.Context(), store, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, id), fmt.Appendf(nil, "k8s:app=%d;", id), kvstore.Permanent)
		if err != nil {
			t.Fatal(err)
		}
	}
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: storekeys.IdentitiesPrefix, KeyType: k8sids.Key{}})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := allocator.NewAllocatorForGC(backend, allocator.WithMin(allocator.ID(o.first)), allocator.WithMax(allocator.ID(o.last)))
	if err != nil {
		t.Fatal(err)
	}
	return store, ids
}

// TestUnusedKeysOfAgentsAreSpared is the same where agents make identities, and only they know
// who uses them: one that no agent refers to any more ends after the timeout, however often is
// looked, and at once if hardly any ID is free.
func TestUnusedKeysOfAgentsAreSpared(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		grace time.Duration
		full  bool
		ends  bool
	}{
		"within the timeout": {grace: time.Hour},
		"after the timeout":  {grace: time.Second, ends: true},
		"no ID is free":      {grace: time.Hour, full: true, ends: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cfg := Defaults()
			cfg.Store.Kind, cfg.Store.Options = "etcd", map[string]string{"etcd.address": "http://127.0.0.1:1"} // not asked
			o, err := New(cfg, nil, "test")
			if err != nil {
				t.Fatal(err)
			}
			o.cfg.GCInterval, o.cfg.HeartbeatTimeout = 10*time.Millisecond, tt.grace
			if tt.full {
				o.last = o.first
			}
			store, ids := collector(t, o, 1)
			var looks atomic.Int64
			store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
				if call.Op == "list" && call.Key == storekeys.IdentitiesPrefix+"/id/" {
					looks.Add(1)
				}
				return nil, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = o.collectIdentities(ctx, store, ids, o.gcLimiter(storeRate), nil)
			}()
			defer func() { cancel(); <-done }()
			there := func() bool {
				_, err := store.Get(ctx, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, o.first))
				return !errors.Is(err, kvstore.ErrNotFound)
			}
			controllers.Eventually(t, 3*time.Minute, func() string {
				if n := looks.Load(); n < 6 || tt.ends && there() {
					return fmt.Sprintf("%d looks; it is there: %t", n, there())
				}
				return ""
			})
			if !tt.ends && !there() {
				t.Error("it was collected within the timeout")
			}
		})
	}
}

// TestFailedRoundsResetNothing has every second round fail: what is unused goes after its grace all
// the same, and at once if hardly any ID is free.
func TestFailedRoundsResetNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what  string
		grace time.Duration
		full  bool
	}{
		{"after the grace", 500 * time.Millisecond, false},
		{"no ID is free", time.Hour, true},
	} {
		for _, failing := range []string{"/id/", "/value/"} {
			t.Run(tt.what+failing, func(t *testing.T) {
				t.Parallel()
				cfg := Defaults()
				cfg.Store.Kind, cfg.Store.Options = "etcd", map[string]string{"etcd.address": "http://127.0.0.1:1"} // not asked
				cfg.ClusterName, cfg.ClusterID = "c7", 7
				o, err := New(cfg, nil, "test")
				if err != nil {
					t.Fatal(err)
				}
				o.cfg.GCInterval, o.cfg.HeartbeatTimeout = 10*time.Millisecond, tt.grace
				if tt.full {
					o.last = o.first + 3
				}
				store, ids := collector(t, o, 4)
				master := fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, o.first)
				var rounds atomic.Int64
				store.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
					if rounds.Load()%2 == 0 && call.Op == "list" && call.Key == storekeys.IdentitiesPrefix+failing {
						return errors.New("not now"), nil
					}
					return nil, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = o.collectIdentities(ctx, store, ids, rate.NewLimiter(rate.Inf, 1), func(context.Context, []allocator.ID) (func(allocator.ID) bool, error) {
						rounds.Add(1)
						return func(allocator.ID) bool { return false }, nil
					})
				}()
				defer func() { cancel(); <-done }()
				controllers.Eventually(t, 3*time.Minute, func() string {
					if _, err := store.Get(ctx, master); !errors.Is(err, kvstore.ErrNotFound) {
						return fmt.Sprintf("after %d rounds it is still there: %v", rounds.Load(), err)
					}
					return ""
				})
			})
		}
	}
}
