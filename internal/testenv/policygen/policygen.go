// Package policygen makes random policies of every kind that is accepted, and, if it is configured
// to, some that are refused, for comparison with the oracle: by the tests of the policy engine, and
// on a real cluster. Its vocabulary is small, so that rules and packets meet often.
package policygen

import (
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
)

// Words are what policies speak of. Labels are app in x, y, z, tier in f, g and, of namespaces,
// team in red, blue; ports are 80, 81, 443, 53 and named http and dns.
type Words struct {
	Namespaces []string
	// Clusters are the own one and others.
	Clusters []string
	// CIDRs are peers of Cilium policies, addresses of their own among them.
	CIDRs []string
	// Wide4 holds every one of Except4, so does Wide6.
	Wide4, Except4, Wide6, Except6 []string
	// Blocks4 are peers of NetworkPolicies; BlockExcept4 are what may be taken out of each but
	// those in Exact4. The same of IPv6.
	Blocks4, BlockExcept4, Exact4 []string
	Blocks6, BlockExcept6         []string
	// Networks are peers of ClusterNetworkPolicies.
	Networks []string
}

// Generator makes policies. It is for one goroutine.
type Generator struct {
	Rand  *rand.Rand
	Words Words
	// Refused is how many of a hundred entries of Cilium policies say something that is not
	// supported.
	Refused int
}

func (g *Generator) pick(list ...string) string { return list[g.Rand.IntN(len(list))] }
func (g *Generator) chance(percent int) bool    { return g.Rand.IntN(100) < percent }

// NetworkPolicy returns a policy of Kubernetes.
func (g *Generator) NetworkPolicy(name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: g.pick(g.Words.Namespaces...)}}
	if g.chance(70) {
		np.Spec.PodSelector = *g.k8sSelector("app", "tier")
	}
	for range g.Rand.IntN(4) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.networkPeers(), Ports: g.networkPorts()})
	}
	for range g.Rand.IntN(4) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: g.networkPeers(), Ports: g.networkPorts()})
	}
	for _, t := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
		if g.chance(50) {
			np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, t)
		}
	}
	return np
}

// Namespaced returns a CiliumNetworkPolicy of one or two rules.
func (g *Generator) Namespaced(name string) *v2.CiliumNetworkPolicy {
	p := &v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: g.pick(g.Words.Namespaces...)}, Specs: g.rules()}
	for _, r := range p.Specs {
		if g.chance(8) { // of another namespace perhaps, which counts for nothing
			r.EndpointSelector = &v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{
				g.pick("io.kubernetes.pod.namespace", "k8s:io.kubernetes.pod.namespace"): v2.LabelValue(g.pick(g.Words.Namespaces...)),
			}}
		}
	}
	return p
}

// Clusterwide returns a CiliumClusterwideNetworkPolicy of one or two rules.
func (g *Generator) Clusterwide(name string) *v2.CiliumClusterwideNetworkPolicy {
	p := &v2.CiliumClusterwideNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Specs: g.rules()}
	for _, r := range p.Specs {
		switch {
		case g.chance(12): // about endpoints without labels
			r.EndpointSelector = &v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{"reserved:init": ""}}
		case g.chance(8): // about all but these, or none but these
			r.EndpointSelector = &v2.LabelSelector{MatchExpressions: []v2.LabelSelectorRequirement{
				{Key: "reserved:init", Operator: g.pick(v2.OpExists, v2.OpDoesNotExist)},
			}}
		}
	}
	return p
}

func (g *Generator) rules() (out []*v2.Rule) {
	for range 1 + g.Rand.IntN(2) {
		out = append(out, g.rule())
	}
	return out
}

func (g *Generator) rule() *v2.Rule {
	r := &v2.Rule{EndpointSelector: &v2.LabelSelector{}}
	if g.chance(70) {
		r.EndpointSelector = new(g.selector(false))
	}
	for len(r.Ingress)+len(r.IngressDeny)+len(r.Egress)+len(r.EgressDeny) == 0 {
		for range g.Rand.IntN(3) {
			r.Ingress = append(r.Ingress, g.ingress())
		}
		for range g.Rand.IntN(3) {
			r.Egress = append(r.Egress, g.egress())
		}
		if g.chance(35) {
			r.IngressDeny = append(r.IngressDeny, denyIngress(g.ingress()))
		}
		if g.chance(35) {
			r.EgressDeny = append(r.EgressDeny, denyEgress(g.egress()))
		}
	}
	if g.chance(25) {
		r.EnableDefaultDeny = &v2.DefaultDeny{}
		if g.chance(60) {
			r.EnableDefaultDeny.Ingress = new(g.chance(40))
		}
		if g.chance(60) {
			r.EnableDefaultDeny.Egress = new(g.chance(40))
		}
	}
	return r
}

func (g *Generator) ingress() v2.IngressRule {
	var r v2.IngressRule
	switch g.Rand.IntN(7) {
	case 0:
	case 1, 2:
		r.FromEndpoints = g.selectors()
	case 3:
		r.FromCIDR = g.cidrs()
	case 4:
		r.FromCIDRSet = g.cidrSet()
	case 5:
		r.FromEntities = g.entities()
	case 6:
		r.FromEndpoints = []v2.LabelSelector{}
		if g.chance(70) {
			r.FromEndpoints = nil
		}
	}
	r.ToPorts, r.ICMPs = g.ports()
	g.leftovers(&r)
	if g.chance(g.Refused) {
		g.spoil(&r)
	}
	return r
}

// spoil adds something that is not supported to an entry.
func (g *Generator) spoil(r *v2.IngressRule) {
	switch g.Rand.IntN(8) {
	case 0:
		r.Authentication = &v2.Authentication{Mode: "required"}
	case 1: // two kinds of peers at once
		r.FromEndpoints, r.FromEntities = g.selectors(), []string{"all"}
	case 2:
		r.FromNodes = []v2.LabelSelector{{}}
	case 3:
		r.FromEndpoints, r.FromCIDR, r.FromCIDRSet, r.FromEntities = nil, nil, nil, nil
		r.FromNodes = []v2.LabelSelector{{}}
	case 4:
		r.ToPorts, r.ICMPs = append(r.ToPorts, v2.PortRule{Ports: []v2.PortProtocol{{Port: g.pick("80", "443"), Protocol: "TCP"}}, Rules: &v2.L7Rules{HTTP: []v2.HTTPRule{{}}}}), nil
	case 5:
		r.ToPorts, r.ICMPs = append(r.ToPorts, v2.PortRule{Ports: []v2.PortProtocol{{Port: g.pick("080", "00"), Protocol: g.pick("TCP", "ANY")}}}), nil
	case 6:
		r.FromEndpoints, r.FromCIDR, r.FromEntities = nil, nil, nil
		r.FromCIDRSet = append(r.FromCIDRSet, v2.CIDRRule{CIDRGroupRef: "group"})
	case 7: // ports and messages at once
		r.ToPorts = []v2.PortRule{{Ports: []v2.PortProtocol{{Port: "80", Protocol: "TCP"}}}}
		r.ICMPs = []v2.ICMPRule{{Fields: []v2.ICMPField{{Family: "IPv4", Type: &v2.IntOrString{Text: "8"}}}}}
	}
}

// leftovers adds the empty lists that templates leave behind.
func (g *Generator) leftovers(r *v2.IngressRule) {
	if !g.chance(15) {
		return
	}
	switch g.Rand.IntN(6) {
	case 0:
		r.ToPorts, r.ICMPs = []v2.PortRule{}, nil
	case 1:
		r.ToPorts, r.ICMPs = append([]v2.PortRule{{}}, r.ToPorts...), nil
	case 2:
		r.ToPorts, r.ICMPs = nil, []v2.ICMPRule{}
	case 3:
		r.ToPorts, r.ICMPs = []v2.PortRule{}, []v2.ICMPRule{{Fields: []v2.ICMPField{}}}
	case 4:
		if r.FromEndpoints == nil {
			r.FromEndpoints = []v2.LabelSelector{}
		}
	case 5:
		if r.FromEntities == nil {
			r.FromEntities = []string{}
		}
	}
}

func (g *Generator) egress() v2.EgressRule {
	in := g.ingress()
	out := v2.EgressRule{
		ToEndpoints: in.FromEndpoints, ToCIDR: in.FromCIDR, ToCIDRSet: in.FromCIDRSet, ToEntities: in.FromEntities,
		ToPorts: in.ToPorts, ICMPs: in.ICMPs, ToNodes: in.FromNodes, Authentication: in.Authentication,
	}
	if out.ToNodes != nil {
		switch g.Rand.IntN(3) {
		case 0:
			out.ToNodes, out.ToServices = nil, []v2.Service{{K8sService: &v2.NamedService{ServiceName: "s", Namespace: "a"}}}
		case 1:
			out.ToNodes, out.ToFQDNs = nil, []v2.FQDNSelector{{MatchName: "example.com"}}
		}
	}
	return out
}

func denyIngress(in v2.IngressRule) v2.IngressDenyRule {
	return v2.IngressDenyRule{
		FromEndpoints: in.FromEndpoints, FromCIDR: in.FromCIDR, FromCIDRSet: in.FromCIDRSet, FromEntities: in.FromEntities,
		FromNodes: in.FromNodes, ToPorts: denyPorts(in.ToPorts), ICMPs: in.ICMPs,
	}
}

func denyEgress(in v2.EgressRule) v2.EgressDenyRule {
	return v2.EgressDenyRule{
		ToEndpoints: in.ToEndpoints, ToCIDR: in.ToCIDR, ToCIDRSet: in.ToCIDRSet, ToEntities: in.ToEntities,
		ToServices: in.ToServices, ToNodes: in.ToNodes, ToPorts: denyPorts(in.ToPorts), ICMPs: in.ICMPs,
	}
}

func denyPorts(in []v2.PortRule) []v2.PortDenyRule {
	if in == nil {
		return nil
	}
	out := []v2.PortDenyRule{}
	for _, p := range in {
		out = append(out, v2.PortDenyRule{Ports: p.Ports})
	}
	return out
}

func (g *Generator) selectors() []v2.LabelSelector {
	out := []v2.LabelSelector{}
	for range 1 + g.Rand.IntN(2) {
		if g.chance(25) {
			out = append(out, v2.LabelSelector{})
			continue
		}
		out = append(out, g.selector(true))
	}
	return out
}

func (g *Generator) selector(peer bool) v2.LabelSelector {
	s := v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{}}
	if g.chance(60) {
		s.MatchLabels[g.pick("app", "k8s:app", "any:app")] = v2.LabelValue(g.pick("x", "y", "z"))
	}
	if peer && g.chance(15) {
		s.MatchLabels[g.pick("io.kubernetes.pod.namespace", "k8s:io.kubernetes.pod.namespace")] = v2.LabelValue(g.pick(g.Words.Namespaces...))
	}
	if peer && g.chance(10) {
		s.MatchLabels["io.cilium.k8s.policy.cluster"] = v2.LabelValue(g.pick(g.Words.Clusters...))
	}
	if peer && g.chance(8) {
		s.MatchLabels[g.pick("reserved:host", "reserved:world", "reserved:world-ipv4", "reserved:world-ipv6", "reserved:health")] = ""
	}
	for range g.Rand.IntN(3) {
		key := g.pick("app", "tier", "k8s:tier", "cni:app", "nope", "io.cilium.k8s.namespace.labels.team")
		if peer {
			key = g.pick(key, key, "io.kubernetes.pod.namespace", "reserved:host", "reserved:world", "reserved:world-ipv4")
		}
		x := v2.LabelSelectorRequirement{Key: key, Operator: g.pick(v2.OpIn, v2.OpNotIn, v2.OpExists, v2.OpDoesNotExist)}
		if x.Operator == v2.OpIn || x.Operator == v2.OpNotIn {
			for range 1 + g.Rand.IntN(3) {
				x.Values = append(x.Values, g.pick(append([]string{"x", "y", "z", "f", "g", "red"}, g.Words.Namespaces...)...))
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, x)
	}
	return s
}

func (g *Generator) cidrs() []string {
	out := []string{}
	for range g.Rand.IntN(3) {
		out = append(out, g.cidr())
	}
	return out
}

func (g *Generator) cidr() string {
	return g.pick(g.Words.CIDRs...)
}

func (g *Generator) cidrSet() []v2.CIDRRule {
	out := []v2.CIDRRule{}
	for range 1 + g.Rand.IntN(2) {
		c := v2.CIDRRule{CIDR: g.pick(g.Words.Wide4...)}
		for range g.Rand.IntN(3) {
			c.Except = append(c.Except, g.pick(g.Words.Except4...))
		}
		if g.chance(30) {
			c = v2.CIDRRule{CIDR: g.pick(g.Words.Wide6...), Except: []string{g.pick(g.Words.Except6...)}}
		}
		out = append(out, c)
	}
	return out
}

func (g *Generator) entities() []string {
	out := []string{}
	for range g.Rand.IntN(3) {
		es := identity.Entities()
		out = append(out, string(es[g.Rand.IntN(len(es))]))
	}
	return out
}

func (g *Generator) ports() ([]v2.PortRule, []v2.ICMPRule) {
	switch {
	case g.chance(25):
		return nil, nil
	case g.chance(10):
		typ := v2.IntOrString{Text: g.pick("0", "8", "EchoRequest", "128")}
		f := v2.ICMPField{Family: g.pick("", "IPv4", "IPv6"), Type: &typ}
		if typ.Text == "0" {
			f.Family = "IPv4"
		}
		return nil, []v2.ICMPRule{{Fields: []v2.ICMPField{f}}}
	}
	var out []v2.PortRule
	for range 1 + g.Rand.IntN(2) {
		var pr v2.PortRule
		for range 1 + g.Rand.IntN(2) {
			p := v2.PortProtocol{
				Port:     g.pick("80", "81", "443", "53", "0", "http", "dns", "HTTP", "65535", "1"),
				Protocol: g.pick("TCP", "UDP", "SCTP", "ANY", "", "TCP"),
			}
			if g.chance(20) {
				p.Port, p.EndPort = g.pick("1", "50", "80", "443"), int32(443+g.Rand.IntN(2000))
			}
			pr.Ports = append(pr.Ports, p)
		}
		out = append(out, pr)
	}
	return out, nil
}

func (g *Generator) k8sSelector(keys ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.chance(50) {
		s.MatchLabels = map[string]string{g.pick(keys...): g.pick("x", "y", "z", "f", "red")}
	}
	for range g.Rand.IntN(3) {
		x := metav1.LabelSelectorRequirement{Key: g.pick(append(keys, "nope")...), Operator: metav1.LabelSelectorOperator(g.pick("In", "NotIn", "Exists", "DoesNotExist"))}
		if x.Operator == metav1.LabelSelectorOpIn || x.Operator == metav1.LabelSelectorOpNotIn {
			for range 1 + g.Rand.IntN(3) {
				x.Values = append(x.Values, g.pick("x", "y", "z", "f", "g", "red", "blue"))
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, x)
	}
	return s
}

func (g *Generator) networkPeers() (out []networkingv1.NetworkPolicyPeer) {
	for range g.Rand.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch g.Rand.IntN(4) {
		case 0:
			p.PodSelector = g.k8sSelector("app", "tier")
		case 1:
			p.NamespaceSelector = g.k8sSelector("team")
		case 2:
			p.PodSelector, p.NamespaceSelector = g.k8sSelector("app", "tier"), g.k8sSelector("team")
		case 3:
			p.IPBlock = &networkingv1.IPBlock{CIDR: g.pick(append(slices.Clone(g.Words.Blocks4), g.Words.Exact4...)...)}
			if !slices.Contains(g.Words.Exact4, p.IPBlock.CIDR) && g.chance(50) {
				p.IPBlock.Except = []string{g.pick(g.Words.BlockExcept4...)}
			}
			if g.chance(30) {
				p.IPBlock = &networkingv1.IPBlock{CIDR: g.pick(g.Words.Blocks6...), Except: []string{g.pick(g.Words.BlockExcept6...)}}
			}
		}
		out = append(out, p)
	}
	return out
}

func (g *Generator) networkPorts() (out []networkingv1.NetworkPolicyPort) {
	for range g.Rand.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if g.chance(70) {
			p.Protocol = new(corev1.Protocol(g.pick("TCP", "UDP", "SCTP")))
		}
		switch g.Rand.IntN(4) {
		case 0:
			p.Port = new(intstr.FromString(g.pick("http", "dns", "none")))
		case 1:
			p.Port, p.EndPort = new(intstr.FromInt32(int32(50+g.Rand.IntN(400)))), new(int32(450+g.Rand.IntN(2000)))
		case 2:
			p.Port = new(intstr.FromInt32([]int32{80, 81, 443, 53, 65535}[g.Rand.IntN(5)]))
		}
		out = append(out, p)
	}
	return out
}
