package main

import (
	"context"
	"time"

	"github.com/cilium/cilium/pkg/allocator"
	"github.com/cilium/cilium/pkg/kvstore"
	kvallocator "github.com/cilium/cilium/pkg/kvstore/allocator"
	"github.com/cilium/cilium/pkg/logging"
	"github.com/cilium/cilium/pkg/option"
	"github.com/sirupsen/logrus"
)

// ciliumKey is the plainest key that Cilium's allocator takes.
type ciliumKey string

func (k ciliumKey) String() string                                         { return string(k) }
func (k ciliumKey) GetKey() string                                         { return string(k) }
func (k ciliumKey) PutKey(v string) allocator.AllocatorKey                 { return ciliumKey(v) }
func (k ciliumKey) GetAsMap() map[string]string                            { return map[string]string{string(k): ""} }
func (k ciliumKey) PutKeyFromMap(map[string]string) allocator.AllocatorKey { return k }
func (k ciliumKey) PutValue(any, any) allocator.AllocatorKey               { return k }
func (k ciliumKey) Value(any) any                                          { return nil }

type ciliumNode struct {
	client kvstore.BackendOperations
	a      *allocator.Allocator
}

func openCilium(ctx context.Context, address, base, name string) (node, error) {
	logging.DefaultLogger.SetLevel(logrus.PanicLevel)
	// The agent's own defaults, which its flags would set.
	option.Config.KVstoreLeaseTTL = 15 * time.Minute
	option.Config.KVstoreKeepAliveInterval = 5 * time.Minute
	option.Config.KVstoreConnectivityTimeout = 2 * time.Minute
	option.Config.KVstorePeriodicSync = 5 * time.Minute
	option.Config.KVstoreMaxConsecutiveQuorumErrors = 2
	option.Config.AllocatorListTimeout = 3 * time.Minute
	// No rate limit: the allocators are compared, not their limits.
	client, errs := kvstore.NewClient(ctx, "etcd", map[string]string{"etcd.address": address, "etcd.qps": "1000000"}, nil)
	if err := <-errs; err != nil {
		return nil, err
	}
	be, err := kvallocator.NewKVStoreBackend(base, name, ciliumKey(""), client)
	if err != nil {
		return nil, err
	}
	a, err := allocator.NewAllocator(ciliumKey(""), be, allocator.WithMin(256), allocator.WithMax(65535), allocator.WithMasterKeyProtection(), allocator.WithoutGC())
	if err != nil {
		return nil, err
	}
	n := &ciliumNode{client, a}
	if err := a.WaitForInitialSync(ctx); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *ciliumNode) allocate(ctx context.Context, key string) (uint64, error) {
	id, _, _, err := n.a.Allocate(ctx, ciliumKey(key))
	return uint64(id), err
}

func (n *ciliumNode) release(ctx context.Context, key string) error {
	_, err := n.a.Release(ctx, ciliumKey(key))
	return err
}

func (n *ciliumNode) close() {
	n.a.Delete()
	n.client.Close(context.Background())
}
