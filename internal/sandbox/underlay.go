package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The bridge between the nodes. Its own addresses are those of the world: a host that is reached
// through the underlay and is not part of the cluster.
const underlayBridge = "br0"

// createUnderlay makes the namespace of the bridge. Its host routes to the pods through the nodes,
// as a router in front of a cluster does.
func createUnderlay(path string) error {
	if err := createNamespace(path); err != nil {
		return err
	}
	return withNetlink(path, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = underlayBridge
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		v4, v6 := worldAddrs()
		return addressAndUp(h, underlayBridge, netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64))
	})
}

// createNode makes the namespace of a node with eth0 on the bridge and a default route to the world.
func createNode(underlay, path string, n *node) error {
	if err := createNamespace(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The pair is made with both ends in place: moving one later waits for the kernel's RCU.
	err = withNetlink(underlay, func(h *netlink.Handle) error {
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
	err = withNetlink(path, func(h *netlink.Handle) error {
		if err := addressAndUp(h, "eth0", netip.PrefixFrom(n.IPv4, 24), netip.PrefixFrom(n.IPv6, 64)); err != nil {
			return err
		}
		return errors.Join(addRoute(h, "eth0", netip.Prefix{}, v4), addRoute(h, "eth0", netip.Prefix{}, v6))
	})
	if err != nil {
		return err
	}
	// What whoever installs a machine for Kubernetes sets on it.
	err = inNamespace(path, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	if err != nil {
		return fmt.Errorf("forwarding on %s: %w", n.Name, err)
	}
	return withNetlink(underlay, func(h *netlink.Handle) error {
		err := addRoute(h, underlayBridge, n.Pods4, n.IPv4)
		if n.Pods6.IsValid() {
			err = errors.Join(err, addRoute(h, underlayBridge, n.Pods6, n.IPv6))
		}
		return err
	})
}

func withNetlink(path string, fn func(*netlink.Handle) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(int(f.Fd())))
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return fn(h)
}

func addressAndUp(h *netlink.Handle, name string, addrs ...netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: ipNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // nobody else is there, and the wait would be a second
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %v on %s: %w", a, name, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}

// addRoute adds a route through a neighbour; the zero prefix is the default route.
func addRoute(h *netlink.Handle, dev string, dst netip.Prefix, via netip.Addr) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}
	if dst.IsValid() {
		r.Dst = ipNet(dst)
	} else if via.Is6() {
		r.Dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	} else {
		r.Dst = &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	}
	if err := h.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %v via %v: %w", dst, via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
