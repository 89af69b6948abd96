package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// startNode is what each node of a cluster does. A real one opens pkg/kvstore/etcd instead of a
// store in memory.
func startNode(store kvstore.Backend, address string, opts ...allocator.AllocatorOption) (a *allocator.Allocator, stop func()) {
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: "cluster/ids", Suffix: address, KeyType: allocator.StringKey(""),
	})
	if err != nil {
		log.Fatal(err)
	}
	a, err = allocator.NewAllocator(allocator.StringKey(""), backend, append(opts, allocator.WithMin(256), allocator.WithMax(65535))...)
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.Run(context.Background()); err != nil {
			log.Print(err)
		}
	})
	return a, func() { a.Close(); running.Wait() }
}

// Two nodes that use the same key get the same ID, without talking to each other.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cluster := kvstore.NewMemory()
	east, stopEast := startNode(cluster.Client(), "192.0.2.1")
	defer stopEast()
	west, stopWest := startNode(cluster.Client(), "192.0.2.2")
	defer stopWest()

	web := allocator.StringKey("k8s:app=web;")
	first, isNew, err := east.Allocate(ctx, web)
	if err != nil {
		log.Fatal(err)
	}
	second, again, err := west.Allocate(ctx, web)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("same ID:", first == second, "- made by the first:", isNew, "- by the second:", again)

	key, err := west.GetByID(ctx, first)
	fmt.Println("the ID's key:", key, err)

	last, err := east.Release(ctx, web)
	fmt.Println("last use on this node:", last, err)
	// Output:
	// same ID: true - made by the first: true - by the second: false
	// the ID's key: k8s:app=web; <nil>
	// last use on this node: true <nil>
}

// One process of the cluster collects the IDs without references. An ID goes in
// the second round that finds it so.
func ExampleAllocator_RunGC() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cluster := kvstore.NewMemory()
	node, stop := startNode(cluster.Client(), "192.0.2.1")
	defer stop()
	for _, key := range []allocator.StringKey{"k8s:app=web;", "k8s:app=db;"} {
		if _, _, err := node.Allocate(ctx, key); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := node.Release(ctx, allocator.StringKey("k8s:app=db;")); err != nil {
		log.Fatal(err)
	}

	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: cluster.Client(), BasePath: "cluster/ids", KeyType: allocator.StringKey(""),
	})
	if err != nil {
		log.Fatal(err)
	}
	gc, err := allocator.NewAllocatorForGC(backend, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		log.Fatal(err)
	}
	limit := rate.NewLimiter(2500.0/60, 2500) // deletions: 2,500 a minute
	var dead map[allocator.ID]int64
	for round := 1; round <= 2; round++ { // in a cluster: one round in each lease TTL
		var stats allocator.GCStats
		if dead, stats, err = gc.RunGC(ctx, limit, dead); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("round %d: %d alive, %d dead, %d deleted\n", round, stats.Alive, stats.Dead, stats.Deleted)
	}
	// Output:
	// round 1: 1 alive, 1 dead, 0 deleted
	// round 2: 1 alive, 0 dead, 1 deleted
}

// Events report every ID of the cluster, as it comes and goes.
func ExampleWithEvents() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cluster := kvstore.NewMemory()
	events := make(allocator.AllocatorEventChan)
	_, stop := startNode(cluster.Client(), "192.0.2.1", allocator.WithEvents(events))
	defer stop()
	fmt.Println((<-events).Kind) // all IDs that were there at the start have been delivered: none

	other, stopOther := startNode(cluster.Client(), "192.0.2.2")
	defer stopOther()
	id, _, err := other.Allocate(ctx, allocator.StringKey("k8s:app=web;"))
	if err != nil {
		log.Fatal(err)
	}
	ev := <-events
	fmt.Println(ev.Kind, ev.Key, ev.ID == id)
	// Output:
	// sync
	// upsert k8s:app=web; true
}

// A full range is an error of its own.
func ExampleErrExhausted() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cluster := kvstore.NewMemory()
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: cluster.Client(), BasePath: "example", Suffix: "192.0.2.1", KeyType: allocator.StringKey(""),
	})
	if err != nil {
		log.Fatal(err)
	}
	// The IDs of cluster 3: its bits are or-ed to each.
	a, err := allocator.NewAllocator(allocator.StringKey(""), backend, allocator.WithMin(1), allocator.WithMax(2), allocator.WithPrefixMask(3<<16))
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = a.Run(ctx) })
	defer running.Wait()
	defer a.Close()
	for _, key := range []allocator.StringKey{"a", "b", "c"} {
		_, _, err := a.Allocate(ctx, key)
		fmt.Println(key, errors.Is(err, allocator.ErrExhausted), err)
	}
	// Output:
	// a false <nil>
	// b false <nil>
	// c true allocate "c": no ID is free: all of 196609 to 196610 are taken
}
