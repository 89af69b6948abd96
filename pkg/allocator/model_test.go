package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// This file runs small scenarios of two or three actors in every order of their store operations,
// on the real backend and a real store in memory, and checks the promises after each operation.
// Then it does the same with one check of the transactions taken away, and expects the search to
// find the harm: so each check is there for a reason, and the search is able to see it.

// world is one run of a scenario.
type world struct {
	mem *kvstore.Memory
	// given is what callers were given and have not released: the ID of each key on each
	// node.
	given map[string]allocator.ID // "node key"
	// drop names which conditions the store ignores.
	drop func(txn kvstore.Txn, c kvstore.Cond) bool
	// verify is whether allocators give way to older IDs.
	verify bool
	// ends has how each order ended that was played to its end.
	ends map[string]bool

	turns   map[string]chan bool // actors that wait for their turn; false ends them
	arrived chan string          // an actor waits for its turn, or has ended ("-name")
	idle    map[string]int       // operations of an actor since the store last changed
	clients map[string]*kvstore.MemoryClient
	copied  []kvstore.KeyValue // the store as it was once
}

// client is an actor's connection to the store.
func (w *world) client(name string) *kvstore.MemoryClient {
	if w.clients[name] == nil {
		w.clients[name] = w.mem.Client()
	}
	return w.clients[name]
}

// actorStore is a connection whose operations each wait for a turn.
type actorStore struct {
	kvstore.Backend
	w    *world
	name string
}

func (s *actorStore) turn() {
	s.w.arrived <- s.name
	if !<-s.w.turns[s.name] {
		runtime.Goexit()
	}
}

func (s *actorStore) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	s.turn()
	txn.If = slices.DeleteFunc(slices.Clone(txn.If), func(c kvstore.Cond) bool { return s.w.drop(txn, c) })
	return s.w.client(s.name).Txn(ctx, txn)
}

func (s *actorStore) List(ctx context.Context, prefix string) (kvstore.Listing, error) {
	s.turn()
	return s.w.client(s.name).List(ctx, prefix)
}

// actor is a node, or another writer, in a scenario.
type actor struct {
	w     *world
	name  string
	store *actorStore
	be    *allocator.KVStoreBackend
	cache map[string]allocator.ID // what the node's watch has delivered
	picks []allocator.ID
	taken map[allocator.ID]bool
}

func (w *world) actor(name string) *actor {
	store := &actorStore{w.client(name), w, name}
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: name, KeyType: allocator.StringKey("")})
	if err != nil {
		panic(err)
	}
	return &actor{w: w, name: name, store: store, be: be, cache: map[string]allocator.ID{}, picks: []allocator.ID{1, 2, 3}, taken: map[allocator.ID]bool{}}
}

// Known, Pick and Taken make an actor the [allocator.IDSource] of its own backend.
func (a *actor) Known(key string) allocator.ID       { return a.cache[key] }
func (a *actor) Taken(id allocator.ID)               { a.taken[id] = true }
func (a *actor) Quarantined(allocator.ID, time.Time) {}
func (a *actor) Pick() (allocator.ID, error) {
	for _, id := range a.picks {
		if !a.taken[id] {
			return id, nil
		}
	}
	return allocator.NoID, allocator.ErrExhausted
}

// refresh lets the actor's watch catch up.
func (a *actor) refresh() {
	a.cache = map[string]allocator.ID{}
	created := map[string]int64{}
	for _, kv := range a.w.pairs("/id/") {
		id, err := allocator.ParseID(kv.Key[strings.LastIndexByte(kv.Key, '/')+1:])
		if err != nil {
			panic(err)
		}
		if at, ok := created[string(kv.Value)]; !ok || kv.CreateRevision < at {
			a.cache[string(kv.Value)], created[string(kv.Value)] = id, kv.CreateRevision
		}
		a.taken[id] = true
	}
}

// allocate is what an Allocator does for one key.
func (a *actor) allocate(key string) {
	for {
		got, err := a.be.Acquire(context.Background(), allocator.StringKey(key), a)
		if errors.Is(err, allocator.ErrContended) || errors.Is(err, allocator.ErrExhausted) {
			return
		}
		if err != nil {
			panic(err)
		}
		if a.w.verify && got.Revision != 0 {
			a.store.turn() // the watch reaches the revision some time later
			a.refresh()
			if oldest := a.cache[key]; oldest != allocator.NoID && oldest != got.ID && !got.Final {
				if err := a.be.Withdraw(context.Background(), allocator.StringKey(key), got); err != nil {
					panic(err)
				}
				continue
			}
		}
		a.w.given[a.name+" "+key] = got.ID
		return
	}
}

func (a *actor) release(key string) {
	id, ok := a.w.given[a.name+" "+key]
	if !ok {
		return
	}
	delete(a.w.given, a.name+" "+key) // from here on no caller relies on it
	if err := a.be.Release(context.Background(), id, allocator.StringKey(key)); err != nil {
		panic(err)
	}
}

func (a *actor) collect(rounds int) {
	var dead map[allocator.ID]int64
	for range rounds {
		var err error
		if dead, _, err = a.be.RunGC(context.Background(), nil, allocator.Range{Min: 1, Max: 3}, dead); err != nil {
			panic(err)
		}
	}
}

// copyStore takes a copy of the store, and lets it go on for some revisions.
func (w *world) copyStore() {
	w.copied = w.pairs("/")
	c := w.mem.Client()
	defer c.Close()
	for range 50 {
		if err := kvstore.Put(context.Background(), c, "elsewhere", nil, kvstore.Permanent); err != nil {
			panic(err)
		}
	}
}

// rewind restores the store from its copy: its revisions begin anew from there, and IDs that were
// given since are not binding.
func (a *actor) rewind() {
	a.store.turn()
	for _, c := range a.w.clients {
		c.Close()
	}
	clear(a.w.clients)
	clear(a.w.given)
	a.w.mem = kvstore.NewMemory()
	for _, kv := range a.w.copied {
		if err := kvstore.Put(context.Background(), a.w.client(a.name), kv.Key, kv.Value, kvstore.Permanent); err != nil {
			panic(err)
		}
	}
}

// allocateLocked is what an older allocator does: under a lock it looks for references, then makes
// ID and reference one after the other.
func (a *actor) allocateLocked(key string, id allocator.ID) {
	ctx := context.Background()
	lock := base + "/locks/" + key + "/1"
	if err := kvstore.Put(ctx, a.store, lock, nil, kvstore.Leased); err != nil {
		panic(err)
	}
	l, err := a.store.List(ctx, base+"/value/"+key+"/")
	if err != nil {
		panic(err)
	}
	if len(l.Pairs) > 0 {
		if id, err = allocator.ParseID(string(l.Pairs[0].Value)); err != nil {
			panic(err)
		}
	} else if created, err := kvstore.CreateIfAbsent(ctx, a.store, fmt.Sprintf("%s/id/%s", base, id), []byte(key), kvstore.Permanent); err != nil || !created {
		return
	}
	if err := kvstore.Put(ctx, a.store, base+"/value/"+key+"/"+a.name, []byte(id.String()), kvstore.Leased); err != nil {
		panic(err)
	}
	a.w.given[a.name+" "+key] = id
	if err := kvstore.Delete(ctx, a.store, lock); err != nil {
		panic(err)
	}
}

func (w *world) pairs(under string) []kvstore.KeyValue {
	c := w.mem.Client()
	defer c.Close()
	l, err := c.List(context.Background(), base+under)
	if err != nil {
		panic(err)
	}
	return l.Pairs
}

// broken reports which promise does not hold.
func (w *world) broken() string {
	idOf, owner := map[string]allocator.ID{}, map[allocator.ID]string{}
	masters := map[string]string{}
	for _, kv := range w.pairs("/id/") {
		masters[strings.TrimPrefix(kv.Key, base+"/id/")] = string(kv.Value)
	}
	for who, id := range w.given {
		_, key, _ := strings.Cut(who, " ")
		if have, ok := idOf[key]; ok && have != id {
			return fmt.Sprintf("key %q has the IDs %d and %d", key, have, id)
		}
		if have, ok := owner[id]; ok && have != key {
			return fmt.Sprintf("ID %d has the keys %q and %q", id, have, key)
		}
		if masters[id.String()] != key {
			return fmt.Sprintf("ID %d of key %q is in use and was collected", id, key)
		}
		idOf[key], owner[id] = id, key
	}
	return ""
}

// scenario starts actors. setup runs before, freely.
type scenario struct {
	setup  func(w *world)
	actors map[string]func(a *actor)
}

// free runs f with every turn granted at once.
func (w *world) free(name string, f func(a *actor)) {
	a := w.actor(name)
	if w.turns[name] == nil {
		w.turns[name] = make(chan bool)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(a)
	}()
	for {
		select {
		case n := <-w.arrived:
			w.turns[n] <- true
		case <-done:
			return
		}
	}
}

// past is what an order of operations comes down to: which actor made each change of the store, and
// between which of these changes each operation of each actor was. An operation that changes
// nothing sees the same whether it comes before or after others that change nothing, so orders with
// the same past lead to the same store and the same actors, and go on in the same ways.
type past struct {
	changes []byte
	ops     map[string][]byte // by actor: how many changes there were before each operation
}

func (p *past) add(actor string, changed bool) {
	p.ops[actor] = append(p.ops[actor], byte(len(p.changes)))
	if changed {
		p.changes = append(p.changes, actor[0])
	}
}

func (p *past) String() string {
	var out strings.Builder
	out.Write(p.changes)
	for _, name := range slices.Sorted(maps.Keys(p.ops)) {
		out.WriteString("\xff" + name)
		out.Write(p.ops[name])
	}
	return out.String()
}

// play runs a scenario along a schedule and then along first choices, until all actors have ended
// or the past is one of seen, from where all ways were tried; with a nil seen to the end. It
// returns the choices that there were.
func (s scenario) play(w *world, schedule []int, seen map[string]bool) (options []int, fault string) {
	w.mem, w.given = kvstore.NewMemory(), map[string]allocator.ID{}
	w.turns, w.arrived = map[string]chan bool{}, make(chan string)
	w.idle, w.clients = map[string]int{}, map[string]*kvstore.MemoryClient{}
	if s.setup != nil {
		s.setup(w)
	}
	running := 0
	for name, f := range s.actors {
		w.turns[name] = make(chan bool)
		a := w.actor(name)
		running++
		go func() {
			defer func() { w.arrived <- "-" + name }()
			f(a)
		}()
	}
	var waiting []string
	p := past{ops: map[string][]byte{}}
	busy := running
	for {
		for ; busy > 0; busy-- {
			n := <-w.arrived
			if strings.HasPrefix(n, "-") {
				running--
				continue
			}
			waiting = append(waiting, n)
		}
		if fault == "" {
			fault = w.broken()
		}
		if running == 0 {
			end := fmt.Sprint(w.given)
			for _, kv := range w.pairs("/") { // without leases, which are numbered as connections are made
				value := string(kv.Value)
				if strings.HasPrefix(kv.Key, base+"/quarantine/") { // and without times
					value, _ = allocator.DecodeQuarantine(kv.Value)
				}
				end += fmt.Sprintf(" %s=%s@%d", kv.Key, value, kv.ModRevision)
			}
			w.ends[end] = true
			return options, fault
		}
		if seen != nil && len(options) >= len(schedule) {
			if seen[p.String()] {
				w.end(waiting)
				return options, fault
			}
			seen[p.String()] = true
		}
		slices.Sort(waiting)
		// Whoever only waits for others does not get turn after turn while they could move.
		var able []string
		for _, n := range waiting {
			if w.idle[n] < 6 {
				able = append(able, n)
			}
		}
		if len(able) == 0 {
			able = waiting
		}
		pick := 0
		if len(options) < len(schedule) {
			pick = schedule[len(options)]
		}
		options = append(options, len(able))
		name := able[pick]
		waiting = slices.DeleteFunc(waiting, func(n string) bool { return n == name })
		before := w.mem.Revision()
		w.turns[name] <- true
		busy = 1
		n := <-w.arrived
		busy = 0
		if strings.HasPrefix(n, "-") {
			running--
		} else {
			waiting = append(waiting, n)
		}
		changed := w.mem.Revision() != before
		if changed {
			clear(w.idle)
		} else {
			w.idle[name]++
		}
		p.add(name, changed)
	}
}

// end ends actors that wait for their turn, and what they do on their way out.
func (w *world) end(waiting []string) {
	for running := len(waiting); running > 0; {
		if len(waiting) > 0 {
			w.turns[waiting[0]] <- false
			waiting = waiting[1:]
		}
		if n := <-w.arrived; strings.HasPrefix(n, "-") {
			running--
		} else {
			waiting = append(waiting, n)
		}
	}
}

// mostOrders bounds how many orders are tried of one scenario.
const mostOrders = 200_000

// search plays a scenario in every order, and returns how many and the first fault with its
// schedule. Of orders that come to the same it goes on with one, if seen is not nil.
func (s scenario) search(w *world, seen map[string]bool) (runs int, fault string) {
	var schedule []int
	w.ends = map[string]bool{}
	for runs < mostOrders {
		options, fault := s.play(w, schedule, seen)
		runs++
		for _, c := range w.clients {
			c.Close()
		}
		if fault != "" {
			return runs, fmt.Sprintf("%s (schedule %v)", fault, schedule)
		}
		schedule = append(schedule, make([]int, max(0, len(options)-len(schedule)))...)[:len(options)]
		i := len(schedule) - 1
		for ; i >= 0 && schedule[i]+1 >= options[i]; i-- {
		}
		if i < 0 {
			return runs, ""
		}
		schedule = schedule[:i+1]
		schedule[i]++
	}
	return runs, "these are not all orders"
}

func under(c kvstore.Cond, dir string) bool { return strings.HasPrefix(c.Key, base+dir) }

func deletesIDs(txn kvstore.Txn) bool {
	return len(txn.Then) > 0 && txn.Then[0].Kind == kvstore.OpDelete && strings.HasPrefix(txn.Then[0].Key, base+"/id/")
}

func makesID(txn kvstore.Txn) bool {
	return slices.ContainsFunc(txn.Then, func(o kvstore.Op) bool { return o.Kind == kvstore.OpPut && strings.HasPrefix(o.Key, base+"/id/") })
}

// dead makes two unused IDs.
func dead(w *world) {
	w.free("old", func(a *actor) { a.allocate("L"); a.release("L") })
	w.free("old", func(a *actor) { a.picks = []allocator.ID{2}; a.allocate("other"); a.release("other") })
}

// orders are what TestEveryOrder tries in every order.
var orders = []struct {
	name string
	s    scenario
	// missing is a check to take away; then a fault must be found.
	missing  func(txn kvstore.Txn, c kvstore.Cond) bool
	noVerify bool
	// neverVerify: what is looked for would be hidden by allocators that give way.
	neverVerify bool
	// small: there are at most some thousand orders.
	small bool
}{
	{
		name: "two nodes make the ID of one key", small: true,
		s: scenario{actors: map[string]func(*actor){
			"a": func(a *actor) { a.allocate("L"); a.release("L"); a.allocate("L") },
			"b": func(a *actor) { a.picks = []allocator.ID{2, 3}; a.allocate("L") },
		}},
		missing: func(txn kvstore.Txn, c kvstore.Cond) bool {
			return makesID(txn) && c.Kind == kvstore.CondPrefixUnchangedSince && under(c, "/value/")
		},
		noVerify: true,
	},
	{
		name: "two nodes pick one ID for two keys", small: true,
		s: scenario{actors: map[string]func(*actor){
			"a": func(a *actor) { a.allocate("L"); a.allocate("M") },
			"b": func(a *actor) { a.allocate("M"); a.release("M"); a.allocate("N") },
		}},
		missing: func(_ kvstore.Txn, c kvstore.Cond) bool { return c.Kind == kvstore.CondAbsent && under(c, "/id/") },
	},
	{
		name: "a dead ID comes into use while it is collected", small: true,
		s: scenario{setup: dead, actors: map[string]func(*actor){
			"a":  func(a *actor) { a.refresh(); a.allocate("L") },
			"gc": func(a *actor) { a.collect(2) },
		}},
		missing: func(txn kvstore.Txn, c kvstore.Cond) bool { return deletesIDs(txn) && under(c, "/value/") },
	},
	{
		name: "an ID that the watch still knows has been collected", small: true,
		s: scenario{setup: dead, actors: map[string]func(*actor){
			"a":  func(a *actor) { a.refresh(); a.allocate("L") },
			"gc": func(a *actor) { a.collect(2) },
		}},
		missing: func(txn kvstore.Txn, c kvstore.Cond) bool { return c.Kind == kvstore.CondValueIs && under(c, "/id/") },
	},
	{
		name: "an older allocator works under its lock", small: true,
		s: scenario{actors: map[string]func(*actor){
			"a":   func(a *actor) { a.allocate("L") },
			"old": func(a *actor) { a.allocateLocked("L", 3) },
		}},
		missing: func(_ kvstore.Txn, c kvstore.Cond) bool { return under(c, "/locks/") },
	},
	{
		name: "a node whose lease ran out still uses its ID, another has an old view", small: true,
		s: scenario{
			setup: func(w *world) {
				w.free("silent", func(a *actor) { a.allocate("L") })
				w.clients["silent"].ExpireLeases()
			},
			actors: map[string]func(*actor){
				"a": func(a *actor) { a.picks = []allocator.ID{2, 3}; a.allocate("L") },
				"b": func(a *actor) { a.refresh(); a.allocate("L") },
			},
		},
		noVerify: true,
		missing:  func(kvstore.Txn, kvstore.Cond) bool { return false },
	},
	{
		name: "the store goes back in time while a dead ID comes into use", small: true,
		s: scenario{
			setup: func(w *world) { dead(w); w.copyStore() },
			actors: map[string]func(*actor){
				"a":    func(a *actor) { a.allocate("L") },
				"b":    func(a *actor) { a.picks = []allocator.ID{3}; a.allocate("L") },
				"time": func(a *actor) { a.rewind() },
			},
		},
		missing:     func(txn kvstore.Txn, c kvstore.Cond) bool { return !makesID(txn) && under(c, "/value/") },
		neverVerify: true,
	},
	{
		name: "the store goes back in time while an ID is collected", small: true,
		s: scenario{
			setup: func(w *world) { dead(w); w.copyStore() },
			actors: map[string]func(*actor){
				"a":    func(a *actor) { a.refresh(); a.allocate("L") },
				"gc":   func(a *actor) { a.collect(2) },
				"time": func(a *actor) { a.rewind() },
			},
		},
		missing:     func(txn kvstore.Txn, c kvstore.Cond) bool { return deletesIDs(txn) && under(c, "/value/") },
		neverVerify: true,
	},
	{
		name: "the store goes back in time beside references of a longer key",
		s: scenario{
			setup: func(w *world) {
				w.free("old", func(a *actor) { a.allocate("L") })
				w.free("longer", func(a *actor) { a.picks = []allocator.ID{2}; a.allocate("L/x") })
				w.copyStore()
				w.free("old", func(a *actor) { a.release("L") })
			},
			actors: map[string]func(*actor){
				"a":    func(a *actor) { a.picks = []allocator.ID{3}; a.allocate("L") },
				"b":    func(a *actor) { a.picks = []allocator.ID{3}; a.allocate("L") },
				"time": func(a *actor) { a.rewind() },
			},
		},
		missing:     func(_ kvstore.Txn, c kvstore.Cond) bool { return under(c, "/marker/") },
		neverVerify: true,
	},
	{
		name: "the store goes back in time while an ID beside a longer key is collected", small: true,
		s: scenario{
			setup: func(w *world) {
				w.free("old", func(a *actor) { a.allocate("L") })
				w.free("longer", func(a *actor) { a.picks = []allocator.ID{2}; a.allocate("L/x") })
				w.copyStore()
				w.free("old", func(a *actor) { a.release("L") })
			},
			actors: map[string]func(*actor){
				"a":    func(a *actor) { a.refresh(); a.allocate("L") },
				"gc":   func(a *actor) { a.collect(2) },
				"time": func(a *actor) { a.rewind() },
			},
		},
		missing:     func(_ kvstore.Txn, c kvstore.Cond) bool { return under(c, "/marker/") },
		neverVerify: true,
	},
	{
		name: "three nodes come, go and collect",
		s: scenario{actors: map[string]func(*actor){
			"a":  func(a *actor) { a.allocate("L"); a.release("L") },
			"b":  func(a *actor) { a.picks = []allocator.ID{2, 3}; a.allocate("L") },
			"gc": func(a *actor) { a.collect(2) },
		}},
		missing: func(txn kvstore.Txn, c kvstore.Cond) bool { return deletesIDs(txn) && under(c, "/value/") },
	},
}

func TestEveryOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range orders {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// The pauses between two tries take no time in the bubble.
			synctest.Test(t, func(t *testing.T) {
				none := func(kvstore.Txn, kvstore.Cond) bool { return false }
				runs, fault := tt.s.search(&world{drop: none, verify: !tt.neverVerify}, map[string]bool{})
				if fault != "" {
					t.Fatalf("with all checks, in order %d: %s", runs, fault)
				}
				broken, fault := tt.s.search(&world{drop: tt.missing, verify: !tt.noVerify && !tt.neverVerify}, map[string]bool{})
				if fault == "" {
					t.Fatalf("with a check missing, %d orders show no fault", broken)
				}
				t.Logf("%d orders without a fault; without the check, order %d: %s", runs, broken, fault)
			})
		})
	}
}

// TestOrdersThatComeToTheSame plays small scenarios in every order, also in those that come to the
// same: none of them ends otherwise.
func TestOrdersThatComeToTheSame(t *testing.T) {
	t.Parallel()
	for _, tt := range orders {
		if !tt.small {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				none := func(kvstore.Txn, kvstore.Cond) bool { return false }
				every, some := &world{drop: none, verify: !tt.neverVerify}, &world{drop: none, verify: !tt.neverVerify}
				all, fault := tt.s.search(every, nil)
				if fault != "" {
					t.Fatal(fault)
				}
				few, fault := tt.s.search(some, map[string]bool{})
				if fault != "" {
					t.Fatal(fault)
				}
				if !maps.Equal(every.ends, some.ends) {
					t.Errorf("%d orders end in %d ways, %d of them in %d", all, len(every.ends), few, len(some.ends))
				}
				t.Logf("%d orders, and %d of them, end in %d ways", all, few, len(every.ends))
			})
		})
	}
}
