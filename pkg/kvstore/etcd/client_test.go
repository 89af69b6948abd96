package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

func TestMain(m *testing.M) {
	// The embedded server leaves these behind for the life of the process.
	leaktest.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile"),
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
	)
}

func config(e *kvstoretest.Etcd) etcd.Config {
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{e.Endpoint()}
	cfg.QPS = 0
	cfg.ListLimit = 100 // so that listings have pages
	return cfg
}

func open(t *testing.T, cfg etcd.Config) *etcd.Client {
	t.Helper()
	c := etcd.NewUnchecked(cfg)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestConformance(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	cfg := config(server)
	cfg.LeaseTTL = 3 * time.Second // renewed, and so missed, every second
	conformance.Run(t, conformance.Harness{
		Open: func(*testing.T) kvstore.Backend { return etcd.NewUnchecked(cfg) },
		ExpireLeases: func(t *testing.T, b kvstore.Backend) {
			for _, id := range b.(*etcd.Client).LeaseIDs() {
				if _, err := raw.Revoke(timeout(t, 10*time.Second), id); err != nil {
					t.Fatal(err)
				}
			}
		},
		Compact: func(t *testing.T) {
			resp, err := raw.Get(timeout(t, 10*time.Second), "x")
			if err == nil {
				_, err = raw.Compact(timeout(t, 10*time.Second), resp.Header.Revision, clientv3.WithCompactPhysical())
			}
			if err != nil && !strings.Contains(err.Error(), "compacted") {
				t.Fatal(err)
			}
		},
		BreakWatches: func(_ *testing.T, b kvstore.Backend) { b.(*etcd.Client).BreakWatches() },
	})
}

func TestNewDoesNotWaitForEtcd(t *testing.T) {
	t.Parallel()
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{"unix:///nowhere/etcd.sock"}
	cfg.CheckTimeout = 100 * time.Millisecond
	cfg.MaxQuorumFailures = 0
	c, err := etcd.New(context.Background(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if st := c.Status(); st.State != kvstore.StateConnecting && st.State != kvstore.StateFailed {
		t.Errorf("status at the start: %+v", st)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := c.Get(ctx, "a"); err == nil {
		t.Error("get of a store that is not there succeeded")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("get took %v", took)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for c.Status().State != kvstore.StateFailed {
		select {
		case <-ctx.Done():
			t.Fatalf("status never turned to failed: %+v", c.Status())
		case <-time.After(5 * time.Millisecond):
		}
	}
	if st := c.Status(); st.Healthy() || st.LastError == "" || st.QuorumFailures == 0 {
		t.Errorf("status: %+v", st)
	}
}

// TestLeasedWriteEndsWithItsContext: a store is away, and two writes want a lease of it. The one
// that may wait for long does not hold the other up.
func TestLeasedWriteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{"unix:///nowhere/etcd.sock"}
	c := open(t, cfg)
	long, end := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- kvstore.Put(long, c, "test/a", nil, kvstore.Leased) }()
	time.Sleep(100 * time.Millisecond) // it asks for the lease
	go func() { second <- kvstore.Put(timeout(t, time.Second), c, "test/b", nil, kvstore.Leased) }()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write that waits for a second: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a write that waits for a second has not ended after 20")
	}
	end()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("a write that waits until it is given up: %v", err)
	}
}

func TestSurvivesARestartOfTheStore(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	c := open(t, config(server))
	ctx := timeout(t, time.Minute)
	if err := kvstore.Put(ctx, c, "test/a", []byte("1"), kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	ch := c.Watch(ctx, "test/")
	next := func() kvstore.Event {
		t.Helper()
		select {
		case ev := <-ch:
			return ev
		case <-ctx.Done():
			t.Fatal("no event")
			panic("unreachable")
		}
	}
	if a, b := next(), next(); a.Kind != kvstore.EventCreate || b.Kind != kvstore.EventListDone {
		t.Fatalf("events %v, %v", a, b)
	}
	server.Stop()
	if c.Check(ctx); c.Status().State == kvstore.StateOK {
		t.Errorf("status with the store down: %+v", c.Status())
	}
	server.Start()
	for {
		if err := kvstore.Put(ctx, c, "test/a", []byte("2"), kvstore.Leased); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	if ev := next(); ev.Kind != kvstore.EventModify || string(ev.Value) != "2" {
		t.Fatalf("event after the restart: %v", ev)
	}
	if !c.Check(ctx) || !c.Status().Healthy() {
		t.Errorf("status after the restart: %+v", c.Status())
	}
}

func TestRateLimitHonoursTheContext(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	cfg := config(server)
	cfg.QPS, cfg.BootstrapQPS = 1, 2
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	for range 2 { // the burst
		if err := kvstore.Put(ctx, c, "test/a", nil, kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := c.List(ctx, "test/"); err != nil || len(l.Pairs) != 1 { // it ends the start
		t.Fatal(l, err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := kvstore.Put(short, c, "test/a", nil, kvstore.Permanent); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a request over the limit: %v", err)
	}
}

// TestBootstrapRateEnds: a client that may send much at its start sends no more than the normal
// rate once a watch has delivered what there was, also while it has sent nothing else.
func TestBootstrapRateEnds(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := config(server)
	cfg.QPS, cfg.BootstrapQPS, cfg.ListLimit = 1, 1000, 1
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	for i := range 10 {
		if err := kvstore.Put(ctx, c, fmt.Sprint("test/a/", i), nil, kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	for ev := range c.Watch(ctx, "test/a/") {
		if ev.Kind == kvstore.EventListDone {
			break
		}
	}
	n := 0
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var err error
	for ; err == nil; n++ {
		err = kvstore.Put(short, c, "test/b", nil, kvstore.Permanent)
	}
	if n--; !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("after %d requests: %v", n, err)
	}
	if n > 3 {
		t.Errorf("%d requests in a second; the normal rate is 1", n)
	}
}

// TestListPages reads in pages what a listing reads at once, at one revision.
func TestListPages(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := config(server)
	cfg.ListLimit = 3
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	for i := range 10 {
		if err := kvstore.Put(ctx, c, fmt.Sprint("test/a/", i), []byte{byte(i)}, kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	want, err := c.List(ctx, "test/a/")
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var got []kvstore.KeyValue
	revision, err := kvstore.ListPages(ctx, c, "test/a/", func() { sizes, got = nil, nil }, func(page []kvstore.KeyValue) {
		sizes, got = append(sizes, len(page)), append(got, page...)
		if err := kvstore.Put(ctx, c, fmt.Sprint("test/a/late", len(sizes)), nil, kvstore.Permanent); err != nil {
			t.Error(err)
		}
	})
	if err != nil || revision != want.Revision || fmt.Sprint(sizes) != "[3 3 3 1]" || !reflect.DeepEqual(got, want.Pairs) {
		t.Errorf("pages of %v, revision %d, %v; want %d keys at %d: %v", sizes, revision, err, len(want.Pairs), want.Revision, got)
	}
}

// TestCompactedBetweenPages: a compaction takes away the revision of a listing between two of its
// pages. The listing begins anew, and says so; it gives up if that goes on.
func TestCompactedBetweenPages(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	cfg := config(server)
	cfg.ListLimit = 3
	c := open(t, cfg)
	ctx := timeout(t, time.Minute)
	put := func(key string) {
		t.Helper()
		if err := kvstore.Put(ctx, c, key, nil, kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		put(fmt.Sprint("test/a/", i))
	}
	compact := func() {
		t.Helper()
		put("test/other")
		now, err := raw.Get(ctx, "test/other")
		if err == nil {
			_, err = raw.Compact(ctx, now.Header.Revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		compactions, begins int
		fails               bool
	}{{0, 1, false}, {1, 2, false}, {3, 4, false}, {1000, 6, true}} {
		begins, left := 0, tt.compactions
		var got []kvstore.KeyValue
		revision, err := kvstore.ListPages(ctx, c, "test/a/", func() { begins, got = begins+1, nil }, func(page []kvstore.KeyValue) {
			got = append(got, page...)
			if left > 0 {
				left--
				compact()
			}
		})
		if tt.fails {
			if !errors.Is(err, rpctypes.ErrCompacted) || begins != tt.begins {
				t.Errorf("compacted always: %d listings, %v", begins, err)
			}
			continue
		}
		want, werr := c.List(ctx, "test/a/")
		if err := errors.Join(err, werr); err != nil || begins != tt.begins || revision != want.Revision || !reflect.DeepEqual(got, want.Pairs) {
			t.Errorf("compacted %d times: %d listings, %d of %d keys at revision %d, not %d: %v", tt.compactions, begins, len(got), len(want.Pairs), revision, want.Revision, err)
		}
	}
}
