package relay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

var cutAt = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// probed is what a node knows of another that answered echoes after a time, or, if that is 0, none.
func probed(name string, took time.Duration) clusterhealth.Status {
	way := clusterhealth.Connectivity{Probed: cutAt, Since: cutAt, Latency: took}
	if took == 0 {
		way.Err = "no answer"
	}
	return clusterhealth.Status{Name: name, Node: []clusterhealth.Path{{Addr: netip.MustParseAddr("192.0.2.1"), ICMP: way, HTTP: way}}}
}

// TestNodeHealth: a relay reports who does not reach whom and since when, who is slow, and of which
// nodes it does not know.
func TestNodeHealth(t *testing.T) {
	t.Parallel()
	s := newStand(t, 8, nil, nil)
	for i, n := range s.nodes {
		for j, to := range s.nodes {
			took := time.Duration(i*10+j+1) * time.Millisecond
			if i == 0 && j == 1 {
				took = 0 // one way only
			}
			n.statuses = append(n.statuses, probed(to.name(), took))
		}
	}
	s.nodes[2].statuses = append(s.nodes[2].statuses, probed("other/far", 0))
	s.connected(8)
	s.nodes[3].end()
	s.connected(7)
	conn, err := grpc.NewClient("unix://"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	res, err := health.NewNodeHealthClient(conn).Get(t.Context(), &health.GetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	views := map[string]*health.NodeView{}
	for _, n := range res.GetNodes() {
		views[n.GetName()] = n
	}
	if n := views["prod/n1"]; len(views) != 9 || n.GetReachable() != 7 || n.GetUnreachable() != 1 || n.GetProblem() != "" || n.GetLatency().AsDuration() != 6*time.Millisecond {
		t.Errorf("%d nodes, n1: %v", len(views), n)
	}
	if n := views["prod/n2"]; n.GetUnreachedBy() != 1 || n.GetReachable() != 8 {
		t.Errorf("n2: %v", n)
	}
	for name, want := range map[string]string{"prod/n4": "no answer to the relay", "prod/n8": "version", "other/far": "does not ask"} {
		if !strings.Contains(views[name].GetProblem(), want) {
			t.Errorf("%s: %v, want that it %q", name, views[name], want)
		}
	}
	if len(res.GetFailures()) != 2 || res.GetFailuresLeftOut() != 0 {
		t.Fatalf("failures %v", res.GetFailures())
	}
	if f := res.GetFailures()[0]; f.GetFrom() != "prod/n1" || f.GetTo() != "prod/n2" || !f.GetSince().AsTime().Equal(cutAt) || len(f.GetWays()) != 2 ||
		f.GetWays()[0].GetKind() != "icmp" || f.GetWays()[0].GetProblem() != "no answer" {
		t.Errorf("%v", f)
	}
	if l := res.GetSlowest(); len(l) != maxSlowest || l[0].GetFrom() != "prod/n7" || l[0].GetTo() != "prod/n8" || l[0].GetLatency().AsDuration() != 68*time.Millisecond {
		t.Errorf("slowest %v", l)
	}
	// A node that is frozen, with its connection open, holds the others up for so long only.
	s.nodes[4].gate.freeze()
	defer s.nodes[4].gate.thaw()
	h := newNodeHealth(s.relay)
	h.timeout = time.Second
	controllers.Eventually(t, testTimeout, func() string {
		if res = h.ask(t.Context()); len(res.GetFailures()) != 2 {
			return fmt.Sprintf("failures %v", res.GetFailures())
		}
		i := slices.IndexFunc(res.GetNodes(), func(n *health.NodeView) bool { return n.GetName() == "prod/n5" })
		if i < 0 || res.GetNodes()[i].GetProblem() == "" {
			return "n5 has a view"
		}
		return ""
	})
}

// TestNodeHealthIsBounded: neither a cluster in two halves nor nodes that lie make an answer that
// clients refuse, and each node has its share of it.
func TestNodeHealthIsBounded(t *testing.T) {
	t.Parallel()
	const nodes = 5000
	service := &clusterhealth.Service{Statuses: func() (all []clusterhealth.Status, _ time.Duration) {
		for i := range nodes {
			all = append(all, probed(fmt.Sprintf("prod/node-%04d", i), time.Duration(i%2)))
		}
		return all, time.Minute
	}}
	answer, err := service.Get(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := proto.Size(answer); n > maxMessage/2 || answer.GetFailuresLeftOut() != nodes/2-256 || answer.GetNodes()[0].GetUnreachable() != nodes/2 {
		t.Errorf("a node answers with %d bytes, %d of %d failures left out", n, answer.GetFailuresLeftOut(), answer.GetNodes()[0].GetUnreachable())
	}
	liar := &health.GetResponse{Nodes: []*health.NodeView{{Name: "prod/node-0001", Problem: strings.Repeat("é", 1<<16)}}, FailuresLeftOut: 1 << 31}
	long := &health.Way{Kind: strings.Repeat("k", 1000), Address: strings.Repeat("a", 1000), Problem: strings.Repeat("p", 1000)}
	for i := range 5000 {
		f := &health.Failure{From: "another node", To: fmt.Sprint("prod/", strings.Repeat("é", i%400), i)}
		for range 200 {
			f.Ways = append(f.Ways, long)
		}
		liar.Failures = append(liar.Failures, f)
		liar.Slowest = append(liar.Slowest, &health.Latency{To: strings.Repeat("y", 1000), Latency: durationpb.New(time.Hour)})
	}
	few := &health.GetResponse{Nodes: answer.GetNodes(), Failures: answer.GetFailures()[:2], Slowest: answer.GetSlowest()}
	sum := newHealthSum(nodes)
	for i := range nodes {
		name := fmt.Sprintf("prod/node-%04d", i)
		switch {
		case i%2000 == 3:
			sum.add(name, liar)
		case i%50 == 0:
			sum.add(name, answer)
		default:
			sum.add(name, few)
		}
	}
	res := sum.response()
	if n := proto.Size(res); n > 4<<20 || len(res.GetFailures()) > maxFailures || len(res.GetNodes()) > nodes+2*maxNodes {
		t.Errorf("the relay answers with %d bytes, %d failures, %d nodes", n, len(res.GetFailures()), len(res.GetNodes()))
	}
	if b, err := proto.Marshal(res); err != nil {
		t.Errorf("the answer cannot be sent: %v, %d bytes", err, len(b))
	}
	from := map[string]int{}
	for _, f := range res.GetFailures() {
		from[f.GetFrom()]++
	}
	if len(from) != maxFailures || from["another node"] > 0 {
		t.Errorf("failures of %d nodes", len(from))
	}
	// However often a node says that it does not reach another, it is one that says so.
	sum = newHealthSum(2)
	for _, from := range []string{"n1", "n3"} {
		res := &health.GetResponse{Nodes: []*health.NodeView{{}}}
		for range 1000 {
			res.Failures = append(res.Failures, &health.Failure{To: "n2"})
		}
		sum.add(from, res)
	}
	if res := sum.response(); len(res.GetFailures()) != 2 || res.GetFailuresLeftOut() != 0 || res.GetNodes()[1].GetUnreachedBy() != 2 {
		t.Errorf("what nodes say again: %d failures, %d left out, %v", len(res.GetFailures()), res.GetFailuresLeftOut(), res.GetNodes()[1])
	}
	// A small cluster in two halves is listed whole.
	sum = newHealthSum(4)
	for i := range 4 {
		sum.add(fmt.Sprint("n", i), &health.GetResponse{Nodes: []*health.NodeView{{}}, Failures: []*health.Failure{{To: "a"}, {To: "b"}}})
	}
	if res := sum.response(); len(res.GetFailures()) != 8 || res.GetFailuresLeftOut() != 0 {
		t.Errorf("a small cluster: %d failures, %d left out", len(res.GetFailures()), res.GetFailuresLeftOut())
	}
}
