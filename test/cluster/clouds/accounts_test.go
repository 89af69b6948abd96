package main

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

// agreeing returns accounts of one pod on one of two nodes, about which all agree.
func agreeing() *accounts {
	node := func(name string, ips ...string) v2.CiliumNode {
		n := v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Spec.IPAM.Pool, n.Status.IPAM.Used = v2.AllocationMap{}, v2.AllocationMap{}
		for _, ip := range ips {
			n.Spec.IPAM.Pool[ip] = v2.AllocationIP{Resource: "eni-" + name}
		}
		return n
	}
	eni := func(name, primary string, ips ...string) cloud.Interface {
		i := cloud.Interface{ID: "eni-" + name, Instance: "i-" + name, Index: 1, Primary: netip.MustParseAddr(primary)}
		for _, ip := range ips {
			i.Addresses = append(i.Addresses, netip.MustParseAddr(ip))
		}
		return i
	}
	acc := &accounts{
		provider: region.AWS, nodes: []v2.CiliumNode{node("n1", "10.0.0.2", "10.0.0.3"), node("n2", "10.0.0.5")},
		cloud: cloud.View{Interfaces: []cloud.Interface{eni("n1", "10.0.0.1", "10.0.0.2", "10.0.0.3"), eni("n2", "10.0.0.4", "10.0.0.5")}},
		pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{PodIP: "10.0.0.2"},
		}},
	}
	acc.nodes[0].Status.IPAM.Used["10.0.0.2"] = v2.AllocationIP{Owner: "a/b", Resource: "eni-n1"}
	return acc
}

// TestFaults: whatever one of the four says otherwise is found.
func TestFaults(t *testing.T) {
	for want, change := range map[string]func(*accounts){
		"":                          func(*accounts) {},
		"attached to no instance":   func(acc *accounts) { acc.cloud.Interfaces[1].Instance, acc.nodes = "", acc.nodes[:1] },
		"assigned it to no machine": func(acc *accounts) { acc.cloud.Interfaces[0].Addresses = acc.cloud.Interfaces[0].Addresses[:1] },
		"in no pool":                func(acc *accounts) { delete(acc.nodes[0].Spec.IPAM.Pool, "10.0.0.3") },
		"in the pools of n1 and":    func(acc *accounts) { acc.nodes[1].Spec.IPAM.Pool["10.0.0.3"] = v2.AllocationIP{} },
		"by its pool":               func(acc *accounts) { acc.nodes[0].Spec.IPAM.Pool["10.0.0.3"] = v2.AllocationIP{Resource: "eni-n2"} },
		"not in its pool":           func(acc *accounts) { acc.nodes[1].Status.IPAM.Used["10.0.0.9"] = v2.AllocationIP{Owner: "router"} },
		"its node says":             func(acc *accounts) { acc.nodes[0].Status.IPAM.Used["10.0.0.2"] = v2.AllocationIP{Owner: "a/c"} },
		"no pod that runs":          func(acc *accounts) { acc.pods = nil },
		"is the address of a/b an":  func(acc *accounts) { acc.pods = append(acc.pods, acc.pods[0]) },
	} {
		acc := agreeing()
		change(acc)
		got := strings.Join(acc.faults(), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}

// TestFaultsIPv6: whatever one of the four says otherwise of IPv6 is found.
func TestFaultsIPv6(t *testing.T) {
	prefix := netip.MustParsePrefix("2001:db8:0:0:1::/80")
	for want, change := range map[string]func(*accounts){
		"":                        func(*accounts) {},
		"n2 has no IPv6 prefix":   func(acc *accounts) { acc.nodes[1].Spec.IPAM.IPv6Pool = nil },
		"on eni-n1 and eni-n2":    func(acc *accounts) { acc.cloud.Interfaces[1].IPv6Prefixes = []netip.Prefix{prefix} },
		"and of  in the cloud":    func(acc *accounts) { acc.cloud.Interfaces[0].IPv6Prefixes = nil },
		"a/b has no IPv6 address": func(acc *accounts) { acc.pods[0].Status.PodIPs = nil },
		"and not in its pool": func(acc *accounts) {
			acc.nodes[1].Status.IPAM.IPv6Used["2001:db8:0:0:1::9"] = v2.AllocationIP{Owner: "router"}
		},
		"which is no pod that runs": func(acc *accounts) {
			acc.nodes[0].Status.IPAM.IPv6Used["2001:db8:0:0:1::9"] = v2.AllocationIP{Owner: "a/c"}
		},
		"and its node says":    func(acc *accounts) { delete(acc.nodes[0].Status.IPAM.IPv6Used, "2001:db8:0:0:1::5") },
		"and it is in no pool": func(acc *accounts) { delete(acc.nodes[0].Spec.IPAM.IPv6Pool, prefix.String()) },
	} {
		acc := agreeing()
		acc.cloud.Subnets = []cloud.Subnet{{ID: "s", IPv6: netip.MustParsePrefix("2001:db8::/64")}}
		for k, p := range []netip.Prefix{prefix, netip.MustParsePrefix("2001:db8:0:0:2::/80")} {
			acc.cloud.Interfaces[k].IPv6Prefixes = []netip.Prefix{p}
			acc.nodes[k].Spec.IPAM.IPv6Pool = v2.AllocationMap{p.String(): {Resource: acc.cloud.Interfaces[k].ID}}
			acc.nodes[k].Status.IPAM.IPv6Used = v2.AllocationMap{}
		}
		acc.nodes[0].Status.IPAM.IPv6Used["2001:db8:0:0:1::5"] = v2.AllocationIP{Owner: "a/b"}
		acc.pods[0].Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.2"}, {IP: "2001:db8:0:0:1::5"}}
		change(acc)
		got := strings.Join(acc.faultsIPv6(), "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}
