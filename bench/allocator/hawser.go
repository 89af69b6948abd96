package main

import (
	"context"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
)

type hawserNode struct {
	client *etcd.Client
	a      *allocator.Allocator
	done   chan error
}

func openHawser(ctx context.Context, address, base, name string) (node, error) {
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{address}, 0
	client, err := etcd.New(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: client, BasePath: base, Suffix: name, KeyType: allocator.StringKey("")})
	if err != nil {
		return nil, err
	}
	a, err := allocator.NewAllocator(allocator.StringKey(""), be, allocator.WithMin(256), allocator.WithMax(65535), allocator.WithMasterKeyProtection())
	if err != nil {
		return nil, err
	}
	n := &hawserNode{client, a, make(chan error, 1)}
	go func() { n.done <- a.Run(context.Background()) }()
	if err := a.WaitForInitialSync(ctx); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *hawserNode) allocate(ctx context.Context, key string) (uint64, error) {
	id, _, err := n.a.Allocate(ctx, allocator.StringKey(key))
	return uint64(id), err
}

func (n *hawserNode) release(ctx context.Context, key string) error {
	_, err := n.a.Release(ctx, allocator.StringKey(key))
	return err
}

func (n *hawserNode) close() {
	n.a.Close()
	<-n.done
	_ = n.client.Close()
}
