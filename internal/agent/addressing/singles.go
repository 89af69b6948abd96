package addressing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
)

// Singles are the single addresses that the node's CiliumNode shows as the node's (CRD, and the
// modes of clouds): spec.ipam.pool and ipv6-pool, which somebody else fills in. The node says in
// the status which are used by whom, and answers whether an address may be taken away again.
//
// It answers that once the book gives the address to nobody any more, and that is stored, so that
// it holds over a crash. An address whose release was agreed to is given again only when a read
// from the server itself shows it in the pool and not as being released: a version of the object
// from before the agreement proves nothing.
type Singles struct {
	cfg  Config
	path string
	log  *slog.Logger
	// askAs has the object made and followed until ctx ends, live reads it from the server, and
	// patch changes its status if it is still the version that is named.
	askAs func(ctx context.Context, heard func(*v2.CiliumNode)) error
	live  func(context.Context) (*v2.CiliumNode, error)
	patch func(ctx context.Context, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error)
	tell  teller

	mu    sync.Mutex
	doubt bool       // only a read from the server tells more
	book  *ipam.IPAM // nil until Attach
	state singlesState
	// object is the newest one, nil until one was heard of.
	object *v2.CiliumNode
	// returned are addresses that came with an earlier state of the object to which the server was
	// put back, and when; they rest for a while.
	returned map[netip.Addr]time.Time
	rest     time.Duration
}

// returnRest is how long addresses are not given that the node has by a server that was put back:
// they may have been released since. Whoever assigns them sees that meanwhile, and takes them out.
const returnRest = 2 * time.Minute

// singlesState is what outlives the agent.
type singlesState struct {
	// UID and Generation are of the object that was read last.
	UID        string `json:"uid,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// Pool are the addresses that the node may use, each with what it is of: an interface.
	Pool map[netip.Addr]string `json:"pool,omitempty"`
	// Leaving are addresses whose release was agreed to.
	Leaving map[netip.Addr]bool `json:"leaving,omitempty"`
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
	s.askAs = func(ctx context.Context, heard func(*v2.CiliumNode)) error {
		return cfg.askOperator(ctx, client, heard, s.Fill)
	}
	return s, nil
}

func newSingles(cfg Config) (*Singles, error) {
	s := &Singles{cfg: cfg, path: filepath.Join(cfg.Dir, "addresses.json"), log: cfg.Log, tell: newTeller(), returned: map[netip.Addr]time.Time{}, rest: returnRest}
	data, err := os.ReadFile(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read the addresses of before: %w", err)
	default:
		if err := json.Unmarshal(data, &s.state); err != nil {
			return nil, fmt.Errorf("%s is damaged: %w; delete it if no pod runs on this node", s.path, err)
		}
	}
	return s, nil
}

// Families are those that pods have.
func (s *Singles) Families() ipam.Families { return s.cfg.Families }

// missing says of which family the node has no address that it may give; nil if it can begin.
func (s *Singles) missing() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var have ipam.Families
	for ip := range s.state.Pool {
		switch {
		case s.state.Leaving[ip]:
		case ip.Is4():
			have |= ipam.IPv4
		default:
			have |= ipam.IPv6
		}
	}
	if lacks := s.cfg.Families &^ have; lacks != 0 {
		return fmt.Errorf("an address (%s)", lacks)
	}
	return nil
}

// Attach has addresses be given of what is assigned. Those of endpoints of before can be restored,
// whatever the pool is by now.
func (s *Singles) Attach(book *ipam.IPAM) error {
	used, err := s.cfg.endpointAddresses()
	if err != nil {
		s.log.Warn("cannot read the endpoints of before", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book = book
	want := s.want()
	for _, ip := range used {
		if _, ok := want[ip]; !ok {
			want[ip] = false
		}
	}
	book.AssignSingles(want)
	return nil
}

// want is what the book is to have. mu is held.
func (s *Singles) want() map[netip.Addr]bool {
	want := map[netip.Addr]bool{}
	for ip := range s.state.Pool {
		want[ip] = !s.state.Leaving[ip]
	}
	return want
}

// Hear is told of this node's object whenever it has changed.
func (s *Singles) Hear(o *v2.CiliumNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(o.UID) == s.state.UID && o.Generation < s.state.Generation {
		s.doubt = true
		s.tell.again()
		return
	}
	s.take(o, false)
}

// confirm reads the object from the server, if what was heard is not enough to go by.
func (s *Singles) confirm(ctx context.Context) error {
	s.mu.Lock()
	doubt := s.doubt
	s.mu.Unlock()
	if !doubt {
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
		s.doubt, s.object = false, nil // it is made again
		return nil
	}
	if err != nil {
		return err
	}
	if string(o.UID) == s.state.UID && o.Generation < s.state.Generation {
		s.log.Warn("this node's CiliumNode was put back to an earlier state; addresses that it has more than this node are given to no pod for a while, those that it has less never",
			"generation", o.Generation, "before", s.state.Generation)
		for _, pool := range []v2.AllocationMap{o.Spec.IPAM.Pool, o.Spec.IPAM.IPv6Pool} {
			for text := range pool {
				if ip, err := netip.ParseAddr(text); err == nil {
					if _, had := s.state.Pool[ip]; !had {
						s.returned[ip] = time.Now()
					}
				}
			}
		}
	}
	s.take(o, true)
	return nil
}

// take takes over what an object says. sure is set if it is what the server has at the moment. mu
// is held.
func (s *Singles) take(o *v2.CiliumNode, sure bool) {
	s.object = o
	next := singlesState{UID: string(o.UID), Generation: o.Generation, Pool: map[netip.Addr]string{}, Leaving: map[netip.Addr]bool{}}
	doubt, later := false, false
	for _, pool := range []v2.AllocationMap{o.Spec.IPAM.Pool, o.Spec.IPAM.IPv6Pool} {
		for text, a := range pool {
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Is4In6() || ip.Zone() != "" {
				s.log.Warn("what is assigned to this node is no address", "address", text)
				continue
			}
			next.Pool[ip] = a.Resource
			step := stepOf(o, ip)
			agreed := step == v2.IPReadyForRelease || step == v2.IPReleased
			switch {
			case agreed: // also by the agent before this one
				next.Leaving[ip] = true
			case time.Since(s.returned[ip]) < s.rest:
				next.Leaving[ip] = true
				later = true
			case !s.state.Leaving[ip]:
			case sure && step == "":
			default:
				next.Leaving[ip] = true
				doubt = doubt || step == "" // the mark was taken back, or this version is an old one
			}
		}
	}
	s.doubt = doubt || later
	if doubt {
		s.tell.again()
	}
	if maps.Equal(next.Pool, s.state.Pool) && maps.Equal(next.Leaving, s.state.Leaving) {
		s.state.UID, s.state.Generation = next.UID, next.Generation
		s.tell.again() // the status may be to be written
		return
	}
	if err := s.store(next); err != nil {
		s.log.Error("what is assigned to this node is not used", "error", err)
		s.tell.report(err)
		return
	}
	s.settle()
}

// settle has the book be as the state is. mu is held.
func (s *Singles) settle() {
	if s.book == nil {
		return
	}
	var lost []netip.Addr
	for _, ip := range s.book.AssignSingles(s.want()) {
		if a, ok := s.book.Lookup(ip); ok {
			s.log.Warn("an address is in use that is not assigned to this node any more", "address", ip, "owner", a.Owner)
			lost = append(lost, ip)
		}
	}
	var err error
	if len(lost) > 0 {
		err = fmt.Errorf("%v are in use and not in spec.ipam.pool of CiliumNode %s any more, so that nobody may lead packets here: delete their pods", lost, s.cfg.Self.Name)
	}
	s.tell.report(err)
	s.tell.moved()
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
func stepOf(o *v2.CiliumNode, ip netip.Addr) v2.IPReleaseStatus {
	if ip.Is4() {
		return o.Status.IPAM.ReleaseIPs[ip.String()]
	}
	return o.Status.IPAM.ReleaseIPv6s[ip.String()]
}

// Fill writes into the node's object what the configuration and the cloud say of the node.
func (s *Singles) Fill(o *v2.CiliumNode, made bool) {
	if s.cfg.Describe != nil {
		s.cfg.Describe(o, made)
	}
}

// status returns what is to be another in an object's status, and whether that should be soon: the
// answers to what is asked, and the addresses that are used. It agrees to a release only after the
// book gives the address to nobody, and that is stored.
func (s *Singles) status(o *v2.CiliumNode) (patch map[string]any, soon bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers4, answers6 := s.answers(o.Status.IPAM.ReleaseIPs), s.answers(o.Status.IPAM.ReleaseIPv6s)
	used4, used6 := map[string]v2.AllocationIP{}, map[string]v2.AllocationIP{}
	for _, a := range s.book.Dump() {
		to := used6
		if a.IP.Is4() {
			to = used4
		}
		to[a.IP.String()] = v2.AllocationIP{Owner: a.Owner, Resource: s.state.Pool[a.IP]}
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
	ahead := o.Spec.IPAM.PreAllocate
	if ahead == 0 {
		ahead = defaultAhead
	}
	soon = len(answers4)+len(answers6) > 0
	for _, u := range s.book.Usage() {
		soon = soon || u.Capacity-u.Used < ahead
	}
	return map[string]any{"ipam": part}, soon
}

// answers are those to the steps of the operator. mu is held.
func (s *Singles) answers(steps map[string]v2.IPReleaseStatus) map[string]any {
	out := map[string]any{}
	next := s.state
	next.Leaving = maps.Clone(s.state.Leaving)
	if next.Leaving == nil {
		next.Leaving = map[netip.Addr]bool{}
	}
	var agreed []netip.Addr
	for text, step := range steps {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue // whoever wrote it knows what it is
		}
		switch {
		case step == v2.IPReleased:
			out[text] = nil
		case step != v2.IPMarkedForRelease && step != v2.IPReadyForRelease:
		case !s.book.Hold(ip):
			out[text] = v2.IPDoNotRelease
		default:
			agreed = append(agreed, ip)
			next.Leaving[ip] = true
		}
	}
	if !maps.Equal(next.Leaving, s.state.Leaving) {
		if err := s.store(next); err != nil {
			s.log.Error("addresses that nobody uses are kept", "error", err)
			s.book.AssignSingles(s.want())
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

// differences is the merge patch that makes have be want.
func differences(have v2.AllocationMap, want map[string]v2.AllocationIP) map[string]any {
	out := map[string]any{}
	for text, a := range want {
		if h, ok := have[text]; !ok || h != a {
			out[text] = a
		}
	}
	for text := range have {
		if _, ok := want[text]; !ok {
			out[text] = nil
		}
	}
	return out
}

// await returns when the node has addresses for itself: those of before if there are endpoints that
// use some, else what the operator assigns, for which it waits.
func (s *Singles) await(ctx context.Context, used bool) error {
	if used && s.missing() == nil {
		s.log.Info("this node keeps its addresses", "number", len(s.state.Pool))
		return nil
	}
	return until(ctx, func(ctx context.Context, done func()) error {
		return s.askAs(ctx, func(o *v2.CiliumNode) {
			if s.Hear(o); s.missing() == nil {
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
			"in", "spec.ipam.pool of CiliumNode "+s.cfg.Self.Name+"; status.ipam.operator-status.error says what keeps the operator from assigning some")
		return false
	})
}

// writeRetry bounds the pause after a write that failed.
const writeRetry, writeRetryMost = time.Second, 30 * time.Second

// conflicts is how often in a row the object is read and written again at once.
const conflicts = 3

// Run writes the status of the node's object and tells the agent, until ctx ends. It is the only
// writer of the agent's part of it. What can wait is written every [Config.UpdateInterval], what
// the operator waits for at most ten times as often. Attach comes before it, and the book is open.
func (s *Singles) Run(ctx context.Context, agent Agent) error {
	var last time.Time
	pause := writeRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.book.DemandMoved():
		case <-s.tell.wake:
			s.tell.pass(agent)
		}
		next, err := s.write(ctx, last)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Warn("this node cannot say which addresses are used; the operator assigns and releases none meanwhile", "error", err, "again", pause)
			timer.Reset(pause)
			pause = min(2*pause, writeRetryMost)
			continue
		case next == 0: // written, or nothing to write
			last, pause = time.Now(), writeRetry
			timer.Reset(s.cfg.UpdateInterval)
			continue
		case next < 0:
			timer.Reset(s.cfg.UpdateInterval)
			continue
		}
		timer.Reset(next)
	}
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
			return -1, nil // it is made, and heard of
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
				s.object = now // what the watch tells later is this version or a newer one
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
