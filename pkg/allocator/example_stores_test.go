package allocator_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
)

// number has the node of an address use one number for a key.
func number(ctx context.Context, store kvstore.Backend, address string) error {
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: "example/numbers", Suffix: address, KeyType: allocator.StringKey(""),
	})
	if err != nil {
		return err
	}
	a, err := allocator.NewAllocator(allocator.StringKey(""), backend, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		return err
	}
	defer a.Close()
	go func() {
		if err := a.Run(ctx); err != nil {
			log.Print(err)
		}
	}()
	key := allocator.StringKey("app=web;")
	id, isNew, err := a.Allocate(ctx, key)
	if err != nil {
		return err
	}
	fmt.Println(key, "has the number", id, "which is new:", isNew)
	_, err = a.Release(ctx, key) // nobody else can have the number before, and for a while afterwards
	return err
}

// On etcd, without waiting for it: what needs the store waits itself, as long as its context lets it.
func Example_etcd() {
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{"http://127.0.0.1:2379"}
	store, err := etcd.New(context.Background(), cfg, slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := number(context.Background(), store, "192.0.2.1"); err != nil {
		log.Fatal(err)
	}
}

// On Consul.
func Example_consul() {
	cfg := consul.Defaults()
	cfg.Address = "127.0.0.1:8500"
	store, err := consul.New(context.Background(), cfg, slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := number(context.Background(), store, "192.0.2.1"); err != nil {
		log.Fatal(err)
	}
}
