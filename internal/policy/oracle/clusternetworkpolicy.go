package oracle

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/labels"
)

// FromClusterNetworkPolicy returns the policy of a ClusterNetworkPolicy of Kubernetes.
func FromClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy) Policy {
	return Policy{Name: p.Name, Cluster: &p.Spec}
}

// tierVerdict goes through the policies of a tier in order. The action is that of the first rule
// that matches, "" if none does.
func tierVerdict(cfg Config, policies []Policy, tier policyv1alpha2.Tier, ingress bool, self, other End, proto uint8, port uint16) (
	action policyv1alpha2.ClusterNetworkPolicyRuleAction, by string,
) {
	var list []Policy
	for _, p := range policies {
		if p.Cluster != nil && p.Cluster.Tier == tier {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Cluster.Priority, b.Cluster.Priority), cmp.Compare(a.Name, b.Name))
	})
	list = slices.DeleteFunc(list, func(p Policy) bool { return !podsMatch(p.Cluster.Subject.Namespaces, p.Cluster.Subject.Pods, self) })
	for _, p := range list {
		if ingress {
			for i, r := range p.Cluster.Ingress {
				for _, peer := range r.From {
					// What may be meant by a deny is denied.
					matches := tierPeer(cfg, peer.Namespaces, peer.Pods, other) || r.Action == policyv1alpha2.ClusterNetworkPolicyRuleActionDeny && unlabelled(other)
					if matches && protocolsMatch(r.Protocols, self, false, proto, port) {
						return r.Action, fmt.Sprintf("%s ingress[%d]", p.Name, i)
					}
				}
			}
			continue
		}
		for i, r := range p.Cluster.Egress {
			by := fmt.Sprintf("%s egress[%d]", p.Name, i)
			pods := false
			for _, peer := range r.To {
				matches, named := tierPeer(cfg, peer.Namespaces, peer.Pods, other), other
				if len(peer.Networks) > 0 {
					matches, named = slices.ContainsFunc(peer.Networks, func(n policyv1alpha2.CIDR) bool {
						return other.Addr.IsValid() && inPrefix(string(n), other.Addr)
					}), End{}
				} else {
					pods = true
				}
				if matches && protocolsMatch(r.Protocols, named, false, proto, port) {
					return r.Action, by
				}
			}
			// What may be meant by a deny is denied, and what may be meant by a pass is, rather
			// than accepted for its address.
			maybe := r.Action == policyv1alpha2.ClusterNetworkPolicyRuleActionDeny || r.Action == policyv1alpha2.ClusterNetworkPolicyRuleActionPass && slices.ContainsFunc(list, acceptsNetworks)
			if pods && maybe && unlabelled(other) && protocolsMatch(r.Protocols, End{}, true, proto, port) {
				return policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, by
			}
		}
	}
	return "", ""
}

// acceptsNetworks: a policy that accepts by address.
func acceptsNetworks(p Policy) bool {
	return slices.ContainsFunc(p.Cluster.Egress, func(r policyv1alpha2.ClusterNetworkPolicyEgressRule) bool {
		return r.Action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept &&
			slices.ContainsFunc(r.To, func(peer policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool { return len(peer.Networks) > 0 })
	})
}

// ofCluster: peers are those of this cluster, if so configured.
func ofCluster(cfg Config, e End) bool {
	return !cfg.DefaultLocalCluster || cfg.ClusterName == "" || e.Labels.Value(labels.SourceK8s, "io.cilium.k8s.policy.cluster") == cfg.ClusterName
}

// tierPeer: a pod that a rule selects as a peer.
func tierPeer(cfg Config, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod, e End) bool {
	return ofCluster(cfg, e) && podsMatch(namespaces, pods, e)
}

// podsMatch: a pod by its namespace's labels, or by those and its own.
func podsMatch(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod, e End) bool {
	switch {
	case namespaceOf(e) == "":
		return false
	case namespaces != nil:
		return k8sMatches(namespaces, namespaceLabels(e))
	case pods != nil:
		return k8sMatches(&pods.NamespaceSelector, namespaceLabels(e)) && k8sMatches(&pods.PodSelector, podLabels(e))
	}
	return false
}

// protocolsMatch: a port by number, or by name among those of an end, or, if the end may have any
// names, by any.
func protocolsMatch(protocols []policyv1alpha2.ClusterNetworkPolicyProtocol, named End, anyName bool, proto uint8, port uint16) bool {
	portMatch := func(p *policyv1alpha2.Port) bool {
		if p.Range != nil {
			return int32(port) >= p.Range.Start && int32(port) <= p.Range.End
		}
		return int32(port) == p.Number
	}
	for _, p := range protocols {
		name := map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[proto]
		switch {
		case p.TCP != nil && name == "TCP" && portMatch(p.TCP.DestinationPort),
			p.UDP != nil && name == "UDP" && portMatch(p.UDP.DestinationPort),
			p.SCTP != nil && name == "SCTP" && portMatch(p.SCTP.DestinationPort):
			return true
		case p.DestinationNamedPort != "" && name != "" &&
			(anyName || slices.Contains(named.NamedPorts, fmt.Sprintf("%s/%s/%d", p.DestinationNamedPort, name, port))):
			return true
		}
	}
	return protocols == nil
}
