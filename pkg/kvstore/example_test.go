package kvstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// A transaction writes only if its conditions hold, and otherwise can show what is there instead.
func ExampleTxn() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	store := kvstore.NewMemory().Client()
	defer store.Close()
	claim := func(owner string) {
		r, err := store.Txn(ctx, kvstore.Txn{
			If:   []kvstore.Cond{kvstore.PrefixAbsent("example/lights/")},
			Then: []kvstore.Op{kvstore.PutOp("example/lights/"+owner, nil, kvstore.Leased)},
			Else: []kvstore.Op{kvstore.ListOp("example/lights/")},
		})
		if err != nil {
			log.Fatal(err)
		}
		if r.Succeeded {
			fmt.Println(owner, "has it")
			return
		}
		fmt.Println(owner, "finds", r.Results[0][0].Key)
	}
	claim("north")
	claim("south")
	// Output:
	// north has it
	// south finds example/lights/north
}

// A watch delivers the present state, says when that is done, and then delivers every change, in
// order.
func ExampleBackend_watch() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	store := kvstore.NewMemory().Client()
	defer store.Close()
	put := func(key, value string) {
		if err := kvstore.Put(ctx, store, key, []byte(value), kvstore.Permanent); err != nil {
			log.Fatal(err)
		}
	}
	put("example/a", "=1")
	events := store.Watch(ctx, "example/")
	show := func() {
		ev := <-events
		fmt.Printf("%s %q\n", ev.Kind, ev.Key+string(ev.Value))
	}
	show()
	show()
	put("example/a", "=2")
	show()
	if err := kvstore.Delete(ctx, store, "example/a"); err != nil {
		log.Fatal(err)
	}
	show()
	// Output:
	// create "example/a=1"
	// list-done ""
	// modify "example/a=2"
	// delete "example/a"
}

// The keys that a client wrote with a lease go when the store gets nothing from it for the lease's
// time. Whoever owns them is notified and writes them again.
func ExampleBackend_leases() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	store := kvstore.NewMemory().Client()
	defer store.Close()
	lost := make(chan []string, 1)
	defer store.ObserveLostLeases("example/", func(keys []string) { lost <- keys })()
	if err := kvstore.Put(ctx, store, "example/alive", nil, kvstore.Leased); err != nil {
		log.Fatal(err)
	}
	store.ExpireLeases() // as the server does; only a store in memory can be made to
	fmt.Println("lost:", <-lost)
	// Output: lost: [example/alive]
}

// Of several writers that read the same state, one succeeds.
func ExampleCompareAndSwap() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	store := kvstore.NewMemory().Client()
	defer store.Close()
	for range 2 {
		swapped, err := kvstore.CompareAndSwap(ctx, store, "example/leader", 0, []byte("me"), kvstore.Leased)
		fmt.Println(swapped, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
