package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// counted counts the requests of a connection.
type counted struct {
	kvstore.Backend
	txns, lists atomic.Int64
	// hold, if set, keeps transactions waiting until it is closed.
	hold atomic.Pointer[chan struct{}]
	// refuse has every request fail; watches go on.
	refuse atomic.Bool
}

func (c *counted) List(ctx context.Context, prefix string) (kvstore.Listing, error) {
	c.lists.Add(1)
	if c.refuse.Load() {
		return kvstore.Listing{}, errors.New("the test refuses")
	}
	return c.Backend.List(ctx, prefix)
}

func (c *counted) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	c.txns.Add(1)
	if wait := c.hold.Load(); wait != nil {
		select {
		case <-*wait:
		case <-ctx.Done():
			return kvstore.TxnResult{}, ctx.Err()
		}
	}
	if c.refuse.Load() {
		return kvstore.TxnResult{}, errors.New("the test refuses")
	}
	return c.Backend.Txn(ctx, txn)
}

// etcdNode starts an allocator with a connection of its own to a real etcd, and waits until it
// knows all IDs.
func etcdNode(t *testing.T, server *kvstoretest.Etcd, name string, opts ...allocator.AllocatorOption) (*allocator.Allocator, *counted) {
	t.Helper()
	a, store := startEtcdNode(t, server, name, false, opts...)
	if err := a.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a, store
}

// startEtcdNode is etcdNode, does not wait, and may have requests refused from the start.
func startEtcdNode(t *testing.T, server *kvstoretest.Etcd, name string, refuse bool, opts ...allocator.AllocatorOption) (*allocator.Allocator, *counted) {
	t.Helper()
	return startEtcdNodeAt(t, server.Endpoint(), name, refuse, opts...)
}

// startEtcdNodeAt is startEtcdNode with the address, as of a proxy.
func startEtcdNodeAt(t *testing.T, endpoint, name string, refuse bool, opts ...allocator.AllocatorOption) (*allocator.Allocator, *counted) {
	t.Helper()
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{endpoint}, 0
	cfg.CheckInterval = time.Second // how soon a store that went back in time is noticed when nothing else is asked of it
	client, err := etcd.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	store := &counted{Backend: client}
	store.refuse.Store(refuse)
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: base, Suffix: name, KeyType: allocator.StringKey(""),
	})
	if err != nil {
		t.Fatal(err)
	}
	opts = append([]allocator.AllocatorOption{allocator.WithMin(256), allocator.WithMax(65535)}, opts...)
	a, err := allocator.NewAllocator(allocator.StringKey(""), be, opts...)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	t.Cleanup(func() {
		a.Close()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := client.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return a, store
}

// Sixty-four nodes race for five hundred keys on a real etcd: each key has exactly one ID, and
// each ID one key. Every node takes some of the keys, in groups that go for the same ones at
// the same time.
func TestEtcdRace(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	nodes, keys, each := 64, 500, 60
	switch {
	case testing.Short():
		nodes, keys, each = 8, 100, 50
	case os.Getenv("HAWSER_LONG") != "":
		each = keys
	}
	all := make([]*allocator.Allocator, nodes)
	for n := range all {
		all[n], _ = etcdNode(t, server, fmt.Sprintf("192.0.2.%d", n))
	}
	ids := make([][]allocator.ID, nodes)
	var made sync.Map
	var wg sync.WaitGroup
	start := time.Now()
	for n, a := range all {
		ids[n] = make([]allocator.ID, keys)
		wg.Go(func() {
			order := rand.New(rand.NewPCG(1, uint64(n/8))).Perm(keys)
			for _, k := range order[:each] {
				key := allocator.StringKey(fmt.Sprintf("k8s:app=%d;k8s:io.kubernetes.pod.namespace=ns;", k))
				id, isNew, err := a.Allocate(t.Context(), key)
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				ids[n][k] = id
				if isNew {
					if _, twice := made.LoadOrStore(key, true); twice {
						t.Errorf("%s was made twice", key)
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d nodes x %d of %d keys in %v", nodes, each, keys, time.Since(start))
	owner, idOf, references := map[allocator.ID]int{}, map[int]allocator.ID{}, 0
	for n := range nodes {
		for k, id := range ids[n] {
			if id == allocator.NoID {
				continue
			}
			references++
			if have, ok := idOf[k]; ok && have != id {
				t.Fatalf("key %d is %d on node %d and %d elsewhere", k, id, n, have)
			}
			if o, ok := owner[id]; ok && o != k {
				t.Fatalf("ID %d belongs to keys %d and %d", id, o, k)
			}
			idOf[k], owner[id] = id, k
		}
	}
	raw := server.Client()
	for prefix, want := range map[string]int{"/id/": len(idOf), "/value/": references} {
		l, err := raw.Get(t.Context(), base+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || int(l.Count) != want {
			t.Errorf("%d keys under %s, want %d, %v", l.Count, prefix, want, err)
		}
	}
}

// On etcd, too, a new key is one transaction and a key in use none.
func TestEtcdRoundTrips(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	a, store := etcdNode(t, server, "192.0.2.1")
	const keys = 50
	for round, want := range []int64{keys, 0} {
		before := store.txns.Load()
		for k := range keys {
			if _, _, err := a.Allocate(t.Context(), allocator.StringKey(fmt.Sprint("key-", k))); err != nil {
				t.Fatal(err)
			}
		}
		if got := store.txns.Load() - before; got != want {
			t.Errorf("round %d: %d transactions for %d keys, want %d", round, got, keys, want)
		}
	}
}

// After the store has been emptied and restarted, what is in use is there again with the same
// IDs.
func TestEtcdLosesItsData(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	a, _ := etcdNode(t, server, "192.0.2.1")
	ids := map[string]allocator.ID{}
	for k := range 20 {
		key := fmt.Sprint("key-", k)
		id, _, err := a.Allocate(t.Context(), allocator.StringKey(key))
		if err != nil {
			t.Fatal(err)
		}
		ids[key] = id
	}
	server.Stop()
	if err := os.RemoveAll(filepath.Join(filepath.Dir(strings.TrimPrefix(server.Endpoint(), "unix://")), "data")); err != nil {
		t.Fatal(err)
	}
	server.Start()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	raw := server.Client()
	for key, id := range ids {
		for {
			m, err := raw.Get(ctx, fmt.Sprintf("%s/id/%s", base, id))
			r, rerr := raw.Get(ctx, base+"/value/"+key+"/192.0.2.1")
			if err == nil && rerr == nil && len(m.Kvs) == 1 && string(m.Kvs[0].Value) == key && len(r.Kvs) == 1 && string(r.Kvs[0].Value) == id.String() {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s = %s is not back", key, id)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// TestEtcdNoSpace: a node that cannot write its references, because the store has no space, keeps
// the IDs that it uses. Nothing is collected meanwhile, and nothing at once afterwards; what only
// deletes goes on.
func TestEtcdNoSpace(t *testing.T) {
	for _, quarantine := range []time.Duration{0, time.Nanosecond} {
		t.Run(quarantine.String(), func(t *testing.T) {
			t.Parallel()
			server := kvstoretest.StartEtcd(t)
			n, store := etcdNode(t, server, "192.0.2.1")
			id, _, err := n.Allocate(t.Context(), allocator.StringKey("used"))
			if err != nil {
				t.Fatal(err)
			}
			cfg := etcd.Defaults()
			cfg.Endpoints, cfg.QPS, cfg.CheckInterval, cfg.FailingCheckInterval = []string{server.Endpoint()}, 0, 100*time.Millisecond, 100*time.Millisecond
			client, err := etcd.New(t.Context(), cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			gc, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: client, BasePath: base, KeyType: allocator.StringKey(""), Quarantine: quarantine})
			if err != nil {
				t.Fatal(err)
			}
			if quarantine > 0 {
				put(t, client, "/quarantine/300", time.Now().Format(time.RFC3339))
			}
			var seen map[allocator.ID]int64
			round := func() (allocator.GCStats, error) {
				next, stats, err := gc.RunGC(t.Context(), nil, allocator.Range{Min: 256, Max: 65535}, seen)
				seen = next
				return stats, err
			}
			if stats, err := round(); err != nil || stats.Alive != 1 {
				t.Fatalf("%+v, %v", stats, err)
			}
			makeRoom := server.UseUpSpace()
			server.ExpireLeases(t)
			eventually(t, "the client sees that the store is full", func() bool { return client.Status().Full })
			freed := 0
			for range 3 {
				stats, err := round()
				if !errors.Is(err, kvstore.ErrNoSpace) || stats.Deleted != 0 {
					t.Errorf("a round in a full store: %+v, %v", stats, err)
				}
				freed += stats.Freed
			}
			if want := min(1, int(quarantine)); freed != want {
				t.Errorf("%d quarantines ended in a full store, want %d", freed, want)
			}
			if _, err := store.Get(t.Context(), base+"/id/"+id.String()); err != nil {
				t.Errorf("an ID in use: %v", err)
			}
			if got, _, err := n.Allocate(t.Context(), allocator.StringKey("used")); err != nil || got != id {
				t.Errorf("once more the ID that the node uses: %d, %v; want %d", got, err, id)
			}
			short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if _, _, err := n.Allocate(short, allocator.StringKey("new")); !errors.Is(err, kvstore.ErrNoSpace) {
				t.Errorf("a new ID in a full store: %v", err)
			}
			makeRoom()
			eventually(t, "the client sees that there is room", func() bool { return !client.Status().Full })
			if stats, err := round(); err != nil || stats.Deleted != 0 || stats.Dead != 1 {
				t.Fatalf("the first round with room again: %+v, %v", stats, err)
			}
			if _, _, err := n.Allocate(t.Context(), allocator.StringKey("new")); err != nil {
				t.Fatal(err) // it finds the lease gone
			}
			eventually(t, "the node refers to its ID again", func() bool {
				seen = nil // rounds are minutes apart
				stats, err := round()
				return err == nil && stats.Alive == 2
			})
		})
	}
}

// TestEtcdRefusesForLong: an etcd refuses writes for longer than any number of quick attempts
// lasts. A call that waits has its ID soon after.
func TestEtcdRefusesForLong(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	n, _ := etcdNode(t, server, "192.0.2.1")
	makeRoom := server.UseUpSpace()
	done := make(chan error, 1)
	go func() {
		_, _, err := n.Allocate(t.Context(), allocator.StringKey("new"))
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("while etcd refuses writes: %v", err)
	case <-time.After(12 * time.Second):
		makeRoom()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("when it writes again: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("no ID 20 seconds after etcd writes again")
		}
	}
}
