package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// cluster is what the objects of a cluster stand for, and leaders that write it.
type cluster struct {
	*testing.T
	open func() kvstore.Backend
	read kvstore.Backend

	mu  sync.Mutex
	all map[string]export
}

func (c *cluster) set(object, key, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[object] = export{1, map[string]string{key: value}}
}

// lead starts an operator that leads, until stop is called.
func (c *cluster) lead(kind, prefix string, permanent bool) (m *mirror, stop func()) {
	c.Helper()
	return c.leadWith(mirrorConfig{kind: kind, prefix: prefix, permanent: permanent}, c.open(), slog.New(slog.DiscardHandler), nil)
}

// leadWith is lead with a store and a log. before, if not nil, is called before the mirror runs.
func (c *cluster) leadWith(cfg mirrorConfig, backend kvstore.Backend, log *slog.Logger, before func(*mirror)) (m *mirror, stop func()) {
	c.Helper()
	cfg.cluster = "c1"
	m, err := newMirror(cfg, backend, log)
	if err != nil {
		c.Fatal(err)
	}
	m.all = func(context.Context) (map[string]export, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return maps.Clone(c.all), nil
	}
	if before != nil {
		before(m)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.Error(err)
		}
		_ = backend.Close()
	})
	c.Cleanup(stop)
	return m, stop
}

// until waits for a condition and returns how long that took.
func (c *cluster) until(within time.Duration, what string, ok func() bool) time.Duration {
	c.Helper()
	began := time.Now()
	controllers.Eventually(c.T, within, func() string {
		if !ok() {
			return what
		}
		return ""
	})
	return time.Since(began)
}

func (c *cluster) pairs(prefix string) []kvstore.KeyValue {
	c.Helper()
	l, err := c.read.List(c.Context(), prefix)
	if err != nil {
		c.Fatal(err)
	}
	return l.Pairs
}

// TestFailover: another operator leads, and finds tens of thousands of keys as they should be. A
// new pod does not wait behind them, all of them are on the new leader's lease soon, and keys
// without a lease are not written again.
func TestFailover(t *testing.T) {
	t.Parallel()
	const n = 20_000
	server := kvstoretest.StartEtcd(t)
	c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend {
		cfg := storedial.Defaults()
		cfg.Kind, cfg.Options = "etcd", map[string]string{"etcd.address": server.Endpoint()}
		b, err := storedial.Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}}
	c.read = c.open()
	t.Cleanup(func() { _ = c.read.Close() })
	const prefix = "cilium/state/ip/v1/default"
	for i := range n {
		c.set(fmt.Sprintf("endpoint %05d", i), fmt.Sprintf("10.%d.%d.%d", i/62500, i/250%250, i%250), fmt.Sprintf(`{"IP":"10.0.0.1","HostIP":"192.0.2.1","ID":%d}`, 196608+i))
	}
	_, stop := c.lead("addresses", prefix, false)
	complete := func() bool { return len(c.pairs("cilium/synced/c1/")) == 1 }
	first := c.until(2*time.Minute, "the first leader has not written everything", complete)
	leases := func() map[string]int {
		out := map[string]int{}
		for _, kv := range c.pairs(prefix + "/") {
			out[kv.Lease]++
		}
		return out
	}
	before := leases()
	stop()
	if err := kvstore.DeletePrefix(t.Context(), c.read, "cilium/synced/"); err != nil {
		t.Fatal(err)
	}

	m, _ := c.lead("addresses", prefix, false)
	c.until(time.Minute, "the second leader has not begun", func() bool { pending, _ := m.left(); return pending > n/2 })
	registry := prometheus.NewRegistry()
	registry.MustRegister(&exporter{mirrors: []*mirror{m}})
	if got := measured(t, registry); got["pending_keys addresses"] < n/4 || got["complete_timestamp_seconds addresses"] != 0 {
		t.Errorf("the metrics of a leader that has begun: %v", got)
	}
	if err := m.update("endpoint new", func() (export, error) { return export{2, map[string]string{"10.200.0.1": "new"}}, nil }); err != nil {
		t.Fatal(err)
	}
	c.set("endpoint new", "10.200.0.1", "new")
	delay := c.until(time.Minute, "a new pod is not exported", func() bool { _, err := c.read.Get(t.Context(), prefix+"/10.200.0.1"); return err == nil })
	pending, _ := m.left()
	second := c.until(2*time.Minute, "the second leader has not written everything", complete)
	t.Logf("%d keys: written first in %v, by the next leader in %v; a new pod is written after %v, with %d keys still waiting", n, first, delay+second, delay, pending)
	if pending < n/10 {
		t.Errorf("a new pod was written behind all but %d of %d keys that had not changed", pending, n)
	}
	for lease, count := range leases() {
		if before[lease] > 0 {
			t.Errorf("%d keys are on a lease of the former leader", count)
		}
	}
	if got := len(c.pairs(prefix + "/")); got != n+1 {
		t.Errorf("there are %d keys, want %d", got, n+1)
	}
}

// TestFailoverPermanent: identities have no lease. The next leader leaves what is as it should be
// alone, and writes the rest.
func TestFailoverPermanent(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend { return mem.Client() }}
	c.read = c.open()
	const prefix = "cilium/state/identities/v1/id"
	for i := range 1000 {
		c.set(fmt.Sprint("identity ", i), fmt.Sprint(196608+i), fmt.Sprintf("k8s:app=%d;", i))
	}
	complete := func() bool { return len(c.pairs("cilium/synced/c1/")) == 1 }
	_, stop := c.lead("identities", prefix, true)
	c.until(time.Minute, "the first leader has not written everything", complete)
	stop()
	revisions := map[string]int64{}
	for _, kv := range c.pairs(prefix + "/") {
		revisions[kv.Key] = kv.ModRevision
	}
	for _, key := range []string{prefix + "/196608", "cilium/synced/c1/cilium/state/identities/v1"} {
		if err := kvstore.Delete(t.Context(), c.read, key); err != nil {
			t.Fatal(err)
		}
	}
	if err := kvstore.Put(t.Context(), c.read, prefix+"/196609", []byte("k8s:app=forged;"), kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	c.lead("identities", prefix, true)
	c.until(time.Minute, "the second leader has not written everything", complete)
	again := 0
	for _, kv := range c.pairs(prefix + "/") {
		if kv.ModRevision != revisions[kv.Key] {
			again++
		}
		if strings.Contains(string(kv.Value), "forged") {
			t.Errorf("%s is %s", kv.Key, kv.Value)
		}
	}
	if again != 2 || len(c.pairs(prefix+"/")) != 1000 {
		t.Errorf("%d keys were written again, want the 2 that were not as they should be; there are %d", again, len(c.pairs(prefix+"/")))
	}
	// A client deletes one that this leader has not written.
	if err := kvstore.Delete(t.Context(), c.read, prefix+"/196700"); err != nil {
		t.Fatal(err)
	}
	c.until(time.Minute, "a key that a client has deleted is not back", func() bool { return len(c.pairs(prefix+"/")) == 1000 })
}

// TestCanaryLost: the lease of the canary is lost. It is back when everything else is.
func TestCanaryLost(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend { return mem.Client() }}
	c.read = c.open()
	for i := range 200 {
		c.set(fmt.Sprint("service ", i), fmt.Sprint("shop/", i), "{}")
	}
	const prefix = "cilium/state/services/v1/c1"
	complete := func() bool { return len(c.pairs("cilium/synced/c1/")) == 1 }
	m, _ := c.lead("services", prefix, false)
	c.until(time.Minute, "not everything is written", complete)
	backend, ok := m.backend.(*kvstore.MemoryClient)
	if !ok {
		t.Fatalf("the store is a %T", m.backend)
	}
	backend.ExpireLeases()
	c.until(time.Minute, "the canary is not back", complete)
	if got := len(c.pairs(prefix + "/")); got != 200 {
		t.Errorf("the canary is back, and %d of 200 keys are", got)
	}
}

// TestForeignStore: the store is another cluster's. Nothing is written into it or removed, until it
// is this cluster's.
func TestForeignStore(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend { return mem.Client() }}
	c.read = c.open()
	put := func(key, value string) {
		t.Helper()
		if err := kvstore.Put(t.Context(), c.read, key, []byte(value), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	put("cilium/cluster-config/c0", `{"id":7,"capabilities":{"cached":true}}`) // a mirror of another one
	put("cilium/cluster-config/c2", `{"id":2}`)
	put("cilium/cluster-config/c1", `{"id":1}`)
	put("cilium/state/services/v1/c1/shop/left", "{}")
	c.set("service web", "shop/web", "{}")
	_, stop := c.lead("services", "cilium/state/services/v1/c1", false)
	time.Sleep(500 * time.Millisecond)
	if got := c.pairs("cilium/state/"); len(got) != 1 {
		t.Errorf("in another cluster's store: %v", got)
	}
	stop()
	if err := kvstore.Delete(t.Context(), c.read, "cilium/cluster-config/c2"); err != nil {
		t.Fatal(err)
	}
	c.lead("services", "cilium/state/services/v1/c1", false)
	c.until(time.Minute, "nothing is written into the cluster's own store", func() bool {
		got := c.pairs("cilium/state/")
		return len(got) == 1 && strings.HasSuffix(got[0].Key, "/shop/web")
	})
}
