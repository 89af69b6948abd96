package addressing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
)

// Singles are the single addresses that the node's CiliumNode assigns to the node (CRD, and the
// modes of clouds): spec.ipam.pool and ipv6-pool, which another program fills in; with ENI the
// latter contains prefixes. The node reports in the status which are in use and by whom, and
// answers requests to release an address. A prefix is the node's as long as its interface is.
//
// It agrees to a release once the allocator no longer assigns the address, and has stored that, so
// that it survives a crash. Such an address is assigned again only when a read from the server
// itself shows it in the pool and not as being released: an older version of the object proves
// nothing.
type Singles struct {
	cfg  Config
	path string
	log  *slog.Logger
	// askAs has the object made and followed until ctx ends, live reads it from the server, and
	// patch changes its status if it is still the version that is named.
	askAs  func(ctx context.Context, observed func(*v2.CiliumNode)) error
	live   func(context.Context) (*v2.CiliumNode, error)
	patch  func(ctx context.Context, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error)
	notify notifier

	mu sync.Mutex
	// Only a read from the server shows more: with doubt at once, else at later, if that is set.
	doubt bool
	later time.Time
	pool  *ipam.IPAM // nil until Attach
	state singlesState
	// before are the addresses of former endpoints, which can be restored until Run. unused is set
	// while the node waits for addresses and has no endpoints, so that it keeps nothing of before.
	before []netip.Addr
	unused bool
	// unsaved is the error of storing the object's contents, nil if they are stored; fault is the
	// last reported error, nil if there was none yet.
	unsaved error
	fault   *string
	// object is the newest one, nil until one was observed.
	object *v2.CiliumNode
	// returned are addresses that came with an earlier state of the object to which the server was
	// put back, and when; they rest for a while.
	returned map[netip.Prefix]time.Time
	rest     time.Duration
	// uplinks are the interfaces as they are set up, nil until Connect and where there are none;
	// shown are their invalid parts in the object.
	uplinks *uplinks
	shown   error
}

// returnRest is how long addresses that reappear with a restored API server are not assigned: they
// may have been released since. The operator notices meanwhile, and removes them.
const returnRest = 2 * time.Minute

// singlesState is what outlives the agent.
type singlesState struct {
	// UID and Generation are of the object that was read last.
	UID        string `json:"uid,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// Pool are the addresses that the node may use, each with what it is of: an interface.
	Pool byPrefix[string] `json:"pool,omitempty"`
	// Leaving are addresses whose release was agreed to.
	Leaving byPrefix[bool] `json:"leaving,omitempty"`
	// Lost are addresses that are in use and were taken away, each with what it was of.
	Lost byPrefix[string] `json:"lost,omitempty"`
	// Interfaces are those of the machine, in the modes of clouds.
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// NewSingles returns the addresses of a node as they were when its last agent ended.
func NewSingles(cfg Config, client *k8s.Client) (*Singles, error) {
	s, err := newSingles(cfg)
	if err != nil {
		return nil, err
	}
	s.live = func(ctx context.Context) (*v2.CiliumNode, error) { return cfg.ownNode(ctx, client) }
	s.patch = func(ctx context.Context, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error) {
		return cfg.patchStatus(ctx, client, o, status)
	}
	s.askAs = func(ctx context.Context, observed func(*v2.CiliumNode)) error {
		return cfg.askOperator(ctx, client, observed, s.Fill)
	}
	return s, nil
}

func newSingles(cfg Config) (*Singles, error) {
	s := &Singles{cfg: cfg, path: filepath.Join(cfg.Dir, "addresses.json"), log: cfg.Log, notify: newNotifier(), returned: map[netip.Prefix]time.Time{}, rest: returnRest}
	if err := atomicfile.ReadJSON(s.path, &s.state); err != nil {
		return nil, fmt.Errorf("read the addresses of before: %w; delete the file if no pod runs on this node", err)
	}
	return s, nil
}

// Families are those that pods have.
func (s *Singles) Families() ipam.Families { return s.cfg.Families }

// missing reports for which family the node has no address to assign; nil if it can start.
func (s *Singles) missing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var have ipam.Families
	placed := s.placed()
	for p := range s.state.Pool {
		switch {
		case s.state.Leaving[p] || !p.IsSingleIP() && !placed[p]:
		case p.Addr().Is4():
			have |= ipam.IPv4
		default:
			have |= ipam.IPv6
		}
	}
	if lacks := s.cfg.Families &^ have; lacks != 0 {
		if lacks == ipam.IPv6 && s.cfg.Mode == ENI {
			return fmt.Errorf("a prefix of %d bits in ipv6-pool that its network interface has in status.eni (%s)", prefixBits, lacks)
		}
		return fmt.Errorf("an address (%s)", lacks)
	}
	return nil
}

// Attach has addresses be given of what is assigned. Those of former endpoints can be restored,
// whatever the pool is by now.
func (s *Singles) Attach(pool *ipam.IPAM) error {
	used, err := s.cfg.endpointAddresses()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool, s.before = pool, used
	pool.AssignAddresses(s.want())
	return nil
}

// want is what the allocator is to have. mu is held.
func (s *Singles) want() map[netip.Prefix]bool {
	want := map[netip.Prefix]bool{}
	for _, ip := range s.before {
		want[single(ip)] = false
	}
	shown := map[string]bool{}
	for _, i := range s.state.Interfaces {
		shown[i.ID] = !i.Kept
	}
	misplaced, placed, used := s.misplaced(), s.placed(), sync.OnceValue(s.inUse)
	for p, id := range s.state.Pool {
		if !p.IsSingleIP() && !placed[p] && !used()(p) {
			continue
		}
		want[p] = !s.state.Leaving[p] && (shown[id] || s.uplinks == nil) && misplaced[p] == "" && s.passes(p)
	}
	for p := range s.state.Lost {
		want[p] = false // also the router's, which the next agent is to find, for pods have it as gateway
	}
	return want
}

// Observe is called with this node's object whenever it has changed.
func (s *Singles) Observe(o *v2.CiliumNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(o.UID) == s.state.UID && o.Generation < s.state.Generation {
		s.doubt = true
		s.notify.again()
		return
	}
	s.take(o, false)
}

// confirm reads the object from the server, if what was observed is not enough to go by.
func (s *Singles) confirm(ctx context.Context) error {
	s.mu.Lock()
	due := s.doubt || !s.later.IsZero() && !time.Now().Before(s.later)
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.read(ctx)
}

// read takes the object as the server has it.
func (s *Singles) read(ctx context.Context) error {
	o, err := s.live(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if apierrors.IsNotFound(err) {
		s.doubt, s.later, s.object = false, time.Time{}, nil // it is made again
		return nil
	}
	if err != nil {
		return err
	}
	if string(o.UID) == s.state.UID && o.Generation < s.state.Generation {
		s.log.Warn("this node's CiliumNode was restored to an earlier state; addresses that it has more than this node are assigned to no pod for a while, those that it has less never",
			"generation", o.Generation, "before", s.state.Generation)
		for _, pool := range []v2.AllocationMap{o.Spec.IPAM.Pool, o.Spec.IPAM.IPv6Pool} {
			for text := range pool {
				if p, err := s.parse(text); err == nil {
					if _, had := s.state.Pool[p]; !had {
						s.returned[p] = time.Now()
					}
				}
			}
		}
	}
	s.take(o, true)
	return nil
}

// take applies an object. sure is set if it is the server's present version. mu is held.
func (s *Singles) take(o *v2.CiliumNode, sure bool) {
	if s.ofAnother(o) {
		return
	}
	s.object = o
	next := singlesState{UID: string(o.UID), Generation: o.Generation, Pool: byPrefix[string]{}, Leaving: byPrefix[bool]{}}
	doubt, later := false, time.Time{}
	readAt := func(at time.Time) {
		if later.IsZero() || at.Before(later) {
			later = at
		}
	}
	for _, pool := range []v2.AllocationMap{o.Spec.IPAM.Pool, o.Spec.IPAM.IPv6Pool} {
		for text, a := range pool {
			p, err := s.parse(text)
			if err != nil {
				s.log.Warn("an assignment to this node is not an address", "address", text, "error", err)
				continue
			}
			if !p.IsSingleIP() && s.cfg.Families&ipam.IPv6 == 0 {
				continue
			}
			next.Pool[p] = a.Resource
			step := stepOf(o, p)
			agreed := step == v2.IPReadyForRelease || step == v2.IPReleased
			switch {
			case agreed: // also by the agent before this one
				next.Leaving[p] = true
			case time.Since(s.returned[p]) < s.rest:
				next.Leaving[p] = true
				readAt(s.returned[p].Add(s.rest))
			case !s.state.Leaving[p]:
			case sure && step == "":
			default:
				next.Leaving[p] = true
				doubt = doubt || step == "" // the mark was taken back, or this version is an old one
			}
		}
	}
	s.doubt, s.unsaved = doubt, nil
	used := s.inUse()
	next.Lost = s.missingFrom(next.Pool, used)
	next.Interfaces, s.shown = interfacesOf(s.cfg.Mode, s.cfg.Families, o, s.needed(next, used))
	if maps.Equal(next.Pool, s.state.Pool) && maps.Equal(next.Leaving, s.state.Leaving) && maps.Equal(next.Lost, s.state.Lost) && reflect.DeepEqual(next.Interfaces, s.state.Interfaces) {
		s.state.UID, s.state.Generation = next.UID, next.Generation
	} else if err := s.store(next); err != nil {
		s.unsaved = fmt.Errorf("what is assigned to this node is not used: %w", err)
		readAt(time.Now().Add(writeRetry))
	} else if s.pool != nil {
		s.pool.AssignAddresses(s.want())
		s.notify.moved()
	}
	s.later = later
	s.inspect()
	if !sure {
		s.notify.again() // to read, or because the status may have to be written; a reader continues itself
	}
}

// inspect reports what is wrong with the addresses, if that has changed, and has the allocator
// forget those that were in use when they were taken away, once they are not. mu is held.
func (s *Singles) inspect() {
	errs := []error{s.unsaved}
	if s.pool != nil {
		given := s.inUse()
		var lost []string
		for _, a := range s.pool.Dump() {
			if _, ok := s.state.Pool.of(a.IP); !ok {
				lost = append(lost, fmt.Sprintf("%s (%s)", a.IP, a.Owner))
			}
		}
		if len(lost) > 0 {
			errs = append(errs, fmt.Errorf("addresses are in use that are not in spec.ipam.pool of CiliumNode %s, so packets to them may not be routed to this node: %s; delete their pods", s.cfg.Self.Name, strings.Join(lost, ", ")))
		}
		want := s.want()
		if slices.ContainsFunc(s.pool.Prefixes(), func(p netip.Prefix) bool {
			_, wanted := want[p]
			return !wanted && !given(p)
		}) {
			s.pool.AssignAddresses(want)
			s.notify.moved()
		}
	}
	errs = append(errs, s.interfaceFaults()...)
	err, text := errors.Join(errs...), ""
	if err != nil {
		text = err.Error()
	}
	if s.fault == nil || *s.fault != text {
		s.fault = &text
		s.notify.report(err)
		if err != nil {
			s.log.Warn("this node's addresses are not as they should be", "error", err)
		}
	}
}

// store puts what is to be known after a crash on disk, and takes it over. mu is held.
func (s *Singles) store(next singlesState) error {
	data, err := json.Marshal(next)
	if err == nil {
		err = s.cfg.Save(s.path, data)
	}
	if err != nil {
		return fmt.Errorf("store the addresses: %w", err)
	}
	s.state = next
	return nil
}

// stepOf is how far the release of an address is by an object.
func stepOf(o *v2.CiliumNode, p netip.Prefix) v2.IPReleaseStatus {
	switch {
	case !p.IsSingleIP():
		return "" // it is not released
	case p.Addr().Is4():
		return o.Status.IPAM.ReleaseIPs[p.Addr().String()]
	}
	return o.Status.IPAM.ReleaseIPv6s[p.Addr().String()]
}

// Fill writes the node's facts, of the configuration and the cloud, into its object.
func (s *Singles) Fill(o *v2.CiliumNode, made bool) {
	if s.cfg.Describe == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ofAnother(o) {
		o.Spec.IPAM.Pool, o.Spec.IPAM.IPv6Pool = nil, nil
	}
	s.cfg.Describe(o, made)
}

// ofAnother reports whether the object of a node that has just come up is still that of another
// machine of the cloud, which had the node's name before: what that had in its pool may be a third
// one's by now. The first write of this agent takes it out. mu is held.
func (s *Singles) ofAnother(o *v2.CiliumNode) bool {
	if !s.unused || !OfCloud(s.cfg.Mode) || s.cfg.Describe == nil || o.Spec.InstanceID == "" {
		return false
	}
	own := o.DeepCopy()
	s.cfg.Describe(own, false)
	return own.Spec.InstanceID != "" && !strings.EqualFold(own.Spec.InstanceID, o.Spec.InstanceID)
}

// status returns the changes to an object's status, and whether they are urgent: the answers to
// release requests, and the addresses in use. It agrees to a release only after the allocator no
// longer assigns the address, and has stored that.
func (s *Singles) status(o *v2.CiliumNode) (patch map[string]any, soon bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers4, answers6 := s.answers(o.Spec.IPAM.Pool, o.Status.IPAM.ReleaseIPs), s.answers(o.Spec.IPAM.IPv6Pool, o.Status.IPAM.ReleaseIPv6s)
	used4, used6 := map[string]v2.AllocationIP{}, map[string]v2.AllocationIP{}
	for _, a := range s.pool.Dump() {
		to := used6
		if a.IP.Is4() {
			to = used4
		}
		resource, _ := s.state.Pool.of(a.IP)
		to[a.IP.String()] = v2.AllocationIP{Owner: a.Owner, Resource: resource}
	}
	part := map[string]any{}
	for name, diff := range map[string]map[string]any{
		"release-ips": answers4, "release-ipv6s": answers6,
		"used": differences(o.Status.IPAM.Used, used4), "ipv6-used": differences(o.Status.IPAM.IPv6Used, used6),
	} {
		if len(diff) > 0 {
			part[name] = diff
		}
	}
	if len(part) == 0 {
		return nil, false
	}
	ahead := cmp.Or(o.Spec.IPAM.PreAllocate, v2.DefaultPreAllocate)
	soon = len(answers4)+len(answers6) > 0
	free := map[ipam.Families]int{}
	for _, u := range s.pool.Usage() {
		if !u.Drained {
			free[u.Family] += u.Capacity - u.Used
		}
	}
	for _, n := range free {
		soon = soon || n < ahead
	}
	return map[string]any{"ipam": part}, soon
}

// answers are those to the steps of the operator with the addresses of a pool. mu is held.
func (s *Singles) answers(pool v2.AllocationMap, steps map[string]v2.IPReleaseStatus) map[string]any {
	out := map[string]any{}
	next := s.state
	next.Leaving = maps.Clone(s.state.Leaving)
	if next.Leaving == nil {
		next.Leaving = byPrefix[bool]{}
	}
	var agreed []netip.Addr
	for text, step := range steps {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue // its meaning is known to its writer only; the release of a prefix is never agreed to
		}
		switch {
		case step == v2.IPReleased:
			// Until the pool is without it only this entry prevents its assignment.
			if !has(pool, ip) {
				out[text] = nil
			}
		case step != v2.IPMarkedForRelease && step != v2.IPReadyForRelease:
		case !s.pool.Hold(ip):
			out[text] = v2.IPDoNotRelease
		default:
			agreed = append(agreed, ip)
			next.Leaving[single(ip)] = true
		}
	}
	if !maps.Equal(next.Leaving, s.state.Leaving) {
		if err := s.store(next); err != nil {
			s.log.Error("unused addresses are kept", "error", err)
			s.pool.AssignAddresses(s.want())
			return out
		}
	}
	for _, ip := range agreed {
		if steps[ip.String()] == v2.IPMarkedForRelease {
			out[ip.String()] = v2.IPReadyForRelease
		}
	}
	return out
}

// has reports whether an address is in a pool, however it is spelled.
func has(pool v2.AllocationMap, ip netip.Addr) bool {
	for text := range pool {
		if a, err := netip.ParseAddr(text); err == nil && a == ip {
			return true
		}
	}
	return false
}

// differences is the merge patch that makes have be want.
func differences(have v2.AllocationMap, want map[string]v2.AllocationIP) map[string]any {
	out := map[string]any{}
	for text, a := range want {
		switch h, ok := have[text]; {
		case !ok:
			out[text] = a
		case h != a:
			out[text] = map[string]any{"owner": orNil(a.Owner), "resource": orNil(a.Resource)}
		}
	}
	for text := range have {
		if _, ok := want[text]; !ok {
			out[text] = nil
		}
	}
	return out
}

// orNil is a field of a merge patch: an empty one is removed.
func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// await returns when the node has addresses for itself: the former ones if there are endpoints that
// use some, else what the operator assigns, for which it waits.
func (s *Singles) await(ctx context.Context, used bool) error {
	if !used {
		s.mu.Lock()
		s.state.Pool, s.state.Lost = nil, nil // of an earlier life: they may be another node's by now
		s.unused = true
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.unused = false
			s.mu.Unlock()
		}()
	}
	if used && s.missing() == nil {
		s.log.Info("this node keeps its addresses", "number", len(s.state.Pool))
		return nil
	}
	return until(ctx, func(ctx context.Context, done func()) error {
		return s.askAs(ctx, func(o *v2.CiliumNode) {
			if s.Observe(o); s.missing() == nil {
				done()
			}
		})
	}, func() bool {
		if err := s.confirm(ctx); err != nil {
			s.log.Warn("this node's CiliumNode cannot be read", "error", err)
		}
		if s.missing() == nil {
			return true
		}
		s.log.Warn("waiting for the addresses of this node's pods", "missing", s.missing(),
			"in", "spec.ipam.pool of CiliumNode "+s.cfg.Self.Name+"; see status.ipam.operator-status.error if the operator assigns none")
		return false
	})
}

// writeRetry bounds the pause after a write that failed.
const writeRetry, writeRetryMost = time.Second, 30 * time.Second

// conflicts is how often in a row the object is read and written again at once.
const conflicts = 3

// Run writes the status of the node's object and notifies the agent, until ctx ends. It is the only
// writer of the agent's part of it. What can wait is written every [Config.UpdateInterval], what
// the operator waits for at most ten times as often. Attach comes before it, and the allocator is
// open.
func (s *Singles) Run(ctx context.Context, agent Agent) error {
	s.mu.Lock()
	s.before = nil
	s.mu.Unlock()
	var last time.Time
	pause := writeRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.pool.DemandMoved():
		case <-s.notify.trigger:
			s.notify.pass(agent)
		}
		s.mu.Lock()
		s.forget()
		s.inspect()
		s.mu.Unlock()
		s.connect()
		next, err := s.write(ctx, last)
		wait := s.cfg.UpdateInterval
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Warn("cannot report which addresses are in use; the operator assigns and releases none meanwhile", "error", err, "again", pause)
			wait = pause
			pause = min(2*pause, writeRetryMost)
		case next == 0:
			last, pause = time.Now(), writeRetry
		case next > 0:
			wait = next
		}
		timer.Reset(s.sooner(wait))
	}
}

// sooner is how long to wait if the object is to be read before the end of wait.
func (s *Singles) sooner(wait time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(s.later); !s.later.IsZero() && left > 0 {
		wait = min(wait, left)
	}
	return wait
}

// write writes what is due. It returns how long to wait with what is not; less than 0 if there is
// nothing to write.
func (s *Singles) write(ctx context.Context, last time.Time) (wait time.Duration, err error) {
	if err := s.confirm(ctx); err != nil {
		return 0, err
	}
	for range conflicts {
		s.mu.Lock()
		o := s.object
		s.mu.Unlock()
		if o == nil {
			return -1, nil // it is made, and observed
		}
		status, soon := s.status(o)
		if status == nil {
			return -1, nil
		}
		gap := s.cfg.UpdateInterval
		if soon {
			gap /= 10
		}
		if left := time.Until(last.Add(gap)); left > 0 {
			return left, nil
		}
		var now *v2.CiliumNode
		if now, err = s.patch(ctx, o, status); err == nil {
			s.mu.Lock()
			if s.object == o {
				s.object = now // what the watch delivers later is this version or a newer one
			}
			s.mu.Unlock()
			return 0, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return 0, err
		}
		if err := s.read(ctx); err != nil {
			return 0, err
		}
	}
	return 0, err
}
