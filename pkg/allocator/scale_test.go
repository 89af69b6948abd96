package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// scaled returns the full size with HAWSER_LONG, else a tenth of it.
func scaled(full int) int {
	if os.Getenv("HAWSER_LONG") != "" {
		return full
	}
	return full / 10
}

// fillEtcd writes IDs from historyMin on, the first live of them with a reference on a lease.
func fillEtcd(t *testing.T, server *kvstoretest.Etcd, live, dead int) {
	t.Helper()
	raw := server.Client()
	lease, err := raw.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	var ops []clientv3.Op
	for i := range live + dead {
		key := fmt.Sprintf("k8s:app=%d;k8s:io.kubernetes.pod.namespace=ns;", i)
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/id/%d", base, 256+i), key))
		if i < live {
			ops = append(ops, clientv3.OpPut(base+"/value/"+key+"/192.0.2.9", fmt.Sprint(256+i), clientv3.WithLease(lease.ID)))
		}
		if len(ops) >= 126 || i == live+dead-1 {
			if _, err := raw.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
	}
}

func etcdCollector(t *testing.T, server *kvstoretest.Etcd) *allocator.Allocator {
	t.Helper()
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{server.Endpoint()}, 0
	client, err := etcd.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: client, BasePath: base, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	gc, err := allocator.NewAllocatorForGC(be, allocator.WithMin(256), allocator.WithMax(1<<17))
	if err != nil {
		t.Fatal(err)
	}
	return gc
}

// Dead IDs by the ten thousand go in the second round, among living ones, while a node goes on
// allocating; the log says how long it took.
func TestEtcdCollectsMany(t *testing.T) {
	server := kvstoretest.StartEtcd(t)
	live, dead := scaled(5000), scaled(60000)
	fillEtcd(t, server, live, dead)
	a, _ := etcdNode(t, server, "192.0.2.1")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	mine := map[string]allocator.ID{}
	wg.Go(func() {
		for i := 0; ctx.Err() == nil && i < 200; i++ {
			key := fmt.Sprintf("churn-%d", i)
			id, _, err := a.Allocate(ctx, allocator.StringKey(key))
			if err == nil {
				mine[key] = id
			} else if ctx.Err() == nil && !errors.Is(err, allocator.ErrExhausted) {
				t.Errorf("%s: %v", key, err)
			}
		}
	})
	gc := etcdCollector(t, server)
	first := time.Now()
	marked, stats, err := gc.RunGC(t.Context(), nil, nil)
	if err != nil || stats.Dead < dead || stats.Alive < live {
		t.Fatalf("first round: %+v, %v", stats, err)
	}
	second := time.Now()
	_, stats, err = gc.RunGC(t.Context(), nil, marked)
	if err != nil || stats.Deleted != dead || stats.Alive < live {
		t.Errorf("second round: %+v, %v; want %d deleted", stats, err, dead)
	}
	t.Logf("%d dead among %d live: first round %v, second round, with the deletions, %v",
		dead, live, second.Sub(first).Round(time.Millisecond), time.Since(second).Round(time.Millisecond))
	cancel()
	wg.Wait()
	raw := server.Client()
	for key, id := range mine {
		if kv, err := raw.Get(t.Context(), base+"/id/"+id.String()); err != nil || len(kv.Kvs) != 1 || string(kv.Kvs[0].Value) != key {
			t.Errorf("ID %s of %s, which is in use, is not in the store", id, key)
		}
	}
}

// The limit of deletions holds, and a round that is ended early goes on where it stopped.
func TestCollectionIsLimited(t *testing.T) {
	t.Parallel()
	mem := kvstore.NewMemory()
	a := newNode(t, mem, "192.0.2.1")
	const keys = 30
	for i := range keys {
		a.allocate(t, fmt.Sprint("key-", i))
		a.release(t, fmt.Sprint("key-", i))
	}
	dead, _, err := a.RunGC(t.Context(), nil, nil)
	if err != nil || len(dead) != keys {
		t.Fatalf("first round: %d dead, %v", len(dead), err)
	}
	// Ten at once, the next after an hour.
	limit := rate.NewLimiter(rate.Every(time.Hour), 10)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	dead, stats, err := a.RunGC(short, limit, dead)
	if err == nil || stats.Deleted != 10 || len(dead) != keys-10 {
		t.Fatalf("limited round: %+v, %d left for later, %v", stats, len(dead), err)
	}
	if _, stats, err = a.RunGC(t.Context(), nil, dead); err != nil || stats.Deleted != keys-10 {
		t.Errorf("next round: %+v, %v", stats, err)
	}
}
