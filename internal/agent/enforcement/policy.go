package enforcement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// Kernel is what the kernel holds of endpoints and of their rule sets.
type Kernel interface {
	UpsertEndpoint(datapath.Endpoint) error
	DeleteEndpoint(ifIndex int) error
	Endpoints() ([]datapath.Endpoint, error)
	InstallRuleSet(datapath.RuleSet) error
	UpdateRuleSet(datapath.RuleSetDelta) error
	DeleteRuleSet(datapath.RuleSetID) error
	RuleSets() ([]datapath.RuleSet, error)
	SetKnownIdentities(ids []uint32) error
	UpdateKnownIdentities(added, removed []uint32) error
	KnownIdentities() (ids []uint32, all bool, err error)
	LastGeneration() (uint32, error)
}

// Policy joins the pure policy engine to the kernel: it is the only caller of the engine and the
// only writer of the kernel's rule sets and endpoint rows. Every change goes through one lock, so
// the kernel sees the engine's updates in order: rule sets are written whole before an endpoint
// points at them, and removed after none does.
//
// The engine numbers its rule sets from 1 at each start. The kernel's IDs outlive the agent,
// so Policy maps one to the other and, after a restart, lets a new rule set adopt the kernel's
// ID if the content is the same: a restart that changes nothing writes nothing. Until Synced
// the engine knows only a part of what its rule sets follow from, so those that only restored
// endpoints want are neither written nor compared before.
//
// Until Observed it knows so little that no packet may be evaluated by it: a policy not observed
// yet, or an identity that a deny names, would leave a pod open. Whatever is attached before gets
// the rule set that the kernel has for it from before the restart, or drops everything until
// Synced.
type Policy struct {
	log  *slog.Logger
	maps Kernel

	mu        sync.Mutex
	engine    *policy.Engine
	rows      map[uint16]*boundRow
	bySubject map[policy.Subject]map[uint16]*boundRow
	bindings  map[policy.Subject]policy.Binding
	sets      map[datapath.RuleSetID]*kernelSet // by the engine's ID
	failed    map[datapath.RuleSetID]error      // rule sets that could not be written whole
	waiting   map[datapath.RuleSetID]struct{}   // rule sets that no row needs before Synced
	unplaced  map[string][]Unplaced             // by kind: see SetUnplaced
	misled    map[datapath.RuleSetID]error      // rule sets that name some of these
	others    otherClusters
	partial   map[datapath.RuleSetID]*partial // rule sets of which the kernel has a part
	known     known
	// gone are the kernel rows of detached endpoints that could not be removed yet, by interface.
	gone map[int]*boundRow

	nextSet        datapath.RuleSetID
	nextGeneration uint32
	revision       atomic.Uint64 // written with mu held, read without

	// left are the kernel's rule sets that the engine does not want: those from before the restart
	// that nothing has adopted yet, and those that are to be removed.
	left     map[datapath.RuleSetID]datapath.RuleSet
	observed chan struct{} // closed by Observed
	// rulesObserved is earlier than observed where identities are kept elsewhere.
	rulesObserved bool
	synced        bool
	audit         bool // endpoints without a mode of their own are in audit mode
}

// kernelSet is a rule set of the engine under its ID in the kernel.
type kernelSet struct {
	number datapath.RuleSetID
}

// boundRow is an endpoint's row with what it was last written as, or if it never was, tried as.
type boundRow struct {
	endpoint endpoint.Endpoint
	subject  policy.Subject
	binding  policy.Binding // the engine's binding that kernel implements
	kernel   datapath.Endpoint
	written  bool
	held     bool // restored, or attached before Observed: left as it is until Synced
	// tried are the rule sets of writes that have failed since, perhaps half-way: while there are
	// any it is not known which row the kernel has.
	tried []datapath.RuleSetID
}

// pointsAt reports whether the kernel's row has a rule set, or may have it.
func (b *boundRow) pointsAt(number datapath.RuleSetID) bool {
	return b.written && b.kernel.RuleSet == number || slices.Contains(b.tried, number)
}

// dirty reports whether it is not known which row the kernel has.
func (b *boundRow) dirty() bool { return len(b.tried) > 0 }

// NewPolicy reads what the kernel holds and returns a Policy that goes on from there.
func NewPolicy(log *slog.Logger, engine *policy.Engine, kernel Kernel) (*Policy, error) {
	p := &Policy{
		log: log, maps: kernel, engine: engine,
		rows: map[uint16]*boundRow{}, bySubject: map[policy.Subject]map[uint16]*boundRow{},
		bindings: map[policy.Subject]policy.Binding{}, sets: map[datapath.RuleSetID]*kernelSet{},
		failed: map[datapath.RuleSetID]error{}, waiting: map[datapath.RuleSetID]struct{}{}, gone: map[int]*boundRow{},
		unplaced: map[string][]Unplaced{}, misled: map[datapath.RuleSetID]error{}, partial: map[datapath.RuleSetID]*partial{},
		left: map[datapath.RuleSetID]datapath.RuleSet{}, observed: make(chan struct{}),
	}
	existing, err := kernel.RuleSets()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's rule sets: %w", err)
	}
	for _, rs := range existing {
		p.left[rs.ID] = rs
		p.nextSet = max(p.nextSet, rs.ID)
	}
	rows, err := kernel.Endpoints()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's endpoint rows: %w", err)
	}
	for _, row := range rows {
		p.nextSet = max(p.nextSet, row.RuleSet)
	}
	// Flows of endpoints that are gone remember higher IDs than the rows, perhaps. Were these
	// given to a new endpoint with such an address, the flows would be its own.
	if p.nextGeneration, err = kernel.LastGeneration(); err != nil {
		return nil, fmt.Errorf("read the kernel's flows: %w", err)
	}
	return p, p.loadKnown()
}

// introduce makes the endpoint's identity known as a peer, unless the cluster has published it.
func (p *Policy) introduce(ep endpoint.Endpoint) {
	if !p.engine.Knows(ep.Identity) {
		p.setIdentity(ep.Identity, ep.IdentityLabels)
	}
}

// Attach makes the kernel evaluate the endpoint's packets by the policy of its identity, and
// returns its kernel row. Attaching an endpoint again under another identity replaces the row in
// one step. If its rules do not fit into the kernel, the row is written locked, which drops
// everything, and the error reports it. Before Observed the rule set is one from before the
// restart, or the row is locked without an error.
func (p *Policy) Attach(ep endpoint.Endpoint) (datapath.Endpoint, uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	subject := ep.Subject()
	p.introduce(ep)
	old := p.rows[ep.ID]
	if old == nil || old.subject != subject {
		p.engine.AddSubject(subject)
	}
	b := &boundRow{endpoint: ep, subject: subject, held: !p.hasObserved()}
	if old != nil {
		b.kernel, b.written, b.tried = old.kernel, old.written, old.tried
		p.unindex(old)
	}
	p.index(b)
	err := p.apply(p.engine.Flush())
	if old != nil && old.subject != subject {
		p.engine.RemoveSubject(old.subject)
		err = errors.Join(err, p.apply(p.engine.Flush()))
	}
	if err != nil {
		p.log.Error("policy is not fully in force", "endpoint", ep.ID, "error", err)
	}
	err = p.rebind(b)
	return b.kernel, p.revision.Load(), err
}

// rebind updates the endpoint's row.
func (p *Policy) rebind(b *boundRow) error {
	if b.held {
		return p.bindBefore(b)
	}
	return p.bind(b)
}

// bindBefore writes the row that an endpoint has until the rules have been observed: with the rule
// set that another endpoint of its subject has from before the restart, or the one it had itself,
// or locked. A new one gets its own as soon as the rules are known, unless an endpoint here has one
// that denies: a peer that is not known yet then only lacks access.
func (p *Policy) bindBefore(b *boundRow) error {
	from := b.kernel
	if !b.written {
		from = datapath.Endpoint{Locked: true}
	}
	for _, other := range p.bySubject[b.subject] {
		if other != b && other.held && other.written && !other.kernel.Locked {
			from = other.kernel
			break
		}
	}
	if from.Locked && !b.written && p.rulesObserved && !p.denies() {
		b.held = false
		return p.bind(b)
	}
	row := p.kernelRow(b.endpoint, from.RuleSet, b.kernel.PolicyGeneration, from.Locked || from.RuleSet == 0)
	b.setIncarnation(&row)
	if !b.written || b.dirty() || !b.kernel.Same(row) {
		p.newGeneration(&row)
		b.setIncarnation(&row)
		if err := p.write(b, row); err != nil {
			return err
		}
	}
	if row.Locked {
		p.log.Warn("an endpoint drops all its packets until the rules have been observed", "endpoint", row.ID)
	}
	return nil
}

// denies reports whether a rule of any endpoint denies peers.
func (p *Policy) denies() bool {
	for subject := range p.bySubject {
		if p.engine.DeniesPeers(subject) {
			return true
		}
	}
	return false
}

// newGeneration has flows admitted under an earlier row evaluated again.
func (p *Policy) newGeneration(row *datapath.Endpoint) {
	p.nextGeneration++
	if p.nextGeneration == 0 {
		p.nextGeneration = 1 // 0 means "not checked here" in the kernel
	}
	row.PolicyGeneration = p.nextGeneration
}

// write writes a row to the kernel. After a failure the kernel may have the row, or a part of it.
func (p *Policy) write(b *boundRow, row datapath.Endpoint) error {
	if err := p.maps.UpsertEndpoint(row); err != nil {
		if !b.written {
			b.kernel = row
		}
		b.kernel.Audit = b.kernel.Audit || row.Audit // status must show that it may be open
		if !slices.Contains(b.tried, row.RuleSet) {
			b.tried = append(b.tried, row.RuleSet)
		}
		return fmt.Errorf("endpoint %d: %w: %w", row.ID, endpoint.ErrRowNotWritten, err)
	}
	delete(p.gone, row.IfIndex) // the interface has an endpoint again
	b.kernel, b.written, b.tried = row, true, nil
	return nil
}

// RulesObserved records that all rules have been observed, though perhaps not what there is of
// identities.
func (p *Policy) RulesObserved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rulesObserved = true
}

// Observed records that all rules and identities have been observed once, so that new endpoints can
// be evaluated by them.
func (p *Policy) Observed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setObserved()
}

func (p *Policy) setObserved() {
	if !p.hasObserved() {
		close(p.observed)
	}
}

func (p *Policy) hasObserved() bool {
	select {
	case <-p.observed:
		return true
	default:
		return false
	}
}

// WaitObserved waits for Observed.
func (p *Policy) WaitObserved(ctx context.Context) error {
	select {
	case <-p.observed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Restore makes the endpoint known again without touching the kernel's row of it, which stays in
// force until Synced. Only its audit mode is what it is to be now: what that depends on is known.
// If that cannot be written Retry does it. An endpoint that has no kernel row, because the maps are
// new, gets a locked one until then.
func (p *Policy) Restore(ep endpoint.Endpoint) error {
	rows, err := p.maps.Endpoints()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(rows, func(r datapath.Endpoint) bool { return r.IfIndex == ep.IfIndex })
	if i < 0 || rows[i].ID != ep.ID {
		return p.restoreLocked(ep)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kernel := rows[i]
	kernel.IfName = ep.IfName
	b := &boundRow{endpoint: ep, subject: ep.Subject(), kernel: kernel, written: true, held: !p.synced}
	p.introduce(ep)
	p.engine.AddSubject(b.subject)
	p.index(b)
	err = p.apply(p.engine.Flush())
	if p.stale(b) {
		if err := p.rebind(b); err != nil {
			p.log.Error("an endpoint keeps its audit mode for now", "endpoint", ep.ID, "audit", kernel.Audit, "error", err)
		}
	}
	return err
}

// restoreLocked makes an endpoint known that the kernel does not know.
func (p *Policy) restoreLocked(ep endpoint.Endpoint) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &boundRow{endpoint: ep, subject: ep.Subject(), held: !p.synced}
	p.setIdentity(ep.Identity, ep.IdentityLabels)
	p.engine.AddSubject(b.subject)
	p.index(b)
	err := p.apply(p.engine.Flush())
	if !b.held {
		return errors.Join(err, p.bind(b))
	}
	row := p.kernelRow(ep, 0, 0, true)
	p.newGeneration(&row)
	b.setIncarnation(&row)
	p.log.Warn("the kernel's maps are new: a restored endpoint drops all packets until the rules have been observed", "endpoint", ep.ID)
	return errors.Join(err, p.write(b, row))
}

// Synced records that everything which policy depends on has been observed once: rules, identities,
// nodes. The rows of restored endpoints are now brought up to date, and the rule sets that none
// needs any more are removed.
func (p *Policy) Synced() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.synced {
		return nil
	}
	errs := []error{p.apply(p.engine.Flush())}
	p.setObserved()
	p.synced = true
	errs = append(errs, p.forgetEnded())
	for _, id := range slices.Sorted(maps.Keys(p.waiting)) {
		errs = append(errs, p.ready(id))
	}
	for _, id := range slices.Sorted(maps.Keys(p.rows)) {
		b := p.rows[id]
		if b.held {
			b.held = false
			errs = append(errs, p.bind(b))
		}
	}
	if p.known.all || p.known.stale {
		errs = append(errs, p.setKnown())
	}
	errs = append(errs, p.collect())
	return errors.Join(errs...)
}

// collect removes the rule sets that no row points at any more.
func (p *Policy) collect() error {
	var errs []error
	for number := range p.left {
		if p.pointedAt(number) {
			continue // a row could not be rewritten; Retry will
		}
		if err := p.maps.DeleteRuleSet(number); err != nil {
			errs = append(errs, fmt.Errorf("remove rule set %d: %w", number, err))
			continue
		}
		delete(p.left, number)
	}
	return errors.Join(errs...)
}

// Detach removes the endpoint's row from the kernel: its interface drops everything from then on.
// Detaching what is not attached is fine.
func (p *Policy) Detach(id uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.rows[id]
	if b == nil {
		return nil
	}
	p.unindex(b)
	p.engine.RemoveSubject(b.subject)
	var err error
	if b.written || b.dirty() {
		// A row that stays is locked at least, so that it needs no rules; Retry removes it.
		if err = p.maps.DeleteEndpoint(b.kernel.IfIndex); err != nil {
			left := b.kernel
			left.RuleSet, left.Locked = 0, true
			err = errors.Join(fmt.Errorf("remove the kernel row of endpoint %d: %w", id, err), p.write(b, left))
			p.gone[left.IfIndex] = b
		}
	}
	return errors.Join(err, p.apply(p.engine.Flush()))
}

// Change runs f on the engine, alone, and reconciles the kernel with the result. It is how rules
// get in; identities do by SetIdentities. The error reports what could not be written; the
// endpoints concerned are locked until Retry succeeds.
func (p *Policy) Change(f func(*policy.Engine) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	ferr := f(p.engine)
	return errors.Join(ferr, p.apply(p.engine.Flush()))
}

// View runs f on the engine, alone, for reading.
func (p *Policy) View(f func(*policy.Engine)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.engine)
}

// TryView is View without blocking: it returns false, without running f, if the engine is in use.
func (p *Policy) TryView(f func(*policy.Engine)) bool {
	if !p.mu.TryLock() {
		return false
	}
	defer p.mu.Unlock()
	f(p.engine)
	return true
}

// Retry writes again what could not be written. It returns what still fails.
func (p *Policy) Retry() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for ifIndex, b := range p.gone {
		if err := p.maps.DeleteEndpoint(ifIndex); err != nil {
			errs = append(errs, fmt.Errorf("remove the kernel row of endpoint %d: %w", b.endpoint.ID, err))
			continue
		}
		delete(p.gone, ifIndex)
	}
	var again []datapath.RuleSet
	for id := range p.failed {
		if rs, ok := p.engine.RuleSet(id); ok {
			again = append(again, rs)
		} else {
			delete(p.failed, id)
		}
	}
	// Small ones first, and none gives way: what is tried every few seconds must not take turns.
	slices.SortFunc(again, func(a, b datapath.RuleSet) int {
		return cmp.Or(cmp.Compare(len(a.Entries), len(b.Entries)), cmp.Compare(a.ID, b.ID))
	})
	for _, rs := range again {
		errs = append(errs, p.put(rs, false))
	}
	for _, b := range p.rows {
		if want := p.bindings[b.subject]; p.stale(b) || !b.held && (b.kernel.Locked || b.binding != want) {
			errs = append(errs, p.rebind(b))
		}
	}
	errs = append(errs, p.apply(p.engine.Flush()), p.retryKnown())
	return errors.Join(errs...)
}

// Row returns an endpoint's kernel row and the policy revision it implements.
func (p *Policy) Row(id uint16) (datapath.Endpoint, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.rows[id]; b != nil {
		return b.kernel, p.revision.Load()
	}
	return datapath.Endpoint{}, 0
}

// Revision returns the revision of the policy in force. It never waits.
func (p *Policy) Revision() uint64 { return p.revision.Load() }

// SetIdentities makes identities known that appeared, and unknown that went. Errors are as of
// Change.
func (p *Policy) SetIdentities(upserts map[identity.ID]labels.Set, deletes []identity.ID) error {
	return p.Change(func(*policy.Engine) error {
		for _, id := range slices.Sorted(maps.Keys(upserts)) {
			p.setIdentity(id, upserts[id])
		}
		for _, id := range deletes {
			p.removeIdentity(id)
		}
		return nil
	})
}

// apply writes an update to the kernel, in the order that never lets a packet be evaluated by half
// of it: whole new rule sets, changes of live ones, the endpoints that move over, and only then
// what is no longer needed. It goes on after an error, so that one rule set too large does not keep
// the others from being written.
func (p *Policy) apply(u policy.Update) error {
	errs := []error{p.forgetRemoved()}
	p.revision.Store(u.Revision)
	for _, rs := range u.Install {
		if !p.synced {
			p.waiting[rs.ID] = struct{}{}
			continue
		}
		errs = append(errs, p.install(rs))
	}
	for _, d := range u.Deltas {
		errs = append(errs, p.delta(d))
	}
	for subject, binding := range u.Bind {
		p.bindings[subject] = binding
		for _, b := range p.bySubject[subject] {
			if !b.held {
				errs = append(errs, p.bind(b))
			}
		}
	}
	for _, id := range u.Remove {
		s := p.sets[id]
		delete(p.sets, id)
		delete(p.failed, id)
		delete(p.misled, id)
		delete(p.partial, id)
		delete(p.waiting, id)
		if s == nil || s.number == 0 {
			continue
		}
		p.left[s.number] = datapath.RuleSet{ID: s.number}
	}
	if p.synced {
		errs = append(errs, p.collect())
	}
	errs = append(errs, p.learnChanged())
	for subject := range p.bindings {
		if len(p.bySubject[subject]) == 0 {
			delete(p.bindings, subject)
		}
	}
	return errors.Join(errs...)
}

func (p *Policy) pointedAt(number datapath.RuleSetID) bool {
	for _, b := range p.rows {
		if b.pointsAt(number) {
			return true
		}
	}
	for _, b := range p.gone {
		if b.pointsAt(number) {
			return true
		}
	}
	return false
}

// ready writes a rule set that waited until now.
func (p *Policy) ready(id datapath.RuleSetID) error {
	if _, waits := p.waiting[id]; !waits {
		return nil
	}
	delete(p.waiting, id)
	rs, ok := p.engine.RuleSet(id)
	if !ok {
		return nil
	}
	return p.install(rs)
}

// install writes a rule set whole, or adopts the kernel's if one with the same content is left
// over from an earlier agent. If there is no room a larger one gives way.
func (p *Policy) install(rs datapath.RuleSet) error { return p.put(rs, true) }

func (p *Policy) put(rs datapath.RuleSet, makeRoom bool) error {
	p.check(rs)
	want := rs
	s := p.sets[rs.ID]
	if s == nil {
		s = &kernelSet{}
		p.sets[rs.ID] = s
	}
	if s.number == 0 {
		for number, old := range p.left {
			if !p.synced {
				break // a restored row may point at it and must not see it change
			}
			if old.Entries != nil && old.IngressEnforced == want.IngressEnforced && old.EgressEnforced == want.EgressEnforced && maps.Equal(old.Entries, want.Entries) {
				delete(p.left, number)
				s.number = number
				return nil
			}
		}
		if p.nextSet >= datapath.MaxRuleSet { // its endpoints can be locked without an ID only
			p.failed[rs.ID] = fmt.Errorf("all IDs of rule sets up to %d have been given: reboot the node", datapath.MaxRuleSet)
			return p.failed[rs.ID]
		}
		p.nextSet++
		s.number = p.nextSet
	}
	want.ID = s.number
	want, err := p.installShare(rs.ID, want)
	// Room does not help beyond the share, which others may exceed from before a restart.
	for makeRoom && errors.Is(err, datapath.ErrFull) && !errors.Is(err, datapath.ErrShare) && p.giveWay(rs) {
		err = p.maps.InstallRuleSet(want)
	}
	if err != nil {
		err = fmt.Errorf("write rule set %d with %d entries: %w", s.number, len(want.Entries), err)
		p.failed[rs.ID] = err
		return err
	}
	delete(p.failed, rs.ID)
	return nil
}

// delta changes a live rule set in place, in the order that the engine asks for: each kind of
// change is one call because the maps order entries by how specific they are only. If that fails
// half-way the whole is written again; if that fails too its endpoints are locked. Of what is in
// the kernel in part the whole is tried once it has become smaller.
func (p *Policy) delta(d policy.Delta) error {
	s := p.sets[d.ID]
	if s == nil || s.number == 0 {
		return nil // it is not in the kernel; when it is written, it is whole
	}
	part := p.partial[d.ID]
	err := p.steps(s.number, part.within(d))
	if err == nil && part == nil && len(p.unplaced) == 0 {
		return nil
	}
	rs, ok := p.engine.RuleSet(d.ID)
	if !ok {
		return nil
	}
	misled := p.recheck(rs)
	if err == nil && (part == nil || len(rs.Entries) >= part.whole) {
		return misled
	}
	again := p.install(rs)
	if again == nil {
		return misled
	}
	err = cmp.Or(err, again)
	p.failed[d.ID] = err
	for _, b := range p.rows {
		if b.pointsAt(s.number) {
			err = errors.Join(err, p.bind(b))
		}
	}
	return fmt.Errorf("change rule set %d: %w", s.number, err)
}

func (p *Policy) steps(number datapath.RuleSetID, d policy.Delta) error {
	if d.Ordered {
		// The maps see to the order of specificity.
		all := datapath.RuleSetDelta{ID: number, Upserts: make(map[datapath.PolicyKey]datapath.PolicyEntry, len(d.Upserts))}
		for _, e := range d.Upserts {
			all.Upserts[e.PolicyKey] = e.PolicyEntry
		}
		all.Deletes = d.Deletes
		return p.maps.UpdateRuleSet(all)
	}
	for _, deny := range []bool{true, false} {
		step := datapath.RuleSetDelta{ID: number, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{}}
		for _, e := range d.Upserts {
			if e.Deny == deny {
				step.Upserts[e.PolicyKey] = e.PolicyEntry
			}
		}
		if !deny {
			// What goes after everything that comes: the engine lists allows before denies, and
			// the deletions of a call are done in order.
			step.Deletes = d.Deletes
		}
		if len(step.Upserts)+len(step.Deletes) == 0 {
			continue
		}
		if err := p.maps.UpdateRuleSet(step); err != nil {
			return err
		}
	}
	return nil
}

// bind writes the endpoint's kernel row for its subject's present binding.
func (p *Policy) bind(b *boundRow) error {
	want := p.bindings[b.subject]
	_ = p.ready(want.RuleSet) // what fails is in p.failed
	var number datapath.RuleSetID
	if s := p.sets[want.RuleSet]; s != nil {
		number = s.number
	}
	failure := p.failure(want.RuleSet)
	locked := failure != nil || number == 0
	row := p.kernelRow(b.endpoint, number, b.kernel.PolicyGeneration, locked)
	same := b.written && !b.dirty() && b.kernel.RuleSet == number && b.kernel.Identity == row.Identity && b.kernel.Locked == locked &&
		b.kernel.Audit == row.Audit
	// Flows admitted under the old row are evaluated again unless, according to the engine, all
	// that it admitted is still admitted. After a restart there is no earlier binding of the
	// engine's to compare with; the adopted rule set is then the very same.
	if !same || (b.binding != (policy.Binding{}) && b.binding.Generation != want.Generation) {
		p.newGeneration(&row)
	}
	b.setIncarnation(&row)
	if !b.written || b.dirty() || !b.kernel.Same(row) {
		if err := p.write(b, row); err != nil {
			return err
		}
	}
	b.kernel, b.binding = row, want
	if failure != nil {
		return fmt.Errorf("endpoint %d drops all its packets: %w", row.ID, failure)
	}
	if number == 0 {
		return fmt.Errorf("endpoint %d drops all its packets: it has no rule set", row.ID)
	}
	return nil
}

// setIncarnation gives a row that is about to be written its incarnation: the number of the
// endpoint's first writing, which is no other endpoint's.
func (b *boundRow) setIncarnation(row *datapath.Endpoint) {
	if row.Incarnation = b.kernel.Incarnation; !b.written {
		row.Incarnation = row.PolicyGeneration
	}
}

func (p *Policy) index(b *boundRow) {
	p.rows[b.endpoint.ID] = b
	if p.bySubject[b.subject] == nil {
		p.bySubject[b.subject] = map[uint16]*boundRow{}
	}
	p.bySubject[b.subject][b.endpoint.ID] = b
}

func (p *Policy) unindex(b *boundRow) {
	delete(p.rows, b.endpoint.ID)
	delete(p.bySubject[b.subject], b.endpoint.ID)
	if len(p.bySubject[b.subject]) == 0 {
		delete(p.bySubject, b.subject)
	}
}
