package flowserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
)

// Bounds of what clients together may hold.
const (
	// maxConnections is per listener, so that clients of one cannot exhaust another: for
	// authenticated clients, and as many for those that are not.
	maxConnections = 256
	// maxRequest is the size of a request in bytes: of its filters.
	maxRequest = 512 << 10
	// peerStreams is how many streams may report nodes, besides those that report flows: a relay
	// needs one, and must find the nodes even if others have all that there is of flows.
	peerStreams = 64
	// maxCalls is how many calls besides streams one connection may have. Further ones wait, while
	// a stream too many is refused.
	maxCalls = 64
)

// DefaultPort is the TCP port at which nodes serve flows to relays, unless configured otherwise.
const DefaultPort = 4244

// DefaultStreams is how many streams a listener may have at once by default.
const DefaultStreams = 512

// MostOfOne is how many of the default streams clients at one address have while no other has any.
const MostOfOne = DefaultStreams / 2

// Config is what a [Server] is made from.
type Config struct {
	// Record is what the node remembers.
	Record *flows.Record
	// Follow, if not nil, is called when a stream wants flows to come, and what it returns when
	// that ends: for a node that records flows only while a client wants them. It must be safe for
	// concurrent use.
	Follow func() (stop func())
	// Self is this node, Nodes the table of all.
	Self  node.Key
	Nodes *table.Table[node.Key, node.Node]
	// WaitSynced, if not nil, waits until Nodes has all nodes that there are: an agent that has
	// just started, or whose store is away, may know itself only. It must be safe for concurrent
	// use.
	WaitSynced func(context.Context) error
	// PeerPort is the TCP port at which the nodes serve flows, PeerTLS whether they do so with TLS.
	// All nodes do it alike.
	PeerPort uint16
	PeerTLS  bool
	Version  string
	// Services, if not nil, adds further services for the clients of flows.
	Services func(grpc.ServiceRegistrar)
	// Streams is how many streams each listener may have at once, besides those that report nodes;
	// 0 for [DefaultStreams].
	Streams int
	// Stall is how long a client may take nothing of what there is for it; a minute by default.
	Stall time.Duration
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Server serves flows. Make it with New; it is safe for concurrent use.
type Server struct {
	observer.UnimplementedObserverServer
	peer.UnimplementedPeerServer
	cfg Config
}

// New returns a server. It accepts no client until Serve.
func New(cfg Config) (*Server, error) {
	if cfg.Record == nil || cfg.Nodes == nil || cfg.Self.Name == "" {
		return nil, errors.New("flowserver: a record of flows, the table of nodes and the name of this one are needed")
	}
	cfg.Streams = cmp.Or(cfg.Streams, DefaultStreams)
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Server{cfg: cfg}, nil
}

// Serve answers on a listener until ctx ends, and returns nil then. The listener is closed.
// Credentials are nil for a listener that needs none, such as a socket that only root can reach.
func (s *Server) Serve(ctx context.Context, l net.Listener, creds credentials.TransportCredentials) error {
	return Serve(ctx, l, creds, s.cfg.Streams, func(srv Registrar) {
		observer.RegisterObserverServer(srv, s)
		peer.RegisterPeerServer(srv, s)
		if s.cfg.Services != nil {
			s.cfg.Services(srv)
		}
		alive := health.NewServer()
		for _, name := range HealthNames() {
			alive.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
		}
		healthpb.RegisterHealthServer(srv, alive)
	})
}

// HealthNames are the services whose health clients may ask for: existing ones ask for flows by a
// name that is not that of the service.
func HealthNames() []string {
	return []string{observer.Observer_ServiceDesc.ServiceName, "hubble.server.Observer"}
}

// Serve answers on a listener, with what register adds to the server, until ctx ends, and returns
// nil then: with the bounds that every server of flows has for its clients, and with streams at
// once besides those that report nodes. The listener is closed. Credentials may be nil.
func Serve(ctx context.Context, l net.Listener, creds credentials.TransportCredentials, streams int, register func(Registrar)) error {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxRequest), grpc.ForceServerCodecV2(BoundedCodec(maxElements)),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.StreamInterceptor(admission(streams)),
		grpc.MaxConcurrentStreams(uint32(streams + peerStreams + maxCalls)),
		grpc.MaxHeaderListSize(16 << 10), grpc.WaitForHandlers(true),
		// A client that is gone without a word is noticed; one that asks all the time is not
		// served.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	starting := newStartingListener(l)
	defer starting.cancel()
	l = starting
	if creds != nil {
		opts = append(opts, grpc.Creds(pacedCredentials{creds, newPacer(starting.ctx)}))
	}
	if l.Addr().Network() == "unix" {
		l = netutil.LimitListener(l, maxConnections)
	} else {
		l = newListener(l, maxConnections)
	}
	srv := grpc.NewServer(opts...)
	register(Registrar{srv})
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	err := srv.Serve(l)
	if ctx.Err() != nil {
		srv.Stop() // returns when all streams have ended
		return nil
	}
	return err
}

// Registrar is a server that services are added to. A request that cannot be decoded, or has too
// many elements, is answered with InvalidArgument, where gRPC has Internal: it is not the server
// that failed, and clients that try again after internal errors would try in vain.
type Registrar struct{ *grpc.Server }

// RegisterService implements [grpc.ServiceRegistrar].
func (r Registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		d.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
			return m.Handler(srv, ctx, func(req any) error { return decoded(req, decode) }, in)
		}
	}
	r.Server.RegisterService(&d, impl)
}

// decoded has a request decoded, and returns why it could not be.
func decoded(req any, decode func(any) error) error {
	r := &request{into: req}
	if err := decode(r); err != nil {
		return err
	}
	if r.err != nil {
		return invalid("%v", r.err)
	}
	return nil
}

// requestStream is a stream whose requests fail as those of [Registrar] do.
type requestStream struct{ grpc.ServerStream }

// RecvMsg implements [grpc.ServerStream].
func (s requestStream) RecvMsg(m any) error { return decoded(m, s.ServerStream.RecvMsg) }

// admission returns what counts the streams of a listener and refuses those that are too many,
// before their requests are read.
func admission(streams int) grpc.StreamServerInterceptor {
	flows, nodes := newPlaces(streams), newPlaces(peerStreams)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		of := flows
		if info.FullMethod == peer.Peer_Notify_FullMethodName {
			of = nodes
		}
		leave, err := of.enter(clientAddress(stream.Context()))
		if err != nil {
			return err
		}
		defer leave()
		return handle(srv, requestStream{stream})
	}
}

// clientAddress is where a client is, whichever of its ports it uses; invalid for one on this
// machine that uses a unix socket.
func clientAddress(ctx context.Context) netip.Addr {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return hostOf(p.Addr)
}

// places counts the streams of clients. A client gets a further one while it has fewer than are
// left: one alone has at most half of them, and each further one half of the rest, so that a
// client that takes all that it gets leaves some to others. It is safe for concurrent use.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	by    map[netip.Addr]int
}

func newPlaces(most int) *places { return &places{most: most, by: map[netip.Addr]int{}} }

// enter takes a place for a client, which leave gives back. Clients of a unix socket, which only
// root and its group reach, have no shares.
func (p *places) enter(client netip.Addr) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch own := p.by[client]; {
	case p.taken >= p.most:
		return nil, status.Errorf(codes.ResourceExhausted, "%d clients are being served, as many as are served at once; end some of them", p.most)
	case client.IsValid() && own >= p.most-p.taken:
		return nil, status.Errorf(codes.ResourceExhausted,
			"%d clients at %s are being served, and the %d places left are for clients at other addresses; end some of them", own, client, p.most-p.taken)
	}
	p.taken++
	p.by[client]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.by[client]--; p.by[client] == 0 {
			delete(p.by, client)
		}
	}, nil
}

// nodeName is cluster/node.
func (s *Server) nodeName() string { return s.cfg.Self.String() }

// ServerStatus implements [observer.ObserverServer].
func (s *Server) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	oldest, next := s.cfg.Record.Flows.Bounds()
	seen, since := s.cfg.Record.Seen()
	return &observer.ServerStatusResponse{
		NumFlows: next - oldest, MaxFlows: uint64(s.cfg.Record.Flows.Cap()), SeenFlows: seen,
		UptimeNs: uint64(time.Since(since)), Version: s.cfg.Version, FlowsRate: s.cfg.Record.Rate(time.Now()),
	}, nil
}

// GetNodes implements [observer.ObserverServer]: a node knows of its own flows only.
func (s *Server) GetNodes(ctx context.Context, _ *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	st, err := s.ServerStatus(ctx, nil)
	if err != nil {
		return nil, err
	}
	n := &observer.Node{
		Name: s.nodeName(), Version: st.Version, State: relay.NodeState_NODE_CONNECTED, Tls: &observer.TLS{Enabled: s.cfg.PeerTLS},
		UptimeNs: st.UptimeNs, NumFlows: st.NumFlows, MaxFlows: st.MaxFlows, SeenFlows: st.SeenFlows,
	}
	if s.cfg.PeerTLS {
		n.Tls.ServerName = ServerName(s.cfg.Self)
	}
	if self, ok := s.cfg.Nodes.Get(s.cfg.Self); ok {
		n.Address, _ = s.address(self)
	}
	return &observer.GetNodesResponse{Nodes: []*observer.Node{n}}, nil
}

// GetNamespaces implements [observer.ObserverServer].
func (s *Server) GetNamespaces(context.Context, *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error) {
	out := &observer.GetNamespacesResponse{}
	for _, ns := range s.cfg.Record.Namespaces(time.Now()) {
		out.Namespaces = append(out.Namespaces, &observer.Namespace{Cluster: s.cfg.Self.Cluster, Namespace: ns})
	}
	return out, nil
}

// invalid is the error of an invalid request.
func invalid(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
}
