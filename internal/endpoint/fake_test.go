package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
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
	// kernel has maps, programs and interfaces; writes are those of its maps.
	kernel *fake.Node

	mu       sync.Mutex
	fault    func(op string) error
	writes   []string
	breaches []string

	boots int // how many processes there have been

	// Parts of the agent: reset by a restart.
	numbers map[string]identity.ID // survive it: the cluster's
	// withheld: label sets without an ID are given none.
	withheld  bool
	temporary *identity.Temporaries
	next      identity.ID
	refs      map[string]int
	given     map[netip.Addr]string
	placed    map[netip.Addr]identity.ID
}

func newMachine() *machine {
	m := &machine{
		kernel: fake.New(), fault: func(string) error { return nil },
		numbers: map[string]identity.ID{}, next: 255, refs: map[string]int{}, given: map[netip.Addr]string{}, placed: map[netip.Addr]identity.ID{},
	}
	_ = m.kernel.Programs.Configure(datapath.Config{})
	m.kernel.SetFault(func(op string, _ any) error {
		if name := kernelOps[op]; name != "" {
			return m.do(name, func() error { return nil })
		}
		return nil
	})
	return m
}

// kernelOps are the changes of the kernel that may fail, and what tests call them.
var kernelOps = map[string]string{
	"Maps.UpsertEndpoint": "UpsertEndpoint", "Maps.DeleteEndpoint": "DeleteEndpoint",
	"Maps.InstallRuleSet": "InstallRuleSet", "Maps.UpdateRuleSet": "UpdateRuleSet", "Maps.DeleteRuleSet": "DeleteRuleSet",
	"Programs.AttachEndpoint": "AttachEndpoint",
	"Links.EnsureEndpoint":    "EnsureEndpoint", "Links.ShutEndpoint": "ShutLink", "Links.DeleteEndpoint": "DeleteLink",
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

// wrote notes a write of the kernel's maps that succeeded.
func (m *machine) wrote(err error, format string, args ...any) error {
	if err == nil {
		m.mu.Lock()
		m.writes = append(m.writes, fmt.Sprintf(format, args...))
		m.mu.Unlock()
	}
	return err
}

func (m *machine) breach(format string, args ...any) {
	m.mu.Lock()
	m.breaches = append(m.breaches, fmt.Sprintf(format, args...))
	m.mu.Unlock()
}

// endpoints are the kernel's rows by their interfaces.
func (m *machine) endpoints() map[int]datapath.Endpoint {
	list, _ := m.kernel.Maps.Endpoints()
	out := map[int]datapath.Endpoint{}
	for _, ep := range list {
		out[ep.IfIndex] = ep
	}
	return out
}

func (m *machine) row(row Endpoint) datapath.Endpoint { return m.endpoints()[row.IfIndex] }

// sets are the kernel's rule sets.
func (m *machine) sets() map[datapath.RuleSetID]datapath.RuleSet {
	list, _ := m.kernel.Maps.RuleSets()
	out := map[datapath.RuleSetID]datapath.RuleSet{}
	for _, rs := range list {
		out[rs.ID] = rs
	}
	return out
}

func (m *machine) attached(ifIndex int) bool {
	ok, _ := m.kernel.Programs.Attached(ifIndex)
	return ok
}

// link is the interface of that ID, the zero value if there is none.
func (m *machine) link(ifIndex int) datapath.EndpointLink {
	links, _ := m.kernel.Links.EndpointLinks()
	for _, l := range links {
		if l.IfIndex == ifIndex {
			return l
		}
	}
	return datapath.EndpointLink{}
}

// addLink makes an interface appear, or be another.
func (m *machine) addLink(ifIndex int, name string, up bool) {
	m.kernel.Links.AddLink(datapath.EndpointLink{Name: name, IfIndex: ifIndex, Up: up, Ours: true})
}

// fakeMaps are the kernel's maps, whose order of writes is observed.
type fakeMaps struct {
	*fake.Maps
	m *machine
}

func (f fakeMaps) UpsertEndpoint(ep datapath.Endpoint) error {
	err := f.Maps.UpsertEndpoint(ep)
	if _, ok := f.m.sets()[ep.RuleSet]; err == nil && !ok && !ep.Locked {
		f.m.breach("endpoint %d was bound to rule set %d, which does not exist", ep.ID, ep.RuleSet)
	}
	if f.m.wrote(err, "endpoint %d ruleset %d locked %v", ep.ID, ep.RuleSet, ep.Locked) != nil {
		return err
	}
	// The rows of its addresses follow: a write that fails there has been done in part.
	return f.m.do("UpsertAddresses", func() error { return nil })
}

func (f fakeMaps) DeleteEndpoint(ifIndex int) error {
	ep, ok := f.m.endpoints()[ifIndex]
	err := f.Maps.DeleteEndpoint(ifIndex)
	if ok {
		return f.m.wrote(err, "delete endpoint %d", ep.ID)
	}
	return err
}

func (f fakeMaps) InstallRuleSet(rs datapath.RuleSet) error {
	return f.m.wrote(f.Maps.InstallRuleSet(rs), "install ruleset %d", rs.ID)
}

func (f fakeMaps) UpdateRuleSet(d datapath.RuleSetDelta) error {
	if _, ok := f.m.sets()[d.ID]; !ok {
		f.m.breach("rule set %d was changed, which does not exist", d.ID)
	}
	return f.m.wrote(f.Maps.UpdateRuleSet(d), "change ruleset %d", d.ID)
}

func (f fakeMaps) DeleteRuleSet(id datapath.RuleSetID) error {
	_, ok := f.m.sets()[id]
	err := f.Maps.DeleteRuleSet(id)
	if err != nil || !ok {
		return err
	}
	for _, ep := range f.m.endpoints() {
		if ep.RuleSet == id {
			f.m.breach("rule set %d was removed, but endpoint %d points at it", id, ep.ID)
		}
	}
	return f.m.wrote(nil, "delete ruleset %d", id)
}

// fakeLinks are the node's interfaces, which are observed to come up with programs only.
type fakeLinks struct {
	*fake.Links
	m *machine
}

func (f fakeLinks) EnsureEndpoint(ep datapath.Endpoint) error {
	if !f.m.attached(ep.IfIndex) {
		f.m.breach("interface of endpoint %d was to come up without a program", ep.ID)
	}
	return f.Links.EnsureEndpoint(ep)
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

// refKey distinguishes references to the ID of a label set from those to its temporary one.
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
		m.breaches = append(m.breaches, fmt.Sprintf("a reference to %s was released that was not held", key))
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
			m.breaches = append(m.breaches, fmt.Sprintf("%s was committed but is not taken", ip))
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

// fakePublisher is the address table of one process: of a process that has crashed it keeps
// nothing.
type fakePublisher struct {
	*machine
	boot int // the process, 0 for any
}

func (m fakePublisher) Publish(ctx context.Context, row Endpoint) error {
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

func (m fakePublisher) Withdraw(row Endpoint) {
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
	kernel := fakeMaps{m.kernel.Maps, m}
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
		Identities: fakeIdentities{m}, Addresses: fakeAddresses{m}, Publisher: fakePublisher{m, boot}, Policy: p,
		Rows: kernel, Programs: m.kernel.Programs, Links: fakeLinks{m.kernel.Links, m},
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
	if _, err := p.ReplaceTemporary(ctx); err != nil {
		p.t.Fatal(err)
	}
}

// plug does what the plugin does before it asks for an endpoint.
func (p *process) plug(n int) CreateRequest {
	row := RowOf(n)
	p.machine.mu.Lock()
	if l := p.machine.link(row.IfIndex); l.Name == "" {
		p.machine.addLink(row.IfIndex, row.IfName, false)
	}
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
	haveRows, haveSets := m.endpoints(), m.sets()
	for _, row := range p.registry.List() {
		if row.State != StateReady {
			bad("endpoint %d is %s", row.ID, row.State)
		}
		refs[refKey(row.Identity, row.IdentityLabels)]++
		kernel[row.IfIndex] = true
		for _, ip := range row.Addresses() {
			given[ip], placed[ip] = row.Owner(), row.Seen()
		}
		k, ok := haveRows[row.IfIndex]
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
		if attached, up := m.attached(row.IfIndex), m.link(row.IfIndex).Up; !attached || !up {
			bad("endpoint %d: programs attached %v, interface up %v", row.ID, attached, up)
		}
		// The rule set is what the engine says.
		p.policy.View(func(e *policy.Engine) {
			b, _, _, _ := e.RuleSetOf(row.Subject())
			want, _ := e.RuleSet(b.RuleSet)
			have := haveSets[k.RuleSet]
			if want.IngressEnforced != have.IngressEnforced || want.EgressEnforced != have.EgressEnforced || !maps.Equal(want.Entries, have.Entries) {
				bad("endpoint %d: rule set %d is %+v, want %+v", row.ID, k.RuleSet, have, want)
			}
		})
	}
	for _, have := range haveSets {
		for key := range have.Entries {
			if identity.ID(key.Identity).IsTemporary() {
				bad("rule set %d has an entry of a temporary identity: %+v", have.ID, key)
			}
		}
	}
	for i, k := range haveRows {
		if !kernel[i] {
			bad("kernel row of interface %d (endpoint %d) has no endpoint", i, k.ID)
		}
	}
	for id := range haveSets {
		if !sets[id] {
			bad("rule set %d is left in the kernel, no endpoint points at it", id)
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
	records, damaged, err := p.store.Load()
	if err != nil || damaged != nil {
		bad("%v, %v", damaged, err)
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
