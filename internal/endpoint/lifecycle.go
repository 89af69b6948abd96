package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/validate"
)

// Identities gives label sets their cluster-wide IDs, or temporary ones until these are known.
// The endpoint holds one reference for each Acquire until it calls Release with what it got.
type Identities interface {
	Acquire(ctx context.Context, l labels.Set) (identity.ID, error)
	Release(ctx context.Context, id identity.ID, l labels.Set) error
}

// Addresses is the node's address pool as an endpoint sees it.
type Addresses interface {
	// Claim checks that an address was assigned to owner. If the pool does not know it (the agent
	// restarted between allocation and creation) it is assigned now.
	Claim(ip netip.Addr, owner, expirationUUID string) error
	// Unclaim takes a Claim back that succeeded, of an endpoint that was not created.
	Unclaim(ip netip.Addr, owner string)
	// Commit stops the address's expiration: from now on the endpoint keeps it alive.
	Commit(ip netip.Addr, expirationUUID string) error
	// Restore takes the address for an endpoint that was there before the agent.
	Restore(ip netip.Addr, owner string) error
	// Free gives the address back. An address that is not taken is not an error.
	Free(ip netip.Addr)
}

// Publisher publishes to this node and the others where an endpoint's addresses are.
type Publisher interface {
	// Publish announces the row's addresses under its identity, replacing former announcements. It
	// returns when they are in this node's kernel; other nodes are notified soon, with retries.
	Publish(ctx context.Context, row Endpoint) error
	// Withdraw takes the announcement back.
	Withdraw(row Endpoint)
}

// Policy has the kernel evaluate the packets of endpoints by the rules for their identities.
type Policy interface {
	// Attach writes the row to the kernel, and returns what it has of it, and the revision of the
	// policy that this implements. An error other than ErrRowNotWritten is the reason why the
	// endpoint drops all its packets; before the rules have been observed it may do so without one.
	Attach(row Endpoint) (kernel datapath.Endpoint, revision uint64, err error)
	// Restore makes an endpoint from before a restart known, and leaves what the kernel has of it.
	Restore(row Endpoint) error
	// Detach has the endpoint's interface drop everything. It is fine if it does.
	Detach(id uint16) error
	// Row returns what the kernel has of an endpoint, as Attach does.
	Row(id uint16) (kernel datapath.Endpoint, revision uint64)
}

// Rows are the kernel's rows of endpoints, of which those are removed that have no endpoint any
// more. All others are Policy's.
type Rows interface {
	Endpoints() ([]datapath.Endpoint, error)
	DeleteEndpoint(ifIndex int) error
}

// Programs evaluate the packets of interfaces; see [datapath.Programs].
type Programs interface {
	AttachEndpoint(ifIndex int) error
	Attached(ifIndex int) (bool, error)
}

// Links are the host sides of pods' interfaces; see [datapath.Links].
type Links interface {
	EnsureEndpoint(row datapath.Endpoint) error
	ShutEndpoint(ifIndex int) error
	DeleteEndpoint(ifName string, ifIndex int) error
	EndpointLinks() ([]datapath.EndpointLink, error)
}

// Config is what a Lifecycle needs.
type Config struct {
	Log        *slog.Logger
	Registry   *Registry
	Store      *Store
	Filter     *labels.Filter
	Identities Identities
	Addresses  Addresses
	Publisher  Publisher
	Policy     Policy
	Rows       Rows
	Programs   Programs
	Links      Links
	// IdentityTimeout bounds the wait for an identity.
	IdentityTimeout time.Duration
	// PropagationDelay is how long an endpoint that others know by an earlier identity keeps that
	// after its next one has become known here, for the others to observe it too.
	PropagationDelay time.Duration
	// OrphanGrace is how long a pod interface without an endpoint is left alone, for the plugin
	// that is about to make one.
	OrphanGrace time.Duration
	// GiveUpUnrecorded has Load go on where the kernel has pods and the Store the record of none.
	GiveUpUnrecorded bool
	// Step, if not nil, is called with the name of each step of a creation or deletion just
	// before it is done, for tests that stop the process there.
	Step func(step string)
	// StateChanged, if not nil, is called with each row that is new or has another state than
	// before, which is empty for a new one, and why. It must not wait.
	StateChanged func(before State, row Endpoint, message string)
	Now          func() time.Time
}

// Lifecycle makes, changes and removes endpoints: it is the only writer of the Registry and the
// Store, and writes each row to the kernel by way of Policy, Programs and Links. Its methods may
// be called concurrently; changes of one endpoint are serialised.
//
// A creation is written to disk before the kernel is touched, and a deletion is struck from disk
// after the kernel was cleaned, so that whatever step a crash interrupts, Load finds a record for
// everything that may be left. A change is written to disk once the kernel has it, for other labels
// must count also where the disk takes no writes.
type Lifecycle struct {
	cfg    Config
	filter atomic.Pointer[labels.Filter] // Config.Filter, until SetFilter

	mu       sync.Mutex
	creating map[uint16]context.CancelCauseFunc // by endpoint ID
	locks    map[uint16]*rowLock                // of the IDs that are held or waited for
	// unrepaired are endpoints that were being changed when Repair or Reattach came to them, left
	// those of endpoints that are gone whose record could not be removed.
	unrepaired, left map[uint16]struct{}

	orphans map[string]time.Time // interface without an endpoint -> first seen
}

// rowLock serialises the changes of one endpoint.
type rowLock struct {
	sync.Mutex
	users int // who hold it or wait for it; guarded by Lifecycle.mu
}

// NewLifecycle returns a lifecycle on the given parts, all of which must be set but Step,
// StateChanged and Now.
func NewLifecycle(cfg Config) *Lifecycle {
	if cfg.Step == nil {
		cfg.Step = func(string) {}
	}
	if cfg.StateChanged == nil {
		cfg.StateChanged = func(State, Endpoint, string) {}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Lifecycle{
		cfg: cfg, creating: map[uint16]context.CancelCauseFunc{}, locks: map[uint16]*rowLock{},
		unrepaired: map[uint16]struct{}{}, left: map[uint16]struct{}{}, orphans: map[string]time.Time{},
	}
	l.filter.Store(cfg.Filter)
	return l
}

// CreateRequest asks for a new endpoint.
type CreateRequest struct {
	// ID is the wanted ID, or 0.
	ID uint16
	Attachment
	Labels     labels.Set
	NamedPorts []policy.NamedPort
	// Expiration holds the UUIDs of the addresses' expiration timers, if they have any.
	IPv4Expiration, IPv6Expiration string
}

func (r CreateRequest) validate() error {
	var errs validate.Errors
	errs.If(r.IfName == "" || r.IfIndex <= 0, "interface-name and interface-index of the host side are needed")
	errs.If(len(r.MAC) != 6 || len(r.HostMAC) != 6, "mac and host-mac must be Ethernet addresses")
	errs.If(!r.IPv4.IsValid() && !r.IPv6.IsValid(), "addressing has neither an IPv4 nor an IPv6 address")
	for _, ip := range r.Addresses() {
		errs.If(ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() || ip.IsLinkLocalUnicast(), "address %s cannot be a pod's", ip)
	}
	if err := errs.Err(); err != nil {
		return &invalidIDError{"endpoint: " + err.Error()}
	}
	return nil
}

// owner is the name under which an endpoint's addresses are taken.
func (a Attachment) owner() string {
	if pod := a.Pod(); pod != "" {
		return pod
	}
	if id := a.AttachmentID(); id != "" {
		return id
	}
	return a.ContainerName
}

// Create makes an endpoint and returns when its packets are evaluated by its policy, or with an
// error after undoing everything it did. The addresses stay with the caller on error. A newer
// creation for the same pod, and a deletion, cancel one that is under way (ErrSuperseded).
func (l *Lifecycle) Create(ctx context.Context, req CreateRequest) (Endpoint, error) {
	if err := req.validate(); err != nil {
		return Endpoint{}, err
	}
	if pod := req.Pod(); pod != "" {
		for _, older := range l.cfg.Registry.members(l.cfg.Registry.byPod, pod) {
			if older.ContainerIfName == req.ContainerIfName {
				l.supersede(older.ID)
			}
		}
	}
	row := Endpoint{
		ID: req.ID, Attachment: req.Attachment, Labels: req.Labels, NamedPorts: req.NamedPorts,
		Created: l.cfg.Now(),
	}
	row.IdentityLabels, row.InfoLabels = l.split(row)
	row, _ = row.withState(StateCreating, l.cfg.Now(), true, "created")

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	row, unlock, err := l.insert(row, cancel)
	if err != nil {
		return Endpoint{}, err
	}
	defer unlock()
	if now, ok := l.cfg.Registry.Get(row.ID); !ok || now.IfName != row.IfName {
		// A deletion was faster and has removed the row; the ID may be another's by
		// now.
		return Endpoint{}, fmt.Errorf("create endpoint %d (%s): %w", row.ID, row.owner(), ErrSuperseded)
	}

	// A change of the filter before the row was inserted did not include it.
	row.IdentityLabels, row.InfoLabels = l.split(row)
	row, err = l.build(ctx, row, req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		l.undo(row, err)
		return Endpoint{}, fmt.Errorf("create endpoint %d (%s): %w", row.ID, row.owner(), err)
	}
	return row, nil
}

// insert makes the row known, registers how to cancel its creation, and takes its lock.
func (l *Lifecycle) insert(row Endpoint, cancel context.CancelCauseFunc) (_ Endpoint, unlock func(), err error) {
	l.mu.Lock()
	row, err = l.cfg.Registry.insert(row)
	if err != nil {
		l.mu.Unlock()
		return row, nil, err
	}
	l.creating[row.ID] = cancel
	l.mu.Unlock()
	release := l.lock(row.ID)
	l.cfg.StateChanged("", row, "created")
	return row, func() {
		l.mu.Lock()
		delete(l.creating, row.ID)
		l.mu.Unlock()
		release()
	}, nil
}

// build does the steps of a creation in order. On error the caller undoes them all; undoing a
// step that was not done is harmless.
func (l *Lifecycle) build(ctx context.Context, row Endpoint, req CreateRequest) (Endpoint, error) {
	c := &l.cfg
	if err := context.Cause(ctx); err != nil { // deleted before it began
		return row, err
	}
	expiration := func(ip netip.Addr) string {
		if ip.Is4() {
			return req.IPv4Expiration
		}
		return req.IPv6Expiration
	}
	c.Step("claim-addresses")
	for i, ip := range row.Addresses() {
		if err := c.Addresses.Claim(ip, row.owner(), expiration(ip)); err != nil {
			for _, mine := range row.Addresses()[:i] {
				c.Addresses.Unclaim(mine, row.owner())
			}
			return row, err
		}
	}
	row, _ = l.set(row, StateWaitingForIdentity, "the addresses are its own")
	c.Step("identity")
	id, err := l.acquire(ctx, row.IdentityLabels)
	if err != nil {
		return row, err
	}
	row = row.become(id)
	row.Referenced = true
	row, _ = l.set(row, StateWaitingToRegenerate, "identity "+id.String())
	// On disk before anything of it is in the kernel: what a crash leaves behind is found
	// there.
	c.Step("store")
	if err := c.Store.Put(row); err != nil {
		return row, err
	}

	c.Step("place")
	// Other nodes and the kernel are notified while the interface is prepared: the two do not
	// depend on each other, and each is a round trip.
	placed, place := make(chan error, 1), row
	go func() { placed <- c.Publisher.Publish(ctx, place) }()
	row, _ = l.set(row, StateRegenerating, "rules, programs and interface")
	row, err = l.realise(row)
	if perr := <-placed; err == nil {
		err = perr
	}
	if err != nil {
		return row, err
	}
	if err := context.Cause(ctx); err != nil {
		return row, err
	}
	if row.Kernel.Locked {
		return row, ErrNotObserved // a pod that begins now would have no network
	}
	c.Step("commit-addresses")
	for _, ip := range row.Addresses() {
		if err := c.Addresses.Commit(ip, expiration(ip)); err != nil {
			return row, err
		}
	}
	row, _ = l.set(row, StateReady, "ready")
	return row, nil
}

// realise writes the row to the kernel: rules and row first, then the programs that read them,
// then the interface goes up.
func (l *Lifecycle) realise(row Endpoint) (Endpoint, error) {
	c := &l.cfg
	c.Step("policy")
	kernel, revision, err := c.Policy.Attach(row)
	if err != nil {
		return row, err
	}
	row.Kernel, row.PolicyRevision = kernel, revision
	c.Step("programs")
	if err := c.Programs.AttachEndpoint(row.IfIndex); err != nil {
		return row, fmt.Errorf("attach programs to %s: %w", row.IfName, err)
	}
	c.Step("link")
	if err := c.Links.EnsureEndpoint(kernel); err != nil {
		return row, fmt.Errorf("bring up %s: %w", row.IfName, err)
	}
	return row, nil
}

// undo removes every trace of an endpoint whose creation failed. The interface and the addresses
// belong to the caller.
func (l *Lifecycle) undo(row Endpoint, cause error) {
	c := &l.cfg
	l.fail(row, StateInvalid, "not created: "+cause.Error())
	if err := c.Policy.Detach(row.ID); err != nil {
		c.Log.Error("cannot remove the kernel row of a failed endpoint", "endpoint", row.ID, "error", err)
	}
	c.Publisher.Withdraw(row)
	if row.Referenced {
		l.release(row)
	}
	if err := l.forget(row.ID); err != nil {
		c.Log.Error("cannot remove the record of a failed endpoint", "endpoint", row.ID, "error", err)
	}
	// Until then the addresses may be another's, also of one with the same name.
	if row.State != StateCreating {
		for _, ip := range row.Addresses() {
			c.Addresses.Unclaim(ip, row.owner())
		}
	}
	c.Registry.remove(row.ID)
}

// Delete removes the endpoint. When it returns the pod can neither send nor receive, and the
// addresses are free; the interface goes a moment later. It returns how many steps failed: those
// are logged and done again, at the latest when the agent starts next. It fails with ErrNotFound
// only.
func (l *Lifecycle) Delete(id uint16) (failures int, err error) {
	l.supersede(id)
	unlock := l.lock(id)
	defer unlock()
	row, ok := l.cfg.Registry.Get(id)
	if !ok {
		return 0, fmt.Errorf("%w: cilium-local:%d", ErrNotFound, id)
	}
	row, _ = l.set(row, StateDisconnecting, "deletion requested")
	return l.teardown(row), nil
}

// DeleteContainer removes all endpoints of a container, as Delete does. It returns how many there
// were and how many steps failed.
func (l *Lifecycle) DeleteContainer(containerID string) (endpoints, failures int) {
	for _, row := range l.cfg.Registry.ByContainer(containerID) {
		n, err := l.Delete(row.ID)
		if err != nil {
			continue // another goroutine was faster
		}
		endpoints++
		failures += n
	}
	return endpoints, failures
}

// teardown removes all traces of the row, record last. The caller holds the row's lock.
func (l *Lifecycle) teardown(row Endpoint) (failures int) {
	c := &l.cfg
	attempt := func(step string, err error) {
		if err != nil {
			failures++
			c.Log.Error("a step of an endpoint's deletion failed", "endpoint", row.ID, "step", step, "error", err)
		}
	}
	c.Step("delete-policy")
	attempt("policy", c.Policy.Detach(row.ID))
	c.Step("delete-link")
	attempt("link", c.Links.DeleteEndpoint(row.IfName, row.IfIndex))
	c.Step("delete-place")
	c.Publisher.Withdraw(row)
	c.Step("delete-identity")
	if row.Referenced {
		l.release(row)
	}
	c.Step("delete-store")
	attempt("store", l.forget(row.ID))
	c.Step("delete-addresses")
	if failures == 0 {
		l.set(row, StateDisconnected, "deleted")
	} else {
		l.fail(row, StateDisconnected, fmt.Sprintf("deleted, but %d steps failed", failures))
	}
	c.Registry.remove(row.ID)
	for _, ip := range row.Addresses() {
		c.Addresses.Free(ip)
	}
	return failures
}

// SetLabels changes the labels added and suppressed through the API, and with them perhaps the
// identity. The endpoint's packets are evaluated by the old identity and policy until the new ones
// are complete.
func (l *Lifecycle) SetLabels(ctx context.Context, id uint16, user, disabled labels.Set) (Endpoint, error) {
	unlock := l.lock(id)
	defer unlock()
	old, ok := l.cfg.Registry.Get(id)
	if !ok {
		return Endpoint{}, fmt.Errorf("%w: cilium-local:%d", ErrNotFound, id)
	}
	old, err := l.takeUpFirst(ctx, old, "labels")
	if err != nil {
		return old, err
	}
	row := old
	row.User, row.Disabled = user, disabled
	return l.relabel(ctx, old, row, false)
}

// SetWorkload changes the labels and named ports that an endpoint has from its workload, as
// SetLabels does those of the API. What is the same already costs nothing. An endpoint whose change
// fails is not ready until a later call succeeds: the caller is to try again.
func (l *Lifecycle) SetWorkload(ctx context.Context, id uint16, workload labels.Set, ports []policy.NamedPort) (Endpoint, error) {
	unlock := l.lock(id)
	defer unlock()
	old, ok := l.cfg.Registry.Get(id)
	if !ok {
		return Endpoint{}, fmt.Errorf("%w: cilium-local:%d", ErrNotFound, id)
	}
	if old.State != StateNotReady && old.Labels.Equal(workload) && samePorts(old.NamedPorts, ports) {
		return old, nil
	}
	old, err := l.takeUpFirst(ctx, old, "labels")
	if err != nil {
		return old, err
	}
	row := old
	row.Labels, row.NamedPorts = workload, ports
	return l.relabel(ctx, old, row, true)
}

func samePorts(a, b []policy.NamedPort) bool {
	return policy.FormatNamedPorts(a) == policy.FormatNamedPorts(b)
}

// relabel gives an endpoint the labels and ports of row in place of those of old. What fails is
// undone. With again the change is one that the source of the labels insists on: until it succeeds
// the endpoint is in StateNotReady.
func (l *Lifecycle) relabel(ctx context.Context, old, row Endpoint, again bool) (Endpoint, error) {
	row.IdentityLabels, row.InfoLabels = l.split(row)
	again = again || old.Insisted // the failure of another change must not end the retries of the first
	same := row.IdentityLabels.String() == old.IdentityLabels.String() && old.Identity != 0 && old.Renumbered == 0
	if same && samePorts(row.NamedPorts, old.NamedPorts) && old.State != StateNotReady {
		if err := l.cfg.Publisher.Publish(ctx, row); err != nil {
			return old, fmt.Errorf("endpoint %d keeps its labels: %w", row.ID, err)
		}
		row, _ = l.set(l.save(row), old.State, "labels changed, identity kept")
		return row, nil
	}
	// Attempts after the first are reported when they succeed: the log would hold nothing else
	// soon.
	first := old.State != StateNotReady
	if first {
		row, _ = l.set(row, StateWaitingForIdentity, "labels changed")
	}
	if !same {
		id, err := l.acquire(ctx, row.IdentityLabels)
		if err != nil {
			old.Insisted = again
			switch {
			case !first: // it is as not ready as before: an earlier change may not be undone yet
				old = l.note(old)
			case again:
				old, _ = l.fail(old, StateNotReady, "labels not changed: "+err.Error())
			default:
				old, _ = l.fail(old, StateNotReady, "labels not changed: "+err.Error())
				old, _ = l.set(old, StateReady, "labels as before")
			}
			return old, fmt.Errorf("endpoint %d keeps its labels: %w", row.ID, err)
		}
		row.Due = time.Time{} // the others have not had time yet to observe this identity
		row = row.become(id)
		row.Referenced = true
	}
	if !first {
		row, _ = l.set(row, StateWaitingForIdentity, "labels changed, in another attempt")
	}
	row.Insisted = false
	row, _ = l.set(row, StateWaitingToRegenerate, "identity "+row.Identity.String())
	row, err := l.enforce(ctx, row)
	if err != nil {
		old, err = l.revert(ctx, old, err, again)
		if !same {
			l.release(row)
		}
		return old, fmt.Errorf("endpoint %d keeps its labels: %w", row.ID, err)
	}
	if !same && old.Referenced {
		l.release(old)
	}
	row, _ = l.set(row, StateReady, "ready")
	return row, nil
}

// enforce puts a row in force: what follows from it is published, then written to the kernel, then
// to disk. That the disk does not take it is no error: the kernel has it.
func (l *Lifecycle) enforce(ctx context.Context, row Endpoint) (Endpoint, error) {
	if err := l.cfg.Publisher.Publish(ctx, row); err != nil {
		return row, err
	}
	if row.State == StateWaitingToRegenerate {
		row, _ = l.set(row, StateRegenerating, "rules, programs and interface")
	}
	row, err := l.realise(row)
	if err != nil {
		return row, err
	}
	return l.save(row), nil
}

// renew is enforce for another ID of the labels that the endpoint has already. It enters the next
// state unless a change of the labels is insisted on. What fails is undone.
func (l *Lifecycle) renew(ctx context.Context, old, row Endpoint, next State) (Endpoint, error) {
	row, err := l.enforce(ctx, row)
	if err != nil {
		return l.revert(ctx, old, err, old.Insisted)
	}
	if old.Insisted {
		next = StateNotReady // its labels could not be changed
	}
	row, _ = l.set(row, next, fmt.Sprintf("identity %s instead of %s", row.Identity, old.Identity))
	return row, nil
}

// revert puts an endpoint back to what it was before a change that enforce failed to make. It is
// ready, or restoring, again then, unless the change will be tried again or cannot be undone;
// Recover tries the latter again. If ctx has ended, as when the agent ends, the kernel stays as it
// is. It returns the cause with what failed further.
func (l *Lifecycle) revert(ctx context.Context, old Endpoint, cause error, again bool) (Endpoint, error) {
	undone := context.Cause(ctx)
	if undone == nil {
		bounded, cancel := context.WithTimeout(ctx, recoverWait)
		defer cancel()
		undone = l.cfg.Publisher.Publish(bounded, old)
		if _, err := l.realise(old); err != nil {
			undone = errors.Join(undone, err)
		}
	}
	old.Insisted = again
	next := StateNotReady
	if old.State == StateRestoring {
		next = StateRestoring
	}
	old, _ = l.fail(old, next, "change failed: "+cause.Error())
	switch {
	case undone != nil:
		cause = errors.Join(cause, undone)
		old, _ = l.fail(old, next, "change not undone: "+undone.Error())
	case next == StateNotReady && !again && old.Renumbered == 0:
		old, _ = l.set(old, StateReady, "change undone")
	}
	return old, cause
}

// recoverWait bounds how long Recover and revert wait for the kernel to know where one endpoint is.
const recoverWait = 5 * time.Second

// Recover repairs endpoints in the kernel whose failed change could not be undone, makes changes
// that only the agent itself asks for, and does what Repair had to leave. Call it periodically. It
// skips endpoints whose change is being retried, and those that are being changed.
func (l *Lifecycle) Recover(ctx context.Context) error {
	var errs []error
	for _, row := range l.cfg.Registry.List() {
		if row.failed() {
			errs = append(errs, l.recover(ctx, row.ID))
		}
	}
	l.mu.Lock()
	unrepaired := l.unrepaired
	l.unrepaired = map[uint16]struct{}{}
	l.mu.Unlock()
	for id := range unrepaired {
		errs = append(errs, l.repair(id))
	}
	return errors.Join(errs...)
}

// failed reports whether a change of the endpoint has failed that none but Recover tries again.
func (e Endpoint) failed() bool {
	return e.Renumbered != 0 || e.State == StateNotReady && !e.Insisted
}

func (l *Lifecycle) recover(ctx context.Context, id uint16) error {
	unlock, free := l.tryLock(id)
	if !free {
		return nil
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, recoverWait)
	defer cancel()
	row, ok := l.cfg.Registry.Get(id)
	if !ok || !row.failed() {
		return nil
	}
	if row.Renumbered != 0 {
		return l.renumber(ctx, row, row.Renumbered)
	}
	row, err := l.enforce(ctx, row)
	if err != nil {
		return fmt.Errorf("endpoint %d is not ready: %w", id, err)
	}
	l.set(row, StateReady, "change undone")
	return nil
}

// split divides the endpoint's labels into those that make its identity and the rest. A pod
// without any identity label is reserved:init until it has some.
func (l *Lifecycle) split(row Endpoint) (identityLabels, info labels.Set) {
	if row.Health() {
		return row.Labels, nil // not subject to the filter for pods
	}
	all := slices.Concat([]labels.Label(row.Labels), []labels.Label(row.User))
	all = slices.DeleteFunc(all, func(lb labels.Label) bool {
		return slices.ContainsFunc(row.Disabled, func(d labels.Label) bool { return d.Source == lb.Source && d.Key == lb.Key })
	})
	identityLabels, info = l.filter.Load().Split(labels.NewSet(all...))
	if len(identityLabels) == 0 {
		identityLabels = labels.NewSet(labels.Reserved("init"))
	}
	return identityLabels, info
}

func (l *Lifecycle) acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.IdentityTimeout)
	defer cancel()
	id, err := l.cfg.Identities.Acquire(ctx, set)
	if err != nil {
		return 0, fmt.Errorf("get an identity for %s: %w", set, err)
	}
	return id, nil
}

// releaseWait bounds the wait for the store of identities to end a use. An endpoint that changes or
// goes need not wait for it: the use has ended here, and the store is told as soon as it answers.
const releaseWait = 500 * time.Millisecond

// release gives an identity reference back.
func (l *Lifecycle) release(row Endpoint) {
	ctx, cancel := context.WithTimeout(context.Background(), min(releaseWait, l.cfg.IdentityTimeout))
	defer cancel()
	if err := l.cfg.Identities.Release(ctx, row.Identity, row.IdentityLabels); err != nil {
		l.cfg.Log.Warn("cannot release an identity now; it is released later, or ends with its lease", "identity", row.Identity, "labels", row.IdentityLabels.String(), "error", err)
	}
}

// set writes the row with its next state to the table. A row that is no longer there stays away.
func (l *Lifecycle) set(row Endpoint, next State, message string) (Endpoint, bool) {
	return l.move(row, next, true, message)
}

// fail is set for a state that an endpoint enters because something went wrong.
func (l *Lifecycle) fail(row Endpoint, next State, message string) (Endpoint, bool) {
	return l.move(row, next, false, message)
}

func (l *Lifecycle) move(row Endpoint, next State, good bool, message string) (Endpoint, bool) {
	var before State
	changed, ok := l.cfg.Registry.update(row.ID, func(current Endpoint) (Endpoint, bool) {
		before = current.State
		row.Log, row.State = current.Log, current.State
		if changed, ok := row.withState(next, l.cfg.Now(), good, message); ok {
			return changed, true
		}
		return row.withLog(l.cfg.Now(), false, fmt.Sprintf("%s (state %s cannot follow %s)", message, next, row.State)), true
	})
	if !ok {
		return row, false
	}
	if changed.State != before {
		l.cfg.StateChanged(before, changed, message)
	}
	return changed, true
}

// note stores a row whose state stays, without a line in its log.
func (l *Lifecycle) note(row Endpoint) Endpoint {
	l.cfg.Registry.update(row.ID, func(current Endpoint) (Endpoint, bool) {
		row.Log, row.State = current.Log, current.State
		return row, true
	})
	return row
}

// supersede cancels the creation of an endpoint if it is under way.
func (l *Lifecycle) supersede(id uint16) {
	l.mu.Lock()
	cancel := l.creating[id]
	l.mu.Unlock()
	if cancel != nil {
		cancel(ErrSuperseded)
		l.lock(id)() // wait until it is undone
	}
}

// lock serialises the changes of one endpoint.
func (l *Lifecycle) lock(id uint16) (unlock func()) {
	l.mu.Lock()
	m := l.use(id)
	l.mu.Unlock()
	m.Lock()
	return l.unlock(id, m)
}

// tryLock is lock without waiting.
func (l *Lifecycle) tryLock(id uint16) (unlock func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locks[id] != nil {
		return nil, false
	}
	m := l.use(id)
	m.Lock()
	return l.unlock(id, m), true
}

// use is called with mu held.
func (l *Lifecycle) use(id uint16) *rowLock {
	m := l.locks[id]
	if m == nil {
		m = new(rowLock)
		l.locks[id] = m
	}
	m.users++
	return m
}

func (l *Lifecycle) unlock(id uint16, m *rowLock) func() {
	return func() {
		m.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if m.users--; m.users == 0 {
			delete(l.locks, id)
		}
	}
}
