package sandbox

import (
	"errors"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// connect makes the namespace of a node at path, on the bridge in the namespace underlay. The host
// there routes to the pods through the nodes, as a router in front of a cluster does.
func (n *node) connect(underlay, path string) error {
	if err := n.Create(underlay, path, worldHost(), true); err != nil {
		return err
	}
	return machine.WithNetlink(underlay, func(h *netlink.Handle) error {
		err := machine.AddRoute(h, machine.Bridge, n.Pods4, n.IPv4)
		if n.Pods6.IsValid() {
			err = errors.Join(err, machine.AddRoute(h, machine.Bridge, n.Pods6, n.IPv6))
		}
		return err
	})
}
