package flowserver_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// testTimeout is how long something may take on a busy machine.
const testTimeout = time.Minute

// stand is a server with what it serves.
type stand struct {
	t      testing.TB
	record *flows.Record
	nodes  *table.Table[node.Key, node.Node]
	srv    *flowserver.Server
	path   string
	conn   *grpc.ClientConn // of get
	count  int
	end    func() // ends what serves the socket; it may be called again
}

func newStand(t testing.TB, capacity int, change func(*flowserver.Config)) *stand {
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
	record, err := flows.NewRecord(capacity, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nodes := table.New[node.Key](node.Node.Equal)
	cfg := flowserver.Config{Record: record, Nodes: nodes, Self: node.Key{Cluster: "prod", Name: "n1.example"}, PeerPort: 4244, Version: "v1"}
	if change != nil {
		change(&cfg)
	}
	srv, err := flowserver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hawser-flows") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &stand{t: t, record: record, nodes: nodes, srv: srv, path: filepath.Join(dir, "s")}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	s.end = s.serve(l, nil)
	return s
}

// serve serves until the test ends, or end is called.
func (s *stand) serve(l net.Listener, creds credentials.TransportCredentials) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.srv.Serve(ctx, l, creds) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(end)
	return end
}

func (s *stand) dial() *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// base is the time of the first flow; each is a second after the one before.
var base = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// add adds flows; every third was dropped.
func (s *stand) add(n int) {
	for range n {
		f := &flow.Flow{
			Time: timestamppb.New(base.Add(time.Duration(s.count) * time.Second)), Uuid: fmt.Sprint(s.count), NodeName: "prod/n1.example",
			Verdict: flow.Verdict_FORWARDED, Source: &flow.Endpoint{Namespace: "shop", PodName: "front"},
		}
		if s.count%3 == 0 {
			f.Verdict = flow.Verdict_DROPPED
		}
		s.record.Add(f, netip.Addr{}, netip.Addr{}, time.Now())
		s.count++
	}
}

// get reads a whole answer: the numbers of the flows, and how many were lost.
func (s *stand) get(req *observer.GetFlowsRequest) (ids []string, lost uint64, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), testTimeout)
	defer cancel()
	if s.conn == nil {
		s.conn = s.dial()
	}
	stream, err := observer.NewObserverClient(s.conn).GetFlows(ctx, req)
	if err != nil {
		return nil, 0, err
	}
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ids, lost, nil
		}
		if err != nil {
			return ids, lost, err
		}
		if f := res.GetFlow(); f != nil {
			if res.GetNodeName() != "prod/n1.example" || !res.GetTime().AsTime().Equal(f.GetTime().AsTime()) {
				s.t.Errorf("an answer without its node or time: %v", res)
			}
			ids = append(ids, f.GetUuid())
		}
		lost += res.GetLostEvents().GetNumEventsLost()
	}
}

func TestGetFlows(t *testing.T) {
	s := newStand(t, 8, nil)
	s.add(12) // 4 to 11 are left, and two older ones
	at := func(n int) *timestamppb.Timestamp {
		return timestamppb.New(base.Add(time.Duration(n) * time.Second))
	}
	dropped := []*flow.FlowFilter{{Verdict: []flow.Verdict{flow.Verdict_DROPPED}}}
	for _, row := range []struct {
		req  *observer.GetFlowsRequest
		want string
	}{
		{&observer.GetFlowsRequest{}, "2 3 4 5 6 7 8 9 10 11"},
		{&observer.GetFlowsRequest{Number: 3}, "9 10 11"},
		{&observer.GetFlowsRequest{Number: 100}, "2 3 4 5 6 7 8 9 10 11"},
		{&observer.GetFlowsRequest{Number: 3, First: true}, "2 3 4"},
		{&observer.GetFlowsRequest{Since: at(7)}, "7 8 9 10 11"},
		{&observer.GetFlowsRequest{Since: at(7), Until: at(9)}, "7 8 9"},
		{&observer.GetFlowsRequest{Since: at(7), Number: 2}, "10 11"},
		{&observer.GetFlowsRequest{Since: at(10), Number: 5}, "10 11"},
		{&observer.GetFlowsRequest{Since: at(6), Number: 2, First: true}, "6 7"},
		{&observer.GetFlowsRequest{Until: at(8), Number: 2}, "7 8"},
		{&observer.GetFlowsRequest{Whitelist: dropped}, "3 6 9"},
		{&observer.GetFlowsRequest{Whitelist: dropped, Number: 1}, "9"},
		{&observer.GetFlowsRequest{Blacklist: dropped, Number: 2}, "10 11"},
		{&observer.GetFlowsRequest{Follow: true, Since: at(10), Until: at(11)}, "10 11"},
	} {
		ids, lost, err := s.get(row.req)
		if got := strings.Join(ids, " "); got != row.want || lost != 0 || err != nil {
			t.Errorf("%v: %s, %d lost, %v; want %s", row.req, got, lost, err, row.want)
		}
	}
}

// TestFloodLeavesThePastOfOthers: who sends more than the node remembers erases what it did itself.
// What others did before is there still, in its place, and how much is missing between is reported.
func TestFloodLeavesThePastOfOthers(t *testing.T) {
	s := newStand(t, 64, nil)
	add := func(who uint32, from, to int) {
		for at := from; at < to; at++ {
			s.record.Add(&flow.Flow{
				Time: timestamppb.New(base.Add(time.Duration(at) * time.Second)), Uuid: fmt.Sprint(at), NodeName: "prod/n1.example",
				Source: &flow.Endpoint{Identity: who}, Interface: &flow.NetworkInterface{Index: who},
			}, netip.Addr{}, netip.Addr{}, time.Now())
		}
	}
	at := func(n int) *timestamppb.Timestamp {
		return timestamppb.New(base.Add(time.Duration(n) * time.Second))
	}
	const quiet, other = 1, 2
	add(other, 0, 1)
	add(quiet, 1, 4)
	for flooder := range uint32(4) {
		add(100+flooder, 10+1000*int(flooder), 10+1000*int(flooder+1))
	}
	add(other, 7000, 7001)
	of := func(who ...uint32) []*flow.FlowFilter { return []*flow.FlowFilter{{SourceIdentity: who}} }
	for _, row := range []struct {
		req  *observer.GetFlowsRequest
		want string
		gap  bool
	}{
		{&observer.GetFlowsRequest{Whitelist: of(quiet)}, "1 2 3", true},
		{&observer.GetFlowsRequest{Whitelist: of(quiet), Number: 20}, "1 2 3", true},
		{&observer.GetFlowsRequest{Whitelist: of(quiet), Number: 2}, "2 3", true},
		{&observer.GetFlowsRequest{Whitelist: of(quiet, other), Number: 2}, "3 7000", true},
		{&observer.GetFlowsRequest{Whitelist: of(other), Number: 1}, "7000", false},
		{&observer.GetFlowsRequest{Whitelist: of(other)}, "0 7000", true},
		{&observer.GetFlowsRequest{Number: 3, First: true}, "0 1 2", false},
		{&observer.GetFlowsRequest{Until: at(3)}, "0 1 2 3", true},
		{&observer.GetFlowsRequest{Since: at(2), Until: at(2)}, "2", false},
		{&observer.GetFlowsRequest{Since: at(3), Whitelist: of(quiet, other), Follow: true, Until: at(7000)}, "3 7000", true},
	} {
		ids, lost, err := s.get(row.req)
		if got := strings.Join(ids, " "); got != row.want || (lost > 0) != row.gap || err != nil {
			t.Errorf("%v: %s, %d lost, %v; want %s", row.req, got, lost, err, row.want)
		}
	}
	// Together they are all that there were.
	if ids, lost, err := s.get(&observer.GetFlowsRequest{}); len(ids)+int(lost) != 4005 || err != nil {
		t.Errorf("%d flows and %d lost, %v; want 4005 together", len(ids), lost, err)
	}
}

// TestLossesEndNothing: that events were lost has a time of its own, and flows come nearly in the
// order of their times. Neither cuts off what else is asked for.
func TestLossesEndNothing(t *testing.T) {
	s := newStand(t, 64, nil)
	at := func(n int) *timestamppb.Timestamp {
		return timestamppb.New(base.Add(time.Duration(n) * time.Second))
	}
	lose := func(n uint64, second int) {
		s.record.Lose(flow.LostEventSource_PERF_EVENT_RING_BUFFER, n, at(second).AsTime())
	}
	s.add(3) // 0 to 2
	lose(1, 100)
	s.add(3) // 3 to 5
	lose(10, -100)
	s.add(1) // 6
	swapped := s.count
	s.count = 20
	s.add(1)
	s.count = swapped
	s.add(1) // 7, behind a later one
	lose(100, 7)
	for _, row := range []struct {
		req  *observer.GetFlowsRequest
		want string
		lost uint64
	}{
		{&observer.GetFlowsRequest{}, "0 1 2 3 4 5 6 20 7", 111},
		{&observer.GetFlowsRequest{Until: at(5)}, "0 1 2 3 4 5", 10},
		{&observer.GetFlowsRequest{Until: at(7)}, "0 1 2 3 4 5 6 7", 110},
		{&observer.GetFlowsRequest{Until: at(5), Number: 4}, "2 3 4 5", 10},
		{&observer.GetFlowsRequest{Since: at(1)}, "1 2 3 4 5 6 20 7", 101},
		{&observer.GetFlowsRequest{Since: at(1), Number: 7}, "2 3 4 5 6 20 7", 101},
		{&observer.GetFlowsRequest{Since: at(10), Number: 7}, "20", 1},
		{&observer.GetFlowsRequest{Since: at(1), Until: at(7), Number: 3, First: true}, "1 2 3", 0},
		{&observer.GetFlowsRequest{Since: at(1), Until: at(6), Follow: true}, "1 2 3 4 5 6", 0},
	} {
		ids, lost, err := s.get(row.req)
		if got := strings.Join(ids, " "); got != row.want || lost != row.lost || err != nil {
			t.Errorf("%v: %s, %d lost, %v; want %s, %d", row.req, got, lost, err, row.want, row.lost)
		}
	}
}

// TestCostlyRequestEndsWithItsClient: a search that takes long because of its filter ends when the
// client is gone and when the server ends, and so holds up neither the next nor the shutdown.
func TestCostlyRequestEndsWithItsClient(t *testing.T) {
	var searching atomic.Int64
	s := newStand(t, flows.MaxCapacity, func(c *flowserver.Config) {
		c.Follow = func() func() { searching.Add(1); return func() { searching.Add(-1) } }
	})
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("k8s:label-%d=value", i))
	}
	// The ring has one flow as often as it has room.
	f := &flow.Flow{Time: timestamppb.New(base), NodeName: "prod/n1.example", Source: &flow.Endpoint{Labels: many}}
	for range flows.MaxCapacity {
		s.record.Add(f, netip.Addr{}, netip.Addr{}, base)
	}
	selectors := make([]string, flows.MaxValues)
	for i := range selectors {
		selectors[i] = fmt.Sprintf("absent-%d=x", i)
	}
	costly := []*flow.FlowFilter{{SourceLabel: selectors}}
	until := func(n int64) {
		t.Helper()
		controllers.Eventually(t, testTimeout, func() string {
			if got := searching.Load(); got != n {
				return fmt.Sprintf("%d search, want %d", got, n)
			}
			return ""
		})
	}
	busy := func(req *observer.GetFlowsRequest) context.CancelFunc {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := observer.NewObserverClient(s.dial()).GetFlows(ctx, req); err != nil {
			t.Fatal(err)
		}
		until(1)
		return cancel
	}
	for _, req := range []*observer.GetFlowsRequest{
		{Follow: true, Whitelist: costly, Number: 1}, {Follow: true, Whitelist: costly, Since: timestamppb.New(base)},
	} {
		busy(req)()
		until(0)
	}
	began := time.Now()
	defer busy(&observer.GetFlowsRequest{Follow: true, Whitelist: costly, Number: 1})()
	s.end()
	if took := time.Since(began); took > 2*testTimeout {
		t.Errorf("the server ended after %v", took)
	}
}

func TestInvalidRequests(t *testing.T) {
	s := newStand(t, 8, nil)
	for name, req := range map[string]*observer.GetFlowsRequest{
		"http_path": {Whitelist: []*flow.FlowFilter{{HttpPath: []string{"(((("}}}},
		"node_name": {Blacklist: []*flow.FlowFilter{{NodeName: []string{"a(b|c)*"}}}},
		"first":     {First: true, Follow: true, Number: 1},
		"number":    {First: true},
		"since":     {Since: &timestamppb.Timestamp{Nanos: -1}},
		"until":     {Since: timestamppb.New(base), Until: timestamppb.New(base.Add(-1))},
	} {
		_, _, err := s.get(req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	huge := &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{SourcePod: []string{strings.Repeat("x", 1<<20)}}}}
	if _, _, err := s.get(huge); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of a megabyte: %v", err)
	}
	debug, err := observer.NewObserverClient(s.dial()).GetDebugEvents(t.Context(), &observer.GetDebugEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := debug.Recv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("messages for developers: %v", err)
	}
}

// TestFollow: a reader that follows gets what was asked of the past, then everything that comes,
// once and in order.
func TestFollow(t *testing.T) {
	var following atomic.Int64
	s := newStand(t, 4096, func(c *flowserver.Config) {
		c.Follow = func() func() { following.Add(1); return func() { following.Add(-1) } }
	})
	s.add(10)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := observer.NewObserverClient(s.dial()).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 2})
	if err != nil {
		t.Fatal(err)
	}
	next := 8
	read := func(n int) {
		t.Helper()
		for range n {
			res, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := res.GetFlow().GetUuid(); got != fmt.Sprint(next) {
				t.Fatalf("%s instead of %d", got, next)
			}
			next++
		}
	}
	read(2)
	for range 100 {
		s.add(30)
		read(30)
	}
	if n := following.Load(); n != 1 {
		t.Errorf("%d follow", n)
	}
	cancel()
	for deadline := time.Now().Add(testTimeout); following.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("whoever is gone follows still")
		}
	}
}

// TestSlowClientAffectsNoOther: a client that stops reading holds up neither the writer nor others,
// learns what it missed if it goes on, and is disconnected after a while if it does not.
func TestSlowClientAffectsNoOther(t *testing.T) {
	s := newStand(t, 64, func(c *flowserver.Config) { c.Stall, c.Streams = 10*time.Second, 2 })
	client := observer.NewObserverClient(s.dial())
	idle, err := client.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true, Since: timestamppb.New(base)})
	if err != nil {
		t.Fatal(err)
	}
	late, err := client.GetFlows(t.Context(), &observer.GetFlowsRequest{Follow: true, Since: timestamppb.New(base)})
	if err != nil {
		t.Fatal(err)
	}
	s.add(1)
	for _, stream := range []observer.Observer_GetFlowsClient{idle, late} {
		if _, err := stream.Recv(); err != nil { // both follow
			t.Fatal(err)
		}
	}
	// Far more than fits between a server and a client that does not read.
	began := time.Now()
	s.add(20000)
	if took := time.Since(began); took > testTimeout {
		t.Errorf("the writer took %v", took)
	}
	seen, missed := 1, uint64(0)
	for seen+int(missed) < s.count {
		res, err := late.Recv()
		if err != nil {
			t.Fatalf("after %d flows and %d lost: %v", seen, missed, err)
		}
		if l := res.GetLostEvents(); l != nil {
			missed += l.GetNumEventsLost()
		} else {
			seen++
		}
	}
	if missed == 0 {
		t.Error("nothing was lost: the test shows nothing")
	}
	// The idle one is ended by the server, which frees its place.
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Millisecond) {
		s.add(100) // until nothing fits any more between the two
		if _, _, err := s.get(&observer.GetFlowsRequest{Number: 1}); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("whoever reads nothing keeps its place: %v", err)
		}
	}
	for {
		if _, err := idle.Recv(); err != nil {
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("the stream ended with %v", err)
			}
			return
		}
	}
}

// TestThousandsOfFollowers: as many follow as may; the others are refused at once and with a
// reason, and when one ends another may.
func TestThousandsOfFollowers(t *testing.T) {
	const may, want = 200, 3000
	s := newStand(t, 64, func(c *flowserver.Config) { c.Streams = may })
	s.add(1)
	var conns []observer.ObserverClient
	for range 5 { // as many streams as may be on one connection, and more
		conns = append(conns, observer.NewObserverClient(s.dial()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var served, refused atomic.Int64
	var all sync.WaitGroup
	var mu sync.Mutex
	ends := []context.CancelFunc{}
	for i := range want {
		all.Go(func() {
			// No client that is served may end before all have asked.
			ctx, end := context.WithTimeout(ctx, 5*testTimeout)
			stream, err := conns[i%len(conns)].GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 1})
			if err == nil {
				_, err = stream.Recv()
			}
			switch {
			case err == nil:
				served.Add(1)
				mu.Lock()
				ends = append(ends, end)
				mu.Unlock()
				return
			case status.Code(err) == codes.ResourceExhausted:
				refused.Add(1)
			default:
				t.Error(err)
			}
			end()
		})
	}
	all.Wait()
	if served.Load() != may || refused.Load() != want-may {
		t.Errorf("%d were served and %d refused of %d; %d may be served", served.Load(), refused.Load(), want, may)
	}
	for _, end := range ends {
		end()
	}
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		if _, _, err := s.get(&observer.GetFlowsRequest{}); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("no client is served when all others are gone: %v", err)
		}
	}
}

// TestListenersShareNoLimits: clients that have all streams of one listener keep no client from the
// other, and no relay from the nodes.
func TestListenersShareNoLimits(t *testing.T) {
	s := newStand(t, 8, func(c *flowserver.Config) { c.Streams = 1 })
	s.add(1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.serve(l, nil)
	other, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, conn := range []*grpc.ClientConn{s.dial(), other} {
		stream, err := observer.NewObserverClient(conn).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Errorf("at %s: %v", conn.Target(), err)
		}
	}
	if _, _, err := s.get(&observer.GetFlowsRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream too many: %v", err)
	}
	s.nodes.Upsert(node.Key{Cluster: "prod", Name: "n2"}, node.Node{
		Cluster: "prod", Name: "n2", Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr("192.0.2.2")}},
	})
	nodes, err := peer.NewPeerClient(s.dial()).Notify(ctx, &peer.NotifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := nodes.Recv(); err != nil || n.GetName() != "prod/n2" {
		t.Errorf("nodes when all streams are taken: %v, %v", n, err)
	}
	if _, err := observer.NewObserverClient(s.dial()).ServerStatus(ctx, &observer.ServerStatusRequest{}); err != nil {
		t.Errorf("the status when all streams are taken: %v", err)
	}
}

// TestHealth: the server answers health checks of clients.
func TestHealth(t *testing.T) {
	s := newStand(t, 8, nil)
	for _, service := range []string{"", "observer.Observer", "hubble.server.Observer"} {
		res, err := healthpb.NewHealthClient(s.dial()).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, res, err)
		}
	}
}

func TestStatus(t *testing.T) {
	s := newStand(t, 8, nil)
	s.add(12)
	client := observer.NewObserverClient(s.dial())
	st, err := client.ServerStatus(t.Context(), &observer.ServerStatusRequest{})
	if err != nil || st.GetNumFlows() != 8 || st.GetMaxFlows() != 8 || st.GetSeenFlows() != 12 || st.GetUptimeNs() == 0 || st.GetVersion() != "v1" || st.GetFlowsRate() <= 0 {
		t.Errorf("%v, %v", st, err)
	}
	ns, err := client.GetNamespaces(t.Context(), &observer.GetNamespacesRequest{})
	if err != nil || len(ns.GetNamespaces()) != 1 || ns.GetNamespaces()[0].GetNamespace() != "shop" || ns.GetNamespaces()[0].GetCluster() != "prod" {
		t.Errorf("%v, %v", ns, err)
	}
	nodes, err := client.GetNodes(t.Context(), &observer.GetNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetName() != "prod/n1.example" || nodes.GetNodes()[0].GetSeenFlows() != 12 {
		t.Errorf("%v, %v", nodes, err)
	}
	s.record.AddEvent(flows.Event{Time: base, Event: &flow.AgentEvent{Type: flow.AgentEventType_POLICY_DELETED}})
	events, err := client.GetAgentEvents(t.Context(), &observer.GetAgentEventsRequest{Number: 5})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := events.Recv(); err != nil || res.GetAgentEvent().GetType() != flow.AgentEventType_POLICY_DELETED {
		t.Errorf("%v, %v", res, err)
	}
	if _, err := events.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last event: %v", err)
	}
}

// TestTypesOfEvents: a client gets the types of events that it asks for; those of policies are
// there however many others came after them.
func TestTypesOfEvents(t *testing.T) {
	s := newStand(t, 8, nil)
	add := func(kind flow.AgentEventType, i int) {
		s.record.AddEvent(flows.Event{Time: base.Add(time.Duration(i) * time.Second), Event: &flow.AgentEvent{Type: kind}})
	}
	add(flow.AgentEventType_POLICY_UPDATED, 0)
	for i := range s.record.Events.Cap() {
		add(flow.AgentEventType_IPCACHE_UPSERTED, i)
	}
	add(flow.AgentEventType_SERVICE_DELETED, 9000)
	client := observer.NewObserverClient(s.dial())
	get := func(number uint64, types ...flow.AgentEventType) (got []string, err error) {
		stream, err := client.GetAgentEvents(t.Context(), &observer.GetAgentEventsRequest{Number: number, Types: types})
		for err == nil {
			var res *observer.GetAgentEventsResponse
			if res, err = stream.Recv(); err == nil {
				got = append(got, res.GetAgentEvent().GetType().String())
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return got, err
	}
	for _, tt := range []struct {
		number uint64
		types  []flow.AgentEventType
		want   []string
	}{
		{1, nil, []string{"SERVICE_DELETED"}},
		{9, []flow.AgentEventType{flow.AgentEventType_POLICY_DELETED, flow.AgentEventType_POLICY_UPDATED}, []string{"POLICY_UPDATED"}},
		{9, []flow.AgentEventType{flow.AgentEventType_POLICY_DELETED}, nil},
		{2, []flow.AgentEventType{flow.AgentEventType_SERVICE_DELETED, flow.AgentEventType_IPCACHE_UPSERTED}, []string{"IPCACHE_UPSERTED", "SERVICE_DELETED"}},
		{0, []flow.AgentEventType{4711}, nil},
	} {
		if got, err := get(tt.number, tt.types...); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("the last %d of %v: %v, %v, want %v", tt.number, tt.types, got, err, tt.want)
		}
	}
	if _, err := get(0, make([]flow.AgentEventType, 65)...); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many types: %v", err)
	}
}

func TestPeers(t *testing.T) {
	s := newStand(t, 8, func(c *flowserver.Config) { c.PeerTLS = true })
	put := func(cluster, name string, addrs ...string) {
		n := node.Node{Cluster: cluster, Name: name}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, node.Address{Type: node.InternalIP, IP: netip.MustParseAddr(a)})
		}
		s.nodes.Upsert(n.Key(), n)
	}
	put("prod", "n1.example", "192.0.2.1", "2001:db8::1")
	put("other", "n9", "192.0.2.9") // another cluster's
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	stream, err := peer.NewPeerClient(s.dial()).Notify(ctx, &peer.NotifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(kind peer.ChangeNotificationType, name, address, server string) {
		t.Helper()
		n, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if n.GetType() != kind || n.GetName() != name || n.GetAddress() != address || n.GetTls().GetServerName() != server {
			t.Errorf("%v, want %v %s %s", n, kind, name, address)
		}
	}
	expect(peer.ChangeNotificationType_PEER_ADDED, "prod/n1.example", "192.0.2.1:4244", "n1-example.prod.hubble-grpc.cilium.io")
	put("prod", "n2", "2001:db8::2")
	expect(peer.ChangeNotificationType_PEER_ADDED, "prod/n2", "[2001:db8::2]:4244", "n2.prod.hubble-grpc.cilium.io")
	put("prod", "n2", "2001:db8::3")
	expect(peer.ChangeNotificationType_PEER_UPDATED, "prod/n2", "[2001:db8::3]:4244", "n2.prod.hubble-grpc.cilium.io")
	s.nodes.Delete(node.Key{Cluster: "prod", Name: "n2"})
	expect(peer.ChangeNotificationType_PEER_DELETED, "prod/n2", "[2001:db8::3]:4244", "n2.prod.hubble-grpc.cilium.io")
}

// TestPeersUntilSynced: a server that does not know all nodes yet lists none, rather than some as
// if they were all, and lists them once it does.
func TestPeersUntilSynced(t *testing.T) {
	t.Parallel()
	synced := make(chan struct{})
	s := newStand(t, 8, func(c *flowserver.Config) {
		c.WaitSynced = func(ctx context.Context) error {
			select {
			case <-synced:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	put := func(name, addr string) {
		n := node.Node{Cluster: "prod", Name: name, Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr(addr)}}}
		s.nodes.Upsert(n.Key(), n)
	}
	put("n1.example", "192.0.2.1")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	client := peer.NewPeerClient(s.dial())
	first := func() (*peer.ChangeNotification, error) {
		stream, err := client.Notify(ctx, &peer.NotifyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return stream.Recv()
	}
	if n, err := first(); status.Code(err) != codes.Unavailable {
		t.Errorf("a list of some nodes: %v, %v", n, err)
	}
	put("n2", "192.0.2.2")
	close(synced)
	if n, err := first(); err != nil || n.GetType() != peer.ChangeNotificationType_PEER_ADDED {
		t.Errorf("%v, %v", n, err)
	}
}

// TestOnlyKnownClientsAreServed: on TCP a client needs a certificate of an authority that the
// server knows.
func TestOnlyKnownClientsAreServed(t *testing.T) {
	s := newStand(t, 8, nil)
	s.add(3)
	dir := t.TempDir()
	ours, others := kvstoretest.NewAuthority(t), kvstoretest.NewAuthority(t)
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const name = "n1-example.prod.hubble-grpc.cilium.io"
	cert, key := ours.Issue(t, name)
	files := flowserver.TLSFiles{Cert: write("crt", cert), Key: write("key", key), ClientCAs: []string{write("ca", ours.PEM())}}
	for _, bad := range []flowserver.TLSFiles{{}, {Cert: files.Cert, Key: files.Key}, {Cert: files.Cert, Key: files.Key, ClientCAs: []string{files.Key}}} {
		if _, err := bad.Config(); err == nil {
			t.Errorf("%+v serves whoever comes", bad)
		}
	}
	cfg, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.serve(l, credentials.NewTLS(cfg))
	ask := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		_, err = observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.PEM())
	client := func(a *kvstoretest.Authority) credentials.TransportCredentials {
		c := &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13}
		if a != nil {
			cert, key := a.Issue(t, "relay", x509.ExtKeyUsageClientAuth)
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		return credentials.NewTLS(c)
	}
	if err := ask(client(&ours)); err != nil {
		t.Errorf("a client with a certificate: %v", err)
	}
	for who, creds := range map[string]credentials.TransportCredentials{
		"without a certificate": client(nil), "of another authority": client(&others), "without TLS": insecure.NewCredentials(),
	} {
		if err := ask(creds); err == nil {
			t.Errorf("a client %s is served", who)
		}
	}
	// Renewed files count for the next connection.
	write("ca", others.PEM())
	if err := ask(client(&others)); err != nil {
		t.Errorf("after the authority was replaced: %v", err)
	}
	if err := ask(client(&ours)); err == nil {
		t.Error("a client of the replaced authority is served")
	}
}
