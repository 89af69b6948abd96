package endpointslices

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s"
)

// index decides which endpoint belongs into which slice. It is given which endpoints there are, and
// what slices the server has; what is to be written it answers to plan. It does no I/O and is not
// safe for concurrent use.
//
// Where an endpoint belongs is decided by what the server has, so that every operator that looks at
// the same slices decides the same, also after a restart: it stays where it is; if it is in several
// slices, in the oldest of them. Only one that is nowhere is given a place.
//
// Invariants: a slice is never written with more than max endpoints, nor grown if it has more
// already; an endpoint leaves a slice only when another one is known to contain the same entry, or
// when it is gone.
type index struct {
	max  int
	name func() string // makes a name for a slice

	begun  bool
	want   map[key]*entry
	at     map[key]*place
	slices map[string]*slice
	open   map[string]map[*slice]struct{} // by namespace, those with room
	dirty  map[string]struct{}            // slices to be looked at

	// dead are slices known to be deleted, of which late events may come; deadOrder is the order in
	// which they are dropped.
	dead      map[types.UID]struct{}
	deadOrder []types.UID
}

// manyDead is how many deleted slices are remembered: far more than can be deleted while a request
// is under way.
const manyDead = 4096

// slice is one slice, as the server has it and as it should be.
type slice struct {
	name, namespace string

	// As the server has it.
	exists  bool
	uid     types.UID
	version uint64
	created int64
	has     map[string]*entry // by the endpoint's name
	odd     bool              // it contains something that no index would write
	unsure  bool              // a write was sent, and what came of it is not known
	closed  bool              // it is another namespace's now, and known as another slice

	// holds are the names of the endpoints that should be in it, for now.
	holds map[string]struct{}
}

// place is where an endpoint is.
type place struct {
	// seen are the slices that contain it.
	seen []*slice
	// pending is the one that it was given when it was in none that it may stay in.
	pending *slice
	// assigned is where it belongs, in are all slices that hold it for now: that, and those that it
	// has not left yet.
	assigned *slice
	in       []*slice
}

func newIndex(most int, name func() string) *index {
	return &index{
		max: most, name: name, want: map[key]*entry{}, at: map[key]*place{}, slices: map[string]*slice{}, open: map[string]map[*slice]struct{}{},
		dirty: map[string]struct{}{}, dead: map[types.UID]struct{}{},
	}
}

// begin marks that everything was observed that exists: from now on endpoints are given places.
func (b *index) begin() {
	b.begun = true
	for _, k := range append(slices.SortedFunc(maps.Keys(b.want), compareKeys), b.unwanted()...) {
		b.reassign(k)
	}
	for _, s := range b.slices {
		b.dirty[s.name] = struct{}{}
	}
}

// unwanted returns the endpoints that are in some slice and should be in none, in the order of
// their keys.
func (b *index) unwanted() []key {
	var out []key
	for k := range b.at {
		if b.want[k] == nil {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, compareKeys)
	return out
}

func compareKeys(x, y key) int {
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}

// set takes the wanted entry of an endpoint; nil if it is to be in no slice.
func (b *index) set(k key, e *entry) {
	if same(b.want[k], e) {
		return
	}
	if e == nil {
		delete(b.want, k)
	} else {
		b.want[k] = b.shared(k, e)
	}
	b.reassign(k)
}

// shared returns what a slice has of an entry if that is the same: one copy is enough.
func (b *index) shared(k key, e *entry) *entry {
	if p := b.at[k]; p != nil {
		for _, s := range p.seen {
			if have := s.has[k.Name]; same(have, e) {
				return have
			}
		}
	}
	return e
}

// known returns the present entry of an endpoint: of this index, or of a former slice. It may be
// nil.
func (b *index) known(k key) *entry {
	if e := b.want[k]; e != nil {
		return e
	}
	if p := b.at[k]; p != nil {
		if s := b.preferred(k, p); s != nil {
			return s.has[k.Name]
		}
		for _, s := range p.seen {
			return s.has[k.Name]
		}
	}
	return nil
}

// observe records a version of a slice; one older than the recorded one is ignored, so that answers
// to writes and watch events may arrive in any order.
func (b *index) observe(o *v2alpha1.CiliumEndpointSlice) {
	s := b.slices[o.Name]
	version := k8s.VersionOf(o)
	switch {
	case b.isDead(o.UID):
		return
	case s == nil:
		s = b.newSlice(o.Name, o.Namespace)
	case s.exists && version < s.version, s.exists && version == s.version && !s.unsure:
		return
	case s.namespace != o.Namespace:
		b.abandon(s)
		s = b.newSlice(o.Name, o.Namespace)
	}
	s.exists, s.uid, s.version, s.created, s.unsure = true, o.UID, version, o.CreationTimestamp.Unix(), false
	s.odd = false
	old := s.has
	s.has = make(map[string]*entry, len(o.Endpoints))
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if _, twice := s.has[e.Name]; twice || e.Name == "" {
			s.odd = true
			continue
		}
		if w := b.want[key{Namespace: s.namespace, Name: e.Name}]; same(w, e) {
			e = w // one copy is enough
		} else {
			e = e.DeepCopy() // the others of the object need not be kept
		}
		s.has[e.Name] = e
	}
	b.reconsider(s, old)
}

// abandon drops a slice whose namespace field was changed: it no longer contains endpoints of its
// own namespace.
func (b *index) abandon(s *slice) {
	s.exists, s.closed = false, true
	delete(b.slices, s.name)
	delete(b.open[s.namespace], s)
	names := maps.Clone(s.holds)
	for name := range s.has {
		names[name] = struct{}{}
	}
	s.has = nil
	for name := range names {
		p := b.placeOf(key{Namespace: s.namespace, Name: name})
		p.seen = slices.DeleteFunc(p.seen, func(o *slice) bool { return o == s })
		if p.pending == s {
			p.pending = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		b.reassign(key{Namespace: s.namespace, Name: name})
	}
}

func (b *index) isDead(uid types.UID) bool {
	_, dead := b.dead[uid]
	return dead
}

// gone notes that the server has a slice no more. Another one of that name is not meant.
func (b *index) gone(name string, uid types.UID) {
	if !b.isDead(uid) {
		b.dead[uid] = struct{}{}
		if b.deadOrder = append(b.deadOrder, uid); len(b.deadOrder) > manyDead {
			delete(b.dead, b.deadOrder[0])
			b.deadOrder = b.deadOrder[1:]
		}
	}
	s := b.slices[name]
	if s == nil || !s.exists || s.uid != uid {
		return
	}
	old := s.has
	s.exists, s.uid, s.version, s.created, s.has, s.odd, s.unsure = false, "", 0, 0, nil, false, false
	b.reconsider(s, old)
}

// doubt records that the outcome of a write of a slice is unknown. Until a read from the server is
// passed to observe, no endpoint leaves another slice because it is in this one.
func (b *index) doubt(name string) {
	if s := b.slices[name]; s != nil {
		s.unsure = true
		b.dirty[name] = struct{}{}
		b.reassignAll(s)
	}
}

// lacks notes that the server, asked for a slice of that name, had none. uid is what the index had
// of it when it was asked.
func (b *index) lacks(name string, uid types.UID) {
	s := b.slices[name]
	switch {
	case uid != "":
		b.gone(name, uid)
	case s != nil && !s.exists:
		s.unsure = false
		b.dirty[name] = struct{}{}
	}
}

// uidOf returns which slice of a name the index knows; empty for none.
func (b *index) uidOf(name string) types.UID {
	if s := b.slices[name]; s != nil {
		return s.uid
	}
	return ""
}

// doubtful reports whether the server must be asked for a slice before it can be written.
func (b *index) doubtful(name string) bool {
	s := b.slices[name]
	return s != nil && s.unsure
}

// reconsider decides about all present and former entries of a slice.
func (b *index) reconsider(s *slice, old map[string]*entry) {
	for name := range old {
		if s.has[name] == nil {
			p := b.placeOf(key{Namespace: s.namespace, Name: name})
			p.seen = slices.DeleteFunc(p.seen, func(o *slice) bool { return o == s })
		}
	}
	for name := range s.has {
		p := b.placeOf(key{Namespace: s.namespace, Name: name})
		if !slices.Contains(p.seen, s) {
			p.seen = append(p.seen, s)
		}
	}
	b.dirty[s.name] = struct{}{}
	for name := range old {
		if s.has[name] == nil {
			b.reassign(key{Namespace: s.namespace, Name: name})
		}
	}
	b.reassignAll(s)
	b.forget(s)
}

// makeRoom moves endpoints that were planned for a slice to others: another writer has filled it,
// or an endpoint that had gone came back.
func (b *index) makeRoom(s *slice) {
	if len(s.holds) <= b.max {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.holds)) {
		k := key{Namespace: s.namespace, Name: name}
		if p := b.at[k]; p.pending == s && len(s.holds) > b.max {
			p.pending = nil
			b.reassign(k)
		}
	}
}

// reassignAll decides about all endpoints of a slice, in an order that does not depend on chance:
// they may need places.
func (b *index) reassignAll(s *slice) {
	for _, name := range slices.Sorted(maps.Keys(s.has)) {
		b.reassign(key{Namespace: s.namespace, Name: name})
	}
}

func (b *index) placeOf(k key) *place {
	p := b.at[k]
	if p == nil {
		p = &place{}
		b.at[k] = p
	}
	return p
}

func (b *index) newSlice(name, namespace string) *slice {
	s := &slice{name: name, namespace: namespace, holds: map[string]struct{}{}}
	b.slices[name] = s
	if b.open[namespace] == nil {
		b.open[namespace] = map[*slice]struct{}{}
	}
	b.open[namespace][s] = struct{}{}
	return s
}

// forget drops a slice that neither is nor should be.
func (b *index) forget(s *slice) {
	if s.exists || len(s.holds) > 0 {
		return
	}
	delete(b.slices, s.name)
	delete(b.open[s.namespace], s)
	if len(b.open[s.namespace]) == 0 {
		delete(b.open, s.namespace)
	}
}

// reassign decides where an endpoint belongs and which slices hold it for now.
func (b *index) reassign(k key) {
	if !b.begun {
		return
	}
	p, w := b.placeOf(k), b.want[k]
	var in []*slice
	if w == nil {
		p.assigned, p.pending = nil, nil
	} else {
		b.assign(k, p)
		in = append(in, p.assigned)
		there := same(p.assigned.has[k.Name], w)
		if !there || p.assigned.unsure { // it stays where it is
			for _, s := range p.seen {
				if s != p.assigned {
					in = append(in, s)
				}
			}
		}
		if !there {
			b.dirty[p.assigned.name] = struct{}{}
		}
	}
	was := p.in
	p.in = in
	for _, s := range in {
		if _, held := s.holds[k.Name]; !held {
			s.holds[k.Name] = struct{}{}
			b.measure(s)
		}
	}
	for _, s := range slices.Concat(was, p.seen) {
		if slices.Contains(in, s) {
			continue
		}
		delete(s.holds, k.Name)
		b.measure(s)
		b.dirty[s.name] = struct{}{}
		b.forget(s)
	}
	if w == nil && len(p.seen) == 0 {
		delete(b.at, k)
	}
	for _, s := range in {
		b.makeRoom(s)
	}
}

// measure notes whether a slice has room.
func (b *index) measure(s *slice) {
	space := b.open[s.namespace]
	if len(s.holds) >= b.max || s.closed {
		delete(space, s)
		return
	}
	if space == nil {
		space = map[*slice]struct{}{}
		b.open[s.namespace] = space
	}
	space[s] = struct{}{}
}

// assign decides to which slice an endpoint is assigned.
func (b *index) assign(k key, p *place) {
	if s := b.preferred(k, p); s != nil {
		p.assigned, p.pending = s, nil
		return
	}
	if p.pending == nil {
		p.pending = b.choose(k, p)
	}
	p.assigned = p.pending
}

// preferred returns the slice in which an endpoint stays: the oldest of those that contain it and
// have room for it; nil if there is none.
func (b *index) preferred(k key, p *place) *slice {
	var best *slice
	for _, s := range p.seen {
		if !b.excess(s, k.Name) && (best == nil || cmp.Or(cmp.Compare(s.created, best.created), cmp.Compare(s.name, best.name)) < 0) {
			best = s
		}
	}
	return best
}

// excess reports whether an endpoint must leave a slice because it has too many: those stay that
// come first by name, whether they are wanted or not, so that nothing counts but what the server
// has.
func (b *index) excess(s *slice, name string) bool {
	if len(s.has) <= b.max {
		return false
	}
	before := 0
	for other := range s.has {
		if other < name {
			before++
		}
	}
	return before >= b.max
}

// choose returns the slice for an endpoint that is in none: the one of its namespace that has the
// most endpoints and room for another, else a new one.
func (b *index) choose(k key, p *place) *slice {
	var best *slice
	for s := range b.open[k.Namespace] {
		if slices.Contains(p.seen, s) {
			continue // it has to leave that one
		}
		if best == nil || cmp.Or(cmp.Compare(len(best.holds), len(s.holds)), cmp.Compare(s.created, best.created), cmp.Compare(s.name, best.name)) < 0 {
			best = s
		}
	}
	if best != nil {
		return best
	}
	name := b.name()
	for b.slices[name] != nil {
		name = b.name()
	}
	return b.newSlice(name, k.Namespace)
}

// takeDirty returns the slices that may have to be written since the last call.
func (b *index) takeDirty() []string {
	out := slices.Sorted(maps.Keys(b.dirty))
	clear(b.dirty)
	return out
}

// Kinds of writes.
type action int

const (
	leave action = iota
	create
	update
	remove
)

// write is what is to be done to a slice.
type write struct {
	action action
	// slice is as it should be. For update and remove it names the object that was looked at by uid
	// and resourceVersion.
	slice *v2alpha1.CiliumEndpointSlice
	// added, changed and removed count endpoints.
	added, changed, removed int
}

// plan reports what is to be done to a slice now.
func (b *index) plan(name string) write {
	s := b.slices[name]
	if s == nil {
		return write{}
	}
	var w write
	lingering := 0
	for n := range s.holds {
		k := key{Namespace: s.namespace, Name: n}
		switch old := s.has[n]; {
		case old == nil:
			w.added++
		case same(old, b.want[k]):
		case b.at[k].assigned == s:
			w.changed++
		default: // it is about to leave: that causes no write, but a write includes the current entry
			lingering++
		}
	}
	for n := range s.has {
		if _, held := s.holds[n]; !held {
			w.removed++
		}
	}
	switch {
	case !s.exists && len(s.holds) > 0:
		w.action = create
	case s.exists && len(s.holds) == 0:
		w.action = remove
	case s.exists && (s.odd || w.added+w.changed+w.removed > 0):
		w.action = update
	default:
		return write{}
	}
	w.changed += lingering
	w.slice = &v2alpha1.CiliumEndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, UID: s.uid}, Namespace: s.namespace, Endpoints: make([]entry, 0, len(s.holds)),
	}
	if s.exists {
		w.slice.ResourceVersion = strconv.FormatUint(s.version, 10)
	}
	for _, n := range slices.Sorted(maps.Keys(s.holds)) {
		w.slice.Endpoints = append(w.slice.Endpoints, *b.want[key{Namespace: s.namespace, Name: n}])
	}
	return w
}
