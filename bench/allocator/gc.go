package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
)

// collect fills a range with dead IDs and some in use, and times the round that deletes the
// dead ones, at an unlimited rate.
func collect(ctx context.Context, address string, dead, live int) error {
	if dead+live > 65535-256+1 {
		return fmt.Errorf("%d IDs do not fit into the range", dead+live)
	}
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS, cfg.ListLimit = []string{address}, 0, 5000
	store, err := etcd.New(ctx, cfg, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	const base, batch = "bench/gc", 50
	var txn kvstore.Txn
	for i := range dead + live {
		id, key := fmt.Sprint(256+i), keyOf("gc", i)
		txn.Then = append(txn.Then, kvstore.PutOp(base+"/id/"+id, []byte(key), kvstore.Permanent))
		if i < live {
			txn.Then = append(txn.Then, kvstore.PutOp(base+"/value/"+key+"/192.0.2.1", []byte(id), kvstore.Leased))
		}
		if len(txn.Then) >= batch || i == dead+live-1 {
			if _, err := store.Txn(ctx, txn); err != nil {
				return err
			}
			txn.Then = nil
		}
	}
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, KeyType: allocator.StringKey("")})
	if err != nil {
		return err
	}
	gc, err := allocator.NewAllocatorForGC(be, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		return err
	}
	var found map[allocator.ID]int64
	for round := 1; round <= 2; round++ {
		before, start := requests(), time.Now()
		var stats allocator.GCStats
		if found, stats, err = gc.RunGC(ctx, nil, found); err != nil {
			return err
		}
		fmt.Printf("collection, round %d: %+v in %v, %.0f requests\n", round, stats, time.Since(start).Round(time.Millisecond), requests()-before)
		if stats.Alive != live || round == 2 && stats.Deleted != dead {
			return fmt.Errorf("want %d alive and %d deleted", live, dead)
		}
	}
	return nil
}
