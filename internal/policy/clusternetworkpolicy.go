package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/labels"
)

// Bounds that the schema of ClusterNetworkPolicy sets, and that keep a policy from another source
// in bounds too.
const (
	maxPriority     = 1000
	maxClusterRules = 25
)

// ParseClusterNetworkPolicy returns the rule of a ClusterNetworkPolicy. What it means in addition
// to the rest:
//
//   - It enforces nothing by itself: what none of its rules matches is left to the next tier.
//   - Its rules count in order, and policies of a tier in order of priority; the first that matches
//     a packet decides or passes on.
//   - namespaces and pods select pods only, as subjects and as peers, and as peers those of the
//     local cluster if Config requires it.
//   - networks match addresses, whatever has them, as an ipBlock does.
//   - A named port is one of TCP, UDP and SCTP. Ports at networks must be numbers.
//
// Peers that need to be looked up elsewhere, nodes and domainNames, are refused. Every fault is
// reported, as FieldErrors joined. As with [Parse] a rule is returned with an error, with what can
// be enforced: of an Accept or a Pass what is wholly understood; a Deny of which the peers are not
// understood denies all pods, and on egress all addresses, one of which the protocols are not, all
// traffic; so does an entry whose action is not known. What is not understood of a Pass is denied
// likewise, as a later Accept may be about it. If the subject or the tier is not understood, no
// Accept is left, and the rest denies, about all pods that may be meant, in the admin tier.
func ParseClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy, opts ...Option) ([]*Rule, error) {
	if p == nil {
		return nil, errors.New("the policy is missing")
	}
	ps := newParser("", opts)
	understood := !ps.outside["spec"]
	before := len(ps.errs)
	if p.Name == "" {
		ps.fail("metadata.name", "is missing")
	}
	if p.Namespace != "" {
		ps.fail("metadata.namespace", "is %q, but the policy is of no namespace", clip(p.Namespace))
	}
	r := &Rule{Path: "spec", Priority: p.Spec.Priority, Tier: ps.tier(p.Spec.Tier)}
	if r.Priority < 0 || r.Priority > maxPriority {
		ps.fail("spec.priority", "%d is not in 0 to %d", r.Priority, maxPriority)
	}
	r.Priority = min(max(r.Priority, 0), maxPriority)
	if r.Subject = ps.clusterPods("spec.subject", false, p.Spec.Subject.Namespaces, p.Spec.Subject.Pods); r.Subject == nil {
		r.Subject = newLabelSelector("", true, false, nil)
	}
	understood = understood && len(ps.errs) == before
	for i := range p.Spec.Ingress {
		in := &p.Spec.Ingress[i]
		c, ok := ps.clusterEntry(datapath.Ingress, i, in.Name, in.Action, in.Protocols)
		n := len(ps.errs)
		for j := range in.From {
			at := fmt.Sprintf("spec.ingress[%d].from[%d]", i, j)
			c.Peers = append(c.Peers, ps.clusterPeer(at, in.From[j].Namespaces, in.From[j].Pods))
		}
		ps.needsPeers(&c, fmt.Sprintf("spec.ingress[%d].from", i), n)
		r.add(c, ok, len(ps.errs) == n)
	}
	for i := range p.Spec.Egress {
		out := &p.Spec.Egress[i]
		c, ok := ps.clusterEntry(datapath.Egress, i, out.Name, out.Action, out.Protocols)
		n := len(ps.errs)
		for j := range out.To {
			c.Peers = append(c.Peers, ps.clusterDestination(fmt.Sprintf("spec.egress[%d].to[%d]", i, j), &out.To[j], out.Protocols)...)
		}
		ps.needsPeers(&c, fmt.Sprintf("spec.egress[%d].to", i), n)
		r.add(c, ok, len(ps.errs) == n)
	}
	for field, n := range map[string]int{"spec.egress": len(p.Spec.Egress), "spec.ingress": len(p.Spec.Ingress)} {
		if n > maxClusterRules {
			ps.fail(field, "has %d rules; %d are allowed", n, maxClusterRules)
		}
	}
	if !understood {
		r.Clauses = slices.DeleteFunc(r.Clauses, func(c Clause) bool { return c.action() == datapath.TierAccept })
		for i := range r.Clauses {
			r.Clauses[i].Deny, r.Clauses[i].Pass = true, false
		}
	}
	if r.Tier == TierOrdinary {
		r.Tier = TierAdmin // it is not known; nothing comes before
	}
	r.Faults = ps.faults()["spec"]
	return []*Rule{r}, errors.Join(ps.errs...)
}

// entryOK reports how much of an entry, except its peers, is understood.
type entryOK struct {
	whole, protocols bool
}

// add adds an entry. One that is not fully supported is left with what it surely accepts or passes
// on, or denies all that it may be about. A pass does both: no later rule is to accept the rest.
func (r *Rule) add(c Clause, ok entryOK, peersOK bool) {
	rest := c
	rest.Deny, rest.Pass = true, false
	if !ok.whole {
		c.Peers = nil
	}
	if !(ok.whole && peersOK) {
		rest.Peers = anyTieredPeer(c.Direction)
	}
	if !(ok.whole && ok.protocols) {
		rest.Ports = []PortMatch{{Proto: datapath.ProtoAny, First: 0, Last: 65535}}
	}
	if !c.Deny {
		r.Clauses = append(r.Clauses, c)
	}
	if c.Deny || c.Pass && !(ok.whole && ok.protocols && peersOK) {
		r.Clauses = append(r.Clauses, rest)
	}
}

// anyTieredPeer returns all peers that a rule of a tier may be about: pods, for egress addresses.
func anyTieredPeer(d datapath.Direction) []*Selector {
	pods := newLabelSelector("", true, false, nil)
	if d == datapath.Ingress {
		return []*Selector{pods}
	}
	return []*Selector{pods, newBlockSelector(netip.MustParsePrefix("0.0.0.0/0"), nil), newBlockSelector(netip.MustParsePrefix("::/0"), nil)}
}

func (ps *parser) tier(t policyv1alpha2.Tier) Tier {
	switch t {
	case policyv1alpha2.AdminTier:
		return TierAdmin
	case policyv1alpha2.BaselineTier:
		return TierBaseline
	}
	ps.fail("spec.tier", "%q is neither Admin nor Baseline", clip(string(t)))
	return TierOrdinary
}

// clusterEntry reads what the rules of both directions have in common.
func (ps *parser) clusterEntry(d datapath.Direction, i int, name string, a policyv1alpha2.ClusterNetworkPolicyRuleAction,
	protocols []policyv1alpha2.ClusterNetworkPolicyProtocol,
) (Clause, entryOK) {
	c := Clause{Direction: d, Path: fmt.Sprintf("%s[%d]", d, i)}
	at := "spec." + c.Path
	ok := entryOK{whole: !ps.unread[at]}
	switch a {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		c.Deny = true
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		c.Pass = true
	default:
		if ok.whole {
			ps.fail(at+".action", "%q is not one of Accept, Deny, Pass", clip(string(a)))
		}
		c.Deny, ok.whole = true, false
	}
	before := len(ps.errs)
	if name != "" {
		c.Path += fmt.Sprintf(" %q", clip(name))
	}
	if protocols == nil {
		c.Ports = []PortMatch{{Proto: datapath.ProtoAny, First: 0, Last: 65535}}
	} else if len(protocols) == 0 {
		ps.fail(at+".protocols", "is empty; remove the field to mean all traffic")
	}
	for j := range protocols {
		c.Ports = append(c.Ports, ps.clusterProtocol(fmt.Sprintf("%s.protocols[%d]", at, j), &protocols[j])...)
	}
	ok.protocols = len(ps.errs) == before
	return c, ok
}

// needsPeers finds fault with an entry without peers, unless there is one with them since before.
func (ps *parser) needsPeers(c *Clause, at string, before int) {
	c.Peers = slices.DeleteFunc(c.Peers, func(s *Selector) bool { return s == nil })
	if len(c.Peers) == 0 && len(ps.errs) == before {
		ps.fail(at, "has no peer; there must be at least one")
	}
}

// clusterPeer returns the selector of a peer, nil if it is faulty.
func (ps *parser) clusterPeer(at string, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) *Selector {
	before := len(ps.errs)
	if s := ps.clusterPods(at, true, namespaces, pods); len(ps.errs) == before {
		return s
	}
	return nil // what is left of it would select too many
}

// clusterPods returns the selector of pods by their namespaces, or by namespaces and their own
// labels, without what is not understood of them; nil if there are none.
func (ps *parser) clusterPods(at string, peer bool, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) *Selector {
	switch {
	case namespaces != nil && pods != nil:
		ps.fail(at, "has namespaces and pods; only one of them can be given")
		return nil
	case namespaces != nil:
		return newLabelSelector("", true, peer, ps.k8sRequirements(at+".namespaces", labels.KeyNamespaceLabels+".", namespaces))
	case pods != nil:
		reqs := ps.k8sRequirements(at+".pods.podSelector", "", &pods.PodSelector)
		reqs = append(reqs, ps.k8sRequirements(at+".pods.namespaceSelector", labels.KeyNamespaceLabels+".", &pods.NamespaceSelector)...)
		slices.SortFunc(reqs, func(a, b requirement) int { return strings.Compare(a.String(), b.String()) })
		return newLabelSelector("", true, peer, reqs)
	}
	ps.fail(at, "is empty, or has a field that is not known here; write namespaces or pods")
	return nil
}

// clusterDestination returns the selectors of a peer of an egress rule.
func (ps *parser) clusterDestination(at string, p *policyv1alpha2.ClusterNetworkPolicyEgressPeer, protocols []policyv1alpha2.ClusterNetworkPolicyProtocol) []*Selector {
	given := 0
	for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, p.Networks != nil, p.DomainNames != nil} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		ps.fail(at, "has several kinds of peers; write one peer for each")
		return nil
	case p.Nodes != nil:
		ps.fail(at+".nodes", "is not supported; name the nodes' addresses under networks")
		return nil
	case p.DomainNames != nil:
		ps.fail(at+".domainNames", "is not supported; name addresses under networks")
		return nil
	case p.Networks == nil:
		return []*Selector{ps.clusterPeer(at, p.Namespaces, p.Pods)}
	case len(p.Networks) == 0:
		ps.fail(at+".networks", "is empty; name at least one network")
		return nil
	}
	for i := range protocols {
		if protocols[i].DestinationNamedPort != "" {
			ps.fail(at+".networks", "cannot be combined with a named port (protocols[%d]): a network has no named ports", i)
		}
	}
	var out []*Selector
	for i, n := range p.Networks {
		if cidr, ok := ps.prefix(fmt.Sprintf("%s.networks[%d]", at, i), string(n)); ok {
			out = append(out, newBlockSelector(cidr, nil))
		}
	}
	return out
}

// clusterProtocol returns the ports of an entry of protocols.
func (ps *parser) clusterProtocol(at string, p *policyv1alpha2.ClusterNetworkPolicyProtocol) []PortMatch {
	type spec struct {
		field string
		proto uint8
		port  *policyv1alpha2.Port
	}
	var given []spec
	if p.TCP != nil {
		given = append(given, spec{at + ".tcp", datapath.ProtoTCP, p.TCP.DestinationPort})
	}
	if p.UDP != nil {
		given = append(given, spec{at + ".udp", datapath.ProtoUDP, p.UDP.DestinationPort})
	}
	if p.SCTP != nil {
		given = append(given, spec{at + ".sctp", datapath.ProtoSCTP, p.SCTP.DestinationPort})
	}
	named := p.DestinationNamedPort
	switch {
	case len(given) > 1 || len(given) == 1 && named != "":
		ps.fail(at, "has several of tcp, udp, sctp and destinationNamedPort; write one entry for each")
		return nil
	case len(given) == 1:
		if m, ok := ps.clusterPort(given[0].field, given[0].proto, given[0].port); ok {
			return []PortMatch{m}
		}
		return nil
	case named == "":
		ps.fail(at, "is empty, or has a field that is not known here; write one of tcp, udp, sctp and destinationNamedPort")
		return nil
	case !datapath.ValidPortName(named):
		ps.fail(at+".destinationNamedPort", "%q is not the name of a port", clip(named))
		return nil
	}
	out := make([]PortMatch, 0, 3)
	for _, proto := range []uint8{datapath.ProtoTCP, datapath.ProtoUDP, datapath.ProtoSCTP} {
		out = append(out, PortMatch{Proto: proto, Name: named})
	}
	return out
}

func (ps *parser) clusterPort(at string, proto uint8, p *policyv1alpha2.Port) (PortMatch, bool) {
	m := PortMatch{Proto: proto}
	at += ".destinationPort"
	switch {
	case p == nil || p.Number == 0 && p.Range == nil:
		ps.fail(at, "is missing or empty, or has a field that is not known here; write number or range")
	case p.Number != 0 && p.Range != nil:
		ps.fail(at, "has number and range; only one of them can be given")
	case p.Range == nil && (p.Number < 1 || p.Number > 65535):
		ps.fail(at+".number", "%d is not in 1 to 65535", p.Number)
	case p.Range == nil:
		m.First, m.Last = uint16(p.Number), uint16(p.Number)
		return m, true
	case p.Range.Start < 1 || p.Range.End > 65535 || p.Range.Start >= p.Range.End:
		ps.fail(at+".range", "%d to %d is not a range of ports: start must be at least 1 and less than end, end at most 65535", p.Range.Start, p.Range.End)
	default:
		m.First, m.Last = uint16(p.Range.Start), uint16(p.Range.End)
		return m, true
	}
	return m, false
}
