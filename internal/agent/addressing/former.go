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
// Which addresses these are is found out before the first one is given, and for those that the node
// is assigned later before these are: the operator may take them from a node that has died. For
// others nothing is to be found out later: the search for a free address leaves what was just
// released to the last.
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

// Reserve reserves the addresses, when all objects were observed, and has those that are assigned
// later be reserved.
func (f *Former) Reserve() {
	f.Pool.ReserveNew(func(fresh func(netip.Addr) bool) []ipam.NamedPod {
		list := f.named(fresh)
		if len(list) > 0 {
			f.Log.Info("objects give addresses that were assigned to this node to pods that it does not have; no other pod gets them meanwhile", "addresses", len(list))
		}
		return list
	})
	node := f.Pool.Prefixes()
	n := 0
	for _, a := range f.named(func(ip netip.Addr) bool {
		return slices.ContainsFunc(node, func(p netip.Prefix) bool { return p.Contains(ip) })
	}) {
		if f.Pool.Reserve(a.IP, a.Pod, a.Same) {
			n++
		}
	}
	if n > 0 {
		f.Log.Info("addresses are given to no other pod as long as objects give them to pods that this node does not have", "addresses", n)
	}
}

// named returns the pods to which objects give addresses of the node, one for each address.
func (f *Former) named(ofNode func(netip.Addr) bool) (out []ipam.NamedPod) {
	by := map[netip.Addr][]pods.Address{}
	for _, a := range f.Named(ofNode) {
		by[a.IP] = append(by[a.IP], a)
	}
	for ip, list := range by {
		pod := list[0].Pod
		// The pod itself may have its address again if nothing says that it was another's: one of
		// its name, or of before it.
		same := f.Has(pod, "") && !slices.ContainsFunc(list, func(a pods.Address) bool { return a.Pod != pod || !f.Has(pod, a.UID) })
		out = append(out, ipam.NamedPod{IP: ip, Pod: pod.String(), Same: same})
	}
	return out
}

// Run forgets the addresses that objects do not name any more, until ctx ends.
func (f *Former) Run(ctx context.Context) error {
	for {
		reserved := map[netip.Addr]bool{}
		for _, ip := range f.Pool.Reserved() {
			reserved[ip] = true
		}
		if !retry.Sleep(ctx, f.Interval) {
			return nil
		}
		if len(reserved) == 0 {
			continue
		}
		for _, a := range f.Named(func(ip netip.Addr) bool { return reserved[ip] }) {
			delete(reserved, a.IP)
		}
		for ip := range reserved {
			f.Pool.Forget(ip)
		}
	}
}
