package kube

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

const (
	maxNodes = 20
	// maxClusterID is the largest number of a cluster: one in 8 bits is what Cilium's identities
	// have room for by default, too.
	maxClusterID = 255

	worldName  = "world" // the bridge between all, and a host that is not part of the cluster
	masterName = "cp"    // the control plane

	apiPort  = 6443
	meshPort = 2379
)

// plan is the plan of addresses of the cluster with this number. Clusters with number 0 all have
// the same: nothing of it is visible outside of one, so they need no agreement. Those with a number
// have addresses of their own, so that they can be connected.
type plan int

// underlay is the range of nodes.
func (p plan) underlay() (v4, v6 netip.Prefix) {
	w := p.world()
	return netip.PrefixFrom(w.IPv4, 24).Masked(), netip.PrefixFrom(w.IPv6, 64).Masked()
}

// pods are the ranges of all pods.
func (p plan) pods() (v4, v6 string) {
	if p == 0 {
		return "10.244.0.0/16", "fd00:10:244::/48"
	}
	return fmt.Sprintf("10.%d.0.0/16", p), fmt.Sprintf("fd00:10:%d::/48", p)
}

// services are the ranges of Services.
func (p plan) services() (v4, v6 string) {
	if p == 0 {
		return "10.96.0.0/16", "fd00:10:96::/112"
	}
	return fmt.Sprintf("172.20.%d.0/24", p), fmt.Sprintf("fd00:20:%d::/112", p)
}

// service is the address of a Service with a fixed place: 1 leads to the API server, 10 to DNS.
func (p plan) service(number byte) netip.Addr {
	v4, _ := p.services()
	a := netip.MustParsePrefix(v4).Addr().As4()
	a[3] = number
	return netip.AddrFrom4(a)
}

func (p plan) firstService() netip.Addr { return p.service(1) }
func (p plan) dnsService() netip.Addr   { return p.service(10) }

// host is the one with a number on the underlay.
func (p plan) host(name string, number int) machine.Host {
	v4 := [4]byte{10, 99, 0, byte(number)}
	if p != 0 {
		v4 = [4]byte{192, 168, byte(p), byte(number)}
	}
	// Digits of the decimal number, so that people see the same in both families.
	return machine.Host{Name: name, IPv4: netip.AddrFrom4(v4), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:99:0:%d::%d", p, number))}
}

func (p plan) world() machine.Host  { return p.host(worldName, 1) }
func (p plan) master() machine.Host { return p.host(masterName, 10) }

// node is one node of the cluster.
type node struct {
	machine.Host
	Index int          `json:"index"`
	Pods4 netip.Prefix `json:"pods4"`
	Pods6 netip.Prefix `json:"pods6"` // invalid without dual stack
	// Killed means that it was stopped on purpose.
	Killed bool            `json:"killed,omitempty"`
	Init   machine.Process `json:"init"`
}

func (p plan) node(index int, dual bool) *node {
	v4, v6 := p.pods()
	pods := netip.MustParsePrefix(v4).Addr().As4()
	pods[2] = byte(index)
	n := &node{Host: p.host(fmt.Sprintf("n%d", index), 10+index), Index: index, Pods4: netip.PrefixFrom(netip.AddrFrom4(pods), 24)}
	if dual {
		pods := netip.MustParsePrefix(v6).Addr().As16()
		pods[7] = byte(index)
		n.Pods6 = netip.PrefixFrom(netip.AddrFrom16(pods), 64)
	}
	return n
}

// podCIDRs are the ranges of the node's pods, IPv4 first.
func (n *node) podCIDRs() []string {
	cidrs := []string{n.Pods4.String()}
	if n.Pods6.IsValid() {
		cidrs = append(cidrs, n.Pods6.String())
	}
	return cidrs
}

// addresses are those that the kubelet reports.
func (n *node) addresses() []string {
	addrs := []string{n.IPv4.String()}
	if n.Pods6.IsValid() {
		addrs = append(addrs, n.IPv6.String())
	}
	return addrs
}

// ranges joins ranges of both families as Kubernetes' flags want them.
func ranges(dual bool, of func() (v4, v6 string)) string {
	v4, v6 := of()
	if dual {
		return strings.Join([]string{v4, v6}, ",")
	}
	return v4
}
