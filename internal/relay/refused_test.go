package relay

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
)

// addOfSize adds a flow of about so many bytes.
func (n *testNode) addOfSize(at time.Time, bytes int) {
	n.record.Add(&flow.Flow{Uuid: "large", Time: timestamppb.New(at), NodeName: n.name(), Source: &flow.Endpoint{Labels: []string{strings.Repeat("x", bytes)}}},
		netip.Addr{}, netip.Addr{}, time.Now())
}

// lostAnd reads that many flows, and what is lost until they are there.
func (s *stream) lostAnd(n int) (ids []string, lost []*observer.GetFlowsResponse) {
	s.t.Helper()
	for len(ids) < n {
		res, err := s.c.Recv()
		if err != nil {
			s.t.Fatalf("after %v: %v", ids, err)
		}
		switch {
		case res.GetFlow() != nil:
			ids = append(ids, res.GetFlow().GetUuid())
		case res.GetLostEvents() != nil:
			lost = append(lost, res)
		}
	}
	return ids, lost
}

// TestFlowTooLargeToDecode: a flow of more than a message holds counts as lost, in its place, and
// those after it arrive as if it were not there: of what was recorded, and while following.
func TestFlowTooLargeToDecode(t *testing.T) {
	s := newStand(t, 2, nil, nil)
	s.connected(2)
	n, began := s.nodes[1], time.Now().Add(-time.Minute)
	want := []string{n.add(began)}
	n.addOfSize(began.Add(time.Second), maxMessage+maxMessage/8)
	want = append(want, n.add(began.Add(2*time.Second)))
	check := func(what string, c *stream) {
		t.Helper()
		got, lost := c.lostAnd(2)
		if !slices.Equal(got, want) || len(lost) != 1 {
			t.Fatalf("%s: %v, and %v are lost, want %v and one", what, got, lost, want)
		}
		if l := lost[0]; l.GetNodeName() != n.name() || l.GetLostEvents().GetNumEventsLost() != 1 || !l.GetTime().AsTime().Equal(began) {
			t.Errorf("%s: lost is %v", what, l)
		}
	}
	check("what was recorded", s.get(&observer.GetFlowsRequest{}))
	c := s.get(&observer.GetFlowsRequest{Follow: true, Since: timestamppb.New(began)})
	check("the past of a follower", c)
	began = time.Now()
	want = []string{n.add(began)}
	n.addOfSize(began.Add(time.Millisecond), maxMessage+maxMessage/8)
	want = append(want, n.add(began.Add(2*time.Millisecond)))
	check("following", c)
}

// TestFlowTooLargeToReceive: a flow that ends the stream from its node counts as lost, too. A
// follower gets what the node records once it was asked again, although the flow is still there.
func TestFlowTooLargeToReceive(t *testing.T) {
	s := newStand(t, 2, func(c *Config) { c.RetryTimeout = time.Second }, nil)
	s.connected(2)
	n := s.nodes[1]
	recovers := func(what string, c *stream) {
		t.Helper()
		stop, done := make(chan struct{}), make(chan struct{})
		defer func() { close(stop); <-done }()
		go func() { // far less than would displace the flow
			defer close(done)
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					n.add(time.Now())
				}
			}
		}()
		problem, lost := "", 0
		for arrived := false; !arrived; {
			res, err := c.c.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			lost += int(res.GetLostEvents().GetNumEventsLost())
			arrived = problem != "" && res.GetFlow() != nil
			if st := res.GetNodeStatus(); st.GetStateChange() == relay.NodeState_NODE_ERROR {
				if problem != "" {
					t.Fatalf("%s: the node sends the same again", what)
				}
				problem = st.GetMessage()
			}
		}
		if !strings.Contains(problem, "larger than max") || lost != 1 {
			t.Errorf("%s: %q, and %d are lost", what, problem, lost)
		}
	}
	c := s.get(&observer.GetFlowsRequest{Follow: true})
	c.reaches(n)
	began := time.Now()
	n.addOfSize(began, maxReceived+1)
	recovers("following", c)
	recovers("with the past", s.get(&observer.GetFlowsRequest{Follow: true, Since: timestamppb.New(began)}))
}
