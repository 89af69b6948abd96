package kube

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

const bridgeName = "br0"

// createWorld makes the namespace of the bridge. Its own addresses are those of a host outside of
// the cluster, which is the nodes' default route, too.
func createWorld(path string, self host) error {
	if err := machine.CreateNamespace(path); err != nil {
		return err
	}
	return machine.WithNetlink(path, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridgeName
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		return machine.AddressAndUp(h, bridgeName, netip.PrefixFrom(self.IPv4, 24), netip.PrefixFrom(self.IPv6, 64))
	})
}

// hardwareAddr is the same each time a host is made: neighbours that remember it don't notice that
// it was away.
func (h host) hardwareAddr() net.HardwareAddr {
	v4 := h.IPv4.As4()
	return append(net.HardwareAddr{0x02, 0}, v4[:]...)
}

// join makes the namespace of a host with eth0 on the bridge and a default route to the world. One
// that is not to be bridged has a link of its own to the world, with IPv4 alone: a cloud leads to
// it.
func (h host) join(world, path string, via host, bridged bool) error {
	if err := machine.CreateNamespace(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = machine.WithNetlink(world, func(nl *netlink.Handle) error {
		bridge, err := nl.LinkByName(bridgeName)
		if err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = h.Name
		if bridged {
			attrs.MasterIndex = bridge.Attrs().Index
		}
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd())), PeerHardwareAddr: h.hardwareAddr()}
		if err := nl.LinkAdd(veth); err != nil {
			return fmt.Errorf("link of %s: %w", h.Name, err)
		}
		link, err := nl.LinkByName(h.Name)
		if err != nil {
			return err
		}
		return nl.LinkSetUp(link)
	})
	if err != nil {
		return err
	}
	err = machine.WithNetlink(path, func(nl *netlink.Handle) error {
		if !bridged {
			return errors.Join(machine.AddressAndUp(nl, "eth0", netip.PrefixFrom(h.IPv4, 24)), machine.AddRoute(nl, "eth0", netip.Prefix{}, via.IPv4))
		}
		if err := machine.AddressAndUp(nl, "eth0", netip.PrefixFrom(h.IPv4, 24), netip.PrefixFrom(h.IPv6, 64)); err != nil {
			return err
		}
		return errors.Join(machine.AddRoute(nl, "eth0", netip.Prefix{}, via.IPv4), machine.AddRoute(nl, "eth0", netip.Prefix{}, via.IPv6))
	})
	if err != nil {
		return err
	}
	// What whoever installs a machine for Kubernetes sets on it.
	err = machine.InNamespace(path, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	if err != nil {
		return fmt.Errorf("forwarding on %s: %w", h.Name, err)
	}
	return nil
}

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
