package policypreview

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// maxParties bounds a matrix. Both moments of a preview take 16 bytes for each pair at most.
const maxParties = 2000

// party is a row and column of the matrix.
type party struct {
	*policypb.Party
	end
	// asked: pairs with it are wanted.
	asked bool
	// many: its addresses are not all treated alike, or not known.
	many bool
}

// parties returns those of the matrix, and how many there is no room for.
func (j *evaluator) parties(agent Agent, namespaces []string, limit int, workloads names) (list []*party, left int) {
	type located struct {
		first netip.Addr
		many  bool
	}
	at := map[identity.ID]located{}
	if j.engine.HasBlocks() {
		for a, id := range agent.Addresses() {
			l, ok := at[id]
			switch {
			case !ok:
				l.first = a
			case j.engine.BlockAt(a) != j.engine.BlockAt(l.first):
				l.many = true
			}
			if a.Less(l.first) {
				l.first = a
			}
			at[id] = l
		}
	}
	prefixes := map[string]bool{}
	add := func(p *party) {
		p.asked = len(namespaces) == 0 || slices.Contains(namespaces, p.Namespace)
		list = append(list, p)
	}
	for id, set := range j.snap.Identities {
		switch {
		case id.IsBlock():
			continue
		case id.IsReserved() && !j.shown(id), id.Scope() == identity.RemoteNodeScope:
			continue
		}
		p := &party{Party: j.party(id, workloads), end: end{id: id}}
		if prefix, ok := identity.CIDRPrefix(set); ok {
			prefixes[p.Name] = true
			p.addr = j.addressed(prefix.Addr())
		} else {
			p.subject = j.enforced(policy.Subject{Identity: id, NamedPorts: j.snap.NamedPorts[id]}, set)
			l := at[id]
			p.addr, p.many = l.first, l.many || j.engine.HasBlocks() && !l.first.IsValid()
		}
		add(p)
	}
	for id, set := range j.snap.Identities {
		prefix, ok := identity.BlockPrefix(set)
		if !ok || !id.IsBlock() || prefix.Bits() == 0 || prefixes[prefix.String()] {
			continue
		}
		seen := j.outsideAt(prefix.Addr())
		add(&party{
			Party: &policypb.Party{Kind: policypb.PartyKind_PARTY_CIDR, Name: prefix.String(), Identity: uint32(seen), Labels: set.Strings()},
			end:   end{id: seen, addr: prefix.Addr()},
		})
	}
	// Parties without any connection come last.
	rank := func(p *party) int {
		switch {
		case p.Kind == policypb.PartyKind_PARTY_ENTITY:
			return 0
		case p.Kind == policypb.PartyKind_PARTY_CIDR:
			return 3
		case p.asked:
			return 1
		}
		return 2
	}
	slices.SortFunc(list, func(a, b *party) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Identity, b.Identity))
	})
	if limit == 0 || limit > maxParties {
		limit = maxParties
	}
	if len(list) > limit {
		list, left = list[:limit], len(list)-limit
	}
	return list, left
}

// shown reports whether a reserved identity is a party.
func (j *evaluator) shown(id identity.ID) bool {
	switch id {
	case identity.Host, identity.RemoteNode, identity.KubeAPIServer, identity.Ingress:
		return true
	case identity.World:
		return !j.snap.Config.DualStack
	case identity.WorldIPv4, identity.WorldIPv6:
		return j.snap.Config.DualStack
	}
	return id >= identity.MinUserReserved || len(j.labelsOf(id).Value(labels.SourceK8s, labels.KeyNamespace)) > 0
}

// sides are the answers of all parties about all others, by the rules of one moment.
type sides struct {
	// table has the distinct answers; the first is that of parties without policies.
	table []policy.Side
	index map[string]uint32
	// ranges is how many ranges of ports the table has; room is how many it may, 0 for any number.
	ranges, room int
	// rows has for each party and direction an answer about each party; nil without policies.
	rows [2][][]uint32
}

// ask works out the answers of all parties, if they have room for them.
func (j *evaluator) ask(ctx context.Context, list []*party, room int) (*sides, error) {
	s := &sides{room: room, index: map[string]uint32{}, table: []policy.Side{{Passing: policy.Everything()}}}
	subjects := make([]policy.Subject, 0, len(list))
	of := map[policy.Subject][]int{}
	for i, p := range list {
		if p.subject != (policy.Subject{}) {
			if len(of[p.subject]) == 0 {
				subjects = append(subjects, p.subject)
			}
			of[p.subject] = append(of[p.subject], i)
		}
	}
	for dir := range s.rows {
		s.rows[dir] = make([][]uint32, len(list))
	}
	// Endpoints with the same rule set have the same answers.
	shared := map[datapath.RuleSetID][2][]uint32{}
	err := j.each(ctx, subjects, func(subject policy.Subject, rs datapath.RuleSetID) error {
		rows, ok := shared[rs] // no number is given twice
		if !ok {
			for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
				var err error
				if rows[dir], err = s.row(ctx, j.engine, rs, dir, list); err != nil {
					return err
				}
			}
			shared[rs] = rows
		}
		for _, i := range of[subject] {
			for dir := range rows {
				s.rows[dir][i] = rows[dir]
			}
		}
		return nil
	})
	return s, err
}

// row returns the outcome of a rule set for each party.
func (s *sides) row(ctx context.Context, e *policy.Engine, rs datapath.RuleSetID, dir datapath.Direction, list []*party) ([]uint32, error) {
	out := make([]uint32, len(list))
	classes := map[policy.Class]uint32{}
	for i, p := range list {
		class, _ := e.ClassOf(rs, dir, p.id, p.addr)
		n, ok := classes[class]
		if !ok {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			side, _ := e.Side(rs, dir, p.id, p.addr)
			if !side.Enforced && policy.Complete(side.Passing) {
				side.Owners = nil // no policy is needed
			}
			key := fmt.Sprint(side)
			if n, ok = s.index[key]; !ok {
				if s.ranges += len(side.Passing); s.room != 0 && s.ranges > s.room {
					return nil, invalid("the policies distinguish too many ports of too many peers to compare all pairs: ask about fewer policies at once")
				}
				n = uint32(len(s.table))
				s.table, s.index[key] = append(s.table, side), n
			}
			classes[class] = n
		}
		out[i] = n
	}
	return out, nil
}

// of returns the answers about a pair: that of the sender's policies and that of the receiver's.
func (s *sides) of(src, dst int) (egress, ingress uint32) {
	if row := s.rows[datapath.Egress][src]; row != nil {
		egress = row[dst]
	}
	if row := s.rows[datapath.Ingress][dst]; row != nil {
		ingress = row[src]
	}
	return egress, ingress
}

// byAddress reports whether a pair need not be treated alike whatever the addresses are.
func (s *sides) byAddress(src, dst *party, egress, ingress uint32) bool {
	return dst.many && s.table[egress].ByAddress || src.many && s.table[ingress].ByAddress
}

// passing is what both sides let pass.
func (s *sides) passing(egress, ingress uint32) []policy.PortMatch {
	return policy.Intersect(s.table[egress].Passing, s.table[ingress].Passing)
}

// access describes what passes between a pair.
func (s *sides) access(egress, ingress uint32, byAddress bool) *policypb.Access {
	out := &policypb.Access{Egress: accessSide(s.table[egress]), Ingress: accessSide(s.table[ingress]), ByAddress: byAddress}
	switch passing := s.passing(egress, ingress); {
	case policy.Complete(passing):
		out.Verdict = policypb.Verdict_ALLOWED
	case len(passing) == 0:
		out.Verdict = policypb.Verdict_DENIED
	default:
		out.Verdict, out.Ports = policypb.Verdict_PARTIAL, ranges(passing)
	}
	return out
}

func accessSide(s policy.Side) *policypb.AccessSide {
	return &policypb.AccessSide{Enforced: s.Enforced, Policies: ownerNames(s.Owners)}
}

// comparable reports whether to report a pair: it is asked for, and policies evaluate it.
func comparable(src, dst *party) bool {
	return (src.asked || dst.asked) && (src.subject != policy.Subject{} || dst.subject != policy.Subject{})
}

// matrix is the answer to a request, in pieces that are not changed any more.
func (j *evaluator) matrix(ctx context.Context, agent Agent, req *policypb.MatrixRequest, workloads names) ([]*policypb.MatrixResponse, error) {
	list, left := j.parties(agent, req.GetNamespaces(), int(min(req.GetParties(), maxParties)), workloads)
	s, err := j.ask(ctx, list, 0)
	if err != nil {
		return nil, err
	}
	type pair struct {
		egress, ingress uint32
		byAddress       bool
	}
	head := &policypb.MatrixResponse{Revision: j.snap.Revision, PartiesLeftOut: uint32(left)}
	accesses := []*policypb.Access{{}}
	places := map[pair]uint32{}
	rows := make([]*policypb.MatrixRow, len(list))
	for i, src := range list {
		row := &policypb.MatrixRow{Source: uint32(i), Accesses: make([]uint32, len(list))}
		for k, dst := range list {
			if !comparable(src, dst) {
				continue
			}
			var p pair
			p.egress, p.ingress = s.of(i, k)
			p.byAddress = s.byAddress(src, dst, p.egress, p.ingress)
			n, ok := places[p]
			if !ok {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				n = uint32(len(accesses))
				accesses, places[p] = append(accesses, s.access(p.egress, p.ingress, p.byAddress)), n
			}
			row.Accesses[k] = n
		}
		rows[i] = row
	}
	out := []*policypb.MatrixResponse{head}
	// Pieces of some 100 KiB.
	for part := range slices.Chunk(list, 200) {
		res := &policypb.MatrixResponse{}
		for _, p := range part {
			res.Parties = append(res.Parties, p.Party)
		}
		out = append(out, res)
	}
	for part := range pieces(accesses, func(a *policypb.Access) int { return len(a.GetPorts()) }) {
		out = append(out, &policypb.MatrixResponse{Accesses: part})
	}
	for part := range slices.Chunk(rows, 32) {
		out = append(out, &policypb.MatrixResponse{Rows: part})
	}
	return out, nil
}
