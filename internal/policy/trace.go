package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Party is one end of a traced packet.
type Party struct {
	// Identity may be 0 if Labels are given; the identity itself plays no part then.
	Identity identity.ID
	// SeenAs, if not 0, is the identity by which the other end's rules evaluate this one: an
	// endpoint's own rules follow from its labels, those of others from the identity that they see,
	// which differs while the endpoint has a temporary one.
	SeenAs identity.ID
	// Labels, if empty, are those of Identity.
	Labels labels.Set
	// Addr is its address, for rules about blocks of addresses; without one they do not match.
	Addr netip.Addr
	// NamedPorts are the named ports of this end; if empty and Labels are too, those of Identity.
	NamedPorts string
}

// TraceResult explains what becomes of a packet: it leaves if Egress passes and arrives if Ingress
// does too.
type TraceResult struct {
	Allowed bool
	Egress  TraceSide
	Ingress TraceSide
}

// TraceSide explains one direction.
type TraceSide struct {
	Direction datapath.Direction
	Verdict   Verdict
	// Enforced reports whether what no rule matches is dropped; Why is the reason.
	Enforced bool
	Why      string
	// EnforcedBy are the rules that ask for it, without their entries.
	EnforcedBy []EnforcingRule
	// Steps are the entries of the rules that select the endpoint: those of the admin tier in their
	// order, ordinary ones in the order of Rules, those of the baseline tier in their order.
	Steps []TraceStep
}

// EnforcingRule is a rule by which what no rule allows is dropped.
type EnforcingRule struct {
	Owner Owner
	// Path is where the rule stands, as in "spec".
	Path string
}

// TraceStep is one entry of a rule that selects the endpoint.
type TraceStep struct {
	Owner Owner
	// Path is where the entry stands, as in "spec.ingress[0]".
	Path string
	// Tier, and what the entry does in it.
	Tier Tier
	Deny bool
	Pass bool
	// PeerMatch is the selector that selects the peer ("all" for absent peers), empty if none does.
	PeerMatch string
	// PortMatch is the port that matches, empty if none does.
	PortMatch string
	// ByAddress means that nothing matches the peer, but that a block of addresses could if its
	// address were known.
	ByAddress bool
	// Decides is set on the entry that decides the verdict: the first of a tier that matches, or of
	// ordinary ones the first deny that matches, or the first allow. It is set on an entry that
	// passes a packet on, too, if nothing before it decides.
	Decides bool
	// Local marks the implicit entry for the node itself.
	Local bool
}

// Matches reports whether peer and port match.
func (s *TraceStep) Matches() bool { return s.PeerMatch != "" && s.PortMatch != "" }

// String returns one line for people.
func (s *TraceStep) String() string {
	where := fmt.Sprintf("%s %s", s.Owner, s.Path)
	if s.Local {
		where = "(allow-localhost)"
	}
	return where + ": " + s.What()
}

// What describes what the entry does with the packet, without its position.
func (s *TraceStep) What() string {
	verb := "allow"
	switch {
	case s.Deny:
		verb = "deny"
	case s.Pass:
		verb = "pass on"
	}
	if s.Tier != TierOrdinary {
		verb = s.Tier.String() + ", " + verb
	}
	switch {
	case s.ByAddress:
		return verb + " by address, but the peer's is not given"
	case s.PeerMatch == "":
		return verb + ", but the peer does not match"
	case s.PortMatch == "":
		return fmt.Sprintf("%s %s, but the port does not match", verb, s.PeerMatch)
	}
	return fmt.Sprintf("%s %s on %s", verb, s.PeerMatch, s.PortMatch)
}

// String returns the explanation for people, several lines.
func (r *TraceResult) String() string {
	var b strings.Builder
	for _, side := range []*TraceSide{&r.Egress, &r.Ingress} {
		fmt.Fprintf(&b, "%s: %s (%s)\n", side.Direction, side.Verdict, side.Why)
		for i := range side.Steps {
			mark := "  "
			if side.Steps[i].Decides {
				mark = "* "
			}
			fmt.Fprintf(&b, "  %s%s\n", mark, side.Steps[i].String())
		}
	}
	if r.Allowed {
		b.WriteString("verdict: allowed\n")
	} else {
		b.WriteString("verdict: denied\n")
	}
	return b.String()
}

// Trace explains what would become of a packet between two parties, rule by rule, from the rules
// as they are now. For ICMP and ICMPv6 port is the message type. An identity that is not known is
// an error. A side that is not an endpoint (the world, a node) has no rules and passes.
func (e *Engine) Trace(from, to Party, proto uint8, port uint16) (TraceResult, error) {
	src, err := e.party(from)
	if err != nil {
		return TraceResult{}, fmt.Errorf("source: %w", err)
	}
	dst, err := e.party(to)
	if err != nil {
		return TraceResult{}, fmt.Errorf("destination: %w", err)
	}
	srcSeen, err := e.seen(from, src)
	if err != nil {
		return TraceResult{}, fmt.Errorf("source: %w", err)
	}
	dstSeen, err := e.seen(to, dst)
	if err != nil {
		return TraceResult{}, fmt.Errorf("destination: %w", err)
	}
	r := TraceResult{
		// The kernel evaluates an identity, whose named ports are those of all that have it.
		Egress:  e.traceSide(datapath.Egress, src, dstSeen, to.Addr, proto, port, dstSeen.namedPorts),
		Ingress: e.traceSide(datapath.Ingress, dst, srcSeen, from.Addr, proto, port, dst.namedPorts),
	}
	r.Allowed = r.Egress.Verdict.Pass() && r.Ingress.Verdict.Pass()
	return r, nil
}

func (e *Engine) party(p Party) (*peer, error) {
	set, ports := p.Labels, p.NamedPorts
	if len(set) == 0 {
		known := e.known(p.Identity)
		if known == nil {
			return nil, fmt.Errorf("identity %s is not known", p.Identity)
		}
		set = known.set
		if ports == "" {
			ports = e.ports[p.Identity]
		}
	}
	out := newPeer(&e.cfg, p.Identity, set)
	var err error
	out.namedPorts, err = ParseNamedPorts(ports)
	return out, err
}

// seen returns a party as the rules of the other one see it.
func (e *Engine) seen(p Party, self *peer) (*peer, error) {
	if p.SeenAs == 0 || p.SeenAs == p.Identity && e.peers[p.SeenAs] == nil {
		return self, nil
	}
	return e.party(Party{Identity: p.SeenAs})
}

// isEndpoint reports whether policy is enforced on the identity at all: it is on pods, on those
// without labels yet, and on the network's own endpoints.
func (p *peer) isEndpoint() bool {
	if p.prefix.IsValid() {
		return false
	}
	for _, id := range []identity.ID{
		identity.Host, identity.RemoteNode, identity.KubeAPIServer, identity.Unmanaged,
		identity.World, identity.WorldIPv4, identity.WorldIPv6, identity.Unknown,
	} {
		if p.set.HasReserved(id.String()) {
			return false
		}
	}
	return true
}

func (e *Engine) traceSide(dir datapath.Direction, self, other *peer, at netip.Addr, proto uint8, port uint16, named []NamedPort) TraceSide {
	side := TraceSide{Direction: dir, Verdict: DefaultAllowed}
	switch {
	case !self.isEndpoint():
		side.Why = "not an endpoint: no rules apply to it"
		return side
	case e.cfg.Mode == ModeNever:
		side.Why = "enforcement is off (mode never)"
		return side
	}
	rules := e.rulesOf(self, nil)
	side.Enforced = e.enforcement(self, rules)[dir]
	side.Why = e.why(dir, self, rules, side.Enforced)
	for _, er := range rules {
		if len(er.Faults) > 0 {
			side.Why += fmt.Sprintf("; %s %s is not fully enforced: %s", er.owner.Policy(), er.Path, strings.Join(er.Faults, ", "))
		}
	}
	slices.SortStableFunc(rules, inOrder)
	enforcedByRule := false
	for _, er := range rules {
		if er.enforces[dir] {
			enforcedByRule = true
			side.EnforcedBy = append(side.EnforcedBy, EnforcingRule{er.owner, er.Path})
		}
		for i := range er.Rule.Clauses {
			c := &er.Rule.Clauses[i]
			if c.Direction != dir {
				continue
			}
			step := e.traceStep(er, c, other, at, proto, port, named)
			if u := c.unsure(); u != nil && !step.Matches() {
				if closes := e.traceStep(er, u, other, at, proto, port, named); closes.Matches() && (c.Deny || acceptsNetworks(rules, er.Tier, dir)) {
					step = closes
				}
			}
			side.Steps = append(side.Steps, step)
		}
	}
	if dir == datapath.Ingress && side.Enforced && e.cfg.AllowLocalhost {
		step := TraceStep{PortMatch: "ANY", Local: true}
		if e.localhostPeer.match(&e.cfg, other) {
			step.PeerMatch = e.localhostPeer.text
			side.Steps = append(side.Steps, step)
		}
	}
	if side.Enforced {
		side.Verdict = DefaultDenied
	}
	for _, tier := range []Tier{TierAdmin, TierOrdinary, TierBaseline} {
		if tier == TierBaseline && enforcedByRule {
			break
		}
		s := side.deciding(tier)
		if s == nil {
			continue
		}
		s.Decides = true
		switch {
		case s.Pass:
			continue
		case s.Deny:
			side.Verdict = Denied
		default:
			side.Verdict = Allowed
		}
		return side
	}
	return side
}

// deciding returns the step that speaks for a tier, nil if none matches.
func (side *TraceSide) deciding(tier Tier) (allow *TraceStep) {
	for i := range side.Steps {
		s := &side.Steps[i]
		if s.Tier != tier || !s.Matches() {
			continue
		}
		if s.Deny || tier != TierOrdinary {
			return s
		}
		if allow == nil {
			allow = s
		}
	}
	return allow
}

// inOrder puts rules into the order in which tiers are asked.
func inOrder(a, b *engineRule) int {
	place := map[Tier]int{TierAdmin: 0, TierOrdinary: 1, TierBaseline: 2}
	if c := cmp.Compare(place[a.Tier], place[b.Tier]); c != 0 || a.Tier == TierOrdinary {
		return c
	}
	return byPrecedence(a, b)
}

func (e *Engine) traceStep(er *engineRule, c *Clause, other *peer, at netip.Addr, proto uint8, port uint16, named []NamedPort) TraceStep {
	step := TraceStep{Owner: er.owner, Path: er.Path + "." + c.Path, Tier: er.Tier, Deny: c.Deny, Pass: c.Pass}
	if c.AllPeers {
		step.PeerMatch = "all"
	}
	byBlockOnly := false
	for _, s := range c.Peers {
		if s.match(&e.cfg, other) && !s.isNone() {
			step.PeerMatch, byBlockOnly = s.text, false
			break
		}
		if step.PeerMatch == "" && s.isAround(at) {
			step.PeerMatch, byBlockOnly = s.text, true
		}
		step.ByAddress = step.ByAddress || s.kind == byBlock && !at.IsValid()
	}
	step.ByAddress = step.ByAddress && step.PeerMatch == ""
	if byBlockOnly && c.Direction == datapath.Egress {
		named = nil // a block is no workload, and has no named ports
	}
	for _, m := range c.Ports {
		if m.matches(proto, port, named) {
			step.PortMatch = m.String()
			break
		}
	}
	return step
}

// why returns what decided about enforcement.
func (e *Engine) why(dir datapath.Direction, self *peer, rules []*engineRule, enforced bool) string {
	switch {
	case e.cfg.Mode == ModeAlways:
		return "enforced: mode always"
	case self.set.HasReserved(identity.Init.String()):
		return "enforced: the endpoint has no labels yet"
	case !enforced:
		return "not enforced: no rule asks for it"
	}
	for _, er := range rules {
		if er.enforces[dir] {
			return fmt.Sprintf("enforced by %s %s", er.owner.Policy(), er.Path)
		}
	}
	return "enforced"
}

// matches reports whether a packet has the protocol and port. Named ports are looked up in named.
func (m *PortMatch) matches(proto uint8, port uint16, named []NamedPort) bool {
	if m.Name != "" {
		for _, p := range named {
			if p.Name == m.Name && p.Proto == m.Proto && p.Proto == proto && p.Port == port {
				return true
			}
		}
		return false
	}
	return (m.Proto == datapath.ProtoAny || m.Proto == proto) && port >= m.First && port <= m.Last
}
