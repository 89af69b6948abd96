package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
)

// identityNode is the allocator of one pretended node, on a connection of its own.
type identityNode struct {
	store  kvstore.Backend
	alloc  *allocator.Allocator
	raw    *clientv3.Client
	cancel context.CancelFunc
	done   chan error
}

func newIdentityNode(ctx context.Context, address string, i int) (*identityNode, error) {
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{address}
	cfg.QPS = 0
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(ctx)
	n := &identityNode{cancel: cancel, done: make(chan error, 1)}
	store, err := etcd.New(ctx, cfg, log)
	if err != nil {
		cancel()
		return nil, err
	}
	n.store = store
	var backend allocator.Backend
	backend, err = allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: storekeys.IdentitiesPrefix, Suffix: fmt.Sprintf("192.0.2.%d", i+1), KeyType: allocator.StringKey("-"), Logger: log,
	})
	if err == nil {
		n.alloc, err = allocator.NewAllocator(allocator.StringKey("-"), backend, allocator.WithMin(256), allocator.WithMax(1<<24-1))
	}
	if err == nil {
		n.raw, err = newEtcdClient(address)
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, store.Close())
	}
	go func() { n.done <- n.alloc.Run(ctx) }()
	return n, n.alloc.WaitForInitialSync(ctx)
}

func (n *identityNode) close() error {
	n.cancel()
	return errors.Join(<-n.done, n.raw.Close(), n.store.Close())
}

func (b *bencher) identities(ctx context.Context) (err error) {
	e, err := b.startEtcd(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	const baseline = "an etcd transaction that compares and puts two keys, at the same concurrency"
	const watchedBaseline = "\"that watch\": the same transactions with as many clients watching the keys"
	serial := 0
	for _, row := range []struct{ nodes, callers int }{{1, 1}, {1, 8}, {1, 64}, {8, 1}, {64, 1}} {
		size, name := row.nodes*row.callers, fmt.Sprintf("%d on one node", row.callers)
		if row.nodes > 1 {
			name = fmt.Sprintf("%d nodes", row.nodes)
		}
		err := func() (err error) {
			var nodes []*identityNode
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(ctx)
			defer func() {
				cancel()
				wg.Wait()
				for _, n := range nodes {
					err = errors.Join(err, n.close())
				}
			}()
			for i := range row.nodes {
				n, err := newIdentityNode(ctx, e.address(), i)
				if n != nil {
					nodes = append(nodes, n)
				}
				if err != nil {
					return err
				}
			}
			// Every node observes every new identity. What that costs etcd and this machine is no
			// doing of the allocator: the second baseline has as many watches.
			for _, n := range nodes {
				if row.nodes == 1 {
					break
				}
				watch := n.raw.Watch(ctx, "watched/id/", clientv3.WithPrefix())
				wg.Go(func() {
					for range watch {
					}
				})
			}
			var rate, took, watched pairs
			for range pick(b, 5, 3) {
				serial++
				each := pick(b, time.Second, 500*time.Millisecond)
				ours, times, err := inParallel(ctx, size, each, func(ctx context.Context, w, i int) error {
					_, isNew, err := nodes[w%row.nodes].alloc.Allocate(ctx, allocator.StringKey(fmt.Sprintf("k8s:round=%d;k8s:worker=%d;k8s:n=%d;", serial, w, i)))
					if err == nil && !isNew {
						err = errors.New("a new key had a number already")
					}
					return err
				})
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				rawTxn := func(ctx context.Context, prefix string, w, i int) error {
					id, value := fmt.Sprintf("%s/id/%d-%d-%d", prefix, serial, w, i), fmt.Sprintf("%s/value/k8s:round=%d;k8s:worker=%d;k8s:n=%d;", prefix, serial, w, i)
					r, err := nodes[w%row.nodes].raw.Txn(ctx).
						If(clientv3.Compare(clientv3.CreateRevision(id), "=", 0), clientv3.Compare(clientv3.CreateRevision(value), "=", 0).WithPrefix()).
						Then(clientv3.OpPut(id, value), clientv3.OpPut(value+"/192.0.2.1", strconv.Itoa(i))).Commit()
					if err == nil && !r.Succeeded {
						err = errors.New("a raw transaction met its own key")
					}
					return err
				}
				raw, rawTimes, err := inParallel(ctx, size, each, func(ctx context.Context, w, i int) error {
					return rawTxn(ctx, "raw", w, i)
				})
				if err != nil {
					return fmt.Errorf("raw transactions: %w", err)
				}
				rate.add(ours, raw)
				if row.nodes > 1 {
					spent, _, err := inParallel(ctx, size, each, func(ctx context.Context, w, i int) error {
						return rawTxn(ctx, "watched", w, i)
					})
					if err != nil {
						return fmt.Errorf("raw transactions with watches: %w", err)
					}
					watched.add(ours, spent)
				}
				took.add(ms(median(times)), ms(median(rawTimes)))
			}
			b.add(rate.fill(Figure{Row: "identity", Name: "new identities, " + name, Unit: "/s", BaselineName: baseline, Far: 0.8, First: 0.5, GoalOfRatio: true, Higher: true}))
			if row.nodes > 1 {
				b.add(watched.fill(Figure{Row: "identity", Name: "the same against " + name + " that watch", Unit: "/s", BaselineName: watchedBaseline, Far: 0.8, First: 0.5, GoalOfRatio: true, Higher: true}))
			}
			b.add(took.fill(Figure{Row: "identity", Name: "new identity p50, " + name, Unit: "ms", BaselineName: baseline}))
			if size > 1 {
				return nil
			}
			count := pick(b, 200_000, 50_000)
			key := allocator.StringKey("k8s:cached=yes;")
			if _, _, err := nodes[0].alloc.Allocate(ctx, key); err != nil {
				return err
			}
			before, err := e.revision(ctx)
			if err != nil {
				return err
			}
			start := time.Now()
			for range count {
				if _, isNew, err := nodes[0].alloc.Allocate(ctx, key); err != nil || isNew {
					return fmt.Errorf("cached identity: new %v: %w", isNew, err)
				}
			}
			took1 := time.Since(start)
			after, err := e.revision(ctx)
			if err != nil {
				return err
			}
			if after != before {
				return fmt.Errorf("%d writes to etcd for identities that were cached", after-before)
			}
			b.add(Figure{Row: "identity", Name: "cached identity", Unit: "us", Value: us(took1) / float64(count), Samples: count})
			return nil
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *etcdServer) revision(ctx context.Context) (int64, error) {
	r, err := e.client.Get(ctx, "ready")
	if err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// inParallel calls fn by a number of workers for a while, and returns calls a second and the time
// of each.
func inParallel(ctx context.Context, workers int, d time.Duration, fn func(ctx context.Context, worker, i int) error) (float64, []time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var errs []error
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			var times []time.Duration
			var err error
			for i := 0; time.Since(begin) < d && err == nil; i++ {
				start := time.Now()
				err = fn(ctx, w, i)
				times = append(times, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, times...), append(errs, err)
		})
	}
	wg.Wait()
	return float64(len(all)) / time.Since(begin).Seconds(), all, errors.Join(errs...)
}
