package bench

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// namespace is a network namespace kept by a mount on a file of the run's directory.
type namespace struct {
	name, path string
	file       *os.File
	h          *netlink.Handle
}

// newNamespace makes an empty one, with its loopback up.
func (b *bencher) newNamespace(name string) (*namespace, error) {
	dir := filepath.Join(b.dir, "ns")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	n := &namespace{name: name, path: filepath.Join(dir, name)}
	err := machine.CreateNamespace(n.path)
	if err == nil {
		n.file, err = os.Open(n.path)
	}
	if err == nil {
		n.h, err = netlink.NewHandleAt(netns.NsHandle(int(n.file.Fd())))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("namespace %s: %w", name, err), n.remove())
	}
	return n, nil
}

func (n *namespace) remove() error {
	if n.h != nil {
		n.h.Close()
	}
	if n.file != nil {
		_ = n.file.Close()
	}
	return machine.RemoveNamespace(n.path)
}

// do runs fn on a thread inside. Sockets and processes that fn itself makes belong to the
// namespace.
func (n *namespace) do(fn func() error) error { return machine.InNamespace(n.path, fn) }

// veth makes a pair with both ends in place: moving one later waits for the kernel.
func veth(a *namespace, aName string, b *namespace, bName string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	if err := a.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(int(b.file.Fd()))}); err != nil {
		return fmt.Errorf("veth %s: %w", aName, err)
	}
	return nil
}

// up gives a link its addresses and brings it up.
func (n *namespace) up(link string, prefixes ...string) error {
	l, err := n.h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", link, n.name, err)
	}
	for _, s := range prefixes {
		addr, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := n.h.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("address %s in %s: %w", s, n.name, err)
		}
	}
	return n.h.LinkSetUp(l)
}

// route adds a route through a neighbour, replaceRoute puts it in place of the one that is there.
func (n *namespace) route(dst, via string) error        { return n.routeBy(n.h.RouteAdd, dst, via) }
func (n *namespace) replaceRoute(dst, via string) error { return n.routeBy(n.h.RouteReplace, dst, via) }

func (n *namespace) routeBy(do func(*netlink.Route) error, dst, via string) error {
	p, err := netip.ParsePrefix(dst)
	if err != nil {
		return err
	}
	r := &netlink.Route{
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Gw:  net.ParseIP(via),
	}
	if err := do(r); err != nil {
		return fmt.Errorf("route to %s via %s in %s: %w", dst, via, n.name, err)
	}
	return nil
}

// setMTU sets the MTU of a link.
func (n *namespace) setMTU(link string, mtu int) error {
	l, err := n.h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", link, n.name, err)
	}
	return n.h.LinkSetMTU(l, mtu)
}

// forward makes the namespace a router.
func (n *namespace) forward() error {
	return n.do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
}

// ReleaseMounts unmounts what is mounted below a directory, the last one first.
func ReleaseMounts(dir string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	slices.Reverse(points)
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}
