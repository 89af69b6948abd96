package policygen

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Cluster returns a ClusterNetworkPolicy of the admin or baseline tier.
func (g *Generator) Cluster(name string) *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Tier = []policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier}[g.Rand.IntN(2)]
	p.Spec.Priority = int32(g.Rand.IntN(4)) // few, so that some are equal
	p.Spec.Subject.Namespaces, p.Spec.Subject.Pods = g.clusterPods()
	for range g.Rand.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyIngressRule{Action: g.action(), Protocols: g.clusterProtocols(true)}
		for range 1 + g.Rand.IntN(2) {
			var peer policyv1alpha2.ClusterNetworkPolicyIngressPeer
			peer.Namespaces, peer.Pods = g.clusterPods()
			r.From = append(r.From, peer)
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range g.Rand.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: g.action()}
		networks := false
		for range 1 + g.Rand.IntN(2) {
			var peer policyv1alpha2.ClusterNetworkPolicyEgressPeer
			if g.chance(40) {
				networks = true
				for range 1 + g.Rand.IntN(2) {
					peer.Networks = append(peer.Networks, policyv1alpha2.CIDR(g.pick(g.Words.Networks...)))
				}
			} else {
				peer.Namespaces, peer.Pods = g.clusterPods()
			}
			r.To = append(r.To, peer)
		}
		r.Protocols = g.clusterProtocols(!networks)
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

func (g *Generator) action() policyv1alpha2.ClusterNetworkPolicyRuleAction {
	return policyv1alpha2.ClusterNetworkPolicyRuleAction(g.pick("Accept", "Deny", "Pass"))
}

func (g *Generator) clusterPods() (*metav1.LabelSelector, *policyv1alpha2.NamespacedPod) {
	switch g.Rand.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}, nil
	case 1, 2:
		return g.k8sSelector("team"), nil
	}
	return nil, &policyv1alpha2.NamespacedPod{NamespaceSelector: *g.k8sSelector("team"), PodSelector: *g.k8sSelector("app", "tier")}
}

func (g *Generator) clusterProtocols(names bool) (out []policyv1alpha2.ClusterNetworkPolicyProtocol) {
	for range g.Rand.IntN(3) {
		var p policyv1alpha2.ClusterNetworkPolicyProtocol
		port := &policyv1alpha2.Port{Number: []int32{80, 81, 443, 53, 65535}[g.Rand.IntN(5)]}
		if g.chance(40) {
			port = &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: int32(1 + g.Rand.IntN(400)), End: int32(450 + g.Rand.IntN(2000))}}
		}
		switch g.Rand.IntN(4) {
		case 0:
			p.UDP = &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 1:
			if names {
				p.DestinationNamedPort = g.pick("http", "dns", "none")
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
