package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/datapath"
	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

var errInjected = errors.New("injected fault")

// machine is everything around a Lifecycle that outlives the agent, or that other parts of the
// agent keep: kernel, interfaces, identities, addresses and the address table. It keeps the full
// state, fails where fault says so, and remembers every breach of the order that the kernel's
// contract asks for.
type machine struct {
	mu    sync.Mutex
	fault func(op string) error

	// The kernel.
	endpoints map[int]datapath.Endpoint
	sets      map[datapath.RuleSetID]datapath.RuleSet
	room      int // entries that fit
	flows     []datapath.CTEntry
	writes    []string
	breaches  []string

	// The node.
	links    map[int]string
	attached map[int]bool
	up       map[int]bool

	boots int // how many processes there have been

	// Parts of the agent: reset by a restart.
	numbers map[string]identity.ID // survive it: the cluster's
	// withheld: nobody gives label sets numbers that have none.
	withheld  bool
	temporary *identity.Temporaries
	next      identity.ID
	refs      map[string]int
	given     map[netip.Addr]string
	placed    map[netip.Addr]identity.ID
}

func newMachine() *machine {
	return &machine{
		fault:     func(string) error { return nil },
		endpoints: map[int]datapath.Endpoint{}, sets: map[datapath.RuleSetID]datapath.RuleSet{}, room: 1 << 20,
		links: map[int]string{}, attached: map[int]bool{}, up: map[int]bool{},
		numbers: map[string]identity.ID{}, next: 255, refs: map[string]int{}, given: map[netip.Addr]string{}, placed: map[netip.Addr]identity.ID{},
	}
}

// do runs a change under the lock unless a fault is injected.
func (m *machine) do(op string, change func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fault(op); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return change()
}

func (m *machine) wrote(format string, args ...any) {
	m.writes = append(m.writes, fmt.Sprintf(format, args...))
}

func (m *machine) breach(format string, args ...any) {
	m.breaches = append(m.breaches, fmt.Sprintf(format, args...))
}

func (m *machine) entries() int {
	n := 0
	for _, rs := range m.sets {
		n += len(rs.Entries)
	}
	return n
}

// fakeMaps is the machine as what the lifecycle and its policy use of the kernel's maps.
type fakeMaps struct{ *machine }

func (m fakeMaps) UpsertEndpoint(ep datapath.Endpoint) error {
	return m.do("UpsertEndpoint", func() error {
		if err := ep.Validate(); err != nil {
			return err
		}
		if _, ok := m.sets[ep.RuleSet]; !ok && !ep.Locked {
			m.breach("endpoint %d was bound to rule set %d, which does not exist", ep.ID, ep.RuleSet)
		}
		m.endpoints[ep.IfIndex] = ep
		m.wrote("endpoint %d ruleset %d locked %v", ep.ID, ep.RuleSet, ep.Locked)
		// The rows of its addresses follow: a write that fails there has been done in part.
		return m.fault("UpsertAddresses")
	})
}

func (m fakeMaps) DeleteEndpoint(ifIndex int) error {
	return m.do("DeleteEndpoint", func() error {
		if ep, ok := m.endpoints[ifIndex]; ok {
			delete(m.endpoints, ifIndex)
			m.wrote("delete endpoint %d", ep.ID)
		}
		return nil
	})
}

func (m fakeMaps) Endpoints() ([]datapath.Endpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.endpoints)), nil
}

func (m fakeMaps) InstallRuleSet(rs datapath.RuleSet) error {
	return m.do("InstallRuleSet", func() error {
		if err := rs.Validate(); err != nil {
			return err
		}
		if m.entries()-len(m.sets[rs.ID].Entries)+len(rs.Entries) > m.room {
			return datapath.ErrFull
		}
		rs.Entries = maps.Clone(rs.Entries)
		m.sets[rs.ID] = rs
		m.wrote("install ruleset %d", rs.ID)
		return nil
	})
}

func (m fakeMaps) UpdateRuleSet(d datapath.RuleSetDelta) error {
	return m.do("UpdateRuleSet", func() error {
		rs, ok := m.sets[d.ID]
		if !ok {
			m.breach("rule set %d was changed, which does not exist", d.ID)
			return nil
		}
		m.wrote("change ruleset %d", d.ID)
		for k, e := range d.Upserts {
			if _, has := rs.Entries[k]; !has && m.entries() >= m.room {
				return datapath.ErrFull // a mixture
			}
			rs.Entries[k] = e
		}
		for _, k := range d.Deletes {
			delete(rs.Entries, k)
		}
		return nil
	})
}

func (m fakeMaps) DeleteRuleSet(id datapath.RuleSetID) error {
	return m.do("DeleteRuleSet", func() error {
		for _, ep := range m.endpoints {
			if ep.RuleSet == id {
				m.breach("rule set %d was removed, but endpoint %d points at it", id, ep.ID)
			}
		}
		if _, ok := m.sets[id]; ok {
			delete(m.sets, id)
			m.wrote("delete ruleset %d", id)
		}
		return nil
	})
}

func (m fakeMaps) RuleSets() ([]datapath.RuleSet, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []datapath.RuleSet
	for _, rs := range m.sets {
		rs.Entries = maps.Clone(rs.Entries)
		out = append(out, rs)
	}
	return out, nil
}

func (m fakeMaps) LastGeneration() (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var last uint32
	for _, ep := range m.endpoints {
		last = max(last, ep.PolicyGeneration, ep.Incarnation)
	}
	for _, f := range m.flows {
		last = max(last, f.SrcGeneration, f.DstGeneration, f.SrcOwner, f.DstOwner)
	}
	return last, nil
}

// fakeNode is the machine as Programs and Links.
type fakeNode struct{ *machine }

func (m fakeNode) AttachEndpoint(ifIndex int) error {
	return m.do("AttachEndpoint", func() error {
		if _, ok := m.links[ifIndex]; !ok {
			return fmt.Errorf("no interface %d", ifIndex)
		}
		m.attached[ifIndex] = true
		return nil
	})
}

func (m fakeNode) Attached(ifIndex int) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.attached[ifIndex], nil
}

func (m fakeNode) EnsureEndpoint(ep datapath.Endpoint) error {
	return m.do("EnsureEndpoint", func() error {
		if !m.attached[ep.IfIndex] {
			m.breach("interface of endpoint %d came up without a program", ep.ID)
		}
		m.up[ep.IfIndex] = true
		return nil
	})
}

func (m fakeNode) ShutEndpoint(ifIndex int) error {
	return m.do("ShutLink", func() error {
		delete(m.up, ifIndex)
		return nil
	})
}

func (m fakeNode) DeleteEndpoint(name string, ifIndex int) error {
	return m.do("DeleteLink", func() error {
		if m.links[ifIndex] == name {
			m.unplug(ifIndex)
		}
		return nil
	})
}

func (m fakeNode) EndpointLinks() ([]datapath.EndpointLink, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []datapath.EndpointLink
	for i, name := range m.links {
		out = append(out, datapath.EndpointLink{Name: name, IfIndex: i, Up: m.up[i]})
	}
	return out, nil
}

func (m *machine) unplug(ifIndex int) {
	delete(m.links, ifIndex)
	delete(m.attached, ifIndex)
	delete(m.up, ifIndex)
}

// fakeIdentities is the cluster's allocator, strict about references.
type fakeIdentities struct{ *machine }

func (m fakeIdentities) Acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	var id identity.ID
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	err := m.do("Acquire", func() error {
		key := set.String()
		if m.numbers[key] == 0 && m.withheld {
			var err error
			if id, err = m.temporary.Acquire(set); err == nil {
				m.refs[refKey(id, set)]++
			}
			return err
		}
		if m.numbers[key] == 0 {
			m.next++
			m.numbers[key] = m.next
		}
		id = m.numbers[key]
		m.refs[refKey(id, set)]++
		return nil
	})
	return id, err
}

// refKey tells references to the number of a label set from those to its temporary one.
func refKey(id identity.ID, set labels.Set) string {
	if id.IsTemporary() {
		return "temporary " + set.String()
	}
	return set.String()
}

func (m fakeIdentities) Release(_ context.Context, id identity.ID, set labels.Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id.IsTemporary() {
		m.temporary.Release(id)
	}
	key := refKey(id, set)
	if m.refs[key]--; m.refs[key] < 0 {
		m.breach("a reference to %s was given back that nobody held", key)
	}
	if m.refs[key] == 0 {
		delete(m.refs, key)
	}
	return nil
}

// fakeAddresses is the node's pool.
type fakeAddresses struct{ *machine }

func (m fakeAddresses) Claim(ip netip.Addr, owner, _ string) error {
	return m.do("Claim", func() error {
		if other, taken := m.given[ip]; taken && other != owner {
			return fmt.Errorf("%w: %s is %s's", ErrExists, ip, other)
		}
		m.given[ip] = owner
		return nil
	})
}

func (m fakeAddresses) Commit(ip netip.Addr, _ string) error {
	return m.do("Commit", func() error {
		if _, taken := m.given[ip]; !taken {
			m.breach("%s was committed but is not taken", ip)
		}
		return nil
	})
}

func (m fakeAddresses) Restore(ip netip.Addr, owner string) error {
	return m.do("Restore", func() error {
		if other, taken := m.given[ip]; taken {
			return fmt.Errorf("%s is %s's", ip, other)
		}
		m.given[ip] = owner
		return nil
	})
}

func (m fakeAddresses) Unclaim(netip.Addr, string) {}

func (m fakeAddresses) Free(ip netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.given, ip)
}

// fakePlacer is the address table of one process: of a process that has crashed it keeps nothing.
type fakePlacer struct {
	*machine
	boot int // the process, 0 for any
}

func (m fakePlacer) Place(ctx context.Context, row Endpoint) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// The claim always stands; what may fail is the wait for the kernel.
	m.mu.Lock()
	if m.boot != 0 && m.boot != m.boots {
		m.mu.Unlock()
		return errors.New("the process has crashed")
	}
	for _, ip := range row.Addresses() {
		m.placed[ip] = row.Seen()
	}
	m.mu.Unlock()
	return m.do("Place", func() error { return nil })
}

func (m fakePlacer) Withdraw(row Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ip := range row.Addresses() {
		delete(m.placed, ip)
	}
}

// process is one run of the agent on a machine.
type process struct {
	t       testing.TB
	machine *machine
	dir     string
	clock   time.Time

	registry *Registry
	store    *Store
	policy   *enforcement.Policy
	*Lifecycle
}

func testEngine(t testing.TB) *policy.Engine {
	t.Helper()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// boot starts an agent on the machine; what only the process before knew is gone.
func boot(t testing.TB, m *machine, dir string, change ...func(*Config)) *process {
	t.Helper()
	// A goroutine of a process that has crashed may still be placing an address.
	m.mu.Lock()
	m.refs, m.given, m.placed = map[string]int{}, map[netip.Addr]string{}, map[netip.Addr]identity.ID{}
	m.temporary = identity.NewTemporaries()
	m.boots++
	boot := m.boots
	m.mu.Unlock()
	kernel := fakeMaps{machine: m}
	log := slog.New(slog.DiscardHandler)
	p, err := enforcement.NewPolicy(log, testEngine(t), kernel)
	if err != nil {
		t.Fatal(err)
	}
	store, err := NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	proc := &process{t: t, machine: m, dir: dir, clock: time.Unix(1e9, 0), registry: NewRegistry(), store: store, policy: p}
	cfg := Config{
		Log: log, Registry: proc.registry, Store: store, Filter: labels.DefaultFilter(),
		Identities: fakeIdentities{m}, Addresses: fakeAddresses{m}, Placer: fakePlacer{m, boot}, Policy: p,
		Rows: kernel, Programs: fakeNode{m}, Links: fakeNode{m},
		IdentityTimeout: time.Second, OrphanGrace: time.Minute, Now: func() time.Time { return proc.clock },
	}
	for _, c := range change {
		c(&cfg)
	}
	proc.Lifecycle = NewLifecycle(cfg)
	return proc
}

// started is a process that has restored and observed everything.
func started(t testing.TB, m *machine, dir string, change ...func(*Config)) *process {
	t.Helper()
	p := boot(t, m, dir, change...)
	p.restore()
	return p
}

func (p *process) restore() {
	p.t.Helper()
	ctx := context.Background()
	if err := p.Load(ctx); err != nil {
		p.t.Fatal(err)
	}
	for _, row := range p.registry.List() {
		if row.Identity.IsTemporary() {
			if err := p.machine.temporary.Restore(row.Identity, row.IdentityLabels); err != nil {
				p.t.Fatal(err)
			}
			p.machine.refs[refKey(row.Identity, row.IdentityLabels)]++
		}
	}
	if _, err := p.Resume(ctx); err != nil {
		p.t.Fatal(err)
	}
	if err := p.Reacquire(ctx); err != nil {
		p.t.Fatal(err)
	}
	if err := p.policy.Synced(); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Settle(ctx); err != nil {
		p.t.Fatal(err)
	}
}

// plug does what the plugin does before it asks for an endpoint.
func (p *process) plug(n int) CreateRequest {
	row := RowOf(n)
	p.machine.mu.Lock()
	p.machine.links[row.IfIndex] = row.IfName
	for _, ip := range row.Addresses() {
		if _, taken := p.machine.given[ip]; !taken {
			p.machine.given[ip] = row.Owner()
		}
	}
	p.machine.mu.Unlock()
	return CreateRequest{Attachment: row.Attachment, Labels: row.Labels}
}

func (p *process) mustCreate(n int) Endpoint {
	p.t.Helper()
	row, err := p.Create(context.Background(), p.plug(n))
	if err != nil {
		p.t.Fatal(err)
	}
	return row
}

// audit compares everything with the registry, which is the truth. It is for moments at which
// nothing is under way and nothing is known to have failed.
func (p *process) audit(when string) {
	p.t.Helper()
	m := p.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	bad := func(format string, args ...any) { p.t.Errorf(when+": "+format, args...) }
	for _, b := range m.breaches {
		bad("%s", b)
	}
	m.breaches = nil
	refs, given, placed := map[string]int{}, map[netip.Addr]string{}, map[netip.Addr]identity.ID{}
	kernel := map[int]bool{}
	sets := map[datapath.RuleSetID]bool{}
	for _, row := range p.registry.List() {
		if row.State != StateReady {
			bad("endpoint %d is %s", row.ID, row.State)
		}
		refs[refKey(row.Identity, row.IdentityLabels)]++
		kernel[row.IfIndex] = true
		for _, ip := range row.Addresses() {
			given[ip], placed[ip] = row.Owner(), row.Seen()
		}
		k, ok := m.endpoints[row.IfIndex]
		if !ok {
			bad("endpoint %d has no kernel row", row.ID)
			continue
		}
		sets[k.RuleSet] = true
		if k.ID != row.ID || k.Identity != uint32(row.Seen()) || identity.ID(k.Identity).IsTemporary() || k.IPv4 != row.IPv4 || k.IPv6 != row.IPv6 || k.Locked {
			bad("endpoint %d has the kernel row %+v", row.ID, k)
		}
		if known, _ := p.policy.Row(row.ID); !known.Same(k) {
			bad("endpoint %d: policy believes %+v, the kernel has %+v", row.ID, known, k)
		}
		if !m.attached[row.IfIndex] || !m.up[row.IfIndex] {
			bad("endpoint %d: programs attached %v, interface up %v", row.ID, m.attached[row.IfIndex], m.up[row.IfIndex])
		}
		// The rule set is what the engine says.
		p.policy.View(func(e *policy.Engine) {
			b, _, _, _ := e.RuleSetOf(row.Subject())
			want, _ := e.RuleSet(b.RuleSet)
			have := m.sets[k.RuleSet]
			if want.IngressEnforced != have.IngressEnforced || want.EgressEnforced != have.EgressEnforced || !maps.Equal(want.Entries, have.Entries) {
				bad("endpoint %d: rule set %d is %+v, want %+v", row.ID, k.RuleSet, have, want)
			}
		})
	}
	for _, have := range m.sets {
		for key := range have.Entries {
			if identity.ID(key.Identity).IsTemporary() {
				bad("rule set %d has an entry of a temporary identity: %+v", have.ID, key)
			}
		}
	}
	for i, k := range m.endpoints {
		if !kernel[i] {
			bad("kernel row of interface %d (endpoint %d) has no endpoint", i, k.ID)
		}
	}
	for id := range m.sets {
		if !sets[id] {
			bad("rule set %d is left in the kernel, nobody points at it", id)
		}
	}
	if !maps.Equal(refs, m.refs) {
		bad("identity references %v, want %v", m.refs, refs)
	}
	if !maps.Equal(given, m.given) {
		bad("addresses %v, want %v", m.given, given)
	}
	if !maps.Equal(placed, m.placed) {
		bad("addresses placed %v, want %v", m.placed, placed)
	}
	records, err := p.store.Load()
	if err != nil {
		bad("%v", err)
	}
	if len(records) != p.registry.Len() {
		bad("%d records on disk for %d endpoints", len(records), p.registry.Len())
	}
	for _, r := range records {
		if row, _ := p.registry.Get(r.ID); row.Identity != r.Identity || row.User.String() != r.User.String() {
			bad("endpoint %d is on disk with identity %d and labels %s", r.ID, r.Identity, r.User)
		}
	}
	if creations, locks := p.Remembered(); creations+locks > 0 {
		bad("%d creations and %d locks are remembered", creations, locks)
	}
}
