package identities

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// entry is what is remembered of an object.
type entry struct {
	text        string // "": unreadable; what it was if it is in quarantine
	created     int64
	marked      bool // about to be collected
	quarantined bool // see Quarantine
	since       time.Time
	uid         types.UID // its incarnation
	// edited means that the object's labels no longer match text; see Backend.Edited.
	edited bool
	// bare means that the object has no digest and could have one, certain that text is no edit:
	// see Entry.
	bare, certain bool
	// expected is the time of Backend.Expect, as long as no object was observed.
	expected time.Time
}

// mayBeTaken reports whether labels that are not known here can get the ID, all others being
// theirs.
func (e entry) mayBeTaken() bool { return e.quarantined || e.text == "" && e.edited }

// index is what the watch has shown. One goroutine writes it.
type index struct {
	synced chan struct{}

	mu          sync.RWMutex
	byID        map[allocator.ID]entry
	byText      map[string][]allocator.ID // nearly always one
	formerly    map[string][]allocator.ID // those in quarantine, by what their labels were
	quarantined int                       // how many are in quarantine, or were edited before they were observed

	reached atomic.Uint64 // see Backend.Reached
}

func newIndex() *index {
	return &index{synced: make(chan struct{}), byID: map[allocator.ID]entry{}, byText: map[string][]allocator.ID{}, formerly: map[string][]allocator.ID{}}
}

// wait returns when the first list is in.
func (x *index) wait(ctx context.Context) error {
	select {
	case <-x.synced:
		return nil
	default:
	}
	select {
	case <-x.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of identities: %w", ctx.Err())
	}
}

func (x *index) get(id allocator.ID) (entry, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e, ok := x.byID[id]
	return e, ok
}

// oldest returns the ID that counts for a label set, NoID if there is none.
func (x *index) oldest(text string) allocator.ID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	best := allocator.NoID
	for _, id := range x.byText[text] {
		if best == allocator.NoID || x.byID[id].created < x.byID[best].created || (x.byID[id].created == x.byID[best].created && id < best) {
			best = id
		}
	}
	return best
}

// former returns the smallest ID that is in quarantine after a label set, NoID if there is none.
func (x *index) former(text string) allocator.ID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if ids := x.formerly[text]; len(ids) > 0 {
		return slices.Min(ids)
	}
	return allocator.NoID
}

// full reports whether each of so many IDs is that of other labels than these, and none is in
// quarantine.
func (x *index) full(text string, size int) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.byID) >= size && x.quarantined == 0 && len(x.byText[text]) == 0
}

func (x *index) set(id allocator.ID, e entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(id)
	x.byID[id] = e
	if e.mayBeTaken() {
		x.quarantined++
	}
	if e.text != "" {
		m := x.texts(e)
		m[e.text] = append(m[e.text], id)
	}
}

func (x *index) remove(id allocator.ID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(id)
}

// dropExpected forgets what was expected of objects that are not there.
func (x *index) dropExpected() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, e := range x.byID {
		if !e.expected.IsZero() {
			x.drop(id)
		}
	}
}

// drop must be called with mu held.
func (x *index) drop(id allocator.ID) {
	e, ok := x.byID[id]
	if !ok {
		return
	}
	delete(x.byID, id)
	if e.mayBeTaken() {
		x.quarantined--
	}
	m := x.texts(e)
	if rest := slices.DeleteFunc(m[e.text], func(o allocator.ID) bool { return o == id }); len(rest) > 0 {
		m[e.text] = rest
	} else {
		delete(m, e.text)
	}
}

// texts returns the IDs by labels among which an entry's is.
func (x *index) texts(e entry) map[string][]allocator.ID {
	if e.quarantined {
		return x.formerly
	}
	return x.byText
}

// Reached returns up to which resource version the watch has notified of identities, 0 for none.
func (b *Backend) Reached() uint64 { return b.index.reached.Load() }

// Expect takes what an ID meant at a time, to a backend that has not observed any object yet:
// labels of this node's own pods from before a restart. An object that is older, and was given
// other labels since, was edited meanwhile.
func (b *Backend) Expect(id allocator.ID, text string, at time.Time) {
	if _, ok := b.index.get(id); !ok {
		b.index.set(id, entry{text: text, expected: at})
	}
}

// keepMeaning has an ID go on to mean what it means. An object gets its labels when it is made,
// loses them in quarantine, and may get them back; it never gets others, as every node evaluates
// packets by them. So an edit is not applied, but reported. An ID that was deleted and made again,
// or taken for other labels, is another incarnation.
//
// An object that is observed for the first time stands for its labels if its digest matches;
// otherwise for none until they are restored. Objects of other programs have no digest. One of
// these that was changed since its creation, as its generation shows, may have been edited. So
// until a node that knows adds a digest, it stands for its current labels, whether or not it is in
// use: otherwise nodes that started with an edit would keep it when it is undone.
func (b *Backend) keepMeaning(o *v2.CiliumIdentity, m *allocator.Mapping, e *entry) {
	e.uid = Incarnation(o)
	changed := o.Generation > 1 // https://kubernetes.io/docs/reference/using-api/api-concepts: not by annotations
	known, confirmed := b.index.get(m.ID)
	intact, sealed := Intact(o)
	if confirmed && !known.expected.IsZero() && changed && !o.CreationTimestamp.After(known.expected) && (!sealed || b.given(o, known.text)) {
		known.uid, known.certain = e.uid, true
	}
	confirmed = confirmed && known.uid == e.uid
	if m.Key != nil && !sealed {
		security, err := labelsOf(m.Key)
		e.bare = err == nil && maps.Equal(security, o.SecurityLabels) // written as we write them
	}
	sure := confirmed && !known.quarantined && known.text != "" && (known.certain || sealed && b.given(o, known.text))
	switch {
	case e.quarantined:
	case sure && e.text != known.text:
		key, err := b.cfg.KeyType.PutKey(known.text)
		if err != nil {
			return // it was read before
		}
		if !known.edited {
			b.cfg.Log.Error("the labels of an identity were edited by hand; the identity keeps its meaning; restore its labels",
				"identity", m.ID, "labels", known.text, "edited", o.SecurityLabels)
		}
		m.Key, e.text, e.edited, e.certain = key, known.text, true, true
		return
	case sure:
		e.certain = true
	case sealed && !intact:
		b.cfg.Log.Error("the labels of an identity were edited by hand before this node observed it; it stands for nothing until its labels are restored",
			"identity", m.ID, "edited", o.SecurityLabels)
		m.Key, e.text, e.edited = nil, "", true
		return
	default:
		e.certain = intact || !changed
		if confirmed && !known.quarantined && known.text != "" && known.text != e.text {
			b.cfg.Log.Warn("an identity has other labels than when this node first observed it, and either may be an edit: its present labels count",
				"identity", m.ID, "before", known.text, "labels", o.SecurityLabels, "digest", sealed)
		}
	}
	if confirmed && known.edited {
		b.cfg.Log.Info("the labels of an edited identity are restored, or it is in quarantine", "identity", m.ID)
	}
}

// given reports whether, by its digest, text is the canonical string of the object's original
// labels.
func (b *Backend) given(o *v2.CiliumIdentity, text string) bool {
	key, err := b.cfg.KeyType.PutKey(text)
	if err != nil {
		return false
	}
	security, err := labelsOf(key)
	return err == nil && WasGiven(o, security)
}

// Edited returns the IDs whose objects were edited: their labels differ from those that they stand
// for. They are in order.
func (b *Backend) Edited() (out []allocator.ID) {
	b.index.mu.RLock()
	defer b.index.mu.RUnlock()
	for id, e := range b.index.byID {
		if e.edited {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Live calls f with each ID that stands for labels which can be read, and their canonical
// string, in no order, until it returns false. f must not call back.
func (b *Backend) Live(f func(id allocator.ID, text string) bool) {
	b.index.mu.RLock()
	defer b.index.mu.RUnlock()
	for id, e := range b.index.byID {
		if e.text != "" && !e.quarantined && !f(id, e.text) {
			return
		}
	}
}

// ListAndWatch implements [allocator.Backend]. It is called once.
func (b *Backend) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	listing := false
	err := k8s.Follow(ctx, k8s.Kind(b.cfg.Client.V2, v2.ResourceIdentities, ""), k8s.Options[*v2.CiliumIdentity]{Log: b.cfg.Log}, k8s.Handler[*v2.CiliumIdentity]{
		Upsert: func(o *v2.CiliumIdentity) {
			id, err := allocator.ParseID(o.Name)
			if err != nil {
				b.cfg.Log.Warn("the name of an identity is no ID", "name", o.Name)
				return
			}
			if id < b.cfg.First || id > b.cfg.Last {
				b.cfg.Log.Warn("ignored an identity with an ID that is not this cluster's", "identity", id, "first", b.cfg.First, "last", b.cfg.Last)
				return
			}
			m := allocator.Mapping{ID: id, Created: o.CreationTimestamp.Unix()}
			if !listing {
				m.Revision = revision(o)
			}
			e := entry{created: m.Created}
			_, e.marked = o.Annotations[HeartbeatAnnotation]
			if was, since, quarantined := Quarantined(o); quarantined {
				e.text, e.quarantined, e.since = was, true, since // no identity, but not free
			} else if key, err := b.read(o); err == nil && key.GetKey() != "" {
				m.Key, e.text = key, key.GetKey()
			} else {
				b.cfg.Log.Warn("an identity has unreadable labels", "identity", id, "error", err)
			}
			b.keepMeaning(o, &m, &e)
			b.index.set(id, e)
			handler.OnUpsert(m)
		},
		Delete: func(k k8s.Key) {
			if id, err := allocator.ParseID(k.Name); err == nil && id >= b.cfg.First && id <= b.cfg.Last {
				b.index.remove(id)
				handler.OnDelete(id, 0)
			}
		},
		Listing: func() { listing = true },
		Listed: func(revision string) {
			listing = false
			n, err := strconv.ParseInt(revision, 10, 64)
			if err != nil {
				b.cfg.Log.Warn("the version of a list of identities is no number", "version", revision)
			}
			b.index.dropExpected()
			select {
			case <-b.index.synced:
			default:
				close(b.index.synced)
			}
			handler.OnListDone(n)
		},
		Reached: func(version string) { k8s.Advance(&b.index.reached, version) },
	})
	if err != nil {
		return err
	}
	return ctx.Err()
}
