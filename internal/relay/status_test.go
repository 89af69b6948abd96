package relay

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
)

// TestProblemsOfAnyBytes: whatever bytes a node says went wrong, clients get it, of not too
// much.
func TestProblemsOfAnyBytes(t *testing.T) {
	for said, want := range map[string]string{
		strings.Repeat("x", maxProblem-1) + "é": strings.Repeat("x", maxProblem-1),
		"it \xff\xfe\x00 is":                    "it \x00 is",
		strings.Repeat("\xff", 2*maxProblem):    "",
		"größer":                                "größer",
	} {
		n := newStateChanges(0)
		n.add("prod/n1", relay.NodeState_NODE_ERROR, text(status.Error(codes.Unknown, said)))
		for _, res := range n.take(time.Now()) {
			if got := res.GetNodeStatus().GetMessage(); got != want {
				t.Errorf("%q became %q", said, got)
			}
			if _, err := proto.Marshal(res); err != nil {
				t.Errorf("%q: %v", said, err)
			}
		}
	}
}

// boaster is an agent that says much of itself.
type boaster struct {
	observer.UnimplementedObserverServer
	rate float64
}

func (b boaster) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	return &observer.ServerStatusResponse{
		NumFlows: math.MaxUint64, MaxFlows: math.MaxUint64, SeenFlows: math.MaxUint64, UptimeNs: 7, FlowsRate: b.rate,
		Version: strings.Repeat("v", 900<<10), UnavailableNodes: make([]string, 1000),
	}, nil
}

// TestStatusOfAnyNode: what a node says of itself is remembered as long as it is there, and is part
// of the answer about all nodes: it is little, and spoils neither the others' nor the sums.
func TestStatusOfAnyNode(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{math.NaN(), math.Inf(1), -1, 1e300} {
		conn := dialAgent(t, boaster{rate: rate})
		r := &Relay{cfg: Defaults(), roster: newRoster(4)}
		r.cfg.DialTimeout = testTimeout
		st, err := r.ask(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(st); size > 512 {
			t.Errorf("%d bytes are remembered", size)
		}
		for _, name := range []string{"a", "b"} {
			r.roster.members[name] = &member{view: view{peerNode: peerNode{name: name}, conn: conn, status: st}}
		}
		all, err := r.ServerStatus(t.Context(), nil)
		if err != nil || !(all.GetFlowsRate() >= 0 && all.GetFlowsRate() < 1e20) || all.GetSeenFlows() < st.GetSeenFlows() || all.GetMaxFlows() < st.GetMaxFlows() || all.GetUptimeNs() != 7 {
			t.Errorf("of all nodes: %v, %v", all, err)
		}
	}
}
