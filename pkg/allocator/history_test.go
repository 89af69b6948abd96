package allocator_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// historyMin is the smallest ID. There are few, so that they are used again and again.
const historyMin = 256

// historyWorld is one cluster of a history test.
type historyWorld struct {
	t       *testing.T
	server  *kvstoretest.Etcd
	raw     *clientv3.Client
	base    string
	keys    []string
	max     allocator.ID
	nodes   []*historyNode
	h       *history
	rng     *rand.Rand // of the store's own faults
	rec     *recorder
	changes int
	faults  atomic.Int64
	store   sync.RWMutex // read-held by a fault, held while the store itself is down
	ops     atomic.Int64
	// The work has parts, with a fault of the store itself after each but the last: part operations
	// each, and no longer than limit, if that is not 0. until and deadline are the end of this one.
	part            int64
	limit           time.Duration
	until, deadline atomic.Int64
	last            atomic.Bool
	// restored means that the store went back in time: references that were given back may be
	// there again.
	restored bool
}

// historyNode is one node, through its restarts.
type historyNode struct {
	w     *historyWorld
	n     int
	proxy *proxy
	rng   *rand.Rand

	client *etcd.Client
	a      *allocator.Allocator
	events allocator.AllocatorEventChan
	stop   func()
	work   sync.WaitGroup
	halt   context.CancelFunc

	mu        sync.Mutex
	renamed   map[string][]allocator.ID // the IDs of EventRenumbered since the node started
	disturbed bool
	held      []map[string]int // by worker
}

func (n *historyNode) name() string { return fmt.Sprintf("192.0.2.%d", n.n) }

// start makes the connection and the allocator.
func (n *historyNode) start() {
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{n.proxy.endpoint()}, 0
	cfg.CheckInterval, cfg.FailingCheckInterval, cfg.CheckTimeout = time.Second, 300*time.Millisecond, time.Second
	client, err := etcd.New(n.w.t.Context(), cfg, nil)
	if err != nil {
		n.w.t.Error(err)
		return
	}
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: client, BasePath: n.w.base, Suffix: n.name(), KeyType: allocator.StringKey("")})
	if err != nil {
		n.w.t.Error(err)
		return
	}
	n.events = make(allocator.AllocatorEventChan, 64)
	opts := []allocator.AllocatorOption{
		allocator.WithMin(historyMin), allocator.WithMax(n.w.max), allocator.WithEvents(n.events), allocator.WithSyncInterval(time.Second),
		allocator.WithQuarantine(50 * time.Millisecond), allocator.WithLogger(slog.New(slog.DiscardHandler)),
	}
	if n.n%2 == 0 {
		opts = append(opts, allocator.WithMasterKeyProtection())
	}
	a, err := allocator.NewAllocator(allocator.StringKey(""), be, opts...)
	if err != nil {
		n.w.t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			n.w.t.Errorf("node %d: Run: %v", n.n, err)
		}
	})
	renamed := make(map[string][]allocator.ID)
	events := n.events
	wg.Go(func() {
		for {
			select {
			case ev := <-events:
				if ev.Kind == allocator.EventRenumbered {
					n.mu.Lock()
					renamed[ev.Key.GetKey()] = append(renamed[ev.Key.GetKey()], ev.OldID, ev.ID)
					if !n.disturbed {
						n.w.t.Errorf("node %d got an event that %s went from %d to %d, though it never lost a reference", n.n, ev.Key, ev.OldID, ev.ID)
					}
					n.mu.Unlock()
				}
			case <-ctx.Done():
				return
			}
		}
	})
	n.mu.Lock()
	n.client, n.a, n.renamed, n.disturbed = client, a, renamed, false
	n.mu.Unlock()
	n.stop = func() {
		cancel()
		wg.Wait()
		if err := client.Close(); err != nil {
			n.w.t.Errorf("node %d: close: %v", n.n, err)
		}
	}
}

// run starts the workers.
func (n *historyNode) run() {
	ctx, cancel := context.WithCancel(context.Background())
	n.halt = cancel
	n.held = make([]map[string]int, 2)
	for i := range n.held {
		n.held[i] = make(map[string]int)
		rng := rand.New(rand.NewPCG(n.rng.Uint64(), n.rng.Uint64()))
		n.work.Go(func() { n.worker(ctx, 2*n.n+i, n.held[i], rng) })
	}
}

// begin starts a part of the work. It begins anew after each fault of the store: while that is down
// many operations end at once, and would leave none for afterwards.
func (w *historyWorld) begin(last bool) {
	w.until.Store(w.ops.Load() + w.part)
	w.deadline.Store(w.h.now() + int64(w.limit))
	w.last.Store(last)
}

// reached reports whether this part is over: its operations are done, or the machine is too busy
// for them.
func (w *historyWorld) reached() bool {
	return w.ops.Load() >= w.until.Load() || w.limit > 0 && w.h.now() >= w.deadline.Load()
}

func (w *historyWorld) done() bool { return w.last.Load() && w.reached() }

// worker does random things until there have been enough.
func (n *historyNode) worker(ctx context.Context, client int, held map[string]int, rng *rand.Rand) {
	w := n.w
	for ctx.Err() == nil && !w.done() {
		w.ops.Add(1)
		key := w.keys[rng.IntN(len(w.keys))]
		release := false
		if mine := holding(held); len(mine) > 0 && rng.IntN(4) < len(mine) { // few keys each: IDs must come free
			key, release = mine[rng.IntN(len(mine))], true
		}
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		call := w.h.now()
		switch dice := rng.IntN(20); {
		case release && dice < 17:
			// Whatever the answer, the use has ended.
			_, _ = n.a.Release(short, allocator.StringKey(key))
			held[key]--
			w.h.add(client, op{opRelease, key, n.n}, call, w.h.now(), 0)
		case dice == 19:
			if id, err := n.a.GetNoCache(short, allocator.StringKey(key)); err == nil {
				w.h.add(client, op{opLookup, key, n.n}, call, w.h.now(), id)
			}
		default:
			id, _, err := n.a.Allocate(short, allocator.StringKey(key))
			if err == nil {
				held[key]++
				w.h.add(client, op{opAllocate, key, n.n}, call, w.h.now(), id)
				if id < historyMin || id > w.max {
					w.t.Errorf("%s got the ID %d, which is out of range", key, id)
				}
			}
		}
		cancel()
	}
}

// holding returns the keys that a worker holds, in a fixed order.
func holding(held map[string]int) []string {
	var keys []string
	for key, c := range held {
		if c > 0 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// crash ends the node without a word to the store and starts it anew.
func (n *historyNode) crash() {
	call := n.w.h.now()
	n.halt()
	n.work.Wait()
	n.stop()
	n.w.h.add(1000, op{kind: opCrash, node: n.n}, call, n.w.h.now(), 0)
	n.start()
	n.run()
}

func (n *historyNode) disturb() {
	n.mu.Lock()
	n.disturbed = true
	n.mu.Unlock()
}

// expire ends the leases of a node's references, as the store does when it has not observed the
// node for too long.
func (w *historyWorld) expire(ctx context.Context, n *historyNode) {
	n.disturb()
	call := w.h.now()
	l, err := w.raw.Get(ctx, w.base+"/value/", clientv3.WithPrefix())
	if err != nil {
		return
	}
	done := map[int64]bool{}
	for _, kv := range l.Kvs {
		if strings.HasSuffix(string(kv.Key), "/"+n.name()) && !done[kv.Lease] {
			done[kv.Lease] = true
			_, _ = w.raw.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		}
	}
	w.h.add(1000, op{kind: opLose, node: n.n}, call, w.h.now(), 0)
}

// fault does one of the things that go wrong with one of the nodes, and sets it right again.
func (w *historyWorld) fault(ctx context.Context, nodes []*historyNode, rng *rand.Rand) {
	w.store.RLock()
	defer w.store.RUnlock()
	n := nodes[rng.IntN(len(nodes))]
	w.faults.Add(1)
	wait := func(most time.Duration) {
		select {
		case <-time.After(time.Duration(rng.Int64N(int64(most)) + 1)):
		case <-ctx.Done():
		}
	}
	switch dice := rng.IntN(100); {
	case dice < 25:
		n.proxy.cut()
	case dice < 40:
		n.proxy.slow(time.Duration(rng.IntN(20)) * time.Millisecond)
		wait(200 * time.Millisecond)
		n.proxy.heal()
	case dice < 55:
		n.proxy.pause()
		wait(300 * time.Millisecond)
		n.proxy.heal()
	case dice < 60:
		deliver := n.proxy.late(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
		wait(300 * time.Millisecond)
		deliver()
	case dice < 65: // the node is away for longer than its lease lasts
		n.proxy.pause()
		wait(100 * time.Millisecond)
		w.expire(ctx, n)
		wait(400 * time.Millisecond)
		n.proxy.heal()
	case dice < 75:
		w.expire(ctx, n)
	case dice < 85:
		n.crash()
	default:
		_, _ = w.raw.Compact(ctx, w.rec.seen.Load()) // no further, or the recorder would miss something
	}
	wait(50 * time.Millisecond)
}

// collect runs garbage collection all the time, far more often than anyone would, and forgets its
// last round now and then.
func (w *historyWorld) collect(ctx context.Context, rng *rand.Rand) (deleted int) {
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{w.server.Endpoint()}, 0
	client, err := etcd.New(ctx, cfg, nil)
	if err != nil {
		w.t.Error(err)
		return 0
	}
	defer client.Close()
	be, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: client, BasePath: w.base, KeyType: allocator.StringKey("")})
	if err != nil {
		w.t.Error(err)
		return 0
	}
	gc, err := allocator.NewAllocatorForGC(be, allocator.WithMin(historyMin), allocator.WithMax(w.max))
	if err != nil {
		w.t.Error(err)
		return 0
	}
	var previous map[allocator.ID]int64
	for ctx.Err() == nil {
		if rng.IntN(10) == 0 {
			previous = nil
		}
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		var stats allocator.GCStats
		previous, stats, _ = gc.RunGC(short, nil, previous)
		deleted += stats.Deleted
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rng.IntN(60)) * time.Millisecond):
		}
	}
	return deleted
}

// restart stops the store and starts it again, with its data, or has restore put back an earlier
// copy of them.
func (w *historyWorld) restart(restore func()) {
	w.store.Lock()
	defer w.store.Unlock()
	call := w.h.now()
	if restore != nil {
		for _, n := range w.nodes {
			n.disturb()
		}
	}
	w.changes += w.rec.stop(w.t)
	if restore != nil {
		w.restored = true
		restore()
		w.h.add(1000, op{kind: opLose, node: -1}, call, w.h.now(), 0)
	} else {
		w.server.Stop()
		w.server.Start()
	}
	w.rec = record(w.t, w.raw, w.base, w.h)
}

// snapshot stops the store for a copy of its data.
func (w *historyWorld) snapshot() (restore func()) {
	w.store.Lock()
	defer w.store.Unlock()
	w.changes += w.rec.stop(w.t)
	restore = w.server.Snapshot()
	w.rec = record(w.t, w.raw, w.base, w.h)
	return restore
}

// TestHistory lets many nodes allocate and release the same few keys on a real etcd while
// connections are cut, slowed, held up and doubled, so that requests given up long ago arrive late,
// leases end, nodes crash, history is compacted, garbage is collected without pause, and the store
// is restarted and put back to an earlier state. (A lease ends by being revoked, which is also what
// etcd does to one whose time is up.) Every promise is then checked on what was seen: by the
// callers (a linearizability checker for each key, overlaps for each ID), by the store itself
// (every single change), and at the end.
//
// HAWSER_SEED repeats a run's operations and faults, HAWSER_OPS sets their number, HAWSER_LONG=1
// does ten million.
func TestHistory(t *testing.T) {
	total, epoch, nodes, limit := int64(4000), int64(2000), 12, 20*time.Second
	if testing.Short() {
		total, epoch, nodes, limit = 1000, 1000, 6, 10*time.Second
	}
	if os.Getenv("HAWSER_LONG") != "" {
		total, epoch, nodes, limit = 10_000_000, 20_000, maxNodes, 0
	}
	if s := os.Getenv("HAWSER_OPS"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n <= 0 {
			t.Fatalf("HAWSER_OPS: %q is not a number above 0", s)
		}
		total = n
	}
	seed := rand.Uint64()
	if s := os.Getenv("HAWSER_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("HAWSER_SEED: %v", err)
		}
		seed, total = n, min(total, epoch)
	}
	for i := int64(0); i*epoch < total; i++ {
		ok := t.Run(fmt.Sprintf("seed=%#x", seed), func(t *testing.T) { runHistory(t, seed, nodes, min(epoch, total-i*epoch), limit) })
		if !ok {
			t.Fatalf("run it again with HAWSER_SEED=%#x", seed)
		}
		seed++
	}
}

func runHistory(t *testing.T, seed uint64, nodes int, ops int64, limit time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 1))
	server := kvstoretest.StartEtcd(t)
	w := &historyWorld{
		t: t, server: server, raw: server.Client(), base: "test/identities", h: &history{start: time.Now()}, part: ops / 4, limit: limit / 4,
		rng: rand.New(rand.NewPCG(seed, 2)),
	}
	for k := range 2 * nodes {
		w.keys = append(w.keys, fmt.Sprintf("k8s:app=%d;", k))
	}
	w.keys = append(w.keys, "k8s:app=1;/x", "k8s:app=a/b;") // label values hold slashes
	w.max = historyMin + allocator.ID(3*len(w.keys)) - 1
	w.rec = record(t, w.raw, w.base, w.h)
	for i := range nodes {
		n := &historyNode{w: w, n: i, proxy: newProxy(t, strings.TrimPrefix(server.Endpoint(), "unix://")), rng: rand.New(rand.NewPCG(seed, uint64(10+i)))}
		w.nodes = append(w.nodes, n)
		n.start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var deleted int
	wg.Go(func() { deleted = w.collect(ctx, rng) })
	w.begin(false)
	for _, n := range w.nodes {
		n.run()
	}
	// Each of these looks after the faults of its share of the nodes; those of the store come from
	// here, at set places.
	const troublemakers = 4
	var trouble sync.WaitGroup
	for i := range troublemakers {
		var mine []*historyNode
		for j := i; j < len(w.nodes); j += troublemakers {
			mine = append(mine, w.nodes[j])
		}
		rng := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		trouble.Go(func() {
			for !w.done() {
				w.fault(ctx, mine, rng)
			}
		})
	}
	var restore func()
	goBack := w.rng.IntN(2) == 0
	for i, fault := range []func(){
		func() { restore = w.snapshot() },
		func() { w.restart(nil) },
		func() {
			if goBack {
				w.restart(restore)
			}
		},
	} {
		for !w.reached() {
			time.Sleep(time.Millisecond)
		}
		fault()
		w.begin(i == 2)
	}
	trouble.Wait()
	for _, n := range w.nodes {
		n.proxy.heal()
		n.work.Wait()
		n.halt()
	}
	w.converge(t)
	cancel()
	wg.Wait()
	w.finish(t)
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	kinds := map[opKind]int{}
	for _, o := range w.h.ops {
		kinds[o.Input.(op).kind]++
	}
	began := time.Now()
	for _, fault := range append(w.h.checkKeys(w.keys), w.h.checkIDs()...) {
		t.Error(fault)
	}
	t.Logf("%d nodes, %d faults: %d allocations, %d releases, %d lookups, %d lost leases or data, %d crashes; %d IDs collected; %d changes of the store; restored: %v; %v, checked in %v",
		nodes, w.faults.Load(), kinds[opAllocate], kinds[opRelease], kinds[opLookup], kinds[opLose], kinds[opCrash], deleted, w.changes, w.restored,
		began.Sub(w.h.start).Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// converge waits until every node's keys are in order in the store, and checks that the nodes
// agree.
func (w *historyWorld) converge(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var wrong string
	for {
		if wrong = w.disorder(ctx); wrong == "" {
			break
		}
		select {
		case <-ctx.Done():
			t.Errorf("the nodes did not converge: %s", wrong)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	// Events must connect the first ID that a node got with the present one.
	last := make(map[op]allocator.ID)
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	for _, o := range w.h.ops {
		in := o.Input.(op)
		switch in.kind {
		case opAllocate:
			last[op{key: in.key, node: in.node}] = o.Output.(allocator.ID)
		case opCrash:
			for k := range last {
				if k.node == in.node {
					delete(last, k)
				}
			}
		}
	}
	for _, n := range w.nodes {
		for key := range n.holds() {
			given := last[op{key: key, node: n.n}]
			id, err := n.a.Get(ctx, allocator.StringKey(key))
			if err != nil || id == given {
				continue
			}
			n.mu.Lock()
			chain := n.renamed[key]
			n.mu.Unlock()
			if len(chain) == 0 || chain[len(chain)-1] != id {
				t.Errorf("node %d got %d for %s, has %d now, and the events have %v", n.n, given, key, id, chain)
			}
		}
	}
}

// holds returns the keys that the node's workers hold.
func (n *historyNode) holds() map[string]int {
	out := map[string]int{}
	for _, held := range n.held {
		for key, c := range held {
			if c > 0 {
				out[key] += c
			}
		}
	}
	return out
}

// disorder reports what is not as it must be in the end.
func (w *historyWorld) disorder(ctx context.Context) string {
	ids := map[string]allocator.ID{}
	owners := map[allocator.ID]string{}
	for _, n := range w.nodes {
		for key := range n.holds() {
			id, err := n.a.Get(ctx, allocator.StringKey(key))
			if err != nil || id == allocator.NoID {
				return fmt.Sprintf("node %d has no ID for %s: %v", n.n, key, err)
			}
			if have, ok := ids[key]; ok && have != id {
				return fmt.Sprintf("%s is %d and %d", key, have, id)
			}
			if have, ok := owners[id]; ok && have != key {
				return fmt.Sprintf("%d is %s and %s", id, have, key)
			}
			ids[key], owners[id] = id, key
			ref, err := w.raw.Get(ctx, w.base+"/value/"+key+"/"+n.name())
			if err != nil || len(ref.Kvs) != 1 || string(ref.Kvs[0].Value) != id.String() {
				return fmt.Sprintf("node %d uses %s as %d, but has no such reference in the store", n.n, key, id)
			}
			master, err := w.raw.Get(ctx, w.base+"/id/"+id.String())
			if err != nil || len(master.Kvs) != 1 || string(master.Kvs[0].Value) != key {
				return fmt.Sprintf("ID %d of %s is not in the store", id, key)
			}
		}
	}
	return ""
}

// about returns the operations of a node on a key, given as the path of a reference.
func (w *historyWorld) about(path string) string {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	i := strings.LastIndexByte(path, '/')
	var ops []porcupine.Operation
	for _, o := range w.h.ops {
		in := o.Input.(op)
		if (in.key == path[:i] || in.key == "") && (in.node < 0 || "192.0.2."+fmt.Sprint(in.node) == path[i+1:]) {
			ops = append(ops, o)
		}
	}
	return describe(keyModel(), ops)
}

// finish releases everything and checks that nothing is left behind but what a crash or a restore
// explains.
func (w *historyWorld) finish(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, n := range w.nodes {
		for key, c := range n.holds() {
			for range c {
				call := w.h.now()
				if _, err := n.a.Release(ctx, allocator.StringKey(key)); err != nil {
					t.Errorf("node %d: %v", n.n, err)
				}
				w.h.add(2*n.n, op{opRelease, key, n.n}, call, w.h.now(), 0)
			}
		}
	}
	if !w.restored {
		leases := map[int64]bool{} // of the living; what hangs on others ends with them
		for _, n := range w.nodes {
			kv := "test/lease/" + n.name()
			if err := kvstore.Put(ctx, n.client, kv, nil, kvstore.Leased); err != nil {
				t.Error(err)
			}
			if resp, err := w.raw.Get(ctx, kv); err == nil && len(resp.Kvs) == 1 {
				leases[resp.Kvs[0].Lease] = true
			}
		}
		for {
			left := ""
			l, err := w.raw.Get(ctx, w.base+"/value/", clientv3.WithPrefix())
			if err != nil {
				t.Error(err)
				break
			}
			for _, kv := range l.Kvs {
				if leases[kv.Lease] {
					left = string(kv.Key)
				}
			}
			if left == "" {
				break
			}
			select {
			case <-ctx.Done():
				path := strings.TrimPrefix(left, w.base+"/value/")
				t.Errorf("reference %s is left although everything has been released; its changes:\n%s\nthe operations:\n%s", left, w.rec.lastChanges(path), w.about(path))
				left = ""
			case <-time.After(50 * time.Millisecond):
				continue
			}
			break
		}
	}
	w.changes += w.rec.stop(t)
	for _, n := range w.nodes {
		n.stop()
	}
}
