package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"math/bits"
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
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// answerTime is how long nodes may take for a question about policies, all together: less than
	// clients wait.
	answerTime = 40 * time.Second
	// previewTime is how long one node may take to evaluate its flows, beginTime how long until it
	// starts to answer a request that any node could. Others do not wait for one that hangs.
	previewTime = 20 * time.Second
	beginTime   = 5 * time.Second
	// busyTime is how long the request is retried at a node that computes another client's preview.
	busyTime  = 10 * time.Second
	busyRetry = 300 * time.Millisecond
	// maxAnswer is how much of a node's answer is held, as policypb.Read counts it.
	maxAnswer = 16 * maxMessage
	// maxMerged is how many sorts of connections of all nodes are distinguished.
	maxMerged = 20000
)

// policies serves questions about policies from nodes' answers: of any node for policies, which all
// have, and of each for its own flows.
type policies struct {
	policypb.UnimplementedPolicyServer
	relay                              *Relay
	previewing                         chan struct{} // room for one
	answerTime, previewTime, beginTime time.Duration
}

func newPolicies(r *Relay) *policies {
	return &policies{
		relay: r, previewing: make(chan struct{}, 1), answerTime: answerTime, previewTime: previewTime, beginTime: beginTime,
	}
}

// connected returns the nodes that may be asked, that of a name first, and which are missing.
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
		return nil, nil, status.Error(codes.Unavailable, "no node is connected; see `hawser observe nodes`")
	}
	unknown := func(nodes, format string, args ...any) {
		missing = append(missing, &policypb.NodeProblem{NodeName: nodes, Problem: fmt.Sprintf(format, args...)})
	}
	if problem, _ := p.relay.roster.known(); problem != "" {
		unknown("nodes that joined since", "the list of nodes at %s cannot be followed: %s", p.relay.cfg.PeerService, problem)
	}
	if p.relay.roster.full() {
		unknown("the other nodes", "a relay asks %d nodes, and there are more", len(views))
	}
	return list, missing, nil
}

// onlyAsker reports whether an error is about the question or who asks it, so that no other node
// would answer it. That one node takes too long, or ends, is about that node.
func onlyAsker(ctx context.Context, err error) bool {
	code := status.Code(err)
	return code == codes.InvalidArgument || code == codes.NotFound || ctx.Err() != nil
}

// noAnswer is why there is nothing of a node that has had its time.
func noAnswer(within time.Duration) error {
	return status.Errorf(codes.Unavailable, "no answer within %v", within)
}

// Matrix implements [policypb.PolicyServer]: the first node that answers does it for all.
func (p *policies) Matrix(req *policypb.MatrixRequest, stream policypb.Policy_MatrixServer) error {
	return flowserver.Watch(stream.Context(), p.relay.cfg.stall, func(ctx context.Context, send func(func() error) error) error {
		return p.matrix(ctx, req, func(res *policypb.MatrixResponse) error {
			return send(func() error { return stream.Send(res) })
		})
	})
}

func (p *policies) matrix(ctx context.Context, req *policypb.MatrixRequest, send func(*policypb.MatrixResponse) error) error {
	nodes, _, err := p.connected("")
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, p.answerTime)
	defer cancel()
	for _, v := range nodes {
		var sent bool
		if sent, err = p.matrixOf(asking, v, req, send); err == nil || sent || onlyAsker(asking, err) {
			break
		}
	}
	return err
}

// matrixOf passes on what a node answers, if it begins in time.
func (p *policies) matrixOf(ctx context.Context, v view, req *policypb.MatrixRequest, send func(*policypb.MatrixResponse) error) (sent bool, err error) {
	one, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(p.beginTime, func() { cancel(noAnswer(p.beginTime)) })
	defer late.Stop()
	defer func() {
		if err != nil && one.Err() != nil && ctx.Err() == nil {
			err = context.Cause(one)
		}
	}()
	from, err := policypb.NewPolicyClient(v.conn).Matrix(one, req)
	if err != nil {
		return false, err
	}
	var places policypb.MatrixPlaces
	for {
		res, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
		late.Stop()
		if err := places.Add(res); err != nil {
			return sent, status.Errorf(codes.Internal, "%s: %v", v.name, err)
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
	asking, cancel := context.WithTimeout(ctx, p.answerTime)
	defer cancel()
	for _, v := range nodes {
		var res *policypb.ExplainResponse
		if res, err = p.explainOf(asking, v, req); err == nil {
			res.NodeName = v.name
			return res, nil
		}
		if onlyAsker(asking, err) {
			break
		}
	}
	return nil, err
}

func (p *policies) explainOf(ctx context.Context, v view, req *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	one, cancel := context.WithTimeout(ctx, p.beginTime)
	defer cancel()
	res, err := policypb.NewPolicyClient(v.conn).Explain(one, req)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		err = noAnswer(p.beginTime)
	}
	return res, err
}

// Preview implements [policypb.PolicyServer]: all nodes evaluate their flows, and one compares the
// pairs.
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
	asking, cancel := context.WithTimeout(ctx, p.answerTime)
	defer cancel()
	m := &previewMerge{
		byKey: map[string]*policypb.Connection{}, failed: map[string]bool{}, sum: &policypb.PreviewSummary{}, problems: missing,
	}
	without := proto.CloneOf(req)
	without.WithoutPairs = true
	askEach(len(nodes), func(i int) {
		question := without
		if i == 0 {
			question = req
		}
		m.add(nodes[i].name, i == 0, p.previewOf(asking, nodes[i].conn, question))
	})
	// If the one who was to compare the pairs did not, another does that answered.
	for _, v := range nodes[1:] {
		if m.answered == 0 || m.first != nil || req.GetWithoutPairs() || asking.Err() != nil {
			break
		}
		if m.failed[v.name] {
			continue
		}
		if a := p.previewOf(asking, v.conn, req); a.err == nil {
			m.first = a.res
		}
	}
	if err := ctx.Err(); err != nil { // the client's; nodes without an answer are among the problems
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
func (p *policies) previewOf(ctx context.Context, conn *grpc.ClientConn, req *policypb.PreviewRequest) nodePreview {
	one, cancel := context.WithTimeout(ctx, p.previewTime)
	defer cancel()
	for until := time.Now().Add(busyTime); ; {
		res, err := readPreview(one, conn, req)
		switch {
		case err != nil && ctx.Err() != nil:
			return nodePreview{nil, noAnswer(p.answerTime)}
		case err != nil && one.Err() != nil:
			return nodePreview{nil, noAnswer(p.previewTime)}
		case status.Code(err) != codes.ResourceExhausted || time.Now().After(until):
			return nodePreview{res, err}
		}
		retry.Sleep(one, busyRetry)
	}
}

// readPreview reads the answer of a node. An error with the code ResourceExhausted is of a node
// that is busy, not of an answer that is too large.
func readPreview(ctx context.Context, conn *grpc.ClientConn, req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
	stream, err := policypb.NewPolicyClient(conn).Preview(ctx, req)
	if err != nil {
		return nil, err
	}
	out, err := policypb.Read(stream, maxAnswer)
	// A busy node refuses before it starts to answer, so that there is no header.
	if status.Code(err) == codes.ResourceExhausted {
		if md, _ := stream.Header(); md != nil {
			err = fmt.Errorf("its answer cannot be read: %s", text(err))
		}
	}
	return out, err
}

// previewMerge puts the answers of nodes together. It is safe for concurrent use.
type previewMerge struct {
	mu    sync.Mutex
	byKey map[string]*policypb.Connection
	// failed has the nodes that were asked and did not answer.
	failed map[string]bool
	// sum has of what would be refused and allowed only what is not in byKey.
	sum      *policypb.PreviewSummary
	problems []*policypb.NodeProblem
	// first has the pairs; any answer has the changes.
	first, any *policypb.PreviewResponse
	answered   int
	refusal    error
	// loose means that counts may include duplicates: without a place in byKey it is unknown what
	// two nodes both saw.
	loose bool
}

// add adds the answer of a node.
func (m *previewMerge) add(node string, pairs bool, a nodePreview) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.err != nil {
		// What is invalid comes before what cannot be answered now.
		switch code := status.Code(a.err); {
		case code == codes.InvalidArgument, code == codes.FailedPrecondition && m.refusal == nil:
			m.refusal = status.Error(code, text(a.err))
		}
		m.failed[node] = true
		m.problems = append(m.problems, &policypb.NodeProblem{NodeName: node, Problem: text(a.err)})
		return
	}
	m.answered++
	m.any = a.res
	if pairs {
		m.first = a.res
	}
	sum := a.res.GetSummary()
	m.sum.Flows = plus64(m.sum.GetFlows(), sum.GetFlows())
	m.sum.FlowsNotEvaluated = plus64(m.sum.GetFlowsNotEvaluated(), sum.GetFlowsNotEvaluated())
	m.sum.Unchanged = plus64(m.sum.GetUnchanged(), sum.GetUnchanged())
	m.sum.ConnectionsLeftOut = plus64(m.sum.GetConnectionsLeftOut(), sum.GetConnectionsLeftOut())
	if at := sum.GetOldest(); at != nil && (m.sum.Oldest == nil || at.AsTime().Before(m.sum.Oldest.AsTime())) {
		m.sum.Oldest = at
	}
	var refused, allowed uint64
	for _, c := range a.res.GetConnections() {
		if c.GetAfter() == policypb.Verdict_DENIED {
			refused++
		} else {
			allowed++
		}
		m.addConnection(c)
	}
	// What the node had no room for counts, too. Another may report the same: there are at most so
	// many.
	moreRefused, moreAllowed := sum.GetRefused()-min(sum.GetRefused(), refused), sum.GetAllowed()-min(sum.GetAllowed(), allowed)
	m.sum.Refused = plus64(m.sum.GetRefused(), moreRefused)
	m.sum.Allowed = plus64(m.sum.GetAllowed(), moreAllowed)
	m.sum.EventsLost = plus64(m.sum.GetEventsLost(), sum.GetEventsLost())
	m.loose = m.loose || moreRefused > 0 || moreAllowed > 0 || sum.GetConnectionsLeftOut() > 0
}

// addConnection adds what one node saw: a connection may be seen by its sender's node and by its
// receiver's, each of which counts its own side.
func (m *previewMerge) addConnection(c *policypb.Connection) {
	key := strings.Join([]string{policypreview.PartyKey(c.GetSource()), policypreview.PartyKey(c.GetDestination()), c.GetProtocol(),
		strconv.Itoa(int(c.GetPort())), c.GetAfter().String()}, "\x00")
	have := m.byKey[key]
	if have == nil {
		if len(m.byKey) >= maxMerged {
			m.loose = true
			m.count(c)
			m.sum.ConnectionsLeftOut = plus64(m.sum.GetConnectionsLeftOut(), 1)
			return
		}
		m.byKey[key] = c
		return
	}
	nameParty(have.GetSource(), c.GetSource())
	nameParty(have.GetDestination(), c.GetDestination())
	have.Egress = plus64(have.GetEgress(), c.GetEgress())
	have.Ingress = plus64(have.GetIngress(), c.GetIngress())
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

// nameParty gives a party the first of its names, if nodes know it by several: one knows the
// workload, another only the labels. The order in which they answer makes no difference.
func nameParty(have, other *policypb.Party) {
	if have != nil && other.GetName() != "" && (have.GetName() == "" || other.GetName() < have.GetName()) {
		have.Name = other.GetName()
	}
}

// count counts a connection in the summary.
func (m *previewMerge) count(c *policypb.Connection) {
	if c.GetAfter() == policypb.Verdict_DENIED {
		m.sum.Refused = plus64(m.sum.GetRefused(), 1)
	} else {
		m.sum.Allowed = plus64(m.sum.GetAllowed(), 1)
	}
}

// plus64 adds with saturation: one node's numbers must not reduce those of others.
func plus64(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return math.MaxUint64
}

// parts yields a list in parts of at most so many elements, which fit in one message together, as
// each of them did when it came from a node.
func parts[T any](list []T, most int, size func(T) int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for len(list) > 0 {
			n, bytes := 1, size(list[0])
			for n < min(most, len(list)) {
				if bytes += size(list[n]); bytes > maxMessage {
					break
				}
				n++
			}
			if !yield(list[:n:n]) {
				return
			}
			list = list[n:]
		}
	}
}

func sizeOf[M proto.Message](m M) int { return proto.Size(m) }

// pieces is the answer to the client.
func (m *previewMerge) pieces(req *policypb.PreviewRequest) []*policypb.PreviewResponse {
	head := &policypb.PreviewResponse{
		NodeName: "relay", Time: timestamppb.Now(), Revision: m.any.GetRevision(), Problems: m.problems,
	}
	if m.first == nil && !req.GetWithoutPairs() {
		head.Warnings = append(head.Warnings, "no node compared the pairs")
	}
	list := slices.SortedFunc(maps.Values(m.byKey), policypreview.CompareConnections)
	room := policypreview.Room(req)
	kept := map[policypb.Verdict]int{}
	list = slices.DeleteFunc(list, func(c *policypb.Connection) bool {
		m.count(c)
		if kept[c.GetAfter()]++; kept[c.GetAfter()] > room {
			m.sum.ConnectionsLeftOut = plus64(m.sum.GetConnectionsLeftOut(), 1)
			return true
		}
		return false
	})
	out := []*policypb.PreviewResponse{head}
	for part := range parts(m.any.GetChanges(), 64, sizeOf) {
		out = append(out, &policypb.PreviewResponse{Changes: part})
	}
	for part := range parts(m.any.GetWarnings(), 64, func(s string) int { return len(s) }) {
		out = append(out, &policypb.PreviewResponse{Warnings: part})
	}
	for part := range parts(list, 64, sizeOf) {
		out = append(out, &policypb.PreviewResponse{Connections: part})
	}
	for part := range parts(m.first.GetParties(), 200, sizeOf) {
		out = append(out, &policypb.PreviewResponse{Parties: part})
	}
	for part := range parts(m.first.GetPairs(), 64, sizeOf) {
		out = append(out, &policypb.PreviewResponse{Pairs: part})
	}
	pairs := m.first.GetSummary()
	m.sum.PairsOpened, m.sum.PairsClosed, m.sum.PairsLeftOut, m.sum.PartiesLeftOut =
		pairs.GetPairsOpened(), pairs.GetPairsClosed(), pairs.GetPairsLeftOut(), pairs.GetPartiesLeftOut()
	m.sum.ChangedAtMost = m.loose && m.answered > 1
	m.sum.UnchangedAtMost = m.sum.GetUnchanged() > 0 && m.answered > 1
	return append(out, &policypb.PreviewResponse{Summary: m.sum})
}
