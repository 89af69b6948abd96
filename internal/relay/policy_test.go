package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/cli/command"
	cli "github.com/hawser-net/hawser/internal/cli/policy"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// nodePolicies answers for a node what it is set to.
type nodePolicies struct {
	policypb.UnimplementedPolicyServer
	mu      sync.Mutex
	preview func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error)
	matrix  error
	rows    []*policypb.MatrixRow
	name    string
	asked   int
	hangs   bool // it takes questions and never answers
}

// hang waits for who asks to give up, if the node hangs.
func (n *nodePolicies) hang(ctx context.Context) error {
	n.mu.Lock()
	hangs := n.hangs
	n.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// set changes what a node answers.
func (n *nodePolicies) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *nodePolicies) Preview(req *policypb.PreviewRequest, stream policypb.Policy_PreviewServer) error {
	n.mu.Lock()
	n.asked++
	answer := n.preview
	n.mu.Unlock()
	if err := n.hang(stream.Context()); err != nil {
		return err
	}
	res, err := answer(req)
	if err != nil {
		return err
	}
	return stream.Send(res)
}

func (n *nodePolicies) Matrix(_ *policypb.MatrixRequest, stream policypb.Policy_MatrixServer) error {
	if err := n.hang(stream.Context()); err != nil {
		return err
	}
	if n.matrix != nil {
		return n.matrix
	}
	return stream.Send(&policypb.MatrixResponse{NodeName: "whatever", Parties: []*policypb.Party{{Name: n.name}}, Rows: n.rows})
}

func (n *nodePolicies) Explain(ctx context.Context, req *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	if err := n.hang(ctx); err != nil {
		return nil, err
	}
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
				res.Parties, res.Pairs, res.Summary.PairsClosed = []*policypb.Party{{}}, []*policypb.PairChange{{}}, 1
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
	controllers.Eventually(t, testTimeout, func() string {
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
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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
	if sum := res.GetSummary(); sum.GetFlows() != 30 || sum.GetRefused() != 2 || sum.GetPairsClosed() != 1 || sum.GetChangedAtMost() || sum.GetUnchangedAtMost() {
		t.Errorf("summary %v", sum)
	}
	if p := res.GetProblems(); len(p) != 1 || p[0].GetNodeName() != s.nodes[3].name() || p[0].GetProblem() != "broken" {
		t.Errorf("problems %v", p)
	}

	// Without the node that compares pairs another does; an invalid question goes to none.
	broken := s.nodes[3].policies.preview
	s.nodes[0].policies.mu.Lock()
	s.nodes[0].policies.preview = broken
	s.nodes[0].policies.mu.Unlock()
	if res, err = ask(); err != nil || len(res.GetPairs()) != 1 || len(res.GetProblems()) != 2 {
		t.Errorf("without the first node: %v, %v", res, err)
	}
	// What no node can answer is refused; a node alone is a problem.
	refuse := func(n *testNode, code codes.Code) {
		n.policies.set(func() {
			n.policies.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
				return nil, status.Error(code, "x.yaml: line 3: no")
			}
		})
	}
	refuse(s.nodes[3], codes.FailedPrecondition)
	if res, err = ask(); err != nil || len(res.GetProblems()) != 2 || len(res.GetConnections()) != 2 {
		t.Errorf("one node that cannot answer: %v, %v", res, err)
	}
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.InvalidArgument} {
		for _, n := range s.nodes {
			refuse(n, code)
		}
		if _, err = ask(); status.Code(err) != code || status.Convert(err).Message() != "x.yaml: line 3: no" {
			t.Errorf("what no node answers: %v, want %v", err, code)
		}
	}
	refuse(s.nodes[0], codes.FailedPrecondition)
	refuse(s.nodes[3], codes.FailedPrecondition)
	if _, err = ask(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("what is invalid and cannot be answered: %v", err)
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
		t.Errorf("what is invalid is explained: %v", err)
	}
}

// TestPreviewOfSilentNodes: a pipeline that asks a relay learns from the exit code that a node was
// stopped, or is not known to the relay, though nothing that the others saw would be refused.
func TestPreviewOfSilentNodes(t *testing.T) {
	// ask asks until the command ends with the code and names what is missing.
	ask := func(s *stand, when string, code int, names string) {
		s.t.Helper()
		controllers.Eventually(s.t, testTimeout, func() string {
			ctx, cancel := context.WithTimeout(s.t.Context(), testTimeout)
			defer cancel()
			var out, errs bytes.Buffer
			a := &command.App{Getenv: func(key string) string { return map[string]string{"HUBBLE_SERVER": s.path}[key] }}
			got := command.Run(ctx, command.Root(a, &out, &errs, "", "", cli.Command(a)), []string{"policy", "preview", "--delete", "shop/old"})
			if got != code || !strings.Contains(out.String()+errs.String(), names) {
				return fmt.Sprintf("%s: code %d, want %d and %q\n%s%s", when, got, code, names, &out, &errs)
			}
			return ""
		})
	}
	// start starts two nodes. Neither has seen what would be refused, and both lose events.
	start := func(t *testing.T, change func(*Config)) *stand {
		s := newStand(t, 2, change, nil)
		for _, n := range s.nodes {
			n.policies.set(func() {
				n.policies.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
					return &policypb.PreviewResponse{Summary: &policypb.PreviewSummary{Flows: 1, EventsLost: 1}}, nil
				}
			})
		}
		return s
	}
	t.Run("stopped", func(t *testing.T) {
		s := start(t, nil)
		ask(s, "both answer", exitcode.OK, "2 flows evaluated")
		s.nodes[1].end()
		ask(s, "one is stopped", exitcode.Incomplete, "nothing of "+s.nodes[1].name()+": ")
		s.serve(s.nodes[1])
		ask(s, "it is back", exitcode.OK, "2 flows evaluated")
		s.nodes[0].end()
		ask(s, "the one that lists the nodes is stopped", exitcode.Incomplete, "nothing of nodes that joined since: ")
	})
	t.Run("too many", func(t *testing.T) {
		s := start(t, func(c *Config) { c.nodes = 1 })
		ask(s, "there are more nodes than a relay asks", exitcode.Incomplete, "nothing of the other nodes: ")
	})
}

// TestPreviewFitsInMessages: whatever one node answers, no message to the client is larger than
// clients of gRPC take, and all of it is there, in its order.
func TestPreviewFitsInMessages(t *testing.T) {
	t.Parallel()
	m := &previewMerge{byKey: map[string]*policypb.Connection{}, failed: map[string]bool{}, sum: &policypb.PreviewSummary{}}
	res := &policypb.PreviewResponse{Summary: &policypb.PreviewSummary{}}
	for i := range 15 {
		text := strings.Repeat(string(rune('a'+i)), 900<<10)
		res.Changes = append(res.Changes, &policypb.PolicyChange{Document: text})
		res.Warnings = append(res.Warnings, text)
		res.Connections = append(res.Connections, &policypb.Connection{Protocol: text, After: policypb.Verdict_DENIED, Count: uint64(100 - i)})
		res.Parties = append(res.Parties, &policypb.Party{Name: text})
		res.Pairs = append(res.Pairs, &policypb.PairChange{Source: uint32(i)})
	}
	m.add("prod/n1", true, nodePreview{res: res})
	all := &policypb.PreviewResponse{}
	for _, piece := range m.pieces(&policypb.PreviewRequest{}) {
		if size := proto.Size(piece); size > 4<<20 {
			t.Errorf("a message has %d bytes", size)
		}
		proto.Merge(all, piece)
	}
	for i := range 15 {
		if len(all.GetChanges()) != 15 || len(all.GetWarnings()) != 15 || len(all.GetConnections()) != 15 || len(all.GetParties()) != 15 || len(all.GetPairs()) != 15 {
			t.Fatalf("%d, %d, %d, %d and %d elements of 15", len(all.GetChanges()), len(all.GetWarnings()), len(all.GetConnections()), len(all.GetParties()), len(all.GetPairs()))
		}
		if first := byte('a' + i); all.GetChanges()[i].GetDocument()[0] != first || all.GetWarnings()[i][0] != first || all.GetParties()[i].GetName()[0] != first || all.GetPairs()[i].GetSource() != uint32(i) {
			t.Errorf("element %d is another", i)
		}
	}
}

// TestRelaySkipsHarmfulNodes: a node that hangs, refuses, lies about places or answers
// too much at once is named, and the others answer without it.
func TestRelaySkipsHarmfulNodes(t *testing.T) {
	t.Parallel()
	s := newStand(t, 3, nil, nil)
	s.connected(3)
	answers := func(req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
		res := &policypb.PreviewResponse{Summary: &policypb.PreviewSummary{Flows: 10}}
		if !req.GetWithoutPairs() {
			res.Parties, res.Pairs = []*policypb.Party{{}}, []*policypb.PairChange{{}}
		}
		return res, nil
	}
	for _, n := range s.nodes {
		n.policies.set(func() { n.policies.name, n.policies.preview = n.name(), answers })
	}
	bad := &s.nodes[0].policies
	p := newPolicies(s.relay)
	p.previewTime, p.beginTime = 2*time.Second, time.Second
	whole := func(problem string) {
		t.Helper()
		controllers.Eventually(t, testTimeout, func() string { // a busy machine may hold up the others, too
			out := &policypb.PreviewResponse{}
			pieces, err := p.preview(t.Context(), &policypb.PreviewRequest{})
			for _, piece := range pieces {
				proto.Merge(out, piece)
			}
			problems := out.GetProblems()
			if err != nil || len(problems) != 1 || problems[0].GetNodeName() != bad.name || !strings.Contains(problems[0].GetProblem(), problem) ||
				out.GetSummary().GetFlows() != 20 || len(out.GetPairs()) != 1 {
				return fmt.Sprintf("%v, %v, want a node that %q", out, err, problem)
			}
			return ""
		})
	}
	matrix := func() {
		t.Helper()
		controllers.Eventually(t, testTimeout, func() string {
			var from string
			err := p.matrix(t.Context(), &policypb.MatrixRequest{}, func(res *policypb.MatrixResponse) error {
				from = res.GetNodeName()
				return nil
			})
			if err != nil || from == "" || from == bad.name {
				return fmt.Sprintf("the matrix is from %q: %v", from, err)
			}
			return ""
		})
	}

	bad.set(func() { bad.hangs = true })
	whole("no answer within 2s")
	matrix()
	controllers.Eventually(t, testTimeout, func() string {
		res, err := p.Explain(t.Context(), &policypb.ExplainRequest{Flow: &flow.Flow{NodeName: bad.name}})
		if err != nil || res.GetNodeName() == bad.name {
			return fmt.Sprintf("explained: %v, %v", res, err)
		}
		return ""
	})
	// A client that is gone gets no answer, and that is no node's fault.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.preview(gone, &policypb.PreviewRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("a client that is gone: %v", err)
	}
	bad.set(func() {
		bad.hangs = false
		bad.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
			return nil, status.Error(codes.InvalidArgument, "it knows no such field")
		}
	})
	whole("no such field")
	bad.set(func() {
		bad.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
			return &policypb.PreviewResponse{Parties: []*policypb.Party{{}}, Pairs: []*policypb.PairChange{{Destination: 1}}}, nil
		}
		bad.rows = []*policypb.MatrixRow{{Accesses: []uint32{1 << 31}}}
	})
	whole("entries that it does not contain")
	matrix()
	// What is too large for a message is not taken for a node that is busy, which is asked again.
	p.previewTime, p.answerTime = testTimeout, 2*testTimeout
	bad.set(func() {
		bad.asked = 0
		bad.preview = func(*policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
			return &policypb.PreviewResponse{Warnings: []string{strings.Repeat("x", maxMessage)}}, nil
		}
	})
	pieces, err := p.preview(t.Context(), &policypb.PreviewRequest{})
	bad.set(func() {
		if err != nil || len(pieces[0].GetProblems()) == 0 || bad.asked != 1 {
			t.Errorf("a message that is too large: asked %d times, %v, %v", bad.asked, pieces, err)
		}
	})
	whole("cannot be read")
}

// TestPreviewsOfNodesAreMerged: what two nodes saw of one connection is one, also if only one of
// them knows the workload, and what nodes had no room for counts.
func TestPreviewsOfNodesAreMerged(t *testing.T) {
	t.Parallel()
	party := func(name string, id uint32) *policypb.Party {
		return &policypb.Party{Kind: policypb.PartyKind_PARTY_PODS, Namespace: "shop", Name: name, Identity: id}
	}
	seen := func(from, to string, id uint32, egress, ingress, refused uint64) *policypb.PreviewResponse {
		return &policypb.PreviewResponse{
			Connections: []*policypb.Connection{{
				Source: party(from, 16384), Destination: party(to, id), Protocol: "TCP", Port: 80, After: policypb.Verdict_DENIED,
				Egress: egress, Ingress: ingress, Count: max(egress, ingress),
			}},
			Summary: &policypb.PreviewSummary{Refused: refused, Allowed: 2, Unchanged: 3, EventsLost: 5, ConnectionsLeftOut: refused + 1},
		}
	}
	const temporary = 0x01010000 // the same number is another's on each node
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}} {
		nodes := []*policypb.PreviewResponse{
			seen("front", "db-workload", 16385, 4, 0, 8), seen("front-workload", "db", 16385, 0, 4, 1),
			seen("front", "one", temporary, 1, 0, 1), seen("front", "two", temporary, 1, 0, 1),
		}
		m := &previewMerge{byKey: map[string]*policypb.Connection{}, failed: map[string]bool{}, sum: &policypb.PreviewSummary{}}
		for _, i := range order {
			m.add(fmt.Sprint("n", i), i == 0, nodePreview{res: nodes[i]})
		}
		out := &policypb.PreviewResponse{}
		for _, piece := range m.pieces(&policypb.PreviewRequest{}) {
			proto.Merge(out, piece)
		}
		if len(out.GetConnections()) != 3 {
			t.Fatalf("reported %v", out.GetConnections())
		}
		if c := out.GetConnections()[0]; c.GetCount() != 4 || c.GetEgress() != 4 || c.GetIngress() != 4 || c.GetSource().GetName() != "front" || c.GetDestination().GetName() != "db" {
			t.Errorf("one connection is reported as %v", c)
		}
		if sum := out.GetSummary(); sum.GetRefused() != 3+7 || sum.GetAllowed() != 8 || sum.GetUnchanged() != 12 ||
			!sum.GetChangedAtMost() || !sum.GetUnchangedAtMost() || sum.GetEventsLost() != 20 {
			t.Errorf("summary %v", sum)
		}
		// What a node says does not make less of what others do.
		m.add("liar", false, nodePreview{res: &policypb.PreviewResponse{Summary: &policypb.PreviewSummary{Refused: math.MaxUint64, Flows: math.MaxUint64}}})
		if sum := m.pieces(&policypb.PreviewRequest{}); sum[len(sum)-1].GetSummary().GetRefused() != math.MaxUint64 {
			t.Errorf("with a node that lies: %v", sum[len(sum)-1])
		}
	}
}
