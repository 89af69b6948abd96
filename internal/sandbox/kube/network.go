package kube

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// routesTo lets the host in the namespace at path reach the pods of these nodes through them.
func routesTo(path, dev string, nodes []*node) error {
	return machine.WithNetlink(path, func(h *netlink.Handle) error {
		for _, n := range nodes {
			err := machine.AddRoute(h, dev, n.Pods4, n.IPv4)
			if n.Pods6.IsValid() {
				err = errors.Join(err, machine.AddRoute(h, dev, n.Pods6, n.IPv6))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// unlink removes a link in the namespace at path, if there is one.
func unlink(path, name string) error {
	return machine.WithNetlink(path, func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return nil
		}
		if err == nil {
			err = h.LinkDel(link)
		}
		if err != nil {
			return fmt.Errorf("remove the link %s: %w", name, err)
		}
		return nil
	})
}
