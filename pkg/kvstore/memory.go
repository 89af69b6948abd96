package kvstore

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
)

// memoryHistory is how many changes a [Memory] keeps for watches that have to catch up; a watch
// further behind lists again.
const memoryHistory = 1 << 16

// Memory is a complete key-value store in memory: revisions, transactions, watches, leases. It
// stands for the servers; [Memory.Client] gives connections to it. Faults are injected per
// connection ([MemoryClient.SetFault], [MemoryClient.BreakWatches], [MemoryClient.ExpireLeases])
// and in the store ([Memory.Compact], [Memory.Snapshot]). Nothing happens by the clock: leases end
// only when asked to.
type Memory struct {
	mu        sync.Mutex
	revision  int64
	compacted int64 // changes up to here are compacted
	pairs     map[string]KeyValue
	log       []memoryChange
	changed   chan struct{} // closed and replaced at each change
	clients   int
	restored  int // how often the store went back
}

// memoryChange is one key written (or deleted) at one revision.
type memoryChange struct {
	kv      KeyValue
	deleted bool
	rev     int64
}

// NewMemory returns an empty store at revision 1, as etcd has it.
func NewMemory() *Memory {
	return &Memory{revision: 1, pairs: make(map[string]KeyValue), changed: make(chan struct{})}
}

// Client opens a new connection with leases of its own. It is up at once. Its layout is that of
// etcd.
func (m *Memory) Client() *MemoryClient { return m.ClientAs(LayoutEtcd) }

// ClientAs is Client with the layout of another kind of store.
func (m *Memory) ClientAs(layout Layout) *MemoryClient {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clients++
	return &MemoryClient{
		store: m, layout: layout, id: m.clients, conn: driver.New("memory", 0),
		leases: make(map[string]map[string]struct{}), leaseOf: make(map[string]string),
	}
}

// Compact forgets the history: a watch that has to resume after this finds nothing to resume from
// and lists again.
func (m *Memory) Compact() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted, m.log = m.revision, nil
}

// Snapshot copies the store, and returns a function that restores it: keys, leases of keys and
// revision, as a server that is restored from a backup. Watches relist. The connections' state of
// their leases stays as it is.
func (m *Memory) Snapshot() (restore func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pairs, revision := maps.Clone(m.pairs), m.revision // values are replaced, not written into
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.pairs, m.revision, m.compacted, m.log = maps.Clone(pairs), revision, revision, nil
		m.restored++
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// Revision returns the store's revision.
func (m *Memory) Revision() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

// list must be called with mu held.
func (m *Memory) list(prefix string) []KeyValue {
	var out []KeyValue
	for key, kv := range m.pairs {
		if strings.HasPrefix(key, prefix) {
			out = append(out, kv.clone())
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

// clone keeps callers from writing into the store's bytes.
func (kv KeyValue) clone() KeyValue {
	kv.Value = bytes.Clone(kv.Value)
	return kv
}

// holds must be called with mu held.
func (m *Memory) holds(c Cond) bool {
	kv, exists := m.pairs[c.Key]
	switch c.Kind {
	case CondAbsent:
		return !exists
	case CondExists:
		return exists
	case CondValueIs:
		return exists && bytes.Equal(kv.Value, c.Value)
	case CondUnleased:
		return kv.Lease == ""
	case CondModRevisionIs:
		return exists && kv.ModRevision == c.Revision
	case CondCreateRevisionIs:
		return exists && kv.CreateRevision == c.Revision
	}
	for key, kv := range m.pairs {
		if !strings.HasPrefix(key, c.Key) {
			continue
		}
		if c.Kind == CondPrefixValuesAre && !bytes.Equal(kv.Value, c.Value) || c.Kind == CondPrefixUnchangedSince && kv.ModRevision > c.Revision {
			return false
		}
	}
	return true
}

// commit appends the changes of one transaction at the next revision. It must be called with mu
// held.
func (m *Memory) commit(changes []memoryChange) {
	if len(changes) == 0 {
		return
	}
	m.log = append(m.log, changes...)
	if over := len(m.log) - memoryHistory; over > memoryHistory/4 {
		m.compacted = m.log[over-1].rev
		m.log = append([]memoryChange(nil), m.log[over:]...)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// MemoryCall describes a call about to be made, to a fault function.
type MemoryCall struct {
	// Op is "get", "list" or "txn".
	Op string
	// Key is the key or prefix; that of the first write for a transaction.
	Key string
	// Ops is how many conditions and operations a transaction has; 0 for others.
	Ops int
}

// MemoryFault decides what happens to a call. It runs before the call reaches the store and may
// block to delay it, at least until ctx ends. A before error stops the call; an after error is
// returned although the call took effect, as when an answer is lost.
type MemoryFault func(ctx context.Context, call MemoryCall) (before, after error)

// MemoryClient is a connection to a [Memory].
type MemoryClient struct {
	store  *Memory
	layout Layout
	id     int
	conn   *driver.Conn

	mu        sync.Mutex
	fault     MemoryFault
	calls     int
	leases    map[string]map[string]struct{} // lease -> keys on it
	leaseOf   map[string]string              // key -> lease
	leaseSeq  int
	observers []*leaseObserver
}

type leaseObserver struct {
	prefix string
	lost   func([]string)
}

var _ Backend = (*MemoryClient)(nil)

// SetFault installs f for all later calls; nil removes it.
func (c *MemoryClient) SetFault(f MemoryFault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// Calls counts the round trips of this connection: gets, lists and transactions.
func (c *MemoryClient) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// begin counts a call, applies the fault function and returns the error to give afterwards.
func (c *MemoryClient) begin(ctx context.Context, call MemoryCall) (after error, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	fault := c.fault
	c.calls++
	c.mu.Unlock()
	if c.conn.Closed() {
		return nil, ErrClosed
	}
	if fault == nil {
		return nil, nil
	}
	before, after := fault(ctx, call)
	return after, before
}

// Get implements [Backend].
func (c *MemoryClient) Get(ctx context.Context, key string) (KeyValue, error) {
	after, err := c.begin(ctx, MemoryCall{Op: "get", Key: key})
	if err != nil {
		return KeyValue{}, err
	}
	c.store.mu.Lock()
	kv, ok := c.store.pairs[key]
	c.store.mu.Unlock()
	if after != nil {
		return KeyValue{}, after
	}
	if !ok {
		return KeyValue{}, fmt.Errorf("get %q: %w", key, ErrNotFound)
	}
	return kv.clone(), nil
}

// List implements [Backend].
func (c *MemoryClient) List(ctx context.Context, prefix string) (Listing, error) {
	after, err := c.begin(ctx, MemoryCall{Op: "list", Key: prefix})
	if err != nil {
		return Listing{}, err
	}
	c.store.mu.Lock()
	l := Listing{Pairs: c.store.list(prefix), Revision: c.store.revision}
	c.store.mu.Unlock()
	return l, after
}

// Txn implements [Backend].
func (c *MemoryClient) Txn(ctx context.Context, txn Txn) (TxnResult, error) {
	if err := txn.Validate(); err != nil {
		return TxnResult{}, err
	}
	first := ""
	if len(txn.Then) > 0 {
		first = txn.Then[0].Key
	}
	after, err := c.begin(ctx, MemoryCall{Op: "txn", Key: first, Ops: len(txn.If) + len(txn.Then) + len(txn.Else)})
	if err != nil {
		return TxnResult{}, err
	}
	// The client's lock is held across the store's: leases and keys change together.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn.Closed() {
		return TxnResult{}, ErrClosed
	}
	res := c.apply(txn)
	if after != nil {
		return TxnResult{}, after
	}
	return res, nil
}

func (c *MemoryClient) apply(txn Txn) TxnResult {
	m := c.store
	m.mu.Lock()
	defer m.mu.Unlock()
	branch, succeeded := txn.Then, true
	for _, cond := range txn.If {
		if !m.holds(cond) {
			branch, succeeded = txn.Else, false
			break
		}
	}
	rev := m.revision + 1
	res := TxnResult{Succeeded: succeeded, Results: make([][]KeyValue, len(branch))}
	var changes []memoryChange
	remove := func(key string) {
		delete(m.pairs, key)
		c.unlease(key)
		changes = append(changes, memoryChange{kv: KeyValue{Key: key}, deleted: true, rev: rev})
	}
	for i, op := range branch {
		switch op.Kind {
		case OpGet:
			if kv, ok := m.pairs[op.Key]; ok {
				res.Results[i] = []KeyValue{kv.clone()}
			}
		case OpList:
			res.Results[i] = m.list(op.Key)
		case OpDelete:
			if _, ok := m.pairs[op.Key]; ok {
				remove(op.Key)
			}
		case OpDeletePrefix:
			for _, kv := range m.list(op.Key) {
				remove(kv.Key)
			}
		case OpPut:
			kv := KeyValue{Key: op.Key, Value: bytes.Clone(op.Value), CreateRevision: rev, ModRevision: rev}
			if old, ok := m.pairs[op.Key]; ok {
				kv.CreateRevision = old.CreateRevision
			}
			if op.Lifetime == Leased {
				kv.Lease = c.lease(op.Key)
			} else {
				c.unlease(op.Key)
			}
			m.pairs[op.Key] = kv
			changes = append(changes, memoryChange{kv: kv, rev: rev})
		}
	}
	if len(changes) > 0 {
		m.revision = rev
		m.commit(changes)
	}
	res.Revision = m.revision
	return res
}

// lease puts key on a lease with room, keeping the one it has.
func (c *MemoryClient) lease(key string) string {
	if id, ok := c.leaseOf[key]; ok {
		return id
	}
	id := ""
	for have, keys := range c.leases {
		if len(keys) < MaxKeysPerLease {
			id = have
			break
		}
	}
	if id == "" {
		c.leaseSeq++
		id = fmt.Sprintf("client-%d-lease-%d", c.id, c.leaseSeq)
		c.leases[id] = make(map[string]struct{})
	}
	c.leases[id][key] = struct{}{}
	c.leaseOf[key] = id
	return id
}

func (c *MemoryClient) unlease(key string) {
	if id, ok := c.leaseOf[key]; ok {
		delete(c.leases[id], key)
		delete(c.leaseOf, key)
	}
}

// dropLeases deletes what hangs on this client's leases in the store and returns the keys it had
// put there. It must be called with c.mu held.
func (c *MemoryClient) dropLeases() []string {
	keys := slices.Sorted(maps.Keys(c.leaseOf))
	m := c.store
	m.mu.Lock()
	defer m.mu.Unlock()
	rev := m.revision + 1
	var changes []memoryChange
	for _, key := range keys {
		// Another client may have taken the key over since.
		if kv, ok := m.pairs[key]; ok && kv.Lease == c.leaseOf[key] {
			delete(m.pairs, key)
			changes = append(changes, memoryChange{kv: KeyValue{Key: key}, deleted: true, rev: rev})
		}
	}
	if len(changes) > 0 {
		m.revision = rev
		m.commit(changes)
	}
	clear(c.leases)
	clear(c.leaseOf)
	return keys
}

// ExpireLeases ends all leases of this connection, as the store does with a client that was silent
// for too long: the keys go, then it calls the observers itself, and returns when they have
// returned.
func (c *MemoryClient) ExpireLeases() {
	c.mu.Lock()
	keys := c.dropLeases()
	observers := append([]*leaseObserver(nil), c.observers...)
	c.mu.Unlock()
	for _, o := range observers {
		if under := driver.KeysWithPrefix(keys, o.prefix); len(under) > 0 {
			o.lost(under)
		}
	}
}

// RevokeLeases implements [Backend].
func (c *MemoryClient) RevokeLeases(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn.Closed() {
		return ErrClosed
	}
	c.dropLeases()
	return nil
}

// ObserveLostLeases implements [Backend].
func (c *MemoryClient) ObserveLostLeases(prefix string, lost func(keys []string)) (stop func()) {
	o := &leaseObserver{prefix, lost}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observers = append(c.observers, o)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, have := range c.observers {
			if have == o {
				c.observers = append(c.observers[:i:i], c.observers[i+1:]...)
				return
			}
		}
	}
}

// Layout implements [Backend].
func (c *MemoryClient) Layout() Layout { return c.layout }

// Status implements [Backend].
func (c *MemoryClient) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Kind: "memory", State: StateOK, Message: "in memory", Leases: len(c.leases), LeasedKeys: len(c.leaseOf), LastOK: time.Now()}
	if c.conn.Closed() {
		s.State, s.Message = StateClosed, "closed"
	}
	return s
}

// Close implements [Backend]. The keys on its leases stay.
func (c *MemoryClient) Close() error {
	c.conn.Shut()
	c.conn.Wait()
	return nil
}
