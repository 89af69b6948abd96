package oracle

import (
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-net/hawser/internal/labels"
)

// FromNetworkPolicy returns the policy of a NetworkPolicy of Kubernetes.
func FromNetworkPolicy(p *networkingv1.NetworkPolicy) Policy {
	return Policy{Name: p.Name, Namespace: p.Namespace, Network: &p.Spec}
}

// networkSide reports whether a NetworkPolicy isolates self in a direction, and whether it permits
// the packet.
func networkSide(cfg Config, p Policy, ingress bool, self, other End, proto uint8, port uint16) (isolates, permits bool) {
	spec := p.Network
	if namespaceOf(self) == "" || namespaceOf(self) != p.Namespace || !k8sMatches(&spec.PodSelector, podLabels(self)) {
		return false, false
	}
	types := spec.PolicyTypes
	if len(types) == 0 {
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	if ingress {
		if !slices.Contains(types, networkingv1.PolicyTypeIngress) {
			return false, false
		}
		for _, e := range spec.Ingress {
			permits = permits || networkPeers(cfg, p, e.From, other) && networkPorts(e.Ports, self, proto, port)
		}
		return true, permits
	}
	if !slices.Contains(types, networkingv1.PolicyTypeEgress) {
		return false, false
	}
	for _, e := range spec.Egress {
		for _, peer := range orEverybody(e.To) {
			// A name is looked up at the peer that the entry selects; an ipBlock has no named
			// ports.
			named := other
			if peer.IPBlock != nil {
				named = End{}
			}
			permits = permits || (len(e.To) == 0 || networkPeer(cfg, p, peer, other)) && networkPorts(e.Ports, named, proto, port)
		}
	}
	return true, permits
}

// orEverybody turns an empty list into one with an empty peer, so that a loop over it runs once.
func orEverybody(peers []networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyPeer {
	if len(peers) == 0 {
		return []networkingv1.NetworkPolicyPeer{{}}
	}
	return peers
}

func networkPeers(cfg Config, p Policy, peers []networkingv1.NetworkPolicyPeer, other End) bool {
	for _, peer := range peers {
		if networkPeer(cfg, p, peer, other) {
			return true
		}
	}
	return len(peers) == 0
}

func networkPeer(cfg Config, p Policy, peer networkingv1.NetworkPolicyPeer, other End) bool {
	if b := peer.IPBlock; b != nil {
		if !other.Addr.IsValid() || !inPrefix(b.CIDR, other.Addr) {
			return false
		}
		for _, x := range b.Except {
			if inPrefix(x, other.Addr) {
				return false
			}
		}
		return true
	}
	if namespaceOf(other) == "" || peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return false
	}
	if peer.NamespaceSelector == nil && namespaceOf(other) != p.Namespace {
		return false
	}
	if cfg.DefaultLocalCluster && cfg.ClusterName != "" && other.Labels.Value(labels.SourceK8s, "io.cilium.k8s.policy.cluster") != cfg.ClusterName {
		return false
	}
	return (peer.NamespaceSelector == nil || k8sMatches(peer.NamespaceSelector, namespaceLabels(other))) &&
		(peer.PodSelector == nil || k8sMatches(peer.PodSelector, podLabels(other)))
}

func networkPorts(ports []networkingv1.NetworkPolicyPort, named End, proto uint8, port uint16) bool {
	for _, p := range ports {
		want := "TCP"
		if p.Protocol != nil {
			want = string(*p.Protocol)
		}
		if map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[proto] != want {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			if slices.Contains(named.NamedPorts, fmt.Sprintf("%s/%s/%d", p.Port.StrVal, want, port)) {
				return true
			}
		case p.EndPort != nil:
			if int32(port) >= p.Port.IntVal && int32(port) <= *p.EndPort {
				return true
			}
		case int32(port) == p.Port.IntVal:
			return true
		}
	}
	return len(ports) == 0
}

func namespaceOf(e End) string {
	return e.Labels.Value(labels.SourceK8s, "io.kubernetes.pod.namespace")
}

// podLabels and namespaceLabels take apart what the network puts together.
func podLabels(e End) map[string]string {
	out := map[string]string{}
	for _, l := range e.Labels {
		if l.Source == labels.SourceK8s {
			out[l.Key] = l.Value
		}
	}
	return out
}

func namespaceLabels(e End) map[string]string {
	const prefix = "io.cilium.k8s.namespace.labels."
	out := map[string]string{}
	for k, v := range podLabels(e) {
		if len(k) > len(prefix) && k[:len(prefix)] == prefix {
			out[k[len(prefix):]] = v
		}
	}
	return out
}

func k8sMatches(sel *metav1.LabelSelector, set map[string]string) bool {
	for k, v := range sel.MatchLabels {
		if got, ok := set[k]; !ok || got != v {
			return false
		}
	}
	for _, x := range sel.MatchExpressions {
		got, ok := set[x.Key]
		in := ok && slices.Contains(x.Values, got)
		if !map[metav1.LabelSelectorOperator]bool{"In": in, "NotIn": !in, "Exists": ok, "DoesNotExist": !ok}[x.Operator] {
			return false
		}
	}
	return true
}
