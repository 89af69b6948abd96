package policy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/policy/oracle"
)

// setNetworkPolicy gives the owner a new random NetworkPolicy.
func (w *world) setNetworkPolicy(o Owner) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: string(o), Namespace: w.pick("a", "b", "c")}}
	if w.chance(70) {
		np.Spec.PodSelector = *w.k8sSelector("app", "tier")
	}
	for range w.rng.IntN(4) {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: w.networkPeers(), Ports: w.networkPorts()})
	}
	for range w.rng.IntN(4) {
		np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: w.networkPeers(), Ports: w.networkPorts()})
	}
	for _, t := range []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress} {
		if w.chance(50) {
			np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, t)
		}
	}
	rules, err := ParseNetworkPolicy(np)
	if err != nil {
		panic(fmt.Sprintf("the generator made a policy that is refused: %v", err))
	}
	w.policies[o] = object{rules, oracle.FromNetworkPolicy(np)}
}

// setClusterNetworkPolicy gives the owner a new random ClusterNetworkPolicy.
func (w *world) setClusterNetworkPolicy(o Owner) {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: string(o)}}
	p.Spec.Tier = []policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier}[w.rng.IntN(2)]
	p.Spec.Priority = int32(w.rng.IntN(4)) // few, so that some are equal
	p.Spec.Subject.Namespaces, p.Spec.Subject.Pods = w.clusterPods()
	for range w.rng.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyIngressRule{Action: w.action(), Protocols: w.clusterProtocols(true)}
		for range 1 + w.rng.IntN(2) {
			var peer policyv1alpha2.ClusterNetworkPolicyIngressPeer
			peer.Namespaces, peer.Pods = w.clusterPods()
			r.From = append(r.From, peer)
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range w.rng.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: w.action()}
		networks := false
		for range 1 + w.rng.IntN(2) {
			var peer policyv1alpha2.ClusterNetworkPolicyEgressPeer
			if w.chance(40) {
				networks = true
				for range 1 + w.rng.IntN(2) {
					peer.Networks = append(peer.Networks, policyv1alpha2.CIDR(w.pick("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.0.0.4/32", "10.1.0.1/32", "::/0", "fd00::/64")))
				}
			} else {
				peer.Namespaces, peer.Pods = w.clusterPods()
			}
			r.To = append(r.To, peer)
		}
		r.Protocols = w.clusterProtocols(!networks)
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	rules, err := ParseClusterNetworkPolicy(p)
	if err != nil {
		panic(fmt.Sprintf("the generator made a policy that is refused: %v", err))
	}
	w.policies[o] = object{rules, oracle.FromClusterNetworkPolicy(p)}
}

func (w *world) action() policyv1alpha2.ClusterNetworkPolicyRuleAction {
	return policyv1alpha2.ClusterNetworkPolicyRuleAction(w.pick("Accept", "Deny", "Pass"))
}

func (w *world) clusterPods() (*metav1.LabelSelector, *policyv1alpha2.NamespacedPod) {
	switch w.rng.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}, nil
	case 1, 2:
		return w.k8sSelector("team"), nil
	}
	return nil, &policyv1alpha2.NamespacedPod{NamespaceSelector: *w.k8sSelector("team"), PodSelector: *w.k8sSelector("app", "tier")}
}

func (w *world) clusterProtocols(names bool) (out []policyv1alpha2.ClusterNetworkPolicyProtocol) {
	for range w.rng.IntN(3) {
		var p policyv1alpha2.ClusterNetworkPolicyProtocol
		port := &policyv1alpha2.Port{Number: []int32{80, 81, 443, 53, 65535}[w.rng.IntN(5)]}
		if w.chance(40) {
			port = &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: int32(1 + w.rng.IntN(400)), End: int32(450 + w.rng.IntN(2000))}}
		}
		switch w.rng.IntN(4) {
		case 0:
			p.UDP = &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 1:
			if names {
				p.DestinationNamedPort = w.pick("http", "dns", "none")
				break
			}
			p.SCTP = &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		default:
			p.TCP = &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		}
		out = append(out, p)
	}
	return out
}

func (w *world) k8sSelector(keys ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if w.chance(50) {
		s.MatchLabels = map[string]string{w.pick(keys...): w.pick("x", "y", "z", "f", "red")}
	}
	for range w.rng.IntN(3) {
		x := metav1.LabelSelectorRequirement{Key: w.pick(append(keys, "nope")...), Operator: metav1.LabelSelectorOperator(w.pick("In", "NotIn", "Exists", "DoesNotExist"))}
		if x.Operator == metav1.LabelSelectorOpIn || x.Operator == metav1.LabelSelectorOpNotIn {
			for range 1 + w.rng.IntN(3) {
				x.Values = append(x.Values, w.pick("x", "y", "z", "f", "g", "red", "blue"))
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, x)
	}
	return s
}

func (w *world) networkPeers() (out []networkingv1.NetworkPolicyPeer) {
	for range w.rng.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch w.rng.IntN(4) {
		case 0:
			p.PodSelector = w.k8sSelector("app", "tier")
		case 1:
			p.NamespaceSelector = w.k8sSelector("team")
		case 2:
			p.PodSelector, p.NamespaceSelector = w.k8sSelector("app", "tier"), w.k8sSelector("team")
		case 3:
			p.IPBlock = &networkingv1.IPBlock{CIDR: w.pick("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.0.0.4/32")}
			if p.IPBlock.CIDR != "10.0.0.4/32" && w.chance(50) {
				p.IPBlock.Except = []string{w.pick("10.1.0.4/32", "10.1.1.0/24", "10.1.0.0/17")}
			}
			if w.chance(30) {
				p.IPBlock = &networkingv1.IPBlock{CIDR: w.pick("::/0", "fd00::/8"), Except: []string{w.pick("fd00::/64", "fd00::1/128")}}
			}
		}
		out = append(out, p)
	}
	return out
}

func (w *world) networkPorts() (out []networkingv1.NetworkPolicyPort) {
	for range w.rng.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if w.chance(70) {
			p.Protocol = new(corev1.Protocol(w.pick("TCP", "UDP", "SCTP")))
		}
		switch w.rng.IntN(4) {
		case 0:
			p.Port = new(intstr.FromString(w.pick("http", "dns", "none")))
		case 1:
			p.Port, p.EndPort = new(intstr.FromInt32(int32(50+w.rng.IntN(400)))), new(int32(450+w.rng.IntN(2000)))
		case 2:
			p.Port = new(intstr.FromInt32([]int32{80, 81, 443, 53, 65535}[w.rng.IntN(5)]))
		}
		out = append(out, p)
	}
	return out
}
