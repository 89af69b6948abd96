package addressing

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Former keeps addresses of this node from new pods as long as objects give them to pods that it
// does not have: those from before a reboot, those of another CNI plugin that still run, and those
// of the node that had a CIDR before. Other nodes evaluate what has such an address as that pod.
//
// Which addresses these are is found out once, before the first one is given: later the search for
// a free address leaves what was just released to the last.
type Former struct {
	Pool *ipam.IPAM
	// Named returns those of a node's addresses that objects give to pods.
	Named func(ofNode func(netip.Addr) bool) []pods.Address
	// Has reports whether this node is to have a pod, by a UID if it is not empty.
	Has func(pod k8s.Key, uid string) bool
	// Interval is how often it is looked whether objects still name the addresses.
	Interval time.Duration
	Log      *slog.Logger
}

// Reserve reserves the addresses, when all objects were observed.
func (f *Former) Reserve() {
	node := f.Pool.Prefixes()
	by := map[netip.Addr][]pods.Address{}
	for _, a := range f.Named(func(ip netip.Addr) bool {
		return slices.ContainsFunc(node, func(p netip.Prefix) bool { return p.Contains(ip) })
	}) {
		by[a.IP] = append(by[a.IP], a)
	}
	n := 0
	for ip, list := range by {
		pod := list[0].Pod
		// The pod itself may have its address again if nothing says that it was another's: one of
		// its name, or of before it.
		same := f.Has(pod, "") && !slices.ContainsFunc(list, func(a pods.Address) bool { return a.Pod != pod || !f.Has(pod, a.UID) })
		if f.Pool.Reserve(ip, pod.String(), same) {
			n++
		}
	}
	if n > 0 {
		f.Log.Info("addresses are given to no other pod as long as objects give them to pods that this node does not have", "addresses", n)
	}
}

// Run forgets the addresses that objects do not name any more, until there are none or ctx ends.
func (f *Former) Run(ctx context.Context) error {
	for {
		reserved := map[netip.Addr]bool{}
		for _, ip := range f.Pool.Reserved() {
			reserved[ip] = true
		}
		if len(reserved) == 0 || !retry.Sleep(ctx, f.Interval) {
			return nil
		}
		for _, a := range f.Named(func(ip netip.Addr) bool { return reserved[ip] }) {
			delete(reserved, a.IP)
		}
		for ip := range reserved {
			f.Pool.Forget(ip)
		}
	}
}
