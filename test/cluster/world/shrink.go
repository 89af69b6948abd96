package world

import (
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// Shrink takes away objects, then parts of them, for as long as what is left still differs. It
// returns the smallest set that it found, and how many sets it tried. A set of none is not tried.
func Shrink(objects []Object, differs func([]Object) (bool, error)) (_ []Object, tries int, err error) {
	for again := true; again; {
		again = false
		for _, candidate := range smaller(objects) {
			tries++
			ok, err := differs(candidate)
			if err != nil {
				return objects, tries, err
			}
			if ok {
				objects, again = candidate, true
				break
			}
		}
	}
	return objects, tries, nil
}

// smaller lists sets that lack something, larger pieces first.
func smaller(objects []Object) (out [][]Object) {
	for i := range objects {
		if len(objects) > 1 {
			out = append(out, without(objects, i))
		}
	}
	for i, o := range objects {
		for _, less := range o.lesser() {
			set := append([]Object(nil), objects...)
			set[i] = less
			out = append(out, set)
		}
	}
	return out
}

func without[T any](list []T, i int) []T {
	return append(append([]T(nil), list[:i]...), list[i+1:]...)
}

// lesser lists copies of an object that lack one thing each.
func (o Object) lesser() (out []Object) {
	switch {
	case o.Network != nil:
		return o.lesserNetwork()
	case o.Tier != nil:
		return o.lesserTier()
	}
	specs := func(o Object) *[]*v2.Rule {
		if o.Namespaced != nil {
			return &o.Namespaced.Specs
		}
		return &o.Cluster.Specs
	}
	list := *specs(o)
	for i := range list {
		if len(list) > 1 {
			c := o.Copy()
			*specs(c) = without(*specs(c), i)
			out = append(out, c)
		}
	}
	for i := range list {
		for _, less := range lesserRule(list[i]) {
			c := o.Copy()
			(*specs(c))[i] = less
			out = append(out, c)
		}
	}
	return out
}

// cut appends, for each element of a list of a rule, a copy of the rule without it.
func cut[T any](out []*v2.Rule, r *v2.Rule, list func(*v2.Rule) *[]T) []*v2.Rule {
	for i := range *list(r) {
		c := r.DeepCopy()
		*list(c) = without(*list(c), i)
		out = append(out, c)
	}
	return out
}

func lesserRule(r *v2.Rule) (out []*v2.Rule) {
	out = cut(out, r, func(r *v2.Rule) *[]v2.IngressRule { return &r.Ingress })
	out = cut(out, r, func(r *v2.Rule) *[]v2.EgressRule { return &r.Egress })
	out = cut(out, r, func(r *v2.Rule) *[]v2.IngressDenyRule { return &r.IngressDeny })
	out = cut(out, r, func(r *v2.Rule) *[]v2.EgressDenyRule { return &r.EgressDeny })
	for i := range r.Ingress {
		out = cut(out, r, func(r *v2.Rule) *[]v2.LabelSelector { return &r.Ingress[i].FromEndpoints })
		out = cut(out, r, func(r *v2.Rule) *[]string { return &r.Ingress[i].FromCIDR })
		out = cut(out, r, func(r *v2.Rule) *[]v2.CIDRRule { return &r.Ingress[i].FromCIDRSet })
		out = cut(out, r, func(r *v2.Rule) *[]string { return &r.Ingress[i].FromEntities })
		out = cut(out, r, func(r *v2.Rule) *[]v2.PortRule { return &r.Ingress[i].ToPorts })
	}
	for i := range r.Egress {
		out = cut(out, r, func(r *v2.Rule) *[]v2.LabelSelector { return &r.Egress[i].ToEndpoints })
		out = cut(out, r, func(r *v2.Rule) *[]string { return &r.Egress[i].ToCIDR })
		out = cut(out, r, func(r *v2.Rule) *[]v2.CIDRRule { return &r.Egress[i].ToCIDRSet })
		out = cut(out, r, func(r *v2.Rule) *[]string { return &r.Egress[i].ToEntities })
		out = cut(out, r, func(r *v2.Rule) *[]v2.PortRule { return &r.Egress[i].ToPorts })
	}
	if r.EnableDefaultDeny != nil {
		c := r.DeepCopy()
		c.EnableDefaultDeny = nil
		out = append(out, c)
	}
	return out
}

func (o Object) lesserNetwork() (out []Object) {
	edit := func(fn func(*networkingv1.NetworkPolicySpec)) {
		c := o.Copy()
		fn(&c.Network.Spec)
		out = append(out, c)
	}
	spec := o.Network.Spec
	for i := range spec.Ingress {
		edit(func(s *networkingv1.NetworkPolicySpec) { s.Ingress = without(s.Ingress, i) })
	}
	for i := range spec.Egress {
		edit(func(s *networkingv1.NetworkPolicySpec) { s.Egress = without(s.Egress, i) })
	}
	for i := range spec.PolicyTypes {
		edit(func(s *networkingv1.NetworkPolicySpec) { s.PolicyTypes = without(s.PolicyTypes, i) })
	}
	for i, e := range spec.Ingress {
		for j := range e.From {
			edit(func(s *networkingv1.NetworkPolicySpec) { s.Ingress[i].From = without(s.Ingress[i].From, j) })
		}
		for j := range e.Ports {
			edit(func(s *networkingv1.NetworkPolicySpec) { s.Ingress[i].Ports = without(s.Ingress[i].Ports, j) })
		}
	}
	for i, e := range spec.Egress {
		for j := range e.To {
			edit(func(s *networkingv1.NetworkPolicySpec) { s.Egress[i].To = without(s.Egress[i].To, j) })
		}
		for j := range e.Ports {
			edit(func(s *networkingv1.NetworkPolicySpec) { s.Egress[i].Ports = without(s.Egress[i].Ports, j) })
		}
	}
	return out
}

func (o Object) lesserTier() (out []Object) {
	edit := func(fn func(*policyv1alpha2.ClusterNetworkPolicySpec)) {
		c := o.Copy()
		fn(&c.Tier.Spec)
		out = append(out, c)
	}
	spec := o.Tier.Spec
	for i, r := range spec.Ingress {
		edit(func(s *policyv1alpha2.ClusterNetworkPolicySpec) { s.Ingress = without(s.Ingress, i) })
		for j := range r.From {
			if len(r.From) > 1 {
				edit(func(s *policyv1alpha2.ClusterNetworkPolicySpec) { s.Ingress[i].From = without(s.Ingress[i].From, j) })
			}
		}
		for j := range r.Protocols {
			edit(func(s *policyv1alpha2.ClusterNetworkPolicySpec) {
				s.Ingress[i].Protocols = without(s.Ingress[i].Protocols, j)
			})
		}
	}
	for i, r := range spec.Egress {
		edit(func(s *policyv1alpha2.ClusterNetworkPolicySpec) { s.Egress = without(s.Egress, i) })
		for j := range r.To {
			if len(r.To) > 1 {
				edit(func(s *policyv1alpha2.ClusterNetworkPolicySpec) { s.Egress[i].To = without(s.Egress[i].To, j) })
			}
		}
		for j := range r.Protocols {
			edit(func(s *policyv1alpha2.ClusterNetworkPolicySpec) {
				s.Egress[i].Protocols = without(s.Egress[i].Protocols, j)
			})
		}
	}
	return out
}
