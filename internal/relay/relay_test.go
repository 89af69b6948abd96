package relay

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestMergesByTime: what was recorded on all nodes comes in the order of time, as much of it as was
// asked for and from the end that was asked for, each flow once.
func TestMergesByTime(t *testing.T) {
	s := newStand(t, 3, func(c *Config) { c.SortDrain = 2 * time.Second }, nil)
	began := time.Now().Add(-time.Hour)
	var want []string
	for i := range 200 {
		want = append(want, s.nodes[rand.N(3)].add(began.Add(time.Duration(i)*time.Second)))
	}
	s.connected(3)
	at := func(i int) *timestamppb.Timestamp {
		return timestamppb.New(began.Add(time.Duration(i) * time.Second))
	}
	for _, row := range []struct {
		name string
		req  *observer.GetFlowsRequest
		want []string
	}{
		{"all", &observer.GetFlowsRequest{}, want},
		{"last", &observer.GetFlowsRequest{Number: 20}, want[180:]},
		{"last one", &observer.GetFlowsRequest{Number: 1}, want[199:]},
		{"more than there are", &observer.GetFlowsRequest{Number: 1 << 40}, want},
		{"first", &observer.GetFlowsRequest{Number: 20, First: true}, want[:20]},
		{"since", &observer.GetFlowsRequest{Since: at(50)}, want[50:]},
		{"until", &observer.GetFlowsRequest{Until: at(50)}, want[:51]},
		{"last until", &observer.GetFlowsRequest{Since: at(20), Until: at(50), Number: 4}, want[47:51]},
		{"following until", &observer.GetFlowsRequest{Since: at(50), Until: at(60), Follow: true}, want[50:61]},
		{"of one node", &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{{NodeName: []string{"prod/n2"}}}, Since: at(0)},
			slices.DeleteFunc(slices.Clone(want), func(id string) bool { return !strings.HasPrefix(id, "n2/") })},
		{"not of one node", &observer.GetFlowsRequest{Blacklist: []*flow.FlowFilter{{NodeName: []string{"prod/n2"}}}, Number: 200},
			slices.DeleteFunc(slices.Clone(want), func(id string) bool { return strings.HasPrefix(id, "n2/") })},
	} {
		got, states, err := s.get(row.req).all()
		if err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%s: got %v\nwant %v (%v)", row.name, got, row.want, err)
		}
		if row.name != "first" && !slices.Equal(states, []string{"NODE_CONNECTED prod/n1,prod/n2,prod/n3 "}) {
			t.Errorf("%s: states %v", row.name, states)
		}
	}
	for _, req := range []*observer.GetFlowsRequest{
		{First: true}, {First: true, Follow: true, Number: 1}, {Since: at(2), Until: at(1)},
		{Whitelist: []*flow.FlowFilter{{SourceIp: []string{"nowhere"}}}}, {Follow: true, Whitelist: []*flow.FlowFilter{{SourceIp: []string{"nowhere"}}}},
	} {
		if _, _, err := s.get(req).all(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", req, err)
		}
	}
}

// TestFollows: the last flows of the past come in order, then those that come, in order where they
// come in time, whatever time a node claims.
func TestFollows(t *testing.T) {
	s := newStand(t, 3, func(c *Config) { c.SortDrain = 2 * time.Second }, nil)
	began := time.Now().Add(-time.Minute)
	var want []string
	for i := range 30 {
		want = append(want, s.nodes[i%3].add(began.Add(time.Duration(i)*time.Second)))
	}
	s.connected(3)
	c := s.get(&observer.GetFlowsRequest{Follow: true, Number: 10})
	if got := c.flows(10); !slices.Equal(got, want[20:]) {
		t.Errorf("the past: %v, want %v", got, want[20:])
	}
	// One node's clock is ahead, and one does not keep the order: neither is waited for.
	now := time.Now()
	future := s.nodes[0].add(now.Add(time.Hour))
	late := s.nodes[1].add(now.Add(-time.Hour))
	a := s.nodes[2].add(now)
	if got := c.flows(3); !slices.Contains(got, future) || !slices.Contains(got, late) || !slices.Contains(got, a) {
		t.Errorf("%v", got)
	}
	b := s.nodes[2].add(time.Now())
	if got := c.flows(1); got[0] != b {
		t.Errorf("after a flow of the future: %v, want %s", got, b)
	}
}

// TestNodesComeAndGo: a follower gets an event when a node goes and comes back, misses nothing of
// it, and gets events of new and removed nodes.
func TestNodesComeAndGo(t *testing.T) {
	s := newStand(t, 3, nil, nil)
	s.connected(3)
	c := s.get(&observer.GetFlowsRequest{Follow: true})
	c.state("prod/n3", relay.NodeState_NODE_CONNECTED)
	c.reaches(s.nodes[1])
	c.reaches(s.nodes[2])
	for round := range 3 {
		before := s.nodes[2].add(time.Now())
		if got := c.flows(1); got[0] != before {
			t.Fatalf("%v, want %s", got, before)
		}
		s.nodes[2].end()
		c.state("prod/n3", relay.NodeState_NODE_UNAVAILABLE)
		away := s.nodes[2].add(time.Now())
		other := s.nodes[1].add(time.Now())
		if got := c.flows(1); got[0] != other {
			t.Fatalf("while a node was away: %v, want %s", got, other)
		}
		s.serve(s.nodes[2])
		if got := c.flows(1); got[0] != away {
			t.Fatalf("round %d: of when it was away: %v, want %s", round, got, away)
		}
	}
	_, states, err := s.get(&observer.GetFlowsRequest{Number: 1}).all()
	if err != nil || len(states) != 1 {
		t.Errorf("%v, %v", states, err)
	}
	s.table.Delete(s.nodes[2].key)
	c.state("prod/n3", relay.NodeState_NODE_GONE)
	n3 := node.Node{Cluster: "prod", Name: "n3", Addresses: []node.Address{{Type: node.InternalIP, IP: addrOf(s.nodes[2])}}}
	s.table.Upsert(s.nodes[2].key, n3)
	c.state("prod/n3", relay.NodeState_NODE_CONNECTED)
	c.reaches(s.nodes[2])
	// The agent that says which nodes there are ends: those that are known stay.
	s.nodes[0].end()
	c.state("prod/n1", relay.NodeState_NODE_UNAVAILABLE)
	last := s.nodes[1].add(time.Now())
	if got := c.flows(1); got[0] != last {
		t.Errorf("%v, want %s", got, last)
	}
}

// TestClockStepsBack: a follower misses nothing of a node whose clock was set back before it was
// away, and gets what is to come of one whose clock was set back meanwhile.
func TestClockStepsBack(t *testing.T) {
	s := newStand(t, 2, nil, nil)
	s.connected(2)
	c := s.get(&observer.GetFlowsRequest{Follow: true})
	n := s.nodes[1]
	c.reaches(n)
	clock := time.Now().Add(-time.Hour)
	read := func(what, want string) {
		t.Helper()
		if got := c.flows(1); got[0] != want {
			t.Fatalf("%s: %v, want %s", what, got, want)
		}
	}
	restart := func(meanwhile func()) {
		n.end()
		c.state(n.name(), relay.NodeState_NODE_UNAVAILABLE)
		meanwhile()
		s.serve(n)
	}
	read("after the clock was set back", n.add(clock))
	var away string
	restart(func() { away = n.add(clock.Add(time.Second)) })
	for got := ""; got != away; { // flows of the hour before may come again
		got = c.flows(1)[0]
	}
	read("after it was away", n.add(clock.Add(2*time.Second)))
	clock = clock.Add(-time.Hour)
	restart(func() {})
	before := n.added
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for { // until it was asked again
			n.add(clock)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	for got := -1; got < before; {
		if _, err := fmt.Sscanf(c.flows(1)[0], "n2/%d", &got); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-done
}

// TestFrozenNode: a node that does not answer, though its connections stand, is left out of
// searches and of what is followed, and reported; when it continues, its flows are sent.
func TestFrozenNode(t *testing.T) {
	s := newStand(t, 3, func(c *Config) { c.DialTimeout, c.SortDrain, c.probe = 3*time.Second, 2*time.Second, time.Hour }, nil)
	at := time.Now().Add(-time.Hour)
	var want []string
	for i := range 100 {
		n := s.nodes[i%2]
		want = append(want, n.add(at.Add(time.Duration(i)*time.Second)))
	}
	frozen := s.nodes[2].add(at)
	s.connected(3)
	s.nodes[2].gate.freeze()
	// The relay thinks that it is connected. On a busy machine other nodes may be late, too.
	controllers.Eventually(t, testTimeout, func() string {
		got, states, err := s.get(&observer.GetFlowsRequest{}).all()
		if err != nil || !slices.Equal(got, want) || !slices.ContainsFunc(states, func(s string) bool { return strings.HasPrefix(s, "NODE_ERROR prod/n3 ") }) {
			return fmt.Sprintf("%d flows, states %v, %v", len(got), states, err)
		}
		return ""
	})
	var c *stream
	controllers.Eventually(t, testTimeout, func() string {
		c = s.get(&observer.GetFlowsRequest{Follow: true, Since: timestamppb.New(at)})
		if got := c.flows(100); !slices.Equal(got, want) {
			c.end()
			return fmt.Sprintf("following: %v", got)
		}
		return ""
	})
	live := s.nodes[0].add(time.Now())
	if got := c.flows(1); got[0] != live {
		t.Errorf("%v, want %s", got, live)
	}
	s.nodes[2].gate.thaw()
	if got := c.flows(1); got[0] != frozen {
		t.Errorf("of the node that goes on: %v, want %s", got, frozen)
	}
}

// TestFrozenNodeIsLeft: a node that does not say that it is there is reported as unavailable,
// without anybody asking it for flows, and connected to again.
func TestFrozenNodeIsLeft(t *testing.T) {
	s := newStand(t, 2, func(c *Config) { c.DialTimeout = 3 * time.Second }, nil)
	s.connected(2)
	c := s.get(&observer.GetFlowsRequest{Follow: true})
	c.state("prod/n2", relay.NodeState_NODE_CONNECTED)
	s.nodes[1].gate.freeze()
	c.state("prod/n2", relay.NodeState_NODE_UNAVAILABLE)
	s.connected(1)
	nodes, err := s.client().GetNodes(t.Context(), &observer.GetNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 2 || nodes.GetNodes()[1].GetState() != relay.NodeState_NODE_UNAVAILABLE || nodes.GetNodes()[0].GetState() != relay.NodeState_NODE_CONNECTED {
		t.Errorf("%v, %v", nodes, err)
	}
	s.nodes[1].gate.thaw()
	c.state("prod/n2", relay.NodeState_NODE_CONNECTED)
}

// TestStatus: sums, nodes, namespaces, and what is refused.
func TestStatus(t *testing.T) {
	s := newStand(t, 3, nil, nil)
	for range 5 {
		s.nodes[0].add(time.Now())
		s.nodes[1].add(time.Now())
	}
	s.nodes[2].end()
	s.connected(2)
	c := s.client()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	controllers.Eventually(t, testTimeout, func() string {
		st, err := c.ServerStatus(ctx, &observer.ServerStatusRequest{})
		if err != nil || st.GetNumFlows() != 10 || st.GetSeenFlows() != 10 || st.GetMaxFlows() < 512 || st.GetVersion() != "test" || st.GetUptimeNs() == 0 ||
			st.GetNumConnectedNodes().GetValue() != 2 || st.GetNumUnavailableNodes().GetValue() != 1 || !slices.Equal(st.GetUnavailableNodes(), []string{"prod/n3"}) {
			return fmt.Sprintf("%v, %v", st, err)
		}
		return ""
	})
	nodes, err := c.GetNodes(ctx, &observer.GetNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 3 || nodes.GetNodes()[1].GetName() != "prod/n2" || nodes.GetNodes()[1].GetNumFlows() != 5 ||
		nodes.GetNodes()[1].GetAddress() != s.nodes[1].address || nodes.GetNodes()[1].GetVersion() != "v1" || nodes.GetNodes()[2].GetState() != relay.NodeState_NODE_UNAVAILABLE {
		t.Errorf("%v, %v", nodes, err)
	}
	ns, err := c.GetNamespaces(ctx, &observer.GetNamespacesRequest{})
	if err != nil || len(ns.GetNamespaces()) != 2 || ns.GetNamespaces()[0].GetNamespace() != "shop-n1" || ns.GetNamespaces()[1].GetCluster() != "prod" {
		t.Errorf("%v, %v", ns, err)
	}
}

// TestSlowClientAffectsNoOther: a client that reads nothing is disconnected, and another one gets
// everything meanwhile.
func TestSlowClientAffectsNoOther(t *testing.T) {
	s := newStand(t, 2, func(c *Config) { c.stall = time.Second }, nil)
	s.connected(2)
	idle := s.get(&observer.GetFlowsRequest{Follow: true})
	busy := s.get(&observer.GetFlowsRequest{Follow: true})
	idle.state("prod/n1", relay.NodeState_NODE_CONNECTED)
	busy.state("prod/n1", relay.NodeState_NODE_CONNECTED)
	busy.reaches(s.nodes[0])
	labels := make([]string, 100)
	for i := range labels {
		labels[i] = "k8s:label-" + strings.Repeat("x", 100)
	}
	add := func(n *testNode) string {
		id := fmt.Sprintf("big%d", n.added)
		n.added++
		n.record.Add(&flow.Flow{Uuid: id, Time: timestamppb.Now(), Source: &flow.Endpoint{Labels: labels}}, addrOf(n), addrOf(n), time.Now())
		return id
	}
	// The windows of the idle one's connection fill, and then it is disconnected; the other one
	// reads each flow as it comes.
	controllers.Eventually(t, 2*testTimeout, func() string {
		for range 20 {
			want := add(s.nodes[0])
			if got := busy.flows(1); got[0] != want {
				t.Fatalf("%v, want %s", got, want)
			}
		}
		if n := s.relay.upstreams.Load(); n != 2 {
			return fmt.Sprintf("%d streams from nodes are read", n)
		}
		return ""
	})
	for {
		if _, err := idle.c.Recv(); err != nil {
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("the idle one: %v", err)
			}
			break
		}
	}
}

// TestLimits: streams of clients, streams from nodes and what is held for the last flows of all
// nodes are bounded.
func TestLimits(t *testing.T) {
	s := newStand(t, 2, func(c *Config) { c.Streams, c.upstreams, c.keep = 3, 4, 20_000 }, nil)
	s.connected(2)
	a, b := s.get(&observer.GetFlowsRequest{Follow: true}), s.get(&observer.GetFlowsRequest{Follow: true})
	a.state("prod/n2", relay.NodeState_NODE_CONNECTED)
	b.state("prod/n2", relay.NodeState_NODE_CONNECTED)
	if _, _, err := s.get(&observer.GetFlowsRequest{}).all(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "streams from nodes") {
		t.Errorf("more streams from nodes than may be: %v", err)
	}
	b.end()
	controllers.Eventually(t, testTimeout, func() string {
		if n := s.relay.upstreams.Load(); n != 2 {
			return fmt.Sprintf("%d streams", n)
		}
		return ""
	})
	for range 200 {
		s.nodes[0].add(time.Now())
		s.nodes[1].add(time.Now())
	}
	if _, _, err := s.get(&observer.GetFlowsRequest{Number: 300}).all(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "ask for fewer") {
		t.Errorf("the last of very many: %v", err)
	}
	if got, _, err := s.get(&observer.GetFlowsRequest{Number: 10}).all(); err != nil || len(got) != 10 {
		t.Errorf("%d flows, %v", len(got), err)
	}
	// Nothing is held for these: clients ask for everything by the largest number there is.
	for _, req := range []*observer.GetFlowsRequest{{Since: timestamppb.New(time.Unix(1, 0))}, {Number: math.MaxUint64}} {
		if got, _, err := s.get(req).all(); err != nil || len(got) != 400 {
			t.Errorf("%v: %d flows, %v", req, len(got), err)
		}
	}
	if n := s.relay.kept.Load(); n != 0 {
		t.Errorf("%d bytes are still held", n)
	}
	more := []*stream{s.get(&observer.GetFlowsRequest{Follow: true})}
	more[0].state("prod/n2", relay.NodeState_NODE_CONNECTED)
	// The third one is within the number of clients.
	s.relay.upstreams.Add(-100)
	more = append(more, s.get(&observer.GetFlowsRequest{Follow: true}))
	more[1].state("prod/n2", relay.NodeState_NODE_CONNECTED)
	if _, _, err := s.get(&observer.GetFlowsRequest{}).all(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "clients") {
		t.Errorf("a client too many: %v", err)
	}
	s.relay.upstreams.Add(100)
}

// TestReconnectAtTheBound: a client that follows keeps the flows that it has when a node comes back
// for which there is no stream, is notified of that, and gets the node's when there is one.
func TestReconnectAtTheBound(t *testing.T) {
	s := newStand(t, 2, func(c *Config) { c.upstreams = 2 }, nil)
	s.connected(2)
	a := s.get(&observer.GetFlowsRequest{Follow: true})
	a.state("prod/n2", relay.NodeState_NODE_CONNECTED)
	s.nodes[1].end()
	a.state("prod/n2", relay.NodeState_NODE_UNAVAILABLE)
	s.connected(1)
	b := s.get(&observer.GetFlowsRequest{Follow: true})
	b.state("prod/n1", relay.NodeState_NODE_CONNECTED)
	s.serve(s.nodes[1])
	for _, c := range []*stream{a, b} {
		if problem := c.state("prod/n2", relay.NodeState_NODE_ERROR); !strings.Contains(problem, "streams from nodes") {
			t.Errorf("the node is not asked: %s", problem)
		}
		c.reaches(s.nodes[0])
	}
	b.end()
	a.state("prod/n2", relay.NodeState_NODE_CONNECTED)
	a.reaches(s.nodes[1])
}

// endless is an agent that does not stop to send flows, whatever it is asked.
type endless struct {
	observer.UnimplementedObserverServer
}

func (endless) GetFlows(_ *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	for {
		if err := stream.Send(&observer.GetFlowsResponse{
			Time: timestamppb.New(time.Unix(1, 0)), ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{Uuid: "x"}},
		}); err != nil {
			return err
		}
	}
}

// TestEndlessNode: a node that does not stop to send keeps no client from the end of what it asks
// for, nor from what others send.
func TestEndlessNode(t *testing.T) {
	s := newStand(t, 1, func(c *Config) { c.DialTimeout, c.past = 3*time.Second, 1000 }, nil)
	at := addrOf(s.nodes[0]).Next()
	_, port, err := net.SplitHostPort(s.nodes[0].address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(at.String(), port))
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.WaitForHandlers(true))
	observer.RegisterObserverServer(srv, endless{})
	s.run(func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, srv.Stop)
		defer stop()
		defer srv.Stop()
		return srv.Serve(l)
	})
	evil := node.Node{Cluster: "prod", Name: "n9", Addresses: []node.Address{{Type: node.InternalIP, IP: at}}}
	s.table.Upsert(evil.Key(), evil)
	s.connected(2)
	var want []string
	for range 3 {
		want = append(want, s.nodes[0].add(time.Now()))
	}
	got, states, err := s.get(&observer.GetFlowsRequest{Number: 3}).all()
	if err != nil || !slices.Equal(got, want) || !slices.ContainsFunc(states, func(s string) bool { return strings.HasPrefix(s, "NODE_ERROR prod/n9 it sends more") }) {
		t.Errorf("the last flows: %v, want %v; %v, %v", got, want, states, err)
	}
	got, _, err = s.get(&observer.GetFlowsRequest{Follow: true, Until: timestamppb.New(time.Now().Add(time.Second))}).all()
	if err != nil || len(got) == 0 {
		t.Errorf("%d flows until a time, %v", len(got), err)
	}
}

// TestStops: clients that follow are notified at once when the relay stops, and a search comes to
// its end.
func TestStops(t *testing.T) {
	s := newStand(t, 2, nil, nil)
	s.nodes[0].add(time.Now())
	s.connected(2)
	c := s.get(&observer.GetFlowsRequest{Follow: true})
	c.state("prod/n2", relay.NodeState_NODE_CONNECTED)
	go s.end()
	for {
		if _, err := c.c.Recv(); err != nil {
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "stopped") {
				t.Errorf("%v", err)
			}
			break
		}
	}
	s.end()
}

// TestNodesUnknown: without an agent the relay says so, instead of answering with nothing.
func TestNodesUnknown(t *testing.T) {
	s := newStand(t, 0, nil, nil)
	s.listening()
	controllers.Eventually(t, testTimeout, func() string {
		_, _, err := s.get(&observer.GetFlowsRequest{}).all()
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), s.relay.cfg.PeerService) || !strings.Contains(err.Error(), "no such file") {
			return fmt.Sprint(err)
		}
		return ""
	})
}

func addrOf(n *testNode) netip.Addr { return netip.MustParseAddrPort(n.address).Addr() }
