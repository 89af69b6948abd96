package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/labels"
)

// ParseNetworkPolicy returns the rule of a NetworkPolicy of Kubernetes. What it means in addition
// to the rest:
//
//   - The selected pods are enforced in the directions of policyTypes, with or without entries.
//   - An entry without peers matches all peers, an entry without ports all traffic.
//   - podSelector and namespaceSelector select pods only, those of the local cluster if Config
//     requires it, and only by labels that Kubernetes gave them.
//   - ipBlock matches addresses, whatever has them. A named port of an egress entry is looked up at
//     the peer; at an ipBlock, which is no workload, it matches nothing.
//
// Every fault is reported, as FieldErrors joined. The rule is returned with an error, too, with
// what can be enforced, as for [Parse].
func ParseNetworkPolicy(p *networkingv1.NetworkPolicy) ([]*Rule, error) {
	if p == nil {
		return nil, errors.New("the policy is missing")
	}
	ps := parser{namespace: p.Namespace}
	if !validNamespace(ps.namespace) {
		ps.fail("metadata.namespace", "%q is not the name of a namespace", clip(ps.namespace))
	}
	if p.Name == "" {
		ps.fail("metadata.name", "is missing")
	}
	r := &Rule{Namespace: ps.namespace, Path: "spec"}
	before := len(ps.errs)
	reqs := ps.k8sRequirements("spec.podSelector", "", &p.Spec.PodSelector)
	understood := len(ps.errs) == before
	r.Subject = newLabelSelector(ps.namespace, false, false, reqs)
	r.DefaultDeny = ps.policyTypes(&p.Spec)
	if r.DefaultDeny[datapath.Ingress] {
		for i := range p.Spec.Ingress {
			e := &p.Spec.Ingress[i]
			r.Clauses = append(r.Clauses, ps.networkEntry(datapath.Ingress, i, "from", e.From, e.Ports))
		}
	}
	if r.DefaultDeny[datapath.Egress] {
		for i := range p.Spec.Egress {
			e := &p.Spec.Egress[i]
			r.Clauses = append(r.Clauses, ps.networkEntry(datapath.Egress, i, "to", e.To, e.Ports))
		}
	}
	if !understood {
		r.grantNothing()
	}
	r.Faults = ps.faults()["spec"]
	if !validNamespace(ps.namespace) {
		return nil, errors.Join(ps.errs...) // whom it may be about is not known at all
	}
	return []*Rule{r}, errors.Join(ps.errs...)
}

// policyTypes returns the directions that the policy enforces: if it names none, ingress, and
// egress if it has entries for it. An unknown direction is both.
func (ps *parser) policyTypes(spec *networkingv1.NetworkPolicySpec) (enforces [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{datapath.Ingress: true, datapath.Egress: len(spec.Egress) > 0}
	}
	for i, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			enforces[datapath.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			enforces[datapath.Egress] = true
		default:
			ps.fail(fmt.Sprintf("spec.policyTypes[%d]", i), "%q is neither Ingress nor Egress", clip(string(t)))
			enforces = [2]bool{true, true}
		}
	}
	return enforces
}

// networkEntry reads one entry of a direction.
func (ps *parser) networkEntry(d datapath.Direction, i int, field string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) Clause {
	c := Clause{Direction: d, AllPeers: len(peers) == 0, Path: fmt.Sprintf("%s[%d]", d, i)}
	at := "spec." + c.Path
	for j := range peers {
		if s := ps.networkPeer(fmt.Sprintf("%s.%s[%d]", at, field, j), &peers[j]); s != nil {
			c.Peers = append(c.Peers, s)
		}
	}
	if len(ports) == 0 {
		c.Ports = []PortMatch{{Proto: datapath.ProtoAny, First: 0, Last: 65535}}
	}
	for j := range ports {
		if m, ok := ps.networkPort(fmt.Sprintf("%s.ports[%d]", at, j), &ports[j]); ok {
			c.Ports = append(c.Ports, m)
		}
	}
	return c
}

// networkPeer returns the selector of a peer, nil if it is faulty.
func (ps *parser) networkPeer(at string, p *networkingv1.NetworkPolicyPeer) *Selector {
	if p.IPBlock != nil {
		if p.PodSelector != nil || p.NamespaceSelector != nil {
			ps.fail(at+".ipBlock", "cannot be combined with a selector; write two peers")
			return nil
		}
		return ps.ipBlock(at+".ipBlock", p.IPBlock)
	}
	before := len(ps.errs)
	var reqs []requirement
	if p.PodSelector != nil {
		reqs = ps.k8sRequirements(at+".podSelector", "", p.PodSelector)
	}
	if p.NamespaceSelector != nil {
		reqs = append(reqs, ps.k8sRequirements(at+".namespaceSelector", labels.KeyNamespaceLabels+".", p.NamespaceSelector)...)
	}
	switch {
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		ps.fail(at, "is empty; write podSelector, namespaceSelector or ipBlock")
		return nil
	case len(ps.errs) > before:
		return nil // what is left of it would select too many
	case p.NamespaceSelector == nil:
		return newLabelSelector(ps.namespace, false, true, reqs)
	}
	slices.SortFunc(reqs, func(a, b requirement) int { return strings.Compare(a.String(), b.String()) })
	return newLabelSelector("", true, true, reqs)
}

func (ps *parser) ipBlock(at string, b *networkingv1.IPBlock) *Selector {
	before := len(ps.errs)
	cidr, ok := ps.prefix(at+".cidr", b.CIDR)
	if !ok {
		return nil
	}
	except := ps.excepts(at, cidr, b.Except)
	if len(ps.errs) > before {
		return nil
	}
	return newBlockSelector(cidr, except)
}

func (ps *parser) networkPort(at string, p *networkingv1.NetworkPolicyPort) (PortMatch, bool) {
	m := PortMatch{Proto: datapath.ProtoTCP, First: 0, Last: 65535}
	if p.Protocol != nil {
		switch *p.Protocol {
		case corev1.ProtocolTCP:
		case corev1.ProtocolUDP:
			m.Proto = datapath.ProtoUDP
		case corev1.ProtocolSCTP:
			m.Proto = datapath.ProtoSCTP
		default:
			ps.fail(at+".protocol", "%q is not one of TCP, UDP, SCTP", clip(string(*p.Protocol)))
			return m, false
		}
	}
	switch {
	case p.Port == nil:
		if p.EndPort != nil {
			ps.fail(at+".endPort", "needs a port")
			return m, false
		}
	case p.Port.Type == intstr.String:
		if m.Name = p.Port.StrVal; !datapath.ValidPortName(m.Name) {
			ps.fail(at+".port", "%q is not the name of a port", clip(m.Name))
			return m, false
		}
		if p.EndPort != nil {
			ps.fail(at+".endPort", "needs a number as port, not a name")
			return m, false
		}
	default:
		if p.Port.IntVal < 1 || p.Port.IntVal > 65535 {
			ps.fail(at+".port", "%d is not in 1 to 65535", p.Port.IntVal)
			return m, false
		}
		m.First, m.Last = uint16(p.Port.IntVal), uint16(p.Port.IntVal)
		if p.EndPort != nil {
			if *p.EndPort < p.Port.IntVal || *p.EndPort > 65535 {
				ps.fail(at+".endPort", "%d is not in %d to 65535", *p.EndPort, p.Port.IntVal)
				return m, false
			}
			m.Last = uint16(*p.EndPort)
		}
	}
	return m, true
}

// k8sRequirements reads a label selector of Kubernetes, sorted; prefix stands before each key. What
// is not understood is left out.
func (ps *parser) k8sRequirements(at, prefix string, in *metav1.LabelSelector) []requirement {
	sel := v2.LabelSelector{MatchLabels: make(map[string]v2.LabelValue, len(in.MatchLabels))}
	for k, v := range in.MatchLabels {
		sel.MatchLabels[k] = v2.LabelValue(v)
	}
	for _, x := range in.MatchExpressions {
		sel.MatchExpressions = append(sel.MatchExpressions, v2.LabelSelectorRequirement{Key: x.Key, Operator: string(x.Operator), Values: x.Values})
	}
	reqs, _ := ps.requirements(at, &sel, func(k string) (requirement, error) {
		return requirement{source: labels.SourceK8s, key: prefix + k}, checkKey(k)
	})
	return reqs
}

// checkKey checks the key of a label of Kubernetes, which unlike ours has no source.
func checkKey(k string) error {
	if strings.ContainsAny(k, ":!@(),{} ") {
		return fmt.Errorf("the key %q holds a character that is not allowed", clip(k))
	}
	return labels.New(labels.SourceK8s, k, "").Validate()
}
