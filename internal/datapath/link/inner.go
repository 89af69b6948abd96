package link

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// InnerAddress is an address of an inner endpoint with the router's of its family.
type InnerAddress struct {
	IP, Router netip.Addr
}

// Inner is an interface of an endpoint that is a part of this process: its other side is in a
// network namespace that has no name. When the process ends, in whatever way, the namespace goes,
// and the interface with it.
type Inner struct {
	ns           *os.File
	IfIndex      int              // of the host side, which is down
	MAC, HostMAC net.HardwareAddr // of the inner and of the host side
	IPs          []netip.Addr     // those that it has
	Lacks        error            // why it has not all that it was to have
}

// AddInner makes one whose host side has the name, which must begin with EndpointPrefix, in place
// of one that is left from before. The mtu is that of the interface, routeMTU that of the default
// route, 0 if it is the same. An address that cannot be set up, as one of a family that is switched
// off, is left out and listed in Lacks; without any there is an error.
func (l *Links) AddInner(name string, addrs []InnerAddress, mtu, routeMTU int) (*Inner, error) {
	if err := l.RemoveInner(name); err != nil {
		return nil, err
	}
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	in := &Inner{ns: ns}
	if err := l.fillInner(in, name, addrs, mtu, routeMTU); err != nil {
		in.Close()
		return nil, fmt.Errorf("make interface %s: %w", name, err)
	}
	return in, nil
}

// newNamespace makes a network namespace. The thread that does comes back from it: were it the
// process's first one, which does not end, others would take the namespace for that of the process,
// and it would stay.
func newNamespace() (*os.File, error) {
	type made struct {
		f   *os.File
		err error
	}
	ch := make(chan made)
	go func() {
		var m made
		runtime.LockOSThread()
		m.f, m.err = unshared()
		if m.err == nil || !errors.Is(m.err, errNotBack) {
			runtime.UnlockOSThread()
		}
		ch <- m
	}()
	m := <-ch
	return m.f, m.err
}

// errNotBack means that a thread is in the wrong network namespace.
var errNotBack = errors.New("leave the new network namespace")

// unshared makes a network namespace on a thread that is locked.
func unshared() (*os.File, error) {
	previous, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer previous.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	if back := netns.Set(netns.NsHandle(previous.Fd())); back != nil {
		if err == nil {
			f.Close()
		}
		return nil, fmt.Errorf("%w: %w", errNotBack, back)
	}
	return f, err
}

func (l *Links) fillInner(in *Inner, name string, addrs []InnerAddress, mtu, routeMTU int) error {
	for _, mac := range []*net.HardwareAddr{&in.MAC, &in.HostMAC} {
		*mac = make(net.HardwareAddr, 6)
		if _, err := rand.Read(*mac); err != nil {
			return err
		}
		(*mac)[0] = (*mac)[0]&^0x01 | 0x02 // unicast, locally administered
	}
	const inside = "eth0"
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, in.HostMAC, mtu
	pair := &netlink.Veth{
		LinkAttrs: attrs, PeerName: inside, PeerHardwareAddr: in.MAC, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(in.ns.Fd()),
	}
	if err := l.h.LinkAdd(pair); err != nil {
		return err
	}
	in.IfIndex = pair.Attrs().Index
	h, err := netlink.NewHandleAt(netns.NsHandle(in.ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(inside)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(addrs, func(a InnerAddress) bool { return a.IP.Is6() }) {
		// A new namespace may have the settings of the host, where IPv6 may be off for all but
		// pods.
		in.Lacks = visit(in.ns, func() error { return apply([]setting{{path: "net/ipv6/conf/" + inside + "/disable_ipv6", value: "0"}}) })
	}
	if err := h.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := addInnerAddress(h, link.Attrs().Index, a, routeMTU); err != nil {
			in.Lacks = errors.Join(in.Lacks, fmt.Errorf("address %s: %w", a.IP, err))
			continue
		}
		in.IPs = append(in.IPs, a.IP)
	}
	switch len(in.IPs) {
	case 0:
		return in.Lacks
	case len(addrs):
		in.Lacks = nil
	}
	return nil
}

// addInnerAddress gives the interface inside, which is up, an address and the routes that go with
// it.
func addInnerAddress(h *netlink.Handle, ifIndex int, a InnerAddress, routeMTU int) error {
	addr := &netlink.Addr{IPNet: single(a.IP)}
	if a.IP.Is6() {
		addr.Flags = unix.IFA_F_NODAD // no other host has it
	}
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifIndex}}
	if err := h.AddrAdd(link, addr); err != nil {
		return err
	}
	router := netlink.Route{LinkIndex: ifIndex, Dst: single(a.Router)}
	if a.IP.Is4() {
		router.Scope = netlink.SCOPE_LINK
	}
	all := &net.IPNet{IP: make(net.IP, a.IP.BitLen()/8), Mask: net.CIDRMask(0, a.IP.BitLen())}
	for _, r := range []netlink.Route{router, {LinkIndex: ifIndex, Dst: all, Gw: a.Router.AsSlice(), MTU: routeMTU}} {
		if err := h.RouteAdd(&r); err != nil {
			return fmt.Errorf("route to %s: %w", r.Dst, err)
		}
	}
	return nil
}

func single(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

// RemoveInner removes at once what an AddInner of this process or of one before has made. The
// absence of the interface is not an error.
func (l *Links) RemoveInner(name string) error {
	link, err := l.h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil && !isEndpointLink(link) {
		return fmt.Errorf("interface %s is a %s device and not Hawser's", name, link.Type())
	}
	if err == nil {
		err = l.h.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

// Listen opens a socket inside, for TCP.
func (in *Inner) Listen(at netip.AddrPort) (net.Listener, error) {
	var l net.Listener
	err := visit(in.ns, func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	return l, err
}

// Close lets the namespace go. It is there as long as it has open sockets.
func (in *Inner) Close() { in.ns.Close() }
