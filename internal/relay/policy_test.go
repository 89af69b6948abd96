package relay

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// nodePolicies answers for a node what it is told to.
type nodePolicies struct {
	policypb.UnimplementedPolicyServer
	mu      sync.Mutex
	preview func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error)
	matrix  error
	name    string
	asked   int
}

func (n *nodePolicies) Preview(req *policypb.PreviewRequest, stream policypb.Policy_PreviewServer) error {
	n.mu.Lock()
	n.asked++
	answer := n.preview
	n.mu.Unlock()
	res, err := answer(req)
	if err != nil {
		return err
	}
	return stream.Send(res)
}

func (n *nodePolicies) Matrix(_ *policypb.MatrixRequest, stream policypb.Policy_MatrixServer) error {
	if n.matrix != nil {
		return n.matrix
	}
	return stream.Send(&policypb.MatrixResponse{NodeName: "whatever", Parties: []*policypb.Party{{Name: n.name}}})
}

func (n *nodePolicies) Explain(_ context.Context, req *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	if req.GetFlow().GetUuid() == "odd" {
		return nil, status.Error(codes.InvalidArgument, "the flow is odd")
	}
	return &policypb.ExplainResponse{NodeName: n.name}, nil
}

func TestRelayAnswersWhatPoliciesMean(t *testing.T) {
	const nodes = 4
	s := newStand(t, nodes, nil, nil)
	party := func(name string, id uint32) *policypb.Party {
		p := &policypb.Party{Kind: policypb.PartyKind_PARTY_PODS, Namespace: "shop", Name: name, Identity: id}
		if name == "192.0.2.0/24" {
			p.Kind, p.Namespace = policypb.PartyKind_PARTY_CIDR, ""
		}
		return p
	}
	connection := func(to string, id uint32, egress, ingress uint64, pod string) *policypb.Connection {
		return &policypb.Connection{
			Source: party("front", 1), Destination: party(to, id), Protocol: "TCP", Port: 80, Before: policypb.Verdict_ALLOWED, After: policypb.Verdict_DENIED,
			Egress: egress, Ingress: ingress, Count: max(egress, ingress), Sources: []string{pod},
		}
	}
	seen := [][]*policypb.Connection{
		{connection("db", 2, 3, 0, "a"), connection("192.0.2.0/24", 1<<24, 1, 0, "a")},
		{connection("db", 2, 0, 5, "a"), connection("192.0.2.0/24", 1<<24+7, 2, 0, "b")},
		{connection("db", 2, 2, 0, "c")},
		nil,
	}
	answer := func(i int) func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
		return func(req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
			res := &policypb.PreviewResponse{Connections: seen[i], Changes: []*policypb.PolicyChange{{Document: "x"}}, Summary: &policypb.PreviewSummary{Flows: 10, Refused: 1}}
			if !req.GetWithoutPairs() {
				res.Pairs, res.Summary.PairsClosed = []*policypb.PairChange{{}}, 1
			}
			return proto.CloneOf(res), nil
		}
	}
	for i, n := range s.nodes {
		n.policies.mu.Lock()
		n.policies.name, n.policies.preview = n.name(), answer(i)
		n.policies.mu.Unlock()
	}
	busy := 0
	s.nodes[2].policies.preview = func(req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
		if busy++; busy < 3 { // one at a time asks
			return nil, status.Error(codes.ResourceExhausted, "busy")
		}
		return answer(2)(req)
	}
	s.nodes[3].policies.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
		return nil, status.Error(codes.Internal, "broken")
	}
	conn, err := grpc.NewClient("unix://"+s.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := policypb.NewPolicyClient(conn)
	controllers.Eventually(t, patience, func() string {
		views, _ := s.relay.roster.nodes()
		for _, v := range views {
			if v.state != relay.NodeState_NODE_CONNECTED {
				return v.name + " is not connected"
			}
		}
		if len(views) != nodes {
			return "nodes are missing"
		}
		return ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func() (*policypb.PreviewResponse, error) {
		stream, err := client.Preview(ctx, &policypb.PreviewRequest{})
		out := &policypb.PreviewResponse{}
		for err == nil {
			var piece *policypb.PreviewResponse
			if piece, err = stream.Recv(); err == nil {
				proto.Merge(out, piece)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return out, err
	}
	res, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if len(res.GetConnections()) != 2 || len(res.GetPairs()) != 1 || len(res.GetChanges()) != 1 {
		t.Fatalf("answered %v", res)
	}
	db, net := res.GetConnections()[0], res.GetConnections()[1]
	if db.GetEgress() != 5 || db.GetIngress() != 5 || db.GetCount() != 5 || len(db.GetSources()) != 2 || net.GetCount() != 3 {
		t.Errorf("counted %v and %v", db, net)
	}
	if sum := res.GetSummary(); sum.GetFlows() != 30 || sum.GetRefused() != 2 || sum.GetPairsClosed() != 1 {
		t.Errorf("summary %v", sum)
	}
	if p := res.GetProblems(); len(p) != 1 || p[0].GetNodeName() != s.nodes[3].name() || p[0].GetProblem() != "broken" {
		t.Errorf("problems %v", p)
	}

	// Without the one who compares pairs another does; a question that makes no sense is nobody's.
	broken := s.nodes[3].policies.preview
	s.nodes[0].policies.mu.Lock()
	s.nodes[0].policies.preview = broken
	s.nodes[0].policies.mu.Unlock()
	if res, err = ask(); err != nil || len(res.GetPairs()) != 1 || len(res.GetProblems()) != 2 {
		t.Errorf("without the first node: %v, %v", res, err)
	}
	for _, n := range s.nodes {
		n.policies.mu.Lock()
		n.policies.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "x.yaml: line 3: no")
		}
		n.policies.mu.Unlock()
	}
	if _, err = ask(); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "x.yaml: line 3: no" {
		t.Errorf("what makes no sense: %v", err)
	}

	s.nodes[0].policies.matrix = status.Error(codes.Unimplemented, "an older version")
	stream, err := client.Matrix(ctx, &policypb.MatrixRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetNodeName() != s.nodes[1].name() || m.GetParties()[0].GetName() != s.nodes[1].name() {
		t.Errorf("matrix: %v, %v", m, err)
	}
	explained, err := client.Explain(ctx, &policypb.ExplainRequest{Flow: &flow.Flow{NodeName: s.nodes[2].name()}})
	if err != nil || explained.GetNodeName() != s.nodes[2].name() {
		t.Errorf("explained by %v, %v", explained, err)
	}
	if _, err = client.Explain(ctx, &policypb.ExplainRequest{Flow: &flow.Flow{Uuid: "odd"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("what makes no sense is explained: %v", err)
	}
}
