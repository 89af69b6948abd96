package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// testTimeout is how long something may take on a busy machine.
const testTimeout = time.Minute

// gate blocks the connections of a server as if its process were frozen: they stand, and nothing
// is read or written.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while it is open
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
}

func (g *gate) wait(closed <-chan struct{}) error {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-closed:
		return net.ErrClosed
	}
}

type gatedListener struct {
	net.Listener
	gate *gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	closed := make(chan struct{})
	return &gatedConn{c, l.gate, closed, sync.OnceFunc(func() { close(closed) })}, nil
}

type gatedConn struct {
	net.Conn
	gate   *gate
	closed chan struct{}
	end    func()
}

func (c *gatedConn) Read(b []byte) (int, error) {
	if err := c.gate.wait(c.closed); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if err := c.gate.wait(c.closed); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *gatedConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// stand is a cluster of servers of flows, as agents have them, and a relay.
type stand struct {
	t     *testing.T
	table *table.Table[node.Key, node.Node]
	nodes []*testNode
	relay *Relay
	path  string // of the relay's socket
	end   func() // ends the relay; it may be called again
}

// testNode is a node with what it remembers.
type testNode struct {
	key     node.Key
	record  *flows.Record
	server  *flowserver.Server
	address string
	gate    *gate
	end     func()
	creds   credentials.TransportCredentials
	added   int

	statuses []clusterhealth.Status // what it finds of others
	policies nodePolicies
}

func (n *testNode) name() string { return n.key.String() }

// newStand starts nodes n1, n2... and a relay that gets their list from n1's socket. change may
// change the relay's configuration, and tls the nodes': it returns the credentials of each.
func newStand(t *testing.T, count int, change func(*Config), tls func(node.Key) credentials.TransportCredentials) *stand {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		for deadline := time.Now().Add(testTimeout); ; {
			err := goleak.Find(before) // it waits a little itself
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
	dir := shortDir(t)
	s := &stand{t: t, table: table.New[node.Key](node.Node.Equal), path: filepath.Join(dir, "relay")}
	// All nodes have the same port, and addresses of their own.
	first, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.1:0", 1+rand.N(250), 1+rand.N(250)))
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddrPort(first.Addr().String())
	addr := own.Addr()
	for i := range count {
		n := &testNode{key: node.Key{Cluster: "prod", Name: fmt.Sprintf("n%d", i+1)}, address: netip.AddrPortFrom(addr, own.Port()).String(), gate: newGate()}
		if n.record, err = flows.NewRecord(256, time.Now()); err != nil {
			t.Fatal(err)
		}
		n.server, err = flowserver.New(flowserver.Config{
			Services: func(r grpc.ServiceRegistrar) {
				if i%8 == 7 { // one of them is of a version that does not report it
					return
				}
				policypb.RegisterPolicyServer(r, &n.policies)
				health.RegisterNodeHealthServer(r, &clusterhealth.Service{Self: n.name(), Statuses: func() ([]clusterhealth.Status, time.Duration) { return n.statuses, time.Minute }})
			},
			Record: n.record, Nodes: s.table, Self: n.key, PeerPort: own.Port(), PeerTLS: tls != nil, Version: "v1",
		})
		if err != nil {
			t.Fatal(err)
		}
		if tls != nil {
			n.creds = tls(n.key)
		}
		s.nodes = append(s.nodes, n)
		s.table.Upsert(n.key, node.Node{Cluster: "prod", Name: n.key.Name, Addresses: []node.Address{{Type: node.InternalIP, IP: addr}}})
		if i == 0 {
			s.serveOn(n, first)
		} else {
			s.serve(n)
		}
		addr = addr.Next()
	}
	if count == 0 {
		first.Close()
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "n1"))
	if err != nil {
		t.Fatal(err)
	}
	if count > 0 {
		s.nodes[0].end = both(s.nodes[0].end, s.run(func(ctx context.Context) error { return s.nodes[0].server.Serve(ctx, socket, nil) }))
	} else {
		socket.Close()
	}
	cfg := Defaults()
	cfg.ListenAddress, cfg.HealthAddress, cfg.PeerService = "unix://"+s.path, "", "unix://"+filepath.Join(dir, "n1")
	cfg.NoClientTLS = tls == nil
	cfg.RetryTimeout, cfg.ErrorWindow, cfg.probe, cfg.relist = 200*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond, time.Hour
	cfg.DialTimeout, cfg.SortDrain = 20*time.Second, 200*time.Millisecond
	if change != nil {
		change(&cfg)
	}
	if s.relay, err = New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)), "test"); err != nil {
		t.Fatal(err)
	}
	s.end = s.run(s.relay.Run)
	return s
}

// shortDir returns a directory for sockets, for which that of the test may have too long a name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// dialAgent serves an agent on a socket until the test ends, and returns a connection to it.
func dialAgent(t *testing.T, agent observer.ObserverServer) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	observer.RegisterObserverServer(srv, agent)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func both(a, b func()) func() { return func() { a(); b() } }

// run runs until the test ends, or end is called.
func (s *stand) run(f func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(end)
	return end
}

// serve starts a node, again if it has ended.
func (s *stand) serve(n *testNode) {
	s.t.Helper()
	var l net.Listener
	controllers.Eventually(s.t, testTimeout, func() string {
		var err error
		if l, err = net.Listen("tcp", n.address); err != nil {
			return err.Error()
		}
		return ""
	})
	s.serveOn(n, l)
}

func (s *stand) serveOn(n *testNode, l net.Listener) {
	n.end = s.run(func(ctx context.Context) error { return n.server.Serve(ctx, gatedListener{l, n.gate}, n.creds) })
}

// connected waits until the relay is connected to so many nodes.
func (s *stand) connected(want int) {
	s.t.Helper()
	controllers.Eventually(s.t, testTimeout, func() string {
		res, err := s.relay.ServerStatus(context.Background(), nil)
		if err != nil || int(res.GetNumConnectedNodes().GetValue()) != want {
			return fmt.Sprintf("%v nodes, want %d (%v)", res, want, err)
		}
		return ""
	})
}

// listening waits until clients can reach the relay: a request that comes before fails.
func (s *stand) listening() {
	s.t.Helper()
	controllers.Eventually(s.t, testTimeout, func() string {
		c, err := net.Dial("unix", s.path)
		if err != nil {
			return err.Error()
		}
		c.Close()
		return ""
	})
}

func (s *stand) client() observer.ObserverClient {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return observer.NewObserverClient(conn)
}

// add adds a flow of that time, with the node and a number as its name: n1/0, n1/1...
func (n *testNode) add(at time.Time) (id string) {
	id = fmt.Sprintf("%s/%d", n.key.Name, n.added)
	n.added++
	n.record.Add(&flow.Flow{Uuid: id, Time: timestamppb.New(at), NodeName: n.name(), Source: &flow.Endpoint{Namespace: "shop-" + n.key.Name}},
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), time.Now())
	return id
}

// stream follows or searches.
type stream struct {
	t   testing.TB
	c   observer.Observer_GetFlowsClient
	end func()
}

func (s *stand) get(req *observer.GetFlowsRequest) *stream {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*testTimeout)
	s.t.Cleanup(cancel)
	c, err := s.client().GetFlows(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	return &stream{s.t, c, cancel}
}

// all reads to the end: the flows, and the states of nodes.
func (s *stream) all() (ids []string, states []string, err error) {
	s.t.Helper()
	for {
		res, err := s.c.Recv()
		if errors.Is(err, io.EOF) {
			return ids, states, nil
		}
		if err != nil {
			return ids, states, err
		}
		switch {
		case res.GetFlow() != nil:
			ids = append(ids, res.GetFlow().GetUuid())
		case res.GetNodeStatus() != nil:
			states = append(states, statusText(res.GetNodeStatus()))
		}
	}
}

// flows reads that many flows.
func (s *stream) flows(n int) (ids []string) {
	s.t.Helper()
	for len(ids) < n {
		res, err := s.c.Recv()
		if err != nil {
			s.t.Fatalf("after %v: %v", ids, err)
		}
		if res.GetFlow() != nil {
			ids = append(ids, res.GetFlow().GetUuid())
		}
	}
	return ids
}

// reaches waits until what a node records comes, and reads all of it: a node may be reported
// as connected before it has received the request.
func (s *stream) reaches(n *testNode) {
	s.t.Helper()
	stop, done := make(chan struct{}), make(chan string)
	go func() {
		for {
			last := n.add(time.Now())
			select {
			case <-stop:
				done <- last
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	got := s.flows(1)
	close(stop)
	for last := <-done; got[0] != last; {
		got = s.flows(1)
	}
}

// state reads until a state of a node arrives.
func (s *stream) state(node string, state relay.NodeState) (message string) {
	s.t.Helper()
	for {
		res, err := s.c.Recv()
		if err != nil {
			s.t.Fatalf("%s was not reported as %v: %v", node, state, err)
		}
		if st := res.GetNodeStatus(); st.GetStateChange() == state {
			for _, name := range st.GetNodeNames() {
				if name == node {
					return st.GetMessage()
				}
			}
		}
	}
}

func statusText(st *relay.NodeStatusEvent) string {
	return st.GetStateChange().String() + " " + strings.Join(st.GetNodeNames(), ",") + " " + st.GetMessage()
}
