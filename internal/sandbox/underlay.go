package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// The bridge between the nodes. Its own addresses are those of the world: a host that is reached
// through the underlay and is not part of the cluster.
const underlayBridge = "br0"

// createUnderlay makes the namespace of the bridge. Its host routes to the pods through the nodes,
// as a router in front of a cluster does.
func createUnderlay(path string) error {
	if err := machine.CreateNamespace(path); err != nil {
		return err
	}
	return machine.WithNetlink(path, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = underlayBridge
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		v4, v6 := worldAddrs()
		return machine.AddressAndUp(h, underlayBridge, netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64))
	})
}

// createNode makes the namespace of a node with eth0 on the bridge and a default route to the
// world.
func createNode(underlay, path string, n *node) error {
	if err := machine.CreateNamespace(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The pair is made with both ends in place: moving one later waits for the kernel's RCU.
	err = machine.WithNetlink(underlay, func(h *netlink.Handle) error {
		bridge, err := h.LinkByName(underlayBridge)
		if err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = n.Name
		attrs.MasterIndex = bridge.Attrs().Index
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd()))}); err != nil {
			return fmt.Errorf("link of %s: %w", n.Name, err)
		}
		link, err := h.LinkByName(n.Name)
		if err != nil {
			return err
		}
		return h.LinkSetUp(link)
	})
	if err != nil {
		return err
	}
	v4, v6 := worldAddrs()
	err = machine.WithNetlink(path, func(h *netlink.Handle) error {
		if err := machine.AddressAndUp(h, "eth0", netip.PrefixFrom(n.IPv4, 24), netip.PrefixFrom(n.IPv6, 64)); err != nil {
			return err
		}
		return errors.Join(machine.AddRoute(h, "eth0", netip.Prefix{}, v4), machine.AddRoute(h, "eth0", netip.Prefix{}, v6))
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
		return fmt.Errorf("forwarding on %s: %w", n.Name, err)
	}
	return machine.WithNetlink(underlay, func(h *netlink.Handle) error {
		err := machine.AddRoute(h, underlayBridge, n.Pods4, n.IPv4)
		if n.Pods6.IsValid() {
			err = errors.Join(err, machine.AddRoute(h, underlayBridge, n.Pods6, n.IPv6))
		}
		return err
	})
}
