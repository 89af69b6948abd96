package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

// faultsIPv6 are what the four do not agree about of IPv6, where the cloud has it: each node has a
// prefix, on an interface of its own, and its pods addresses of it.
func (acc *accounts) faultsIPv6() (out []string) {
	if !slices.ContainsFunc(acc.cloud.Subnets, func(s cloud.Subnet) bool { return s.IPv6.IsValid() }) {
		return nil
	}
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	delegated := map[string]cloud.Interface{}
	for _, i := range acc.cloud.Interfaces {
		for _, p := range i.IPv6Prefixes {
			if other, ok := delegated[p.String()]; ok {
				fault("the cloud has %s on %s and %s", p, other.ID, i.ID)
			}
			delegated[p.String()] = i
		}
	}
	used := map[string]string{}
	for _, n := range acc.nodes {
		instance := region.InstanceID(acc.provider, n.Name)
		if !slices.ContainsFunc(acc.cloud.Interfaces, func(i cloud.Interface) bool { return i.Instance == instance }) {
			continue // it has ended
		}
		if len(n.Spec.IPAM.IPv6Pool) == 0 {
			fault("%s has no IPv6 prefix", n.Name)
		}
		for p, a := range n.Spec.IPAM.IPv6Pool {
			if i := delegated[p]; i.ID != a.Resource || i.Instance != instance {
				fault("%s of %s is of %s by its pool, and of %s in the cloud", p, n.Name, a.Resource, i.ID)
			}
			delete(delegated, p)
		}
		for ip, a := range n.Status.IPAM.IPv6Used {
			addr, err := netip.ParseAddr(ip)
			in := false
			for text := range n.Spec.IPAM.IPv6Pool {
				p, perr := netip.ParsePrefix(text)
				in = in || err == nil && perr == nil && p.Contains(addr)
			}
			if !in {
				fault("%s is used by %s of %s, and not in its pool", ip, a.Owner, n.Name)
			}
			used[ip] = n.Name + " " + a.Owner
		}
	}
	for p, i := range delegated {
		fault("the cloud has delegated %s to %s of %q, and it is in no pool", p, i.ID, i.Instance)
	}
	owners := map[string]bool{}
	for i := range acc.pods {
		p := &acc.pods[i]
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		want := p.Spec.NodeName + " " + p.Namespace + "/" + p.Name
		owners[want] = true
		k := slices.IndexFunc(p.Status.PodIPs, func(a corev1.PodIP) bool { return strings.Contains(a.IP, ":") })
		if k < 0 {
			fault("%s has no IPv6 address", want)
			continue
		}
		if ip := p.Status.PodIPs[k].IP; used[ip] != want {
			fault("%s is the address of %s, and its node says %q", ip, want, used[ip])
		}
	}
	for ip, who := range used {
		if strings.Contains(who, "/") && !owners[who] {
			fault("%s is used by %s, which is no pod that runs", ip, who)
		}
	}
	return out
}
