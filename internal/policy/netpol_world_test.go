package policy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

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
