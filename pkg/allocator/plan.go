package allocator

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// This file decides, without I/O, which transaction finds or makes the ID of a key. The store
// runs it; if its conditions fail it shows what is there (a view), and the decision is taken again.
// What always holds afterwards:
//
//	I1  All references to one key carry the same ID. Every transaction that writes a
//	    reference makes sure of it: either no reference exists, or a witness (an existing
//	    reference with that ID) does, or all have that ID.
//	I2  A reference is only written while the ID's master key shows that the ID belongs
//	    to the key, or together with it.
//	I3  A master key is only made while there is none for the ID, and while no reference to
//	    the key exists except to that ID.
//	I4  An ID with a quarantine record is only made by a transaction that knows that record and
//	    deletes it: for the key that had the ID, or because no other ID is free.
//	I5  While another writer holds the key's lock, nothing makes its first reference: it may
//	    have looked already and found none.
//
// They hold even if the store is put back to an older copy between a view and the transaction that
// relies on it. The copy's contents were written before, so that nothing in it was written since
// the view, whatever it is: a condition on revisions proves nothing. Conditions are therefore on
// values, and where keys that do not count are in the way, on a marker: see [plan.mark].

// paths builds the keys of one allocator in the store.
type paths struct {
	base   string // without a slash at the end
	suffix string // this node's name under each key
	layout kvstore.Layout
	typ    AllocatorKey // any key; it is used to read others
}

func (p paths) ids() string                { return p.base + "/id/" }
func (p paths) values() string             { return p.base + "/value/" }
func (p paths) allLocks() string           { return p.base + "/locks/" }
func (p paths) id(id ID) string            { return p.ids() + id.String() }
func (p paths) value(key string) string    { return p.values() + p.layout.Encode(key) + "/" }
func (p paths) quarantine() string         { return p.base + "/quarantine/" }
func (p paths) quarantined(id ID) string   { return p.quarantine() + id.String() }
func (p paths) confirmations() string      { return p.base + "/confirmed/" }
func (p paths) locks(key string) string    { return p.allLocks() + key + "/" }
func (p paths) ownValue(key string) string { return p.value(key) + p.suffix }

// referenceDirs returns the directories under which a key has references: that in which they are
// written, and those of other forms that are read.
func (p paths) referenceDirs(key string) []string {
	dirs := p.layout.Encodings(key)
	for i, form := range dirs {
		dirs[i] = p.values() + form + "/"
	}
	return dirs
}

// marker is where this node marks that it has seen all there is of a key.
func (p paths) marker(key string) string {
	return p.base + "/marker/" + p.layout.Encode(key) + "/" + p.suffix
}

func (p paths) putMarker(key string) kvstore.Op {
	return kvstore.PutOp(p.marker(key), nil, kvstore.Leased)
}

// unlocked holds if the lock of a key is free, or where locks are keys below a path, if no such key
// was written since a view that showed none of this key.
func (p paths) unlocked(key string, v *view) kvstore.Cond {
	if lock, ok := p.layout.LockKey(p.allLocks(), key); ok {
		return kvstore.Unleased(lock)
	}
	if v == nil {
		return kvstore.PrefixAbsent(p.locks(key))
	}
	return unchangedSince(p.locks(key), v.noLocks, v.revision)
}

// untouched holds if a key has no reference, or none since a view of it, and its lock is free.
func (p paths) untouched(key string, v *view) []kvstore.Cond {
	return append(p.unreferred(key, v), p.unlocked(key, v))
}

// unreferred holds if a key has no reference, or none that is newer than a view of it. For a marked
// view it also requires that the store is the one that was read.
func (p paths) unreferred(key string, v *view) (conds []kvstore.Cond) {
	if v != nil && v.marked {
		conds = append(conds, kvstore.ModRevisionIs(p.marker(key), v.revision))
	}
	for i, dir := range p.referenceDirs(key) {
		if v == nil {
			conds = append(conds, kvstore.PrefixAbsent(dir))
		} else {
			conds = append(conds, unchangedSince(dir, v.noValues[i], v.revision))
		}
	}
	return conds
}

// allReferTo holds if all references to a key are to that ID, and in the form that is written;
// a transaction takes one condition on values.
func (p paths) allReferTo(key string, id ID) []kvstore.Cond {
	var conds []kvstore.Cond
	for i, dir := range p.referenceDirs(key) {
		if i == 0 {
			conds = append(conds, kvstore.PrefixValuesAre(dir, []byte(id.String())))
		} else {
			conds = append(conds, kvstore.PrefixAbsent(dir))
		}
	}
	return conds
}

// lookLocks reads the input of locked.
func (p paths) lookLocks(key string) kvstore.Op {
	if lock, ok := p.layout.LockKey(p.allLocks(), key); ok {
		return kvstore.GetOp(lock)
	}
	return kvstore.ListOp(p.locks(key))
}

// lookReferences reads the references to a key, each of its directories in turn.
func (p paths) lookReferences(key string) []kvstore.Op {
	var ops []kvstore.Op
	for _, dir := range p.referenceDirs(key) {
		ops = append(ops, kvstore.ListOp(dir))
	}
	return ops
}

// reference splits the path of a reference into the key and the node that it is of. Labels hold
// slashes; the last part is the node.
func (p paths) reference(path string) (key, node string, ok bool) {
	path = strings.TrimPrefix(path, p.values())
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "", "", false
	}
	return p.canonical(path[:i]), path[i+1:], true
}

// canonical returns the canonical string of a key read from the store, where another program may
// have written its labels in another order. Other text is returned unchanged.
func (p paths) canonical(stored string) string {
	text := p.layout.Decode(stored)
	if key, err := p.typ.PutKey(text); err == nil && key.GetKey() != "" {
		return key.GetKey()
	}
	return text
}

// locked reports whether the lock of a key is held or waited for.
func (p paths) locked(key string, pairs []kvstore.KeyValue) bool {
	_, session := p.layout.LockKey(p.allLocks(), key)
	return slices.ContainsFunc(pairs, func(kv kvstore.KeyValue) bool {
		if session {
			return kv.Lease != ""
		}
		_, ok := directChild(kv.Key, p.locks(key))
		return ok
	})
}

// owner returns the key to which a master key's ID belongs.
func (p paths) owner(master *kvstore.KeyValue) string { return p.canonical(string(master.Value)) }

// view is what the store showed when a transaction of a plan did not go through.
type view struct {
	revision int64
	tried    ID
	// master is the master key of the ID tried; nil if there is none.
	master *kvstore.KeyValue
	// record is that of the quarantine of the ID tried; nil if there is none.
	record *kvstore.KeyValue
	// references stand directly under the key's directory.
	references []reference
	// locked means that a lock is held or waited for.
	locked bool
	// noValues, for each directory of references, and noLocks mean that there was nothing at all
	// under the key's directories, neither of the key nor of one whose name goes on with a slash.
	noValues []bool
	noLocks  bool
	// marked means that this node's marker was written at the revision of the view.
	marked bool
}

// needsMarker reports whether only its revision could show that nothing was written since a view:
// there are keys which do not count.
func (p paths) needsMarker(v *view) bool {
	return slices.Contains(v.noValues, false) || p.layout == kvstore.LayoutEtcd && !v.noLocks
}

type reference struct {
	path         string
	id           ID
	mod, created int64
}

// plan looks for the ID of one key.
type plan struct {
	paths paths
	key   string
	// held is the ID that must come out, for a reference that is restored; NoID if any may.
	held ID
	// refused are IDs that turned out to belong to another key, or to none, each with the revision
	// at which they did. A reference written later says that the ID has come back.
	refused map[ID]int64
	// quarantined are the IDs in quarantine, with their records.
	quarantined map[ID][]byte
	// yielded counts how often the plan has waited for references to a younger ID to go.
	yielded int
	// marker means that the plan may have written this node's marker, unmarked that there is too
	// much to see for the store to write one with it.
	marker, unmarked bool
}

// maxYields bounds that wait. The creator of the younger ID releases it as soon as it sees the
// older one, unless it saw that only after it had answered its caller: then the younger one is in
// force and stays. The pauses grow, see [KVStoreBackend.execute].
const maxYields = 6

// step is the next thing to do.
type step struct {
	// wait: others must act first. After a pause comes the transaction, or the last one again if
	// there is none.
	wait bool
	// conflict ends a plan with a held ID.
	conflict *ConflictError

	id  ID
	txn kvstore.Txn
	// creates means that the transaction makes the master key, fresh that the ID was picked
	// for it, reused that it was in quarantine.
	creates, fresh, reused bool
	// trusted means that the watch has seen the master key, so that it is known to be the oldest.
	trusted bool
	// marks means that the transaction only looks, and writes the marker. It also reads the master
	// keys of these IDs.
	marks   bool
	refused []ID
}

// The places of the reads in every plan transaction's Else branch. References are the last: there
// is a read for each of their directories.
const (
	readLocks = iota
	readMaster
	readQuarantine
	readReferences
)

// next returns the next step. v is nil at first.
func (p *plan) next(v *view, ids IDSource) (step, error) {
	if v == nil {
		if id := p.candidate(ids); id != NoID {
			return p.referAlone(id), nil
		}
		return p.create(ids, p.paths.untouched(p.key, nil)...)
	}
	p.learn(v, ids)
	if witness, ok := p.inForce(v, ids); ok {
		if id := p.candidate(ids); id != NoID && id != witness.id && p.held == NoID && p.yielded < maxYields {
			// The ID that the cache knows is older, or those references would carry it.
			p.yielded++
			s := p.referAlone(id)
			s.wait = true
			return s, nil
		}
		return p.join(v, witness), nil
	}
	if c := p.clash(v); c != nil {
		return step{conflict: c}, nil
	}
	if v.locked {
		return step{wait: true}, nil
	}
	// There is no reference to go by. What the view showed under the directories, keys of other
	// names further below, must still be all there is.
	if p.paths.needsMarker(v) && !v.marked && !p.unmarked {
		return p.mark(v.tried), nil
	}
	unchanged := p.paths.untouched(p.key, v)
	if v.master != nil && p.paths.owner(v.master) == p.key {
		return p.refer(v.tried, v, unchanged...), nil
	}
	if p.held != NoID || v.master == nil && v.record != nil && !p.restsForOthers(v) { // its own key takes an ID back
		return p.restore(v.tried, v.sameRecord(p.paths), unchanged...), nil
	}
	if id := p.candidate(ids); id != NoID {
		s := p.refer(id, v, unchanged...)
		s.trusted = true
		return s, nil
	}
	return p.create(ids, unchanged...)
}

// unchangedSince holds if nothing was written under the directory since it was seen at revision. Of
// one that was empty it asks that it still is, which needs no marker.
func unchangedSince(dir string, empty bool, revision int64) kvstore.Cond {
	if empty {
		return kvstore.PrefixAbsent(dir)
	}
	return kvstore.PrefixUnchangedSince(dir, revision)
}

// candidate is the ID to try first.
func (p *plan) candidate(ids IDSource) ID {
	if p.held != NoID {
		return p.held
	}
	id := ids.Known(p.key)
	if _, refused := p.refused[id]; refused {
		return NoID
	}
	return id
}

// learn records what a view shows about the ID tried.
func (p *plan) learn(v *view, ids IDSource) {
	if p.refused == nil {
		p.refused = make(map[ID]int64)
	}
	for _, r := range v.references {
		if since, ok := p.refused[r.id]; ok && r.mod > since {
			delete(p.refused, r.id)
		}
	}
	switch {
	case v.master == nil:
	case p.paths.owner(v.master) == p.key:
		delete(p.refused, v.tried)
	default:
		p.refused[v.tried] = v.revision
		if ids != nil {
			ids.Taken(v.tried)
		}
	}
	if v.master == nil && p.held == NoID && (!v.refers(v.tried) || p.restsForOthers(v)) {
		// The cache is behind: the ID it knows has been collected. Or a node was cut off for so
		// long that the ID it refers to has been another key's since.
		p.refused[v.tried] = v.revision
	}
}

// restsForOthers reports whether the ID tried is in quarantine, and was not this key's before.
func (p *plan) restsForOthers(v *view) bool {
	return v.record != nil && p.othersRecord(v.record)
}

func (p *plan) othersRecord(kv *kvstore.KeyValue) bool {
	was, _ := DecodeQuarantine(kv.Value)
	return was != p.key
}

// sameRecord holds if the quarantine of the ID tried is as it was seen.
func (v *view) sameRecord(p paths) kvstore.Cond {
	if v.record == nil {
		return kvstore.Absent(p.quarantined(v.tried))
	}
	return kvstore.ValueIs(v.record.Key, v.record.Value)
}

func (v *view) refers(id ID) bool {
	return slices.ContainsFunc(v.references, func(r reference) bool { return r.id == id })
}

// inForce returns a reference that carries the ID in force. References to an ID that belongs
// to another key do not count. If other writers made several, the ID that the cache knows to be
// oldest wins, then the smallest: every node decides alike.
func (p *plan) inForce(v *view, ids IDSource) (reference, bool) {
	var best reference
	for _, r := range v.references {
		if _, refused := p.refused[r.id]; refused || p.held != NoID && r.id != p.held {
			continue
		}
		if best.id == NoID || r.id < best.id {
			best = r
		}
	}
	if best.id == NoID {
		return best, false
	}
	if p.held == NoID {
		known := p.candidate(ids)
		for _, r := range v.references {
			if r.id == known {
				return r, true
			}
		}
	}
	return best, p.clash(v) == nil
}

// clash reports why a held ID cannot be restored.
func (p *plan) clash(v *view) *ConflictError {
	if p.held == NoID {
		return nil
	}
	if v.master != nil && p.paths.owner(v.master) != p.key {
		return &ConflictError{Key: p.key, Held: p.held, Owner: p.paths.owner(v.master), Revision: v.master.ModRevision}
	}
	if v.master == nil && p.restsForOthers(v) {
		was, _ := DecodeQuarantine(v.record.Value)
		return &ConflictError{Key: p.key, Held: p.held, Owner: was, Quarantined: true}
	}
	for _, r := range v.references {
		if r.id != p.held {
			return &ConflictError{Key: p.key, Held: p.held, InForce: r.id}
		}
	}
	return nil
}

// referAlone writes this node's reference to an ID in the cache, if there is no reference to
// another.
func (p *plan) referAlone(id ID) step {
	s := p.refer(id, nil, append(p.paths.allReferTo(p.key, id), p.paths.unlocked(p.key, nil))...)
	s.trusted = true
	return s
}

// join adds this node's reference to those that exist. The lock does not matter: its holder finds
// the ID in force just the same.
func (p *plan) join(v *view, witness reference) step {
	stillThere := kvstore.ValueIs(witness.path, []byte(witness.id.String()))
	if witness.id == v.tried && v.master == nil {
		return p.restore(witness.id, v.sameRecord(p.paths), stillThere)
	}
	return p.refer(witness.id, v, stillThere)
}

// refer writes this node's reference to an ID that exists. A master key that the view showed in
// another form than ours is written in ours.
func (p *plan) refer(id ID, v *view, conds ...kvstore.Cond) step {
	ours := []byte(p.paths.layout.Encode(p.key))
	master := ours
	if v != nil && v.tried == id && v.master != nil && p.paths.owner(v.master) == p.key {
		master = v.master.Value
	}
	s := step{id: id, txn: kvstore.Txn{
		If:   append([]kvstore.Cond{kvstore.ValueIs(p.paths.id(id), master)}, conds...),
		Then: p.finish([]kvstore.Op{p.putReference(id), kvstore.GetOp(p.paths.id(id))}),
		Else: p.look(id),
	}}
	if !bytes.Equal(master, ours) && p.paths.layout != kvstore.LayoutConsulPlain {
		s.txn.Then = append(s.txn.Then, kvstore.PutOp(p.paths.id(id), ours, kvstore.Permanent))
	}
	return s
}

// restore writes the master key of an ID that has none, with this node's reference, and ends its
// quarantine, which record is the condition on.
func (p *plan) restore(id ID, record kvstore.Cond, conds ...kvstore.Cond) step {
	return step{id: id, creates: true, txn: kvstore.Txn{
		If: append([]kvstore.Cond{kvstore.Absent(p.paths.id(id)), record}, conds...),
		Then: p.finish([]kvstore.Op{
			p.putReference(id), kvstore.PutOp(p.paths.id(id), []byte(p.paths.layout.Encode(p.key)), kvstore.Permanent), kvstore.DeleteOp(p.paths.quarantined(id)),
		}),
		Else: p.look(id),
	}}
}

// mark looks once more, and writes this node's marker at the same revision. A transaction with the
// condition that the marker was written at that revision finds the store that was seen: in an older
// copy the marker is not there, or older. Only then do revisions show what has changed since. What
// refused IDs belong to was perhaps seen before the store went back, so it is read again.
func (p *plan) mark(id ID) step {
	p.marker = true
	s := step{id: id, marks: true, refused: slices.Collect(maps.Keys(p.refused))}
	s.txn.Then = p.look(id)
	for _, other := range s.refused {
		s.txn.Then = append(s.txn.Then, kvstore.GetOp(p.paths.id(other)), kvstore.GetOp(p.paths.quarantined(other)))
	}
	s.txn.Then = append(s.txn.Then, p.paths.putMarker(p.key))
	return s
}

// finish adds to a branch that ends the plan the deletion of a marker.
func (p *plan) finish(then []kvstore.Op) []kvstore.Op {
	if p.marker {
		then = append(then, kvstore.DeleteOp(p.paths.marker(p.key)))
	}
	return then
}

// create makes an ID and this node's reference. One in quarantine is only picked if no other
// is free.
func (p *plan) create(ids IDSource, conds ...kvstore.Cond) (step, error) {
	id, err := ids.Pick()
	if err != nil {
		return step{}, err
	}
	value, reused := p.quarantined[id]
	record := kvstore.Absent(p.paths.quarantined(id))
	if reused {
		record = kvstore.ValueIs(p.paths.quarantined(id), value)
	}
	s := p.restore(id, record, conds...)
	s.fresh, s.reused = true, reused
	return s, nil
}

func (p *plan) putReference(id ID) kvstore.Op {
	return kvstore.PutOp(p.paths.ownValue(p.key), []byte(id.String()), kvstore.Leased)
}

func (p *plan) look(id ID) []kvstore.Op {
	ops := []kvstore.Op{
		readLocks:      p.paths.lookLocks(p.key),
		readMaster:     kvstore.GetOp(p.paths.id(id)),
		readQuarantine: kvstore.GetOp(p.paths.quarantined(id)),
	}
	return append(ops, p.paths.lookReferences(p.key)...)
}

// see reads what a step's transaction showed, by its Else branch or with the marker.
func (p *plan) see(s step, r kvstore.TxnResult) *view {
	v := p.paths.shown(p.key, r.Revision, r.Results[readLocks], r.Results[readReferences:])
	v.tried, v.marked = s.id, s.marks
	if m := r.Results[readMaster]; len(m) > 0 {
		v.master = &m[0]
	}
	if q := r.Results[readQuarantine]; len(q) > 0 {
		v.record = &q[0]
	}
	more := r.Results[readReferences+len(v.noValues):]
	for i, id := range s.refused {
		switch m, q := more[2*i], more[2*i+1]; {
		case len(m) == 0 && !v.refers(id):
		case len(m) == 0 && len(q) > 0 && p.othersRecord(&q[0]):
		case len(m) > 0 && p.paths.owner(&m[0]) != p.key:
		default:
			delete(p.refused, id)
		}
	}
	return v
}

// shown is the part of a view that describes a key: what was read by lookLocks and lookReferences.
func (p paths) shown(key string, revision int64, locks []kvstore.KeyValue, found [][]kvstore.KeyValue) *view {
	v := &view{revision: revision, locked: p.locked(key, locks), noLocks: len(locks) == 0}
	for i, dir := range p.referenceDirs(key) {
		v.references = append(v.references, references(found[i], dir)...)
		v.noValues = append(v.noValues, len(found[i]) == 0)
	}
	return v
}

// references picks the well-formed references that stand directly under the directory.
func references(pairs []kvstore.KeyValue, dir string) []reference {
	var out []reference
	for _, kv := range pairs {
		if _, ok := directChild(kv.Key, dir); !ok {
			continue
		}
		if id, err := ParseID(strings.TrimSpace(string(kv.Value))); err == nil {
			out = append(out, reference{kv.Key, id, kv.ModRevision, kv.CreateRevision})
		}
	}
	return out
}
