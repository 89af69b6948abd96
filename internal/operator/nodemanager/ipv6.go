package nodemanager

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// A node with IPv6 has one prefix of 2^48 addresses: more than it will ever have pods. So there is
// nothing to count, to ask for in advance or to release: it is asked for once, and goes with its
// interface.

// ipv6 decides what of IPv6 pods may get, and has a prefix be delegated if the node has none. IPv4
// goes first: without it no pod starts, while no call is made of what is missing here alone.
func (v *View) ipv6(d *Decision) {
	d.IPv6Pool = map[netip.Prefix]string{}
	if !v.IPv6 {
		return
	}
	usable := v.usableInterfaces()
	for _, i := range usable {
		for _, p := range i.IPv6Prefixes {
			d.IPv6Pool[p] = i.ID
		}
	}
	if len(d.IPv6Pool) > 0 || len(usable) == 0 || v.Limits.Interfaces == 0 {
		return // it has one, or IPv4 brings the interface first
	}
	fault, i := v.typeFaultIPv6(), (*Interface)(nil)
	if fault == "" {
		i, fault = v.placeForIPv6(usable)
		d.Stale = d.Stale || fault != ""
	}
	if fault == "" {
		fault = v.IPv6Fault
	}
	if fault != "" {
		d.add("no IPv6 addresses for pods: " + fault)
	}
	switch {
	case i == nil || d.Step.Call != Nothing:
	case v.IPv6Rest > 0:
		d.Again = minPositive(d.Again, v.IPv6Rest)
	default:
		d.Step = Step{Call: AssignIPv6, Interface: *i}
	}
}

// usableInterfaces are those whose addresses pods get, by index.
func (v *View) usableInterfaces() (out []*Interface) {
	for k := range v.Attached {
		if v.usable(&v.Attached[k]) {
			out = append(out, &v.Attached[k])
		}
	}
	slices.SortStableFunc(out, func(a, b *Interface) int { return a.Index - b.Index })
	return out
}

// typeFaultIPv6 reports why an instance of this type can have no prefix; "" if it can.
func (v *View) typeFaultIPv6() string {
	switch {
	case v.Limits.IPv6 == 0:
		return fmt.Sprintf("instance type %s does not support IPv6: use one that does, or set --enable-ipv6=false for operator and agents", v.InstanceType)
	case !v.Limits.Prefixes:
		return fmt.Sprintf("instance type %s is not built on the Nitro System, without which no prefixes are delegated: use one that is, or set --enable-ipv6=false for operator and agents", v.InstanceType)
	}
	return ""
}

// placeForIPv6 returns the first interface that can have a prefix; or why there is none, which may
// be for no reason that is known.
func (v *View) placeForIPv6(usable []*Interface) (*Interface, string) {
	var without, full []string
	for _, i := range usable {
		s, known := v.Subnets[i.Subnet]
		switch {
		case !known: // younger than the last description
		case !s.IPv6:
			without = append(without, v.subnetText(i.Subnet))
		case i.OtherIPv6+len(i.IPv6Prefixes) >= v.Limits.IPv6:
			full = append(full, i.ID)
		default:
			return i, ""
		}
	}
	slices.Sort(without)
	switch {
	case len(full) > 0:
		return nil, fmt.Sprintf("others have assigned all %d IPv6 addresses that %s can hold: unassign one", v.Limits.IPv6, strings.Join(full, ", "))
	case len(without) > 0:
		return nil, fmt.Sprintf("%s has no IPv6 CIDR block: associate one with it, or set --enable-ipv6=false for operator and agents", strings.Join(slices.Compact(without), ", "))
	}
	return nil, ""
}

// wantsIPv6Subnet reports whether a new interface should be where there is IPv6.
func (v *View) wantsIPv6Subnet() bool {
	if !v.IPv6 || v.typeFaultIPv6() != "" {
		return false
	}
	usable := v.usableInterfaces()
	if slices.ContainsFunc(usable, func(i *Interface) bool { return len(i.IPv6Prefixes) > 0 }) {
		return false
	}
	i, _ := v.placeForIPv6(usable)
	return i == nil
}

// blameIPv6 is as blame, of IPv6.
func (v *View) blameIPv6(d *Decision) {
	if !v.IPv6 || len(v.Attached) == 0 {
		return
	}
	for _, a := range slices.SortedFunc(maps.Keys(v.UsedIPv6), netip.Addr.Compare) {
		assigned := slices.ContainsFunc(v.Attached, func(i Interface) bool {
			return slices.ContainsFunc(i.IPv6Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		})
		if !assigned {
			d.add(fmt.Sprintf("address %s of %s is in no prefix of the instance any more: delete the pod", a, v.UsedIPv6[a]))
			return
		}
	}
}

// viewIPv6 adds to a view what it has of IPv6.
func (n *node) viewIPv6(o *v2.CiliumNode, v *View) {
	v.UsedIPv6 = map[netip.Addr]string{}
	for text, u := range o.Status.IPAM.IPv6Used {
		if a, err := netip.ParseAddr(text); err == nil {
			v.UsedIPv6[a] = u.Owner
		}
	}
	v.IPv6Fault, v.IPv6Rest = n.ipv6.why, time.Until(n.ipv6.notBefore)
}

// failedIPv6 records that a node has not been given a prefix.
func (m *Manager) failedIPv6(name string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name]
	if n == nil {
		return
	}
	m.log.Warn("a node cannot get an IPv6 prefix", "node", name, "error", err, "again", n.ipv6.failed(err.Error()))
}

// poolIPv6 returns the patch by which the spec has the prefixes.
func poolIPv6(o *v2.CiliumNode, want map[netip.Prefix]string) map[string]any {
	diff, keep := map[string]any{}, map[string]bool{}
	for p, from := range want {
		keep[p.String()] = true
		if has, ok := o.Spec.IPAM.IPv6Pool[p.String()]; !ok || has.Resource != from {
			diff[p.String()] = map[string]any{"resource": from}
		}
	}
	for text := range o.Spec.IPAM.IPv6Pool {
		if !keep[text] {
			diff[text] = nil
		}
	}
	if len(diff) == 0 {
		return nil
	}
	return map[string]any{"ipam": map[string]any{"ipv6-pool": diff}}
}
