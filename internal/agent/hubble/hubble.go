package hubble

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	flowpb "github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policypreview"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Endpoints are the endpoints of this node.
type Endpoints interface {
	Get(id uint16) (endpoint.Endpoint, bool)
	ByAddr(netip.Addr) (endpoint.Endpoint, bool)
	List() []endpoint.Endpoint
}

// Addresses are the addresses of the cluster, with whom they belong to.
type Addresses interface {
	Lookup(netip.Addr) (netip.Prefix, ipcache.Entry, bool)
	Table() *table.Table[netip.Prefix, ipcache.Entry]
}

// Policy is the policy in force.
type Policy interface {
	Revision() uint64
	// TryView has f look at the rules, unless they are in use; it reports whether it did.
	TryView(f func(*policy.Engine)) bool
	// View has f look at the rules, when they are not in use.
	View(f func(*policy.Engine))
}

// Node is what the agent knows of its node and the others, and lends to its Hubble. All of it is
// safe for concurrent use.
type Node struct {
	Self    node.Key
	Version string
	Nodes   *table.Table[node.Key, node.Node]
	// NodesSynced waits until Nodes has all nodes that there are.
	NodesSynced func(context.Context) error
	Monitor     *monitor.Monitor

	Endpoints Endpoints
	Addresses Addresses
	Policy    Policy
	// InForce reports whether everything has been observed and is in the kernel.
	InForce func() bool
	// PolicyLabels returns the keys of the labels by which rules are evaluated.
	PolicyLabels func() labels.Keys
	// Shares returns whose prefixes would be beyond the shares of namespaces, or within them again,
	// after changes; see [policypreview.Agent].
	Shares func([]policy.Change) (beyond, back []policy.Owner)
	// RuleLine returns in which file a rule is, and at which line; see [policypreview.Agent]. It is
	// nil if there are none.
	RuleLine func(o policy.Owner, path string) (file string, line int)
	// Labels returns the labels of an identity.
	Labels func(identity.ID) (labels.Set, bool)
	// Workload returns what made a pod of this node; nil if that is not known. It is nil
	// outside of Kubernetes. What it returns is shared and must not change.
	Workload func(namespace, pod string) *flowpb.Workload
	// RemoteWorkload is the same for a pod of another node that has an address.
	RemoteWorkload func(at netip.Addr, namespace, pod string) *flowpb.Workload
	// Frontends are the addresses and ports of services; nil if the node serves none.
	Frontends *table.Table[datapath.ServiceFrontend, service.Frontend]
	// Links returns the names of the node's interfaces by their indexes; nil if they are not known.
	Links func() (map[int]string, error)
	// Services adds what clients of flows get beside these. It is called by Start or later.
	Services func(grpc.ServiceRegistrar)

	// Listen opens a unix socket for users of the agent's API; option is the option with its path.
	Listen func(path, option string) (net.Listener, error)
	// ServeMetrics serves a registry until ctx ends.
	ServeMetrics func(ctx context.Context, l net.Listener, registry *prometheus.Registry) error
	// Report is called with how a part fares.
	Report func(part string, state rest.State, msg string)
}

// Hubble records flows and serves them. Nil stands for one that is switched off. It is safe for
// concurrent use.
type Hubble struct {
	cfg      Config
	node     Node
	log      *slog.Logger
	recorder *recorder
	expiry   *flowserver.Expiry // nil without TLS
}

// New returns a Hubble that records nothing yet; nil if cfg wants none.
func New(cfg Config, n Node, log *slog.Logger) (*Hubble, error) {
	if !cfg.Enable {
		return nil, nil
	}
	record, err := flows.NewRecord(cmp.Or(cfg.Capacity, 1024), time.Now()) // those who follow read from it in any case
	if err != nil {
		return nil, err
	}
	asked, err := flowmetrics.Parse(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	h := &Hubble{cfg: cfg, node: n, log: log, recorder: &recorder{
		monitor: n.Monitor, record: record, changed: make(chan struct{}, 1), events: cfg.events(),
		maker: flows.Maker{Node: n.Self.String(), Directory: newDirectory(n)},
	}}
	if len(asked) > 0 {
		h.recorder.metrics = flowmetrics.New(asked)
	}
	if cfg.ListenAddress != "" && !cfg.NoTLS {
		h.expiry = flowserver.NewExpiry(log, h.certificates, cfg.TLS.Files("flow-")...)
		h.cfg.TLS.Expiry = h.expiry
	}
	return h, nil
}

// Start begins to record flows and to serve them. It hands each part that runs until its context
// ends to start.
func (h *Hubble) Start(start func(part string, run func(context.Context) error)) error {
	if h == nil {
		return nil
	}
	cfg, metrics := h.cfg, h.recorder.metrics
	sc := flowserver.Config{
		Record: h.recorder.record, Self: h.node.Self, Nodes: h.node.Nodes, WaitSynced: h.node.NodesSynced, PeerPort: cfg.port(), PeerTLS: !cfg.NoTLS,
		Version: h.node.Version, Log: h.log,
	}
	if cfg.Capacity == 0 && metrics == nil {
		sc.Follow = h.recorder.follow
	} else {
		h.recorder.follow() // for as long as the agent runs; the kernel forgets it afterwards
	}
	previews, err := policypreview.New(policypreview.Config{Agent: previewed{h.node}, Record: h.recorder.record, Node: h.node.Self.String()})
	if err != nil {
		return err
	}
	sc.Services = func(s grpc.ServiceRegistrar) {
		policypb.RegisterPolicyServer(s, previews)
		if h.node.Services != nil {
			h.node.Services(s)
		}
	}
	srv, err := flowserver.New(sc)
	if err != nil {
		return err
	}
	local, err := h.node.Listen(cfg.SocketPath, "--hubble-socket-path")
	if err != nil {
		return err
	}
	h.event(flowpb.AgentEventType_AGENT_STARTED, &flowpb.AgentEvent{
		Notification: &flowpb.AgentEvent_AgentStart{AgentStart: &flowpb.TimeNotification{Time: timestamppb.Now()}},
	})
	start("address-events", h.followAddresses)
	if h.node.Frontends != nil {
		start("service-events", h.followServices)
	}
	start("flows", h.recorder.run)
	start("flow-socket", func(ctx context.Context) error {
		defer os.Remove(cfg.SocketPath)
		return srv.Serve(ctx, local, nil)
	})
	if cfg.ListenAddress != "" {
		start("flow-server", func(ctx context.Context) error { return h.serve(ctx, srv) })
	}
	if h.expiry != nil {
		start("flow-certificates", h.expiry.Run)
	}
	if metrics != nil {
		start("flow-metrics", h.serveMetrics)
		start("flow-metrics-sweep", h.sweepMetrics)
	}
	return nil
}

// certificates reports expiring certificates in the agent's status.
func (h *Hubble) certificates(problem string) {
	if problem != "" {
		h.node.Report("flow-certificates", rest.StateWarning, problem)
		return
	}
	h.node.Report("flow-certificates", rest.StateOk, "none ends soon")
}

// serve serves flows on TCP until ctx ends.
func (h *Hubble) serve(ctx context.Context, srv *flowserver.Server) error {
	return h.keepServing(ctx, "flow-server", h.cfg.ListenAddress, func(l func() (net.Listener, error)) error {
		var creds credentials.TransportCredentials
		if !h.cfg.NoTLS {
			tlsCfg, err := h.cfg.TLS.Config()
			if err != nil {
				return err
			}
			creds = credentials.NewTLS(tlsCfg)
		}
		at, err := l()
		if err != nil {
			return err
		}
		return srv.Serve(ctx, at, creds)
	})
}

// retryInterval is the time between two attempts to serve on TCP.
const retryInterval = 5 * time.Second

// keepServing calls serve, which begins to listen at an address when it has what it needs, until
// ctx ends, and again when it failed. What is missing may appear later: certificates are often
// created after the agents start. Packets do not depend on it, so a failure does not end the agent.
func (h *Hubble) keepServing(ctx context.Context, part, addr string, serve func(listen func() (net.Listener, error)) error) error {
	var before string
	for {
		err := serve(func() (net.Listener, error) {
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
			if err == nil {
				h.node.Report(part, rest.StateOk, "served at "+addr)
				before = ""
			}
			return l, err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != before {
			before = err.Error()
			h.log.Warn("cannot serve on TCP, trying again", "what", part, "address", addr, "error", err)
			h.node.Report(part, rest.StateWarning, err.Error())
		}
		if !retry.Sleep(ctx, retryInterval) {
			return nil
		}
	}
}

// Status is the part of GET /healthz about flows.
func (h *Hubble) Status() rest.Status {
	if h == nil {
		return rest.Status{State: rest.StateDisabled}
	}
	record := h.recorder.record
	oldest, next := record.Flows.Bounds()
	seen, _ := record.Seen()
	return rest.Status{State: rest.StateOk, Msg: fmt.Sprintf("%d of %d flows kept, %d seen, %.1f/s",
		next-oldest, record.Flows.Cap(), seen, record.Rate(time.Now()))}
}
