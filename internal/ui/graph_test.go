package ui

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
)

var testTime = time.Date(2030, 1, 2, 12, 0, 5, 0, time.UTC)

// testGraph returns one whose time stands still until the test moves it.
func testGraph(limits Limits) (g *Graph, now *time.Time) {
	g = NewGraph(limits)
	at := testTime
	g.now = func() time.Time { return at }
	return g, &at
}

func pod(namespace, workload, name string, identity uint32) *flow.Endpoint {
	return &flow.Endpoint{
		Namespace: namespace, PodName: name, Identity: identity, Labels: []string{"k8s:app=" + workload},
		Workloads: []*flow.Workload{{Name: workload, Kind: "Deployment"}},
	}
}

func tcp(from, to uint32) *flow.Layer4 {
	return &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: from, DestinationPort: to}}}
}

var world = &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}

// verdict is a flow as policy evaluates it.
func verdict(at time.Time, src, dst *flow.Endpoint, port uint32, v flow.Verdict, d flow.TrafficDirection) *flow.Flow {
	f := &flow.Flow{
		Time: timestamppb.New(at), NodeName: "prod/n1", Verdict: v, Source: src, Destination: dst, L4: tcp(40000, port),
		IP:               &flow.IP{Source: "10.0.0.1", Destination: "10.0.0.2"},
		EventType:        &flow.CiliumEventType{Type: eventPolicyVerdict},
		TrafficDirection: d, IsReply: wrapperspb.Bool(false),
	}
	if v == flow.Verdict_DROPPED {
		f.DropReasonDesc = flow.DropReason_POLICY_DENIED
	}
	return f
}

const (
	in, out = flow.TrafficDirection_INGRESS, flow.TrafficDirection_EGRESS
	ok, no  = flow.Verdict_FORWARDED, flow.Verdict_DROPPED
)

// TestConnectionsCountOnce: what two policies evaluate and what is reported twice is one
// connection, and an answer belongs to the connection that it answers.
func TestConnectionsCountOnce(t *testing.T) {
	g, _ := testGraph(DefaultLimits())
	front, db := pod("shop", "front", "front-7c9d8b6f5-x2x4z", 1001), pod("shop", "db", "db-0", 1002)
	for range 3 {
		f := verdict(testTime, front, db, 5432, ok, out)
		f.EgressAllowedBy = []*flow.Policy{{Namespace: "shop", Name: "front-out"}}
		g.Add(f)
		// Another node knows its own pods' workloads, and of others the names.
		f.Destination = &flow.Endpoint{Namespace: "shop", PodName: "db-0", Identity: 1002, Labels: []string{"k8s:app=db"}}
		f = verdict(testTime, &flow.Endpoint{Namespace: "shop", PodName: "front-7c9d8b6f5-x2x4z", Identity: 1001}, db, 5432, ok, in)
		f.NodeName, f.IngressAllowedBy = "prod/n2", []*flow.Policy{{Name: "all"}}
		g.Add(f)
	}
	// One refused connection: the verdict, and the drop.
	f := verdict(testTime, world, db, 5432, no, in)
	f.IngressDeniedBy = []*flow.Policy{{Namespace: "shop", Name: "db"}}
	g.Add(f)
	f = verdict(testTime, world, db, 5432, no, in)
	f.EventType.Type = eventDrop
	g.Add(f)
	// A packet of an answer, and the end of a connection: neither is a new connection.
	f = verdict(testTime, db, front, 0, ok, in)
	f.L4, f.IsReply, f.EventType.Type = tcp(5432, 40000), wrapperspb.Bool(true), eventTrace
	g.Add(f)
	// A reply from a service's address, whose backend the node does not know, and a packet of which
	// it is not known whether it is a reply: they are flows, and belong to no connection.
	f = verdict(testTime, &flow.Endpoint{Namespace: "shop", Identity: 1002}, front, 0, ok, in)
	f.L4, f.IsReply, f.EventType.Type = tcp(80, 40000), wrapperspb.Bool(true), eventTrace
	g.Add(f)
	f = verdict(testTime, db, front, 40000, ok, in)
	f.IsReply, f.EventType.Type = nil, eventTrace
	g.Add(f)
	// A change of policy has the connection evaluated again.
	f = verdict(testTime, front, db, 5432, ok, in)
	f.L4.GetTCP().Flags = &flow.TCPFlags{ACK: true}
	g.Add(f)

	s := g.Snapshot(time.Time{}, time.Time{})
	if len(s.Edges) != 2 || len(s.Workloads) != 3 {
		t.Fatalf("%d edges, %d workloads: %+v", len(s.Edges), len(s.Workloads), s.Edges)
	}
	refused, let := s.Edges[0], s.Edges[1]
	if refused.Source != ":world" || refused.Destination != "shop/db" || refused.Dropped != 1 || refused.Forwarded != 0 ||
		!slices.Equal(refused.Reasons, []string{"POLICY_DENIED"}) || !slices.Equal(refused.DeniedBy, []string{"shop/db"}) {
		t.Errorf("refused: %+v", refused)
	}
	if let.Source != "shop/front" || let.Destination != "shop/db" || let.Port != 5432 || let.Protocol != "TCP" || let.Forwarded != 3 || let.Dropped != 0 ||
		!slices.Equal(let.AllowedBy, []string{"all", "shop/front-out"}) {
		t.Errorf("let in: %+v", let)
	}
	if w := s.Workloads[1]; w.ID != "shop/db" || w.Type != "Deployment" || !slices.Equal(w.Identities, []string{"1002"}) ||
		!slices.Equal(w.Labels, []string{"k8s:app=db"}) || !slices.Equal(podNames(w), []string{"db-0"}) || !slices.Equal(w.Policies, []string{"all", "shop/db"}) {
		t.Errorf("workload %+v", w)
	}
	if w := s.Workloads[0]; w.ID != ":world" || w.Kind != KindEntity {
		t.Errorf("entity %+v", w)
	}
	all := g.Flows(100, func(*Flow) bool { return true })
	if len(all) != 12 {
		t.Errorf("%d flows", len(all))
	}
	of := g.Flows(100, func(f *Flow) bool { return f.Edge == refused.ID })
	if len(of) != 2 || of[0].Type != "drop" && of[1].Type != "drop" || of[0].Reason != "POLICY_DENIED" || of[0].Destination != "shop/db-0:5432" {
		t.Errorf("flows of the refused edge: %+v", of)
	}
}

// TestTurnedAwayByTheReceiver: what its sender's policy lets pass and its receiver's refuses, is
// refused, also if the packet is sent again, and if the receiver reports a bucket later.
func TestTurnedAwayByTheReceiver(t *testing.T) {
	g, _ := testGraph(DefaultLimits())
	front, db := pod("shop", "front", "front-7c9d8b6f5-x2x4z", 1001), pod("shop", "db", "db-0", 1002)
	g.Add(verdict(testTime, front, db, 5432, ok, out))
	for i := range 3 {
		g.Add(verdict(testTime.Add(time.Duration(i)*BucketLength/2), front, db, 5432, no, in))
	}
	// Other connections of the same workloads are let in: one by a receiver that reports, and one
	// of which only the sender does.
	g.Add(verdict(testTime, front, db, 5433, ok, out))
	g.Add(verdict(testTime, front, db, 5433, no, in))
	g.Add(verdict(testTime, front, db, 5433, ok, out))
	g.Add(verdict(testTime, front, db, 5433, ok, in))
	g.Add(verdict(testTime, front, db, 5434, ok, out))
	want := map[uint32][2]uint64{5432: {0, 3}, 5433: {1, 1}, 5434: {1, 0}}
	for _, e := range g.Snapshot(time.Time{}, time.Time{}).Edges {
		if got := [2]uint64{e.Forwarded, e.Dropped}; got != want[e.Port] {
			t.Errorf("port %d: let in and refused %v, want %v", e.Port, got, want[e.Port])
		}
		delete(want, e.Port)
	}
	if len(want) > 0 {
		t.Errorf("no edges of %v", want)
	}
}

// TestSnapshotOfASpan: a span of time has what happened in it, and the window moves on.
func TestSnapshotOfASpan(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	a, b := pod("x", "a", "a-1", 1), pod("x", "b", "b-1", 2)
	g.Add(verdict(testTime.Add(-5*time.Minute), a, b, 80, ok, out))
	g.Add(verdict(testTime, a, b, 81, no, out))
	g.Add(verdict(testTime.Add(time.Hour), a, b, 82, ok, out)) // a clock that is ahead
	g.Add(verdict(testTime.Add(-time.Hour), a, b, 83, ok, out))
	ports := func(s Snapshot) (out []uint32) {
		for _, e := range s.Edges {
			out = append(out, e.Port)
		}
		return out
	}
	if got := ports(g.Snapshot(time.Time{}, time.Time{})); !slices.Equal(got, []uint32{80, 81, 82}) {
		t.Errorf("the whole window has ports %v", got)
	}
	if got := ports(g.Snapshot(testTime.Add(-time.Minute), time.Time{})); !slices.Equal(got, []uint32{81, 82}) {
		t.Errorf("the last minute has ports %v", got)
	}
	s := g.Snapshot(testTime.Add(-6*time.Minute), testTime.Add(-4*time.Minute))
	if got := ports(s); !slices.Equal(got, []uint32{80}) {
		t.Errorf("minutes ago there were ports %v", got)
	}
	var forwarded, dropped uint64
	for _, sum := range s.Timeline {
		forwarded += sum.Forwarded
		dropped += sum.Dropped
	}
	if forwarded != 2 || dropped != 1 || len(s.Timeline) != buckets {
		t.Errorf("the timeline has %d let in, %d refused in %d buckets", forwarded, dropped, len(s.Timeline))
	}
	// A quarter of an hour later nothing of it is held.
	*now = now.Add(Window + BucketLength)
	if s := g.Snapshot(time.Time{}, time.Time{}); len(s.Edges) != 0 || len(s.Workloads) != 0 || len(g.edges) != 0 || len(g.workloads) != 0 || len(g.pairs) != 0 {
		t.Errorf("left: %+v, %d edges, %d workloads, %d pairs", s, len(g.edges), len(g.workloads), len(g.pairs))
	}
}

// TestGraphIsBounded: neither a sweep over ports nor one over addresses and names makes it grow.
func TestGraphIsBounded(t *testing.T) {
	limits := Limits{Workloads: 50, Edges: 200, Ports: 8, Details: 4, Flows: 100}
	g, _ := testGraph(limits)
	a, b := pod("x", "a", "a-1", 1), pod("x", "b", "b-1", 2)
	for port := range uint32(5000) {
		g.Add(verdict(testTime, a, b, port+1, no, out))
	}
	s := g.Snapshot(time.Time{}, time.Time{})
	var dropped uint64
	for _, e := range s.Edges {
		dropped += e.Dropped
	}
	if len(s.Edges) != limits.Ports+1 || dropped != 5000 || s.NotShown != 0 {
		t.Errorf("a sweep of ports: %d edges, %d drops, %d not shown", len(s.Edges), dropped, s.NotShown)
	}
	for i := range 5000 {
		f := verdict(testTime, pod("x", fmt.Sprint("w", i), fmt.Sprint("w", i), uint32(i)), b, 80, no, out)
		f.IP.Source = fmt.Sprintf("10.1.%d.%d", i/250, i%250)
		g.Add(f)
		f = verdict(testTime, a, b, 1, no, out)
		f.IP.Source = fmt.Sprintf("10.1.%d.%d", i/250, i%250)
		f.DestinationNames = []string{fmt.Sprint("name", i)}
		g.Add(f)
	}
	s = g.Snapshot(time.Time{}, time.Time{})
	if len(s.Workloads) > limits.Workloads || len(s.Edges) > limits.Edges || s.NotShown != 5000-48 || len(g.flows) != limits.Flows {
		t.Errorf("a sweep of workloads: %d workloads, %d edges, %d not shown, %d flows", len(s.Workloads), len(s.Edges), s.NotShown, len(g.flows))
	}
	for _, w := range s.Workloads {
		if len(w.Endpoints) > limits.Details || len(w.Names) > limits.Details {
			t.Errorf("%s has %d endpoints, %d names", w.ID, len(w.Endpoints), len(w.Names))
		}
		for _, e := range w.Endpoints {
			if len(e.Addresses) > podAddresses {
				t.Errorf("%s has %d addresses", e.Pod, len(e.Addresses))
			}
		}
	}
	latest := g.Flows(1000, func(*Flow) bool { return true })
	if len(latest) != limits.Flows || latest[0].Destination != "x/b-1:1" {
		t.Errorf("%d flows, the latest to %s", len(latest), latest[0].Destination)
	}
}

// TestWorkloadOfPod: the two nodes of a connection name a pod's workload alike, also where the name
// of the pod alone would say another.
func TestWorkloadOfPod(t *testing.T) {
	for name, want := range map[string]string{
		"front-7c9d8b6f5-x2x4z": "front", "db-0": "db", "agent-bcdfg": "agent", "web-server": "web-server", "front": "front", "x-12": "x",
		"my-7c9d8b6f5-x2x4z-7c9d8b6f5-x2x4z": "my-7c9d8b6f5-x2x4z", "-0": "-0", "": "", "cart-stage": "cart-stage",
	} {
		if got := workloadOf(name); got != want {
			t.Errorf("%s is of %s, want %s", name, got, want)
		}
	}
	g, _ := testGraph(DefaultLimits())
	own := pod("x", "rollout", "strange-name-0", 1)
	if got := g.identify(side{endpoint: own}, testTime).ID; got != "x/rollout" {
		t.Errorf("as its own node reports: %s", got)
	}
	if w := g.identify(side{endpoint: &flow.Endpoint{Namespace: "x", PodName: "strange-name-0"}}, testTime); w.ID != "x/rollout" || w.Type != "Deployment" {
		t.Errorf("as another node reports: %+v", w)
	}
}

// TestWorkloadsOfClusters: what differs only in its cluster is another workload, with an owner and
// an identity of its own, and is told apart where flows are listed.
func TestWorkloadsOfClusters(t *testing.T) {
	g, _ := testGraph(DefaultLimits())
	front, db := pod("shop", "front", "front-0", 1001), pod("shop", "db", "odd-name", 1002)
	front.ClusterName, db.ClusterName = "prod", "prod"
	far := &flow.Endpoint{Namespace: "shop", PodName: "odd-name", Identity: 70001, ClusterName: "far", Labels: []string{"k8s:app=db"}}
	g.Add(verdict(testTime, front, db, 5432, ok, in))
	g.Add(verdict(testTime, front, far, 5432, no, out))
	bare := verdict(testTime, front, db, 80, ok, out)
	bare.NodeName = "n1" // of a cluster that is not known
	g.Add(bare)
	s := g.Snapshot(time.Time{}, time.Time{})
	var got []string
	for _, e := range s.Edges {
		got = append(got, fmt.Sprintf("%s %d %d", e.ID, e.Forwarded, e.Dropped))
	}
	if want := []string{"shop/front>far/shop/odd-name>TCP/5432 0 1", "shop/front>shop/db>TCP/5432 1 0", "shop/front>shop/db>TCP/80 1 0"}; !slices.Equal(got, want) {
		t.Errorf("connections %q, want %q", got, want)
	}
	if len(s.Workloads) != 3 {
		t.Fatalf("%d workloads: %+v", len(s.Workloads), s.Workloads)
	}
	if w := s.Workloads[0]; w.Namespace != "shop" || w.Name != "odd-name of far" || !slices.Equal(w.Identities, []string{"70001"}) {
		t.Errorf("of the other cluster: %+v", w)
	}
	if w := g.byIdentity()[70001]; len(w) == 0 || w[0].ID != "far/shop/odd-name" {
		t.Errorf("its identity is of %+v", w)
	}
	if f := g.Flows(1, func(f *Flow) bool { return f.Verdict == no.String() })[0]; f.Source != "shop/front-0:40000" || f.Destination != "shop/odd-name:5432 of far" {
		t.Errorf("its flow is from %s to %s", f.Source, f.Destination)
	}
}

// TestDetailsAge: what was not seen in the time asked for is not shown, however busy the edge is.
func TestDetailsAge(t *testing.T) {
	g, now := testGraph(Limits{Workloads: 10, Edges: 10, Ports: 10, Details: 2, Flows: 10})
	a, b := pod("x", "a", "a-1", 1), pod("x", "b", "b-1", 2)
	f := verdict(testTime, a, b, 80, no, in)
	f.IngressDeniedBy = []*flow.Policy{{Name: "old"}}
	g.Add(f)
	*now = now.Add(2 * time.Minute)
	for i := range 5 {
		g.Add(verdict(*now, pod("x", "a", fmt.Sprint("a-", i), 1), b, 80, ok, in))
		*now = now.Add(BucketLength)
	}
	s := g.Snapshot(now.Add(-time.Minute), time.Time{})
	if e := s.Edges[0]; e.Forwarded != 5 || e.Dropped != 0 || len(e.DeniedBy) != 0 || len(e.Reasons) != 0 {
		t.Errorf("the last minute: %+v", e)
	}
	if w := s.Workloads[0]; !slices.Equal(podNames(w), []string{"a-3", "a-4"}) {
		t.Errorf("the latest pods are %v", podNames(w))
	}
	if e := g.Snapshot(time.Time{}, time.Time{}).Edges[0]; e.Dropped != 1 || !slices.Equal(e.DeniedBy, []string{"old"}) {
		t.Errorf("all of the time: %+v", e)
	}
}

// TestDetailsOfASpan: what came after the time asked for is not shown of it, and a pod has the node
// that reports it as its own, its addresses and the identity that it has by now.
func TestDetailsOfASpan(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	a, b := pod("x", "a", "a-1", 1), pod("x", "b", "b-1", 2)
	a.ID = 77 // its own node reports
	before := verdict(testTime, a, b, 80, ok, out)
	before.EgressAllowedBy = []*flow.Policy{{Name: "old"}}
	g.Add(before)
	*now = now.Add(3 * time.Minute)
	a = pod("x", "a", "a-1", 3)
	a.Labels = []string{"k8s:app=a", "k8s:tier=new"}
	after := verdict(*now, a, b, 80, no, out)
	after.NodeName, after.IP.Source, after.EgressDeniedBy = "prod/n2", "fd00::1", []*flow.Policy{{Name: "new"}}
	g.Add(after)
	s := g.Snapshot(testTime.Add(-time.Minute), testTime.Add(time.Minute))
	if e := s.Edges[0]; len(e.DeniedBy) > 0 || len(e.Reasons) > 0 || !slices.Equal(e.AllowedBy, []string{"old"}) {
		t.Errorf("then: %+v", e)
	}
	if w := s.Workloads[0]; !slices.Equal(w.Labels, []string{"k8s:app=a"}) || !slices.Equal(w.Policies, []string{"old"}) || !slices.Equal(w.Identities, []string{"1"}) {
		t.Errorf("then: %+v", w)
	}
	s = g.Snapshot(now.Add(-time.Minute), time.Time{})
	if w := s.Workloads[0]; !slices.Equal(w.Labels, []string{"k8s:app=a", "k8s:tier=new"}) || !slices.Equal(w.Policies, []string{"new"}) || len(w.Endpoints) != 1 ||
		w.Endpoints[0].Node != "prod/n1" || w.Endpoints[0].Identity != 3 || !slices.Equal(w.Endpoints[0].Addresses, []string{"fd00::1"}) {
		t.Errorf("now: %+v", w)
	}
}

func podNames(w Workload) (out []string) {
	for _, e := range w.Endpoints {
		out = append(out, e.Pod)
	}
	return out
}

// TestUnknownEnds: whatever an end lacks, it has a name.
func TestUnknownEnds(t *testing.T) {
	for want, ep := range map[string]*flow.Endpoint{
		":unknown":       nil,
		":host":          {Labels: []string{"k8s:x=y", "reserved:host"}, Identity: 1},
		"x/front":        {Namespace: "x", Labels: []string{"k8s:app=front"}, Identity: 70000},
		"x/identity 9":   {Namespace: "x", Identity: 9},
		"x/lone":         {Namespace: "x", PodName: "lone"},
		":without-space": {PodName: "without-space"},
	} {
		if got := NewGraph(DefaultLimits()).identify(side{endpoint: ep}, testTime).ID; got != want {
			t.Errorf("%v is %q, want %q", ep, got, want)
		}
	}
	for address, want := range map[string]string{"ff02::2": LinkLocal, "fe80::1": LinkLocal, "192.0.2.1": ":unknown", "": ":unknown", "x": ":unknown"} {
		if got := NewGraph(DefaultLimits()).identify(side{address: address}, testTime).ID; got != want {
			t.Errorf("%q is %q, want %q", address, got, want)
		}
	}
	g, _ := testGraph(DefaultLimits())
	g.Add(&flow.Flow{})
	g.Add(&flow.Flow{Time: timestamppb.New(testTime)})
	if s := g.Snapshot(time.Time{}, time.Time{}); len(s.Edges) != 0 && s.Edges[0].Protocol != "IP" {
		t.Errorf("an empty flow: %+v", s.Edges)
	}
}

// TestManyPolicies: a flow that names very many policies takes little room among the latest.
func TestManyPolicies(t *testing.T) {
	g, _ := testGraph(DefaultLimits())
	f := verdict(testTime, pod("shop", "web", "web-0", 1), pod("shop", "db", "db-0", 2), 80, no, in)
	for i := range 10000 {
		p := &flow.Policy{Namespace: "shop", Name: fmt.Sprint(i)}
		f.EgressAllowedBy, f.IngressAllowedBy = append(f.EgressAllowedBy, p), append(f.IngressAllowedBy, p)
		f.EgressDeniedBy, f.IngressDeniedBy = append(f.EgressDeniedBy, p), append(f.IngressDeniedBy, p)
	}
	g.Add(f)
	for _, f := range g.Flows(10, func(*Flow) bool { return true }) {
		if len(f.AllowedBy) == 0 || len(f.AllowedBy) > 100 || len(f.DeniedBy) == 0 || len(f.DeniedBy) > 100 {
			t.Errorf("%d and %d policies are kept", len(f.AllowedBy), len(f.DeniedBy))
		}
	}
	if s := g.Snapshot(time.Time{}, time.Time{}); len(s.Edges) != 1 || len(s.Edges[0].AllowedBy) > DefaultLimits().Details {
		t.Errorf("the edges are %v", s.Edges)
	}
}
