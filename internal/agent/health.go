package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
)

// The node's health endpoint.
const (
	healthLink  = link.EndpointPrefix + "_health"
	healthOwner = "health"
	healthName  = "cilium-health-ep"
)

// healthCheck is how often it is looked whether the health endpoint is there, and who is to answer
// answers.
const healthCheck = 10 * time.Second

// healthRetry is the pause after a failure, twice as long after each further one, and
// maxHealthRetry the longest.
const (
	healthRetry    = time.Second
	maxHealthRetry = 30 * time.Second
)

// nodeHealth answers other nodes' probes, at the node's addresses and at those of its health
// endpoint, and probes them. Nil stands for a node that does neither.
type nodeHealth struct {
	a      *api
	facts  nodeFacts
	links  *link.Links
	log    *slog.Logger
	saved  routerState // the endpoint's addresses
	prober *clusterhealth.Prober
	answer *clusterhealth.Responder

	// Of the goroutine that runs:
	inner *link.Inner
	// unanswered are addresses of the endpoint at which nobody answers yet.
	unanswered []netip.AddrPort
	// lacks is why the endpoint has not all addresses; short says that it is because none were
	// free.
	lacks error
	short bool
	// listening are the addresses of the node at which it answers.
	listening map[netip.Addr]bool

	mu sync.Mutex
	// reserved are addresses that are kept for the endpoint, announced those that it has and others
	// are told of.
	reserved, announced []netip.Addr
}

// newNodeHealth removes what is left of an endpoint of before, which ended with its agent, and
// keeps its addresses. It must be called before endpoints are loaded; keep after that, and before
// others get addresses.
func newNodeHealth(a *api, facts nodeFacts, links *link.Links, log *slog.Logger) (*nodeHealth, error) {
	if err := links.RemoveInner(healthLink); err != nil {
		return nil, err
	}
	if !a.cfg.HealthChecking {
		return nil, nil
	}
	return &nodeHealth{
		a: a, facts: facts, links: links, log: log, answer: clusterhealth.NewResponder(), listening: map[netip.Addr]bool{},
		saved: routerState{path: filepath.Join(a.cfg.StateDir, "state", "health.json")},
	}, nil
}

// keep takes the addresses that the endpoint had.
func (h *nodeHealth) keep() {
	if h == nil || !h.a.cfg.HealthEndpoint {
		return
	}
	for _, ip := range h.saved.load(h.log) {
		if err := h.a.pool.Restore(ip, healthOwner); err != nil {
			h.log.Info("the health endpoint gets another address", "before", ip, "reason", err)
			continue
		}
		h.reserved = append(h.reserved, ip)
	}
	h.announced = slices.Clone(h.reserved) // or all nodes would hear of each restart, twice
}

// healthAddresses are those of this node's health endpoint.
func (a *api) healthAddresses() []netip.Addr {
	if a.nodeHealth == nil {
		return nil
	}
	a.nodeHealth.mu.Lock()
	defer a.nodeHealth.mu.Unlock()
	return slices.Clone(a.nodeHealth.announced)
}

// start begins to answer and to probe.
func (h *nodeHealth) start(run *group) error {
	if h == nil {
		return nil
	}
	getter := clusterhealth.NewGetter(h.a.cfg.ClusterHealthPort)
	echo, err := clusterhealth.NewEchoer(h.facts.ipv4.IsValid() || h.a.cfg.EnableIPv4, h.facts.ipv6.IsValid() || h.a.cfg.EnableIPv6)
	if err != nil {
		h.log.Warn("not all nodes' addresses can be probed by ICMP", "error", err)
	}
	if h.prober, err = clusterhealth.New(clusterhealth.Config{Targets: h.targets, Echo: echo.Echo, Get: getter.Get, Interval: h.a.cfg.HealthInterval}); err != nil {
		echo.Close()
		return err
	}
	run.start("cluster-health", func(ctx context.Context) error {
		defer echo.Close()
		return h.prober.Run(ctx)
	})
	run.start("health-answers", h.run)
	run.start("health-api", func(ctx context.Context) error { return h.a.serveHealthAPI(ctx, h.log) })
	return nil
}

// targets are all nodes, by the families that this node has itself.
func (h *nodeHealth) targets() []clusterhealth.Target {
	var out []clusterhealth.Target
	for _, n := range h.a.nodes.Table().All() {
		t := clusterhealth.Target{Name: n.Key().String(), Endpoint: n.HealthIPs()}
		self := n.Key() == node.Key{Cluster: h.a.cfg.ClusterName, Name: h.a.cfg.NodeName}
		t.Answers = self || len(t.Endpoint) > 0
		if !self {
			t.Endpoint = h.a.notInOurs(t.Endpoint)
		}
		if ip := n.UnderlayIPv4(); ip.IsValid() && h.facts.ipv4.IsValid() {
			t.Node = append(t.Node, ip)
		}
		if ip := n.UnderlayIPv6(); ip.IsValid() && h.facts.ipv6.IsValid() {
			t.Node = append(t.Node, ip)
		}
		t.Endpoint = slices.DeleteFunc(t.Endpoint, func(ip netip.Addr) bool { return ip.Is4() && !h.a.cfg.EnableIPv4 || ip.Is6() && !h.a.cfg.EnableIPv6 })
		out = append(out, t)
	}
	return out
}

// run keeps what is to answer until ctx ends.
func (h *nodeHealth) run(ctx context.Context) error {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer wg.Wait()
	defer h.answer.Close()
	defer cancel()
	serve := func(l net.Listener) {
		wg.Go(func() {
			if err := h.answer.Serve(ctx, l); err != nil {
				h.log.Debug("a listener for probes has ended", "address", l.Addr(), "error", err)
			}
		})
	}
	warned, retry := "", healthRetry
	for {
		err := errors.Join(h.listen(ctx, serve), h.ensure(ctx, serve))
		pause := healthCheck
		if err == nil {
			retry = healthRetry
		} else {
			pause, retry = retry, min(2*retry, maxHealthRetry)
		}
		if text := fmt.Sprint(err); text != warned && ctx.Err() == nil && !errors.Is(err, endpoint.ErrNotHeard) {
			if err != nil {
				h.log.Warn("other nodes' probes are not all answered", "error", err)
			}
			warned = text
		}
		select {
		case <-ctx.Done():
			if h.inner != nil {
				h.inner.Close()
			}
			return nil
		case <-time.After(pause):
		}
	}
}

// listen answers at the node's own addresses.
func (h *nodeHealth) listen(ctx context.Context, serve func(net.Listener)) error {
	var errs []error
	for _, ip := range h.facts.hosts() {
		if h.listening[ip] {
			continue
		}
		at := ip
		if !h.links.IsLocal(ip) { // somebody translates it on the way
			at = netip.IPv6Unspecified()
			if ip.Is4() {
				at = netip.IPv4Unspecified()
			}
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", clusterhealth.Address(at, h.a.cfg.ClusterHealthPort))
		if err != nil {
			errs = append(errs, fmt.Errorf("answer probes: %w", err))
			continue
		}
		h.listening[ip] = true
		serve(l)
	}
	return errors.Join(errs...)
}

// listenInner answers at the endpoint's addresses.
func (h *nodeHealth) listenInner(serve func(net.Listener)) error {
	var errs []error
	h.unanswered = slices.DeleteFunc(h.unanswered, func(at netip.AddrPort) bool {
		l, err := h.inner.Listen(at)
		if err != nil {
			errs = append(errs, fmt.Errorf("health endpoint: %w", err))
			return false
		}
		serve(l)
		return true
	})
	return errors.Join(errs...)
}

// ensure makes the endpoint unless it is there.
func (h *nodeHealth) ensure(ctx context.Context, serve func(net.Listener)) error {
	if !h.a.cfg.HealthEndpoint {
		return nil
	}
	rows := h.a.registry.List()
	if i := slices.IndexFunc(rows, endpoint.Endpoint.Health); i >= 0 {
		_, gone := net.InterfaceByIndex(rows[i].IfIndex)
		more := false
		if gone == nil && h.short {
			_, err := h.addresses()
			more = err == nil // the family that had none has one now: it needs another endpoint
		}
		if gone == nil && !more {
			return errors.Join(h.lacks, h.listenInner(serve))
		}
		if _, err := h.a.lifecycle.Delete(ctx, rows[i].ID); err != nil {
			return fmt.Errorf("health endpoint that is to be made again: %w", err)
		}
	}
	if !h.a.isInForce() {
		return endpoint.ErrNotHeard // it would be undone at once; or its neighbours are judged by other maps yet
	}
	if h.inner != nil { // somebody deleted it
		h.inner.Close()
		h.inner = nil
	}
	addrs, none := h.addresses()
	if len(addrs) == 0 {
		return none
	}
	devices := h.a.deviceFacts()
	inner, err := h.links.AddInner(healthLink, addrs, devices.DeviceMTU, devices.RouteMTU)
	if err != nil {
		return fmt.Errorf("health endpoint: %w", err)
	}
	h.short, h.lacks = none != nil, none
	if inner.Lacks != nil {
		h.lacks = errors.Join(none, fmt.Errorf("health endpoint: %w", inner.Lacks))
	}
	req := endpoint.CreateRequest{
		Attachment: endpoint.Attachment{ContainerName: healthName, IfName: healthLink, IfIndex: inner.IfIndex, MAC: inner.MAC, HostMAC: inner.HostMAC},
		Labels:     labels.NewSet(labels.Reserved(identity.Health.String())),
	}
	have := inner.IPs
	for _, ip := range have {
		if ip.Is4() {
			req.IPv4 = ip
		} else {
			req.IPv6 = ip
		}
	}
	if _, err := h.a.lifecycle.Create(ctx, req); err != nil {
		inner.Close()
		return errors.Join(fmt.Errorf("health endpoint: %w", err), h.links.RemoveInner(healthLink))
	}
	h.inner, h.unanswered = inner, nil
	for _, ip := range have {
		h.unanswered = append(h.unanswered, netip.AddrPortFrom(ip, h.a.cfg.ClusterHealthPort))
	}
	unanswered := errors.Join(h.lacks, h.listenInner(serve))
	v4, v6 := req.IPv4, req.IPv6
	if err := h.saved.save(v4, v6); err != nil {
		h.log.Warn("the health endpoint gets other addresses after a restart", "error", err)
	}
	h.mu.Lock()
	told := slices.Equal(h.announced, have)
	h.announced = have
	h.mu.Unlock()
	if told {
		return unanswered
	}
	return errors.Join(unanswered, h.announce())
}

// announce tells the other nodes of the endpoint's addresses.
func (h *nodeHealth) announce() error {
	self := h.a.selfNode(h.facts)
	err := h.a.nodes.Announce(self)
	if h.a.kube != nil {
		err = errors.Join(err, h.a.kube.nodes.Announce(self))
	}
	return err
}

// addresses are those of before if nobody else has them by now, and others if somebody does, with
// the routers'. The error is of families that have none.
func (h *nodeHealth) addresses() ([]link.InnerAddress, error) {
	var out []link.InnerAddress
	var errs []error
	for _, f := range []struct {
		family ipam.Families
		router netip.Addr
	}{{ipam.IPv4, h.a.router4}, {ipam.IPv6, h.a.router6}} {
		if h.a.pool.Families()&f.family == 0 {
			continue
		}
		ip, err := h.address(f.family, f.router.Is4())
		if err != nil {
			errs = append(errs, fmt.Errorf("address of the health endpoint: %w", err))
			continue
		}
		out = append(out, link.InnerAddress{IP: ip, Router: f.router})
	}
	return out, errors.Join(errs...)
}

func (h *nodeHealth) address(family ipam.Families, v4 bool) (netip.Addr, error) {
	i := slices.IndexFunc(h.reserved, func(ip netip.Addr) bool { return ip.Is4() == v4 })
	if i >= 0 {
		ip := h.reserved[i]
		given, ok := h.a.pool.Lookup(ip)
		if ok && given.Owner == healthOwner || !ok && h.a.pool.Allocate(ip, healthOwner, "") == nil {
			return ip, nil
		}
		h.reserved = slices.Delete(h.reserved, i, i+1)
	}
	res, err := h.a.pool.AllocateNext(family, healthOwner, "", false)
	if err != nil {
		return netip.Addr{}, err
	}
	got := res.IPv4
	if !v4 {
		got = res.IPv6
	}
	h.reserved = append(h.reserved, got.IP)
	return got.IP, nil
}
