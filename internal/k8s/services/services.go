package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Config defines what the part works with.
type Config struct {
	// NodeName is this node's name in Kubernetes.
	NodeName string
	// NodeAddrs are the node's addresses at which node ports and host ports are served, if they are
	// in one of Within, or that is empty.
	NodeAddrs []netip.Addr
	Within    []netip.Prefix
	// Announced are the node's addresses that other nodes know.
	Announced []netip.Addr
	// KubeProxy means that kube-proxy leads clients outside to services; host ports are not among
	// what it knows.
	KubeProxy bool
	// HostPorts is called with whether pods of this node have host ports, when that changes; it may
	// be nil, and must not block.
	HostPorts func(bool)
	// Maglev has every node choose the same backend for a client outside.
	Maglev bool
	// Forwarding is how clients outside reach backends on other nodes; PerService lets annotations
	// of services override it.
	Forwarding service.Forwarding
	PerService bool
	// HealthListen opens a service's health check port for balancers that ask there, with a bounded
	// number of concurrent connections. Nil answers none: where kube-proxy runs, it answers them.
	HealthListen func(port uint16) (net.Listener, error)
	// Sockets are those of the node's own processes that have backends; nil if they get none.
	Sockets service.Sockets
	// WaitSynced waits until what other clusters offer is known as far as it can be; nil if there
	// are none.
	WaitSynced func(context.Context) error
	// File, if not nil, is where services come from in place of Kubernetes.
	File *File
	// Kernel is where the rows go. Report, if not nil, is called with why frontends are not what
	// they should be there, nil if all are, whenever that changes; it must not block.
	Kernel datapath.Services
	Report func(error)
	// CheckInterval is the time between comparisons of the kernel's table with what was written; 0
	// for none. Edited, if not nil, is called with how many rows another process had changed, which
	// are restored; it must not block.
	CheckInterval time.Duration
	Edited        func(rows int)
	// Log receives what goes wrong; nil discards it.
	Log *slog.Logger
}

// Services follows services and keeps the kernel's table. Make one with New; it serves one Run.
type Services struct {
	cfg         Config
	client      *k8s.Client
	engine      *service.Engine
	reconciler  *table.Reconciler[datapath.ServiceFrontend, service.Frontend]
	flows       *service.Flows
	changed     chan struct{}
	checks      *checks
	socketFault string      // of the goroutine that refreshes: why sockets could not be ended
	observed    atomic.Bool // all is known that sockets may have as backends

	mu   sync.Mutex
	zone string

	reporting sync.Mutex // what is newest is reported last
	refused   map[service.Name]error
	excess    []service.Name // services beyond the bounds of one
}

// New returns a part that has observed nothing. It makes no request; the caller must call Run.
func New(cfg Config, client *k8s.Client) (*Services, error) {
	if cfg.NodeName == "" || cfg.Kernel == nil || (client == nil) == (cfg.File == nil) {
		return nil, errors.New("services: the node's name, the kernel's table, and a client or a file are needed")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Services{cfg: cfg, client: client, changed: make(chan struct{}, 1), refused: map[service.Name]error{}}
	s.engine = service.New(s.local())
	s.checks = newChecks(cfg.Log, s.engine.LocalReady, cfg.HealthListen)
	s.flows = service.NewFlows(cfg.Kernel, s.engine.Table())
	target := service.NewMaps(cfg.Kernel, s.noteChanged)
	target.Edited = s.noteEdited
	var err error
	s.reconciler, err = table.NewReconciler(table.ReconcilerConfig{
		Name: "services", Log: cfg.Log, Failing: s.report, PruneInterval: cfg.CheckInterval,
	}, s.engine.Table(), target)
	return s, err
}

// noteEdited reports frontends that another process has changed.
func (s *Services) noteEdited(rows []datapath.ServiceFrontend) {
	s.cfg.Log.Warn("frontends of services were changed or removed in the kernel by another process; restoring them",
		"frontends", len(rows), "first", slices.MinFunc(rows, datapath.ServiceFrontend.Compare))
	if s.cfg.Edited != nil {
		s.cfg.Edited(len(rows))
	}
}

// report says which frontends the kernel does not have as they should be, which services are
// served in part, and which host ports are refused.
func (s *Services) report() {
	if s.cfg.Report == nil {
		return
	}
	s.reporting.Lock()
	defer s.reporting.Unlock()
	var errs []error
	if failing := s.reconciler.Failing(); len(failing) > 0 {
		first := slices.MinFunc(slices.Collect(maps.Keys(failing)), datapath.ServiceFrontend.Compare)
		errs = append(errs, fmt.Errorf("%d frontends of services are not served as they should be, as %s (--bpf-lb-map-max, --bpf-lb-service-backend-map-max): %w",
			len(failing), first, failing[first].Err))
	}
	if len(s.excess) > 0 {
		errs = append(errs, fmt.Errorf("%d services are served in part, among them %s: a service can have %d frontends, each port at each address, and %d backends, "+
			"each endpoint at each port; divide it", len(s.excess), s.excess[0], service.MaxFrontends, service.MaxBackends))
	}
	for _, pod := range slices.SortedFunc(maps.Keys(s.refused), service.Name.Compare) {
		errs = append(errs, s.refused[pod])
	}
	s.cfg.Report(errors.Join(errs...))
}

// refuse notes why host ports of a pod are not served; nil if none is refused.
func (s *Services) refuse(pod service.Name, err error) {
	s.reporting.Lock()
	old := s.refused[pod]
	if err == nil {
		delete(s.refused, pod)
	} else {
		s.refused[pod] = err
	}
	s.reporting.Unlock()
	switch {
	case err == nil && old == nil, err != nil && old != nil && err.Error() == old.Error():
		return
	case err != nil:
		s.cfg.Log.Warn("host ports are refused", "pod", pod, "error", err)
	}
	s.report()
}

// noteExcess reports when other services than before are beyond their bounds.
func (s *Services) noteExcess() {
	s.reporting.Lock()
	now := s.engine.Excess()
	changed := !slices.Equal(now, s.excess)
	s.excess = now
	s.reporting.Unlock()
	if !changed {
		return
	}
	if len(now) > 0 {
		s.cfg.Log.Warn("services have more frontends or backends than one can, and are served in part", "services", len(now), "first", now[0])
	}
	s.report()
}

// Table returns the table of frontends, to be read and followed.
func (s *Services) Table() *table.Table[datapath.ServiceFrontend, service.Frontend] {
	return s.engine.Table()
}

// Engine returns what computes the table, so that others can add other clusters' services.
func (s *Services) Engine() *service.Engine { return s.engine }

// local is called with mu held, or before there are other users.
func (s *Services) local() service.Local {
	return service.Local{
		Node: s.cfg.NodeName, Zone: s.zone, Addrs: s.cfg.NodeAddrs, Within: s.cfg.Within, Announced: s.cfg.Announced, KubeProxy: s.cfg.KubeProxy,
		Maglev: s.cfg.Maglev, Forwarding: s.cfg.Forwarding, PerService: s.cfg.PerService,
	}
}

func (s *Services) noteChanged() {
	retry.Notify(s.changed)
}

// Run follows Kubernetes until ctx ends, and returns nil then. synced is called once, when
// everything that exists has been observed and the kernel's table holds it; it may be nil.
func (s *Services) Run(ctx context.Context, synced func()) error {
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func(context.Context) error) {
		group.Go(func() error {
			if err := run(ctx); ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	sources := []func(context.Context, func()) error{s.followServices, s.followSlices, s.followPods, s.followNode}
	if s.cfg.File != nil {
		sources = []func(context.Context, func()) error{s.followFile}
	}
	observed := make(chan struct{}, len(sources))
	for _, follow := range sources {
		start(func(ctx context.Context) error { return follow(ctx, func() { observed <- struct{}{} }) })
	}
	start(s.reconciler.Run)
	start(s.refresh)
	start(s.checks.run)
	start(func(ctx context.Context) error {
		for range cap(observed) {
			select {
			case <-observed:
			case <-ctx.Done():
				return nil
			}
		}
		s.engine.Synced()
		s.noteExcess()
		if err := s.reconciler.WaitPruned(ctx); err != nil {
			return nil // ctx has ended: a prune that fails is tried again
		}
		if synced != nil {
			synced()
		}
		s.cfg.Log.Info("services are in force", "frontends", s.engine.Table().Len())
		// A socket cannot get its backend back: before other clusters were observed, none of theirs
		// would be one.
		if s.cfg.WaitSynced != nil && s.cfg.WaitSynced(ctx) != nil {
			return nil // ctx has ended
		}
		s.observed.Store(true)
		s.noteChanged()
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("services: %w", err)
	}
	return nil
}

const (
	// refreshAgain is when the flows are looked through once more after a change.
	refreshAgain = time.Second
	// The pause after a look is refreshShare times as long as the look, at least refreshPause
	// and at most refreshMost: services that change all the time cost a node with many flows a
	// tenth of a processor, and flows do not wait for long.
	refreshShare = 9
	refreshPause = 250 * time.Millisecond
	refreshMost  = 5 * time.Second
)

// refresh goes through the flows after each change, and once more a little later: a packet that met
// the old rows may have been on its way to be remembered.
func (s *Services) refresh(ctx context.Context) error {
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	again := false
	for {
		select {
		case <-s.changed:
			again = true
		case <-timer.C:
			again = false
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		if err := s.flows.ForgetStale(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("some flows may go on to removed backends until they end", "error", err)
		}
		if s.cfg.Sockets != nil && s.observed.Load() {
			s.endSockets()
		}
		if again {
			timer.Reset(refreshAgain)
		}
		if !retry.Sleep(ctx, min(max(refreshPause, refreshShare*time.Since(began)), refreshMost)) {
			return nil
		}
	}
}

func (s *Services) endSockets() {
	n, err := s.flows.EndStaleSockets(s.cfg.Sockets)
	if text := fmt.Sprint(err); err != nil && text != s.socketFault {
		s.socketFault = text // a kernel that cannot end sockets is reported once
		s.cfg.Log.Warn("some processes of the node may go on sending to removed backends", "error", err)
	}
	if n > 0 {
		s.cfg.Log.Info("destroyed sockets of the node's processes to removed backends", "sockets", n)
	}
}

func named(k k8s.Key) service.Name { return service.Name{Namespace: k.Namespace, Name: k.Name} }

func (s *Services) followServices(ctx context.Context, synced func()) error {
	return k8s.Follow(ctx, k8s.Kind(s.client.Kube.CoreV1().RESTClient(), "services", ""), k8s.Options[*corev1.Service]{
		Log: s.cfg.Log, LabelSelector: "!service.kubernetes.io/service-proxy-name",
		Transform: func(o *corev1.Service) *corev1.Service {
			o.Labels, o.OwnerReferences, o.Spec.Selector, o.Status.Conditions = nil, nil, nil, nil
			maps.DeleteFunc(o.Annotations, func(name, _ string) bool {
				return !service.IsMeshAnnotation(name) && name != service.AnnotationForwarding
			})
			return o
		},
	}, k8s.Handler[*corev1.Service]{
		Upsert: func(o *corev1.Service) {
			it := fromService(o)
			s.engine.UpsertService(it)
			s.noteExcess()
			s.checks.set(it.Name, it.HealthPort)
		},
		Delete: func(k k8s.Key) {
			s.engine.DeleteService(named(k))
			s.noteExcess()
			s.checks.set(named(k), 0)
		},
		Synced: synced,
	})
}

func (s *Services) followSlices(ctx context.Context, synced func()) error {
	return k8s.Follow(ctx, k8s.Kind(s.client.Kube.DiscoveryV1().RESTClient(), "endpointslices", ""), k8s.Options[*discoveryv1.EndpointSlice]{
		Log: s.cfg.Log, LabelSelector: "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name",
		Transform: func(o *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
			o.Annotations, o.OwnerReferences = nil, nil
			o.Labels = map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]}
			for i := range o.Endpoints {
				o.Endpoints[i].TargetRef, o.Endpoints[i].DeprecatedTopology, o.Endpoints[i].Hostname = nil, nil, nil
			}
			return o
		},
	}, k8s.Handler[*discoveryv1.EndpointSlice]{
		Upsert: func(o *discoveryv1.EndpointSlice) {
			s.engine.UpsertSlice(fromSlice(o))
			s.noteExcess()
		},
		Delete: func(k k8s.Key) {
			s.engine.DeleteSlice(named(k))
			s.noteExcess()
		},
		Synced: synced,
	})
}

func (s *Services) followPods(ctx context.Context, synced func()) error {
	observed, had := false, false
	notify := func() {
		if has := s.engine.HostPorts(); observed && s.cfg.HostPorts != nil && has != had {
			had = has
			s.cfg.HostPorts(has)
		}
	}
	set := func(pod service.Name, ports []service.HostPort) {
		s.engine.SetHostPorts(pod, ports)
		notify()
	}
	return k8s.Follow(ctx, k8s.Kind(s.client.Kube.CoreV1().RESTClient(), "pods", ""), k8s.Options[*corev1.Pod]{
		Log: s.cfg.Log, FieldSelector: "spec.nodeName=" + s.cfg.NodeName,
	}, k8s.Handler[*corev1.Pod]{
		Upsert: func(o *corev1.Pod) {
			ports, err := fromPod(o)
			s.refuse(named(k8s.KeyOf(o)), err)
			set(named(k8s.KeyOf(o)), ports)
		},
		Delete: func(k k8s.Key) {
			s.refuse(named(k), nil)
			set(named(k), nil)
		},
		Synced: func() {
			observed, had = true, !s.engine.HostPorts() // subscribers do not know of earlier changes
			notify()
			synced()
		},
	})
}

func (s *Services) followNode(ctx context.Context, synced func()) error {
	move := func(zone string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.zone = zone
		s.engine.SetLocal(s.local())
	}
	return k8s.Follow(ctx, k8s.Kind(s.client.Kube.CoreV1().RESTClient(), "nodes", ""), k8s.Options[*corev1.Node]{
		Log: s.cfg.Log, FieldSelector: "metadata.name=" + s.cfg.NodeName,
	}, k8s.Handler[*corev1.Node]{
		Upsert: func(o *corev1.Node) { move(o.Labels[corev1.LabelTopologyZone]) },
		Delete: func(k8s.Key) { move("") },
		Synced: synced,
	})
}

// SetNodeAddrs replaces the addresses at which node ports and host ports are served.
func (s *Services) SetNodeAddrs(addrs []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.NodeAddrs = slices.Clone(addrs)
	s.engine.SetLocal(s.local())
}
