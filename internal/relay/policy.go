package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/policypreview"
)

const (
	// answerTime is how long nodes may take for a question about policies, all together.
	answerTime = time.Minute
	// busyTime is how long a node is asked again that computes a preview for somebody else.
	busyTime  = 10 * time.Second
	busyRetry = 300 * time.Millisecond
	// maxMerged is how many sorts of connections of all nodes are told apart.
	maxMerged = 20000
)

// policies answers what policies mean, with what nodes say: any of them of policies, which all know
// alike, and each of what it has seen.
type policies struct {
	policypb.UnimplementedPolicyServer
	relay      *Relay
	previewing chan struct{} // room for one
}

func newPolicies(r *Relay) *policies { return &policies{relay: r, previewing: make(chan struct{}, 1)} }

// connected returns the nodes that may be asked, that of a name first.
func (p *policies) connected(first string) (list []view, missing []*policypb.NodeProblem, err error) {
	views, _ := p.relay.roster.nodes()
	for _, v := range views {
		switch {
		case v.conn == nil:
			missing = append(missing, &policypb.NodeProblem{NodeName: v.name, Problem: unavailable(v)})
		case v.name == first:
			list = slices.Insert(list, 0, v)
		default:
			list = append(list, v)
		}
	}
	if len(list) == 0 {
		return nil, nil, status.Error(codes.Unavailable, "no node is connected; `hawser observe nodes` says why")
	}
	return list, missing, nil
}

// onlyAsker reports whether an error is about the question, so that no other node would answer it.
func onlyAsker(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.Canceled, codes.DeadlineExceeded:
		return true
	}
	return false
}

// Matrix implements [policypb.PolicyServer]: the first node that answers does it for all.
func (p *policies) Matrix(req *policypb.MatrixRequest, stream policypb.Policy_MatrixServer) error {
	return flowserver.Watch(stream.Context(), p.relay.cfg.stall, func(ctx context.Context, send func(func() error) error) error {
		nodes, _, err := p.connected("")
		if err != nil {
			return err
		}
		for _, v := range nodes {
			sent := false
			if sent, err = p.matrixOf(ctx, v, req, func(res *policypb.MatrixResponse) error {
				return send(func() error { return stream.Send(res) })
			}); err == nil || sent || onlyAsker(err) || ctx.Err() != nil {
				return err
			}
		}
		return err
	})
}

// matrixOf passes on what a node answers.
func (p *policies) matrixOf(ctx context.Context, v view, req *policypb.MatrixRequest, send func(*policypb.MatrixResponse) error) (sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	from, err := policypb.NewPolicyClient(v.conn).Matrix(ctx, req)
	if err != nil {
		return false, err
	}
	for {
		res, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
		if sent = true; res.GetNodeName() != "" {
			res.NodeName = v.name
		}
		if err := send(res); err != nil {
			return sent, err
		}
	}
}

// Explain implements [policypb.PolicyServer]: the node that saw the flow answers, or any other.
func (p *policies) Explain(ctx context.Context, req *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	nodes, _, err := p.connected(req.GetFlow().GetNodeName())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for _, v := range nodes {
		var res *policypb.ExplainResponse
		if res, err = policypb.NewPolicyClient(v.conn).Explain(ctx, req); err == nil {
			res.NodeName = v.name
			return res, nil
		}
		if onlyAsker(err) {
			break
		}
	}
	return nil, err
}

// Preview implements [policypb.PolicyServer]: all nodes judge what they have seen, and one compares
// the pairs.
func (p *policies) Preview(req *policypb.PreviewRequest, stream policypb.Policy_PreviewServer) error {
	return flowserver.Watch(stream.Context(), p.relay.cfg.stall, func(ctx context.Context, send func(func() error) error) error {
		pieces, err := p.preview(ctx, req)
		if err != nil {
			return err
		}
		for _, piece := range pieces {
			if err := send(func() error { return stream.Send(piece) }); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *policies) preview(ctx context.Context, req *policypb.PreviewRequest) ([]*policypb.PreviewResponse, error) {
	select {
	case p.previewing <- struct{}{}:
		defer func() { <-p.previewing }()
	default:
		return nil, status.Error(codes.ResourceExhausted, "another preview is being put together; try again in a few seconds")
	}
	nodes, missing, err := p.connected("")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	m := &previewMerge{byKey: map[string]*policypb.Connection{}, sum: &policypb.PreviewSummary{}, problems: missing}
	without := proto.CloneOf(req)
	without.WithoutPairs = true
	slots := make(chan struct{}, askAtOnce)
	var asked sync.WaitGroup
	for i, v := range nodes {
		slots <- struct{}{} // each ends with ctx
		asked.Go(func() {
			defer func() { <-slots }()
			question := without
			if i == 0 {
				question = req
			}
			m.add(v.name, i == 0, previewOf(ctx, v.conn, question))
		})
	}
	asked.Wait()
	// If the one who was to compare the pairs did not, another does.
	for _, v := range nodes[1:] {
		if m.refusal != nil || m.first != nil || req.GetWithoutPairs() || ctx.Err() != nil {
			break
		}
		if a := previewOf(ctx, v.conn, req); a.err == nil {
			m.first = a.res
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if m.refusal != nil && m.answered == 0 {
		return nil, m.refusal
	}
	if m.answered == 0 {
		return nil, status.Errorf(codes.Unavailable, "no node answered: %s: %s", m.problems[0].GetNodeName(), m.problems[0].GetProblem())
	}
	return m.pieces(req), nil
}

// nodePreview is what a node answers.
type nodePreview struct {
	res *policypb.PreviewResponse
	err error
}

// previewOf asks a node, again for a while if it is busy.
func previewOf(ctx context.Context, conn *grpc.ClientConn, req *policypb.PreviewRequest) nodePreview {
	for until := time.Now().Add(busyTime); ; {
		res, err := readPreview(ctx, conn, req)
		if status.Code(err) != codes.ResourceExhausted || time.Now().After(until) {
			return nodePreview{res, err}
		}
		select {
		case <-ctx.Done():
			return nodePreview{nil, ctx.Err()}
		case <-time.After(busyRetry):
		}
	}
}

func readPreview(ctx context.Context, conn *grpc.ClientConn, req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
	stream, err := policypb.NewPolicyClient(conn).Preview(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &policypb.PreviewResponse{}
	for size := 0; ; {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if size += proto.Size(piece); size > 16*maxMessage {
			return nil, errors.New("its answer is too large")
		}
		proto.Merge(out, piece)
	}
}

// previewMerge puts the answers of nodes together. It is safe for concurrent use.
type previewMerge struct {
	mu       sync.Mutex
	byKey    map[string]*policypb.Connection
	sum      *policypb.PreviewSummary
	problems []*policypb.NodeProblem
	// first has the pairs; any answer has the changes.
	first, any *policypb.PreviewResponse
	answered   int
	refusal    error
}

// add adds the answer of a node.
func (m *previewMerge) add(node string, pairs bool, a nodePreview) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.err != nil {
		if status.Code(a.err) == codes.InvalidArgument {
			m.refusal = status.Error(codes.InvalidArgument, text(a.err))
		}
		m.problems = append(m.problems, &policypb.NodeProblem{NodeName: node, Problem: text(a.err)})
		return
	}
	m.answered++
	m.any = a.res
	if pairs {
		m.first = a.res
	}
	sum := a.res.GetSummary()
	m.sum.Flows += sum.GetFlows()
	m.sum.FlowsNotJudged += sum.GetFlowsNotJudged()
	m.sum.Unchanged += sum.GetUnchanged()
	m.sum.ConnectionsLeftOut += sum.GetConnectionsLeftOut()
	if at := sum.GetOldest(); at != nil && (m.sum.Oldest == nil || at.AsTime().Before(m.sum.Oldest.AsTime())) {
		m.sum.Oldest = at
	}
	for _, c := range a.res.GetConnections() {
		m.addConnection(c)
	}
}

// addConnection adds what one node saw: a connection may be seen by its sender's node and by its
// receiver's, each of which counts its own side.
func (m *previewMerge) addConnection(c *policypb.Connection) {
	key := strings.Join([]string{policypreview.PartyKey(c.GetSource()), policypreview.PartyKey(c.GetDestination()), c.GetProtocol(),
		strconv.Itoa(int(c.GetPort())), c.GetAfter().String()}, "\x00")
	have := m.byKey[key]
	if have == nil {
		if len(m.byKey) >= maxMerged {
			m.sum.ConnectionsLeftOut++
			return
		}
		m.byKey[key] = c
		return
	}
	have.Egress += c.GetEgress()
	have.Ingress += c.GetIngress()
	have.Count = max(have.GetEgress(), have.GetIngress())
	if c.GetFirstSeen().AsTime().Before(have.GetFirstSeen().AsTime()) {
		have.FirstSeen = c.GetFirstSeen()
	}
	if c.GetLastSeen().AsTime().After(have.GetLastSeen().AsTime()) {
		have.LastSeen = c.GetLastSeen()
	}
	have.Sources = policypreview.MergeSamples(have.GetSources(), c.GetSources())
	have.Destinations = policypreview.MergeSamples(have.GetDestinations(), c.GetDestinations())
}

// pieces is the answer to the client.
func (m *previewMerge) pieces(req *policypb.PreviewRequest) []*policypb.PreviewResponse {
	head := &policypb.PreviewResponse{
		NodeName: "relay", Time: timestamppb.Now(), Revision: m.any.GetRevision(), Changes: m.any.GetChanges(), Warnings: m.any.GetWarnings(), Problems: m.problems,
	}
	if m.first == nil && !req.GetWithoutPairs() {
		head.Warnings = append(head.Warnings, "no node compared the pairs")
	}
	list := make([]*policypb.Connection, 0, len(m.byKey))
	for _, c := range m.byKey {
		list = append(list, c)
	}
	slices.SortFunc(list, policypreview.CompareConnections)
	room := policypreview.Room(req)
	kept := map[policypb.Verdict]int{}
	list = slices.DeleteFunc(list, func(c *policypb.Connection) bool {
		if c.GetAfter() == policypb.Verdict_DENIED {
			m.sum.Refused++
		} else {
			m.sum.Allowed++
		}
		if kept[c.GetAfter()]++; kept[c.GetAfter()] > room {
			m.sum.ConnectionsLeftOut++
			return true
		}
		return false
	})
	out := []*policypb.PreviewResponse{head}
	for part := range slices.Chunk(list, 64) {
		out = append(out, &policypb.PreviewResponse{Connections: part})
	}
	for part := range slices.Chunk(m.first.GetParties(), 200) {
		out = append(out, &policypb.PreviewResponse{Parties: part})
	}
	for part := range slices.Chunk(m.first.GetPairs(), 64) {
		out = append(out, &policypb.PreviewResponse{Pairs: part})
	}
	pairs := m.first.GetSummary()
	m.sum.PairsOpened, m.sum.PairsClosed, m.sum.PairsLeftOut, m.sum.PartiesLeftOut =
		pairs.GetPairsOpened(), pairs.GetPairsClosed(), pairs.GetPairsLeftOut(), pairs.GetPartiesLeftOut()
	return append(out, &policypb.PreviewResponse{Summary: m.sum})
}
