package allocator

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

// user is the key by which nodes refer to an ID, the oldest if there are several, and when that
// was written first.
type user struct {
	key   string
	since int64
}

// uses finds out what nodes use IDs for that were written again since they were made, while a
// watch reports them. One goroutine uses it.
type uses struct {
	backend *KVStoreBackend
	// all is who refers to which ID by a listing of all references, at revision; nil if there
	// was none.
	all      map[ID]user
	revision int64
	// looks counts the IDs since of which only the references to their own key were read.
	looks int
}

// maxLooks bounds these. There may be a reference for each key on each node, so a node that starts
// reads all of them only if many IDs were written again.
const maxLooks = 32

// of returns the user of an ID that the store shows as kv; the zero user if there is none. It
// retries until the store answers: without an answer the ID's meaning is unknown, and no event may
// be sent. It fails when ctx has ended or the store is closed.
func (u *uses) of(ctx context.Context, id ID, kv *kvstore.KeyValue) (user, error) {
	for try := 0; ; try++ {
		found, err := u.ask(ctx, id, kv)
		if err == nil || ctx.Err() != nil || errors.Is(err, kvstore.ErrClosed) {
			return found, err
		}
		u.backend.log.Warn("cannot read what nodes use a rewritten ID for; no changes of IDs are reported until the store answers",
			"id", id, "error", err)
		if err := retry.Wait(ctx, try, 50*time.Millisecond, 5*time.Second); err != nil {
			return user{}, err
		}
	}
}

// reach drops a listing that does not know what the watch delivers now. One that is newer serves
// for all that was delivered until then.
func (u *uses) reach(revision int64) {
	if revision > u.revision {
		u.all = nil
	}
}

func (u *uses) ask(ctx context.Context, id ID, kv *kvstore.KeyValue) (user, error) {
	if u.all == nil && u.looks < maxLooks {
		u.looks++
		found, err := u.askOwn(ctx, id, kv)
		switch {
		case errors.Is(err, kvstore.ErrTxnTooLarge): // a key that is too large to ask for; the listing has no such limit
		case err != nil, found.key != "":
			return found, err
		}
	}
	if u.all == nil {
		if err := u.list(ctx); err != nil {
			return user{}, err
		}
	}
	return u.all[id], nil
}

// askOwn returns the key that the store has for the ID, if it is certain that this is what the ID
// was made for: a reference to it was written in one transaction with the ID, as those do who know
// what it is. One that was written alone may be of a node that started after an edit.
func (u *uses) askOwn(ctx context.Context, id ID, kv *kvstore.KeyValue) (user, error) {
	b := u.backend
	key := b.paths.owner(kv)
	if key == "" {
		return user{}, nil
	}
	v, err := b.lookAt(ctx, key)
	if err != nil {
		return user{}, err
	}
	for _, r := range v.references {
		if r.id == id && (r.created == kv.CreateRevision || r.created == kv.ModRevision) {
			return user{key, r.created}, nil
		}
	}
	return user{}, nil
}

// list reads all references.
func (u *uses) list(ctx context.Context) error {
	b := u.backend
	var all map[ID]user
	revision, err := kvstore.ListPages(ctx, b.store, b.paths.values(), func() { all = make(map[ID]user) }, func(page []kvstore.KeyValue) {
		for _, kv := range page {
			key, _, ok := b.paths.reference(kv.Key)
			id, err := ParseID(string(kv.Value))
			if !ok || err != nil {
				continue
			}
			if have, ok := all[id]; !ok || kv.CreateRevision < have.since {
				all[id] = user{key, kv.CreateRevision}
			}
		}
	})
	if err != nil {
		return err
	}
	u.all, u.revision, u.looks = all, revision, 0
	return nil
}

// believe completes the mapping of an ID that was written again since it was made, when its
// original key is not known here: by the key that nodes use it for.
func (b *KVStoreBackend) believe(m *Mapping, u user) {
	key, err := b.typ.PutKey(u.key)
	if u.key == "" || err != nil || key.GetKey() != u.key {
		return
	}
	m.Original = true
	if m.Key == nil || m.Key.GetKey() != u.key {
		b.log.Error("the key of an ID in the store was edited by hand; the ID means what it is used for; restore its key", "id", m.ID, "key", u.key, "edited", m.Key)
		m.Key, m.Edited = key, true
	}
}
