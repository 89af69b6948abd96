package policypreview

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// Bounds of an answer.
const (
	defaultConnections = 500
	maxConnections     = 2000
	defaultPairs       = 500
	maxPairs           = 5000
	// maxListed is how many ranges of ports all pairs of an answer have together, about; one
	// message has as many as maxPiece, or is about one pair.
	maxListed = 64 << 10
	maxPiece  = 16 << 10
	// maxRanges is how many ranges of ports all different answers of the parties may have more
	// than by the rules in force.
	maxRanges = 1 << 20
	// maxKnown is how many different comparisons are remembered.
	maxKnown = 64 << 10
)

// pieces cuts a list into parts that fit into a message each, by how many ranges of ports each has.
func pieces[T any](list []T, ranges func(T) int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		from, n := 0, 0
		for i := range list {
			if r := ranges(list[i]); i > from && (i-from == 64 || n+r > maxPiece) {
				if !yield(list[from:i]) {
					return
				}
				from, n = i, r
			} else {
				n += r
			}
		}
		if from < len(list) {
			yield(list[from:])
		}
	}
}

// rangesOf counts the ranges of ports that are listed for a pair.
func rangesOf(p *policypb.PairChange) int {
	return len(p.GetOpened()) + len(p.GetClosed()) + len(p.GetBefore().GetPorts()) + len(p.GetAfter().GetPorts())
}

// preview is the answer to a request, in pieces.
func (j *evaluator) preview(ctx context.Context, agent Agent, ring *flows.Ring[flows.Entry], req *policypb.PreviewRequest) ([]*policypb.PreviewResponse, error) {
	ch, err := newChanges(req, j.snap.Rules)
	if err != nil {
		return nil, invalid("%v", err)
	}
	var added []*policy.Rule
	for _, c := range ch.rules {
		added = append(added, c.Rules...)
	}
	if need, have := policy.LabelKeys(added), agent.PolicyLabels(); !have.Covers(need) {
		return nil, missingLabels(need, have)
	}
	if err := j.fits(ch.other); err != nil {
		return nil, err
	}
	if err := withinShares(agent.Shares(ch.rules)); err != nil {
		return nil, err
	}
	j.addPrefixes(added)
	since := req.GetSince().AsTime()
	rec, err := j.read(ctx, agent, ring, since)
	if err != nil {
		return nil, err
	}
	var list []*party
	left := 0
	if !req.GetWithoutPairs() {
		list, left = j.parties(agent, nil, 0, rec.workloads)
	}
	var matrix [2]*sides
	for moment := range matrix {
		room := 0 // as much as there is by the rules in force
		if moment == 1 {
			if err := j.put(ch.rules); err != nil {
				return nil, err
			}
			j.places = ch.places(agent.RuleLine)
			room = matrix[0].ranges + maxRanges
		}
		if err := rec.evaluate(ctx, j, moment); err != nil {
			return nil, err
		}
		if matrix[moment], err = j.ask(ctx, list, room); err != nil {
			return nil, err
		}
	}
	sum := &policypb.PreviewSummary{Flows: rec.flows, FlowsNotEvaluated: rec.others, PartiesLeftOut: uint32(left), EventsLost: rec.lost}
	if !rec.oldest.IsZero() {
		sum.Oldest = timestamppb.New(rec.oldest)
	}
	out := []*policypb.PreviewResponse{{Revision: j.snap.Revision, Changes: ch.applied, Warnings: ch.warnings}}
	connections, err := j.connections(ctx, rec, Room(req), sum)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(connections, 64) {
		out = append(out, &policypb.PreviewResponse{Connections: part})
	}
	parties, pairs, err := changedPairs(ctx, list, matrix, bound(req.GetPairs(), defaultPairs, maxPairs), sum)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(parties, 200) {
		out = append(out, &policypb.PreviewResponse{Parties: part})
	}
	for part := range pieces(pairs, rangesOf) {
		out = append(out, &policypb.PreviewResponse{Pairs: part})
	}
	return append(out, &policypb.PreviewResponse{Summary: sum}), nil
}

// missingLabels returns the labels by which policies select and which identities do not have yet.
// An evaluation without them would report that such policies select nothing.
func missingLabels(need, have labels.Keys) error {
	const why = "identities of this cluster have only the labels that policies in force select (--identity-relevant-labels)"
	if need.All() {
		return status.Error(codes.FailedPrecondition, "a named port of egress needs all labels, and "+why)
	}
	missing := slices.DeleteFunc(slices.Clone(need.List()), have.Has)
	return status.Errorf(codes.FailedPrecondition, "the policies select by %.1000s, and %s; a preview is possible when these count: once a policy in force selects them, or all labels do",
		strings.Join(missing, ", "), why)
}

// withinShares fails if other rules than those that are asked about would be in force: the policies
// of a namespace have a share of prefixes, beyond which the largest are closed.
func withinShares(beyond, back []policy.Owner) error {
	const why = "the policies of a namespace may name only so many prefixes together (--policy-namespace-prefix-max), the largest go without"
	names := func(owners []policy.Owner) string {
		var list []string
		for _, o := range owners {
			list = append(list, o.Policy().String())
		}
		return strings.Join(list, ", ")
	}
	switch {
	case len(beyond) > 0:
		return status.Errorf(codes.FailedPrecondition, "with these policies, the prefixes of %.1000s would allow nothing and deny everything: %s; name fewer prefixes", names(beyond), why)
	case len(back) > 0:
		return status.Errorf(codes.FailedPrecondition, "with these policies, the prefixes of %.1000s would count again, which do not now: %s; a preview is possible together with the documents of these", names(back), why)
	}
	return nil
}

// Room is how many connections of each sort an answer has at most.
func Room(req *policypb.PreviewRequest) int {
	return bound(req.GetConnections(), defaultConnections, maxConnections)
}

func bound(asked uint32, otherwise, most int) int {
	if asked == 0 {
		return otherwise
	}
	return int(min(asked, uint32(most)))
}

// group is a set of connections that is reported as one.
type group struct {
	*policypb.Connection
	one             *seen // any of them
	verdicts, drops [2]uint64
}

// connections lists those whose verdict would change, as far as there is room, and counts all.
func (j *evaluator) connections(ctx context.Context, rec *record, room int, sum *policypb.PreviewSummary) ([]*policypb.Connection, error) {
	type key struct {
		src, dst identity.ID
		proto    uint8
		port     uint16
		refused  bool
	}
	groups := map[key]*group{}
	same := map[key]bool{}
	for _, s := range rec.byKey {
		before, after := s.passed(0), s.passed(1)
		k := key{s.src.id, s.dst.id, s.proto, s.port, before}
		if before == after {
			same[k] = true
			continue
		}
		g := groups[k]
		if g == nil {
			g = &group{one: s, Connection: &policypb.Connection{
				Protocol: protocolName(s.proto), Port: uint32(s.port), Before: verdictOf(before), After: verdictOf(after),
				FirstSeen: timestamppb.New(s.first), LastSeen: timestamppb.New(s.last),
			}}
			groups[k] = g
		}
		for dir := range g.verdicts {
			g.verdicts[dir] += s.verdicts[dir]
			g.drops[dir] += s.drops[dir]
		}
		if s.first.Before(g.FirstSeen.AsTime()) {
			g.FirstSeen = timestamppb.New(s.first)
		}
		if s.last.After(g.LastSeen.AsTime()) {
			g.LastSeen = timestamppb.New(s.last)
		}
		g.Sources, g.Destinations = MergeSamples(g.Sources, s.sources), MergeSamples(g.Destinations, s.destinations)
	}
	sum.Unchanged = uint64(len(same))
	list := make([]*group, 0, len(groups))
	for _, g := range groups {
		g.Egress = max(g.verdicts[datapath.Egress], g.drops[datapath.Egress])
		g.Ingress = max(g.verdicts[datapath.Ingress], g.drops[datapath.Ingress])
		g.Count = max(g.Egress, g.Ingress)
		g.Source, g.Destination = j.party(g.one.src.id, rec.workloads), j.party(g.one.dst.id, rec.workloads)
		slices.Sort(g.Sources)
		slices.Sort(g.Destinations)
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *group) int { return CompareConnections(a.Connection, b.Connection) })
	var out []*policypb.Connection
	for _, part := range [][]*group{list[:refusals(list)], list[refusals(list):]} {
		for i, g := range part {
			if i == room {
				sum.ConnectionsLeftOut += uint64(len(part) - i)
				break
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			g.Decision = j.decision(g.one)
			out = append(out, g.Connection)
		}
	}
	sum.Refused, sum.Allowed = uint64(refusals(list)), uint64(len(list)-refusals(list))
	return out, nil
}

// refusals returns how many of the groups, sorted, would be refused.
func refusals(list []*group) int {
	n, _ := slices.BinarySearchFunc(list, policypb.Verdict_ALLOWED, func(g *group, v policypb.Verdict) int {
		if g.After == v {
			return 0
		}
		return -1
	})
	return n
}

// CompareConnections orders connections as an answer has them: first what would be refused, and
// what was seen most often.
func CompareConnections(a, b *policypb.Connection) int {
	return cmp.Or(-cmp.Compare(a.GetAfter(), b.GetAfter()), -cmp.Compare(a.GetCount(), b.GetCount()),
		strings.Compare(PartyKey(a.GetSource()), PartyKey(b.GetSource())), strings.Compare(PartyKey(a.GetDestination()), PartyKey(b.GetDestination())),
		strings.Compare(a.GetProtocol(), b.GetProtocol()), cmp.Compare(a.GetPort(), b.GetPort()))
}

// PartyKey identifies a party across nodes: the identity of a prefix differs between nodes, and so
// does the name of a pod, whose workload not all nodes know.
func PartyKey(p *policypb.Party) string {
	id, name := identity.ID(p.GetIdentity()), p.GetName()
	switch {
	case p.GetKind() == policypb.PartyKind_PARTY_CIDR:
		id = 0
	case p.GetKind() == policypb.PartyKind_PARTY_PODS && id != 0 && id.IsGlobal():
		name = ""
	}
	return fmt.Sprintf("%d\x00%s\x00%s\x00%s\x00%d", p.GetKind(), p.GetCluster(), p.GetNamespace(), name, uint32(id))
}

// decision returns what decides the verdict of the current rules of the engine.
func (j *evaluator) decision(s *seen) *policypb.Decision {
	res, err := j.engine.Trace(j.partyOf(s.src), j.partyOf(s.dst), s.proto, s.port)
	if err != nil {
		return &policypb.Decision{Reason: err.Error()}
	}
	if s.src.subject == (policy.Subject{}) {
		res.Egress = policy.TraceSide{Direction: datapath.Egress, Verdict: policy.DefaultAllowed}
	}
	if s.dst.subject == (policy.Subject{}) {
		res.Ingress = policy.TraceSide{Direction: datapath.Ingress, Verdict: policy.DefaultAllowed}
	}
	return decisionOf(&res, j.places)
}

// partyOf is an end as the engine traces it.
func (j *evaluator) partyOf(e end) policy.Party { return partyOf(e.id, e.subject, e.addr) }

// changedPairs lists pairs between which other traffic would pass, and counts all.
func changedPairs(ctx context.Context, list []*party, matrix [2]*sides, room int, sum *policypb.PreviewSummary) ([]*policypb.Party, []*policypb.PairChange, error) {
	type pair [4]uint32
	type change struct{ opened, closed bool }
	known := map[pair]change{}
	compare := func(p pair) (opened, closed []policy.PortMatch) {
		before, after := matrix[0].passing(p[0], p[1]), matrix[1].passing(p[2], p[3])
		return policy.Subtract(after, before), policy.Subtract(before, after)
	}
	listed := 0
	places := map[int]uint32{}
	var parties []*policypb.Party
	var pairs []*policypb.PairChange
	place := func(i int) uint32 {
		n, ok := places[i]
		if !ok {
			n = uint32(len(parties))
			places[i], parties = n, append(parties, list[i].Party)
		}
		return n
	}
	for i, src := range list {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		for k, dst := range list {
			if !comparable(src, dst) {
				continue
			}
			var p pair
			p[0], p[1] = matrix[0].of(i, k)
			p[2], p[3] = matrix[1].of(i, k)
			c, ok := known[p]
			if !ok {
				if err := ctx.Err(); err != nil {
					return nil, nil, err
				}
				opened, closed := compare(p)
				if len(known) == maxKnown {
					clear(known)
				}
				c = change{len(opened) > 0, len(closed) > 0}
				known[p] = c
			}
			if c == (change{}) {
				continue
			}
			if c.opened {
				sum.PairsOpened++
			}
			if c.closed {
				sum.PairsClosed++
			}
			if len(pairs) == room || listed >= maxListed {
				sum.PairsLeftOut++
				continue
			}
			opened, closed := compare(p)
			pairs = append(pairs, &policypb.PairChange{
				Source: place(i), Destination: place(k),
				Before: matrix[0].access(p[0], p[1], matrix[0].byAddress(src, dst, p[0], p[1])),
				After:  matrix[1].access(p[2], p[3], matrix[1].byAddress(src, dst, p[2], p[3])),
				Opened: ranges(opened), Closed: ranges(closed),
			})
			listed += rangesOf(pairs[len(pairs)-1])
		}
	}
	return parties, pairs, nil
}
