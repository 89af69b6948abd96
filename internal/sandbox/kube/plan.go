package kube

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// The plan of addresses. It needs no coordination between clusters: nothing of it is visible outside of one.
const (
	maxNodes = 20

	worldName  = "world" // the bridge between all, and a host that is not part of the cluster
	masterName = "cp"    // the control plane

	clusterPods4, clusterPods6         = "10.244.0.0/16", "fd00:10:244::/48"
	clusterServices4, clusterServices6 = "10.96.0.0/16", "fd00:10:96::/112"
	firstService, dnsService           = "10.96.0.1", "10.96.0.10"
	apiPort                            = 6443
)

// host is something with a place on the underlay.
type host struct {
	Name string     `json:"name"`
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
}

func newHost(name string, number int) host {
	return host{Name: name, IPv4: netip.AddrFrom4([4]byte{10, 99, 0, byte(number)}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:99::%d", number))}
}

func world() host  { return newHost(worldName, 1) }
func master() host { return newHost(masterName, 10) }

// node is one node of the cluster.
type node struct {
	host
	Index int          `json:"index"`
	Pods4 netip.Prefix `json:"pods4"`
	Pods6 netip.Prefix `json:"pods6"` // invalid without dual stack
	// Killed says that somebody wanted it not to run.
	Killed bool            `json:"killed,omitempty"`
	Init   machine.Process `json:"init"`
}

func newNode(index int, dual bool) *node {
	n := &node{
		host: newHost(fmt.Sprintf("n%d", index), 10+index), Index: index,
		Pods4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(index), 0}), 24),
	}
	if dual {
		n.Pods6 = netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", index))
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

// ranges joins a range of each family as Kubernetes' flags want them.
func ranges(dual bool, v4, v6 string) string {
	if dual {
		return strings.Join([]string{v4, v6}, ",")
	}
	return v4
}
