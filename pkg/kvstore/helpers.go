package kvstore

import (
	"context"

	"github.com/hawser-net/hawser/pkg/retry"
)

// Put writes a key, whatever was there.
func Put(ctx context.Context, b Backend, key string, value []byte, lifetime Lifetime) error {
	_, err := b.Txn(ctx, Txn{Then: []Op{PutOp(key, value, lifetime)}})
	return err
}

// CreateIfAbsent writes a key only if it does not exist, and reports whether it did.
func CreateIfAbsent(ctx context.Context, b Backend, key string, value []byte, lifetime Lifetime) (created bool, err error) {
	r, err := b.Txn(ctx, Txn{If: []Cond{Absent(key)}, Then: []Op{PutOp(key, value, lifetime)}})
	return r.Succeeded, err
}

// CompareAndSwap writes a key only if its last write was modRevision (0: if it does not exist), and
// reports whether it did.
func CompareAndSwap(ctx context.Context, b Backend, key string, modRevision int64, value []byte, lifetime Lifetime) (swapped bool, err error) {
	cond := ModRevisionIs(key, modRevision)
	if modRevision == 0 {
		cond = Absent(key)
	}
	r, err := b.Txn(ctx, Txn{If: []Cond{cond}, Then: []Op{PutOp(key, value, lifetime)}})
	return r.Succeeded, err
}

// Delete deletes a key. It is no fault if there is none.
func Delete(ctx context.Context, b Backend, key string) error {
	_, err := b.Txn(ctx, Txn{Then: []Op{DeleteOp(key)}})
	return err
}

// CompareAndDelete deletes a key only if its last write was modRevision, and reports whether it
// did.
func CompareAndDelete(ctx context.Context, b Backend, key string, modRevision int64) (deleted bool, err error) {
	r, err := b.Txn(ctx, Txn{If: []Cond{ModRevisionIs(key, modRevision)}, Then: []Op{DeleteOp(key)}})
	return r.Succeeded, err
}

// DeletePrefix deletes all keys that start with prefix.
func DeletePrefix(ctx context.Context, b Backend, prefix string) error {
	_, err := b.Txn(ctx, Txn{Then: []Op{DeletePrefixOp(prefix)}})
	return err
}

// LostLease returns a channel that signals when the lease of a key, or of a key that begins like
// it, is gone, so that its writer writes it again. One that is not read signals once. stop ends it.
func LostLease(b Backend, key string) (lost <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	return ch, b.ObserveLostLeases(key, func([]string) {
		retry.Notify(ch)
	})
}
