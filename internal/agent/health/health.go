// Package health finds out which nodes reach each other: it answers other nodes' probes, at the
// node's addresses and at those of its health endpoint, and probes theirs. It also answers
// balancers that ask the node, in kube-proxy's place, whether it leads to services.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/retry"
)

// The node's health endpoint.
const (
	linkName      = link.EndpointPrefix + "_health"
	owner         = "health"
	containerName = "cilium-health-ep"
)

// checkInterval is how often the health endpoint and its responders are checked.
const checkInterval = 10 * time.Second

// firstRetry is the pause after a failure, twice as long after each further one, and
// maxRetry the longest.
const (
	firstRetry = time.Second
	maxRetry   = 30 * time.Second
)

// Config defines what a node's health consists of, and gives it what it uses.
type Config struct {
	Self node.Key
	// Nodes are all nodes; Local are those of this node's addresses that others probe.
	Nodes *table.Table[node.Key, node.Node]
	Local []netip.Addr
	// IPv4 and IPv6 are the families that pods have here.
	IPv4, IPv6 bool
	// Port is where all nodes answer. A round of probes takes Interval at least.
	Port     uint16
	Interval time.Duration
	// Endpoint gives the node an endpoint that answers, besides. What follows belongs to it.
	Endpoint bool

	Links     *link.Links
	Pool      *ipam.IPAM
	Registry  *endpoint.Registry
	Lifecycle *endpoint.Lifecycle
	// Routers are the node's own addresses in the pod network.
	Routers func() (v4, v6 netip.Addr)
	// Devices are the node's devices now.
	Devices func() datapath.Devices
	// InForce reports whether an endpoint can be evaluated by rules that are known.
	InForce func() bool
	// Before are the endpoint's addresses from before a restart; Save keeps them for the next.
	Before []netip.Addr
	Save   func(v4, v6 netip.Addr) error
	// Announce publishes the endpoint's addresses to the other nodes, which are Addresses.
	Announce func() error

	Log *slog.Logger
}

// Health answers other nodes' probes, and probes them. Its methods may be called from any
// goroutine.
type Health struct {
	cfg    Config
	log    *slog.Logger
	echo   *clusterhealth.Echoer
	prober *clusterhealth.Prober
	answer *clusterhealth.Responder

	// Of the goroutine that answers:
	inner *link.Inner
	// unanswered are addresses of the endpoint without a responder yet.
	unanswered []netip.AddrPort
	// lacks is why the endpoint has not all addresses; short means that it is because none were
	// free.
	lacks error
	short bool
	// listening are the addresses of the node at which it answers.
	listening map[netip.Addr]bool

	mu sync.Mutex
	// reserved are addresses that are kept for the endpoint, announced those that it has and others
	// are notified of.
	reserved, announced []netip.Addr
}

// RemoveEndpoint removes what is left of a former endpoint, which ended with its agent. It is
// for before endpoints are loaded.
func RemoveEndpoint(links *link.Links) error { return links.RemoveInner(linkName) }

// New returns a Health that answers and probes when it runs. Probe must run.
func New(cfg Config) (*Health, error) {
	h := &Health{cfg: cfg, log: cfg.Log, answer: clusterhealth.NewResponder(), listening: map[netip.Addr]bool{}}
	var err error
	if h.echo, err = clusterhealth.NewEchoer(h.probes(true), h.probes(false)); err != nil {
		h.log.Warn("not all nodes' addresses can be probed by ICMP", "error", err)
	}
	h.prober, err = clusterhealth.New(clusterhealth.Config{
		Targets: h.targets, Echo: h.echo.Echo, Get: clusterhealth.NewGetter(cfg.Port).Get, Interval: cfg.Interval,
	})
	if err != nil {
		h.echo.Close()
		return nil, err
	}
	return h, nil
}

// has reports whether this node has an address of a family.
func (h *Health) has(v4 bool) bool {
	return slices.ContainsFunc(h.cfg.Local, func(ip netip.Addr) bool { return ip.Is4() == v4 })
}

// probes reports whether addresses of a family are probed.
func (h *Health) probes(v4 bool) bool {
	if v4 {
		return h.has(true) || h.cfg.IPv4
	}
	return h.has(false) || h.cfg.IPv6
}

// Reserve keeps the addresses that the endpoint had. It must be called after endpoints are loaded
// and before others get addresses.
func (h *Health) Reserve() {
	if !h.cfg.Endpoint {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ip := range h.cfg.Before {
		// One that is given out no more would keep the CIDR that it is of this node's for good.
		if !h.cfg.Pool.Assignable(ip) {
			h.log.Info("the health endpoint gets another address", "before", ip, "reason", "this node gives it out no more")
			continue
		}
		if err := h.cfg.Pool.Restore(ip, owner); err != nil {
			h.log.Info("the health endpoint gets another address", "before", ip, "reason", err)
			continue
		}
		h.reserved = append(h.reserved, ip)
	}
	h.announced = slices.Clone(h.reserved) // or all nodes would observe each restart, twice
}

// Addresses are those of this node's health endpoint.
func (h *Health) Addresses() []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.announced)
}

// Statuses are what the last round of probes found, and how long a round takes.
func (h *Health) Statuses() ([]clusterhealth.Status, time.Duration) { return h.prober.Statuses() }

// Probe probes all nodes until ctx ends.
func (h *Health) Probe(ctx context.Context) error {
	defer h.echo.Close()
	return h.prober.Run(ctx)
}

// targets are all nodes, by the families that this node has itself.
func (h *Health) targets() []clusterhealth.Target {
	var out []clusterhealth.Target
	for _, n := range h.cfg.Nodes.All() {
		t := clusterhealth.Target{Name: n.Key().String(), Endpoint: n.HealthIPs()}
		self := n.Key() == h.cfg.Self
		t.Answers = self || len(t.Endpoint) > 0
		if !self {
			t.Endpoint = notIn(t.Endpoint, h.cfg.Pool.CIDRs(ipam.Both))
		}
		if ip := n.UnderlayIPv4(); ip.IsValid() && h.has(true) {
			t.Node = append(t.Node, ip)
		}
		if ip := n.UnderlayIPv6(); ip.IsValid() && h.has(false) {
			t.Node = append(t.Node, ip)
		}
		t.Endpoint = slices.DeleteFunc(t.Endpoint, func(ip netip.Addr) bool { return ip.Is4() && !h.cfg.IPv4 || ip.Is6() && !h.cfg.IPv6 })
		out = append(out, t)
	}
	return out
}

// Answer keeps what is to answer until ctx ends.
func (h *Health) Answer(ctx context.Context) error {
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
	warned, next := "", firstRetry
	for {
		err := errors.Join(h.listen(ctx, serve), h.ensure(ctx, serve))
		pause := checkInterval
		if err == nil {
			next = firstRetry
		} else {
			pause, next = next, min(2*next, maxRetry)
		}
		if text := fmt.Sprint(err); text != warned && ctx.Err() == nil && !errors.Is(err, endpoint.ErrNotObserved) {
			if err != nil {
				h.log.Warn("other nodes' probes are not all answered", "error", err)
			}
			warned = text
		}
		if !retry.Sleep(ctx, pause) {
			if h.inner != nil {
				h.inner.Close()
			}
			return nil
		}
	}
}

// listen answers at the node's own addresses.
func (h *Health) listen(ctx context.Context, serve func(net.Listener)) error {
	var errs []error
	for _, ip := range h.cfg.Local {
		if h.listening[ip] {
			continue
		}
		at := ip
		if !h.cfg.Links.IsLocal(ip) { // it is translated on the way
			at = netip.IPv6Unspecified()
			if ip.Is4() {
				at = netip.IPv4Unspecified()
			}
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", clusterhealth.Address(at, h.cfg.Port))
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
func (h *Health) listenInner(serve func(net.Listener)) error {
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
func (h *Health) ensure(ctx context.Context, serve func(net.Listener)) error {
	if !h.cfg.Endpoint {
		return nil
	}
	rows := h.cfg.Registry.List()
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
		if _, err := h.cfg.Lifecycle.Delete(rows[i].ID); err != nil {
			return fmt.Errorf("health endpoint that is to be made again: %w", err)
		}
	}
	if !h.cfg.InForce() {
		return endpoint.ErrNotObserved // it would be undone at once; or its neighbours are evaluated by other maps yet
	}
	if h.inner != nil { // it was deleted
		h.inner.Close()
		h.inner = nil
	}
	addrs, none := h.addresses()
	if len(addrs) == 0 {
		return none
	}
	devices := h.cfg.Devices()
	inner, err := h.cfg.Links.AddInner(linkName, addrs, devices.DeviceMTU, devices.RouteMTU)
	if err != nil {
		return fmt.Errorf("health endpoint: %w", err)
	}
	h.short, h.lacks = none != nil, none
	if inner.Lacks != nil {
		h.lacks = errors.Join(none, fmt.Errorf("health endpoint: %w", inner.Lacks))
	}
	req := endpoint.CreateRequest{
		Attachment: endpoint.Attachment{ContainerName: containerName, IfName: linkName, IfIndex: inner.IfIndex, MAC: inner.MAC, HostMAC: inner.HostMAC},
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
	if _, err := h.cfg.Lifecycle.Create(ctx, req); err != nil {
		inner.Close()
		return errors.Join(fmt.Errorf("health endpoint: %w", err), h.cfg.Links.RemoveInner(linkName))
	}
	h.inner, h.unanswered = inner, nil
	for _, ip := range have {
		h.unanswered = append(h.unanswered, netip.AddrPortFrom(ip, h.cfg.Port))
	}
	unanswered := errors.Join(h.lacks, h.listenInner(serve))
	if err := h.cfg.Save(req.IPv4, req.IPv6); err != nil {
		h.log.Warn("the health endpoint gets other addresses after a restart", "error", err)
	}
	h.mu.Lock()
	unchanged := slices.Equal(h.announced, have)
	h.announced = have
	h.mu.Unlock()
	if unchanged {
		return unanswered
	}
	return errors.Join(unanswered, h.cfg.Announce())
}

// addresses are the former ones unless they were reassigned, then new ones, with the routers'. The
// error is of families that have none.
func (h *Health) addresses() ([]link.InnerAddress, error) {
	var out []link.InnerAddress
	var errs []error
	router4, router6 := h.cfg.Routers()
	for _, f := range []struct {
		family ipam.Families
		router netip.Addr
	}{{ipam.IPv4, router4}, {ipam.IPv6, router6}} {
		if h.cfg.Pool.Families()&f.family == 0 {
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

func (h *Health) address(family ipam.Families, v4 bool) (netip.Addr, error) {
	i := slices.IndexFunc(h.reserved, func(ip netip.Addr) bool { return ip.Is4() == v4 })
	if i >= 0 {
		ip := h.reserved[i]
		given, ok := h.cfg.Pool.Lookup(ip)
		if ok && given.Owner == owner || !ok && h.cfg.Pool.Allocate(ip, owner, "") == nil {
			return ip, nil
		}
		h.reserved = slices.Delete(h.reserved, i, i+1)
	}
	res, err := h.cfg.Pool.AllocateNext(family, owner, "", false)
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

// notIn leaves out the addresses that are in one of these networks.
func notIn(ips []netip.Addr, networks []netip.Prefix) []netip.Addr {
	return slices.DeleteFunc(ips, func(ip netip.Addr) bool {
		return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(ip) })
	})
}
