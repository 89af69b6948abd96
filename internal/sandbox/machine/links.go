package machine

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// WithNetlink runs fn with a netlink handle of the namespace kept at path. fn must not keep it.
func WithNetlink(path string, fn func(*netlink.Handle) error) error {
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

// AddressAndUp gives a link addresses and brings it up.
func AddressAndUp(h *netlink.Handle, name string, addrs ...netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: IPNet(a)}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // there is no other host, and the wait would be a second
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

// AddRoute adds a route through a neighbour; the zero prefix is the default route.
func AddRoute(h *netlink.Handle, dev string, dst netip.Prefix, via netip.Addr) error {
	link, err := h.LinkByName(dev)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}
	if dst.IsValid() {
		r.Dst = IPNet(dst)
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

// IPNet is p as the netlink library wants it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
