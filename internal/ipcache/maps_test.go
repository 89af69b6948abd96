package ipcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/table"
)

// kernel is a map in memory that counts what is written and fails as configured. A batch that fails
// may have been written in part.
type kernel struct {
	mu              sync.Mutex
	rows            map[netip.Prefix]datapath.IPCacheEntry
	upserts, delets int
	limit           int // rows that fit; 0 is no limit
	fail            error
}

func (k *kernel) UpsertIPCache(entries []datapath.IPCacheEntry) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range entries {
		if k.fail != nil {
			return k.fail
		}
		if _, have := k.rows[e.Prefix]; !have && k.limit > 0 && len(k.rows) >= k.limit {
			return datapath.ErrFull
		}
		k.rows[e.Prefix] = e
		k.upserts++
	}
	return nil
}

func (k *kernel) DeleteIPCache(prefixes []netip.Prefix) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range prefixes {
		if k.fail != nil {
			return k.fail
		}
		delete(k.rows, p)
		k.delets++
	}
	return nil
}

func (k *kernel) IPCache() ([]datapath.IPCacheEntry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		return nil, k.fail
	}
	var all []datapath.IPCacheEntry
	for _, e := range k.rows {
		all = append(all, e)
	}
	return all, nil
}

// is checks what was written, where not negative, and that the map has the cache's rows, if one is
// given.
func (k *kernel) is(t *testing.T, upserts, delets int, c *Cache) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if upserts >= 0 && k.upserts != upserts || delets >= 0 && k.delets != delets {
		t.Errorf("%d upserts and %d deletes, want %d and %d", k.upserts, k.delets, upserts, delets)
	}
	if c != nil && !maps.Equal(k.rows, kernelRows(c)) {
		t.Errorf("kernel has %v, want %v", k.rows, kernelRows(c))
	}
}

// set changes the kernel behind the reconciler's back.
func (k *kernel) set(fn func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fn()
}

func kernelRows(c *Cache) map[netip.Prefix]datapath.IPCacheEntry {
	m := map[netip.Prefix]datapath.IPCacheEntry{}
	for p, e := range c.All() {
		m[p] = Row(p, e, true)
	}
	return m
}

// reconciling runs a reconciler from a cache to a kernel's map in fake time.
func reconciling(t *testing.T, k *kernel, fn func(*testing.T, *Cache, *table.Reconciler[netip.Prefix, Entry])) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		rec, err := table.NewReconciler(table.ReconcilerConfig{Name: "kernel", BatchSize: 8, PruneInterval: time.Hour}, c.Table(), NewMaps(k, true))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = rec.Run(ctx); close(done) }()
		fn(t, c, rec)
		cancel()
		<-done
	})
}

func remote(i int) (netip.Prefix, Claim) {
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	return p, Claim{
		Source: KVStore, Identity: identity.ID(256 + i%5000), Host: netip.AddrFrom4([4]byte{192, 0, byte(i >> 14), byte(i>>8) & 63}),
		Namespace: fmt.Sprintf("namespace-%d", i%50), Pod: fmt.Sprintf("frontend-%09x-%05x", i/7, i), ServiceAccount: "default",
		NamedPorts: []NamedPort{{"http", 8080, "TCP"}},
	}
}

func TestRestartTouchesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	k := &kernel{rows: map[netip.Prefix]datapath.IPCacheEntry{}}
	fill := func(c *Cache, from, to int) (rev uint64) {
		for i := from; i < to; i++ {
			p, cl := remote(i)
			r, err := c.Upsert(p, cl)
			if err != nil {
				t.Fatal(err)
			}
			rev = r
		}
		return rev
	}
	reconciling(t, k, func(t *testing.T, c *Cache, rec *table.Reconciler[netip.Prefix, Entry]) {
		if err := rec.WaitAll(t.Context(), fill(c, 0, 100)); err != nil {
			t.Fatal(err)
		}
		if err := rec.WaitPruned(t.Context()); err != nil {
			t.Error(err)
		}
		k.is(t, 100, 0, c)
	})
	// The next agent knows 10 more and 10 less.
	k.upserts = 0
	reconciling(t, k, func(t *testing.T, c *Cache, rec *table.Reconciler[netip.Prefix, Entry]) {
		if err := rec.WaitAll(t.Context(), fill(c, 10, 110)); err != nil {
			t.Fatal(err)
		}
		k.is(t, 10, 0, nil) // nothing may go before it is pruned
		if err := rec.WaitPruned(t.Context()); err != nil {
			t.Error(err)
		}
		k.is(t, 10, 10, c)
		// Someone else spoils the map: the next regular Prune repairs it.
		p, _ := remote(50)
		q, _ := remote(51)
		k.set(func() {
			delete(k.rows, p)
			k.rows[q] = datapath.IPCacheEntry{Prefix: q, Identity: 1}
			k.rows[pfx("1.1.1.1/32")] = datapath.IPCacheEntry{Prefix: pfx("1.1.1.1/32"), Identity: 1}
		})
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		k.is(t, 12, 11, c)
	})
}

func TestFullMap(t *testing.T) {
	t.Parallel()
	k := &kernel{rows: map[netip.Prefix]datapath.IPCacheEntry{}, limit: 20}
	reconciling(t, k, func(t *testing.T, c *Cache, rec *table.Reconciler[netip.Prefix, Entry]) {
		for i := range 30 {
			if _, err := c.Upsert(remote(i)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if s := rec.Summary(); s.Done != 20 || s.Failed != 10 {
			t.Errorf("%+v", s)
		}
		for p, s := range rec.Failing() {
			if !errors.Is(s.Err, datapath.ErrFull) {
				t.Errorf("%v: %v", p, s.Err)
			}
		}
		for i := range 10 {
			p, _ := remote(i)
			c.Delete(p, KVStore, "")
		}
		time.Sleep(time.Minute)
		if s := rec.Summary(); s.Done != 20 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
		k.is(t, -1, 10, c)
	})
}

// TestFullMapIsPruned: what is left of before goes although there is no room for all that is
// wanted, and so makes room.
func TestFullMapIsPruned(t *testing.T) {
	t.Parallel()
	for _, wanted := range []int{20, 25} {
		k := &kernel{rows: map[netip.Prefix]datapath.IPCacheEntry{}, limit: 20}
		for i := range 20 {
			p, _ := remote(1000 + i)
			k.rows[p] = datapath.IPCacheEntry{Prefix: p, Identity: 700}
		}
		reconciling(t, k, func(t *testing.T, c *Cache, rec *table.Reconciler[netip.Prefix, Entry]) {
			for i := range wanted {
				if _, err := c.Upsert(remote(i)); err != nil {
					t.Fatal(err)
				}
			}
			rec.Prune()
			time.Sleep(time.Minute)
			if s := rec.Summary(); s.Done != 20 || s.Failed != wanted-20 {
				t.Errorf("%d wanted: %+v", wanted, s)
			}
			k.set(func() {
				for p, e := range k.rows {
					if e.Identity == 700 {
						t.Errorf("%d wanted: %s of before is there", wanted, p)
					}
				}
			})
		})
	}
}

// TestKernelConverges makes random claims with a map that fails at times, and restarts.
func TestKernelConverges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		k := &kernel{rows: map[netip.Prefix]datapath.IPCacheEntry{}}
		for range 3 { // agents, one after the other
			k.fail = nil
			reconciling(t, k, func(t *testing.T, c *Cache, rec *table.Reconciler[netip.Prefix, Entry]) {
				for step := range 200 {
					p, cl := remote(r.IntN(40))
					switch r.IntN(8) {
					case 0, 1, 2, 3:
						cl.Identity = identity.ID(256 + r.IntN(3))
						if _, err := c.Upsert(p, cl); err != nil {
							t.Fatal(err)
						}
					case 4, 5:
						c.Delete(p, KVStore, "")
					case 6:
						time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
						k.set(func() {
							if k.fail = nil; r.IntN(2) == 0 {
								k.fail = errors.New("kernel says no")
							}
						})
					case 7:
						if step > 100 {
							rec.Prune()
						}
					}
				}
				k.set(func() { k.fail = nil })
				if err := rec.WaitPruned(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := rec.WaitAll(t.Context(), c.Table().Revision()); err != nil {
					t.Fatal(err)
				}
				k.is(t, -1, -1, c)
				if t.Failed() {
					t.Fatalf("with seed %d", seed)
				}
			})
		}
	}
}

// BenchmarkMemory reports the heap that one remote pod costs, with its metadata and an
// idle reconciler.
func BenchmarkMemory(b *testing.B) {
	const pods = 100_000
	var per float64
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&before)
		c := New()
		for i := range pods {
			if _, err := c.Upsert(remote(i)); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(c)
		per = float64(after.HeapAlloc-before.HeapAlloc) / pods
	}
	b.ReportMetric(per, "B/pod")
	b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/pods, "ns/pod")
}

func BenchmarkLookup(b *testing.B) {
	c := New()
	for i := range 100_000 {
		if _, err := c.Upsert(remote(i)); err != nil {
			b.Fatal(err)
		}
	}
	_, _ = c.Upsert(pfx("10.0.0.0/8"), Claim{Source: Generated, Identity: 1})
	_, _ = c.Upsert(pfx("10.128.0.0/16"), Claim{Source: PodCIDR, Identity: 3})
	a := ip("10.128.0.1")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := c.Lookup(a); !ok {
			b.Fatal("not found")
		}
	}
}
