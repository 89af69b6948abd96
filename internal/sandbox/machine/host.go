package machine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// Bridge is the name of the bridge between hosts, in a namespace of its own.
const Bridge = "br0"

// Host is a machine of a sandbox, or the world around them: networks of 24 and 64 bits.
type Host struct {
	Name string     `json:"name"`
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
}

// CreateBridge makes the namespace of the bridge at path. The bridge's own addresses are those of
// h: a host outside of the cluster, which is the others' default route, too.
func (h Host) CreateBridge(path string) error {
	if err := CreateNamespace(path); err != nil {
		return err
	}
	return WithNetlink(path, func(nl *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = Bridge
		if err := nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		return AddressAndUp(nl, Bridge, netip.PrefixFrom(h.IPv4, 24), netip.PrefixFrom(h.IPv6, 64))
	})
}

// HardwareAddr is the same each time a host is made: neighbours that remember it don't notice that
// it was away.
func (h Host) HardwareAddr() net.HardwareAddr {
	v4 := h.IPv4.As4()
	return append(net.HardwareAddr{0x02, 0}, v4[:]...)
}

// Create makes the namespace of a host at path with eth0 on the bridge, which is in the namespace
// world, and a default route by via. One that is not to be bridged has a link of its own to the
// world, with IPv4 alone: a cloud leads to it.
func (h Host) Create(world, path string, via Host, bridged bool) error {
	if err := CreateNamespace(path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The pair is made with both ends in place: moving one later waits for the kernel's RCU.
	err = WithNetlink(world, func(nl *netlink.Handle) error {
		bridge, err := nl.LinkByName(Bridge)
		if err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = h.Name
		if bridged {
			attrs.MasterIndex = bridge.Attrs().Index
		}
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd())), PeerHardwareAddr: h.HardwareAddr()}
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
	err = WithNetlink(path, func(nl *netlink.Handle) error {
		if !bridged {
			return errors.Join(AddressAndUp(nl, "eth0", netip.PrefixFrom(h.IPv4, 24)), AddRoute(nl, "eth0", netip.Prefix{}, via.IPv4))
		}
		if err := AddressAndUp(nl, "eth0", netip.PrefixFrom(h.IPv4, 24), netip.PrefixFrom(h.IPv6, 64)); err != nil {
			return err
		}
		return errors.Join(AddRoute(nl, "eth0", netip.Prefix{}, via.IPv4), AddRoute(nl, "eth0", netip.Prefix{}, via.IPv6))
	})
	if err != nil {
		return err
	}
	// What an installer of a machine for Kubernetes sets on it.
	err = InNamespace(path, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	if err != nil {
		return fmt.Errorf("forwarding on %s: %w", h.Name, err)
	}
	return nil
}
