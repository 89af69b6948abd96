package maps

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// batchSize is how many entries one system call carries. A lookup must hold the fullest bucket, and
// the buffers must not be felt in the memory of a small agent.
const (
	batchSize  = 2048
	batchBytes = 512 << 10
)

// each calls fn for every entry of a map until it returns false. What is written at the same time
// may or may not be seen, but each entry that stays is seen once.
func each[K, V any](m *ebpf.Map, fn func(K, V) bool) error {
	if m.Type() == ebpf.LPMTrie {
		// Tries take no batches in which the cursor is a key of their own kind.
		return eachSingle(m, fn)
	}
	size := min(batchSize, max(64, batchBytes/int(m.KeySize()+m.ValueSize())), int(m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			if errors.Is(err, unix.ENOSPC) && size < int(m.MaxEntries()) {
				// A bucket larger than the buffer: the cursor has not moved.
				size = min(2*size, int(m.MaxEntries()))
				keys, values = make([]K, size), make([]V, size)
				continue
			}
			return fmt.Errorf("list the map: %w", err)
		}
		for i := range n {
			if !fn(keys[i], values[i]) {
				return nil
			}
		}
		if err != nil {
			return nil
		}
	}
}

// sweep removes the entries of a map that are stale. One that the programs have used again since it
// was listed stays. kept is called for each that stays, once. The end of ctx is no error.
func sweep[K, V any](ctx context.Context, m *ebpf.Map, stale func(V) bool, kept func(V)) error {
	var old []K
	err := each(m, func(k K, v V) bool {
		if stale(v) {
			old = append(old, k)
		} else {
			kept(v)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return err
	}
	for _, k := range old {
		if ctx.Err() != nil {
			return nil
		}
		var v V
		err := m.LookupAndDelete(k, &v)
		if err == nil && !stale(v) {
			kept(v)
			err = m.Update(k, v, ebpf.UpdateNoExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("remove an old entry: %w", err)
		}
	}
	return nil
}

func eachSingle[K, V any](m *ebpf.Map, fn func(K, V) bool) error {
	var k K
	var v V
	it := m.Iterate()
	for it.Next(&k, &v) {
		if !fn(k, v) {
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("list the map: %w", err)
	}
	return nil
}

// putAll writes entries in batches and returns how many were written before an error.
func putAll[K, V any](m *ebpf.Map, keys []K, values []V) (int, error) {
	for done := 0; done < len(keys); {
		end := min(done+batchSize, len(keys))
		n, err := m.BatchUpdate(keys[done:end], values[done:end], nil)
		done += n
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.ENOMEM) {
			return done, classify(err)
		}
		// The kernel's small per-processor reserve ran dry within the batch; a call of its own
		// lets it be refilled, and shows whether memory is truly short.
		if done == len(keys) {
			return done, nil
		}
		if err := m.Put(keys[done], values[done]); err != nil {
			return done, classify(err)
		}
		done++
	}
	return len(keys), nil
}

// deleteAll removes entries; those absent don't matter.
func deleteAll[K any](m *ebpf.Map, keys []K) error {
	for done := 0; done < len(keys); {
		end := min(done+batchSize, len(keys))
		n, err := m.BatchDelete(keys[done:end], nil)
		done += n
		switch {
		case err == nil:
		case errors.Is(err, ebpf.ErrKeyNotExist):
			done++ // the batch stopped at a key that is gone already
		default:
			return err
		}
	}
	return nil
}
