package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// RequireRoot skips the test unless it runs as root. The test runner of `make test` counts such a
// skip as a failure when it is itself run by root, so a skip can't hide there.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates network namespaces, links or kernel maps")
	}
}

// NetNS is a network namespace that lives until the end of the test. It is kept by a mount of its
// own in a private directory, so it never meets what others keep under /run/netns.
type NetNS struct {
	path string
	file *os.File
}

// NewNetNS creates an empty namespace with its loopback up, and removes it when the test ends. It
// skips the test if not run as root.
func NewNetNS(t testing.TB) *NetNS {
	t.Helper()
	RequireRoot(t)
	dir, err := os.MkdirTemp("", "hawser-netns-")
	if err != nil {
		t.Fatalf("namespace directory: %v", err)
	}
	path := filepath.Join(dir, "net")
	// Registered first, so that a failure half way is cleaned up as well.
	t.Cleanup(func() {
		if err := machine.RemoveNamespace(path); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	if err := machine.CreateNamespace(path); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatalf("open namespace: %v", err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &NetNS{path: path, file: file}
}

// Path returns the file that stands for the namespace, as CNI_NETNS wants it.
func (n *NetNS) Path() string { return n.path }

// Fd returns a descriptor of the namespace, valid until the test ends; the NetNS owns it.
func (n *NetNS) Fd() int { return int(n.file.Fd()) }

// Do runs fn on a thread inside the namespace and returns its error. Sockets opened and processes
// started by fn itself belong to the namespace and may be used outside of it afterwards; goroutines
// started by fn run outside. The thread ends with fn and is never given back to the scheduler.
func (n *NetNS) Do(fn func() error) error {
	return machine.InNamespace(n.path, fn)
}

// Must is Do that ends the test on an error.
func (n *NetNS) Must(t testing.TB, fn func() error) {
	t.Helper()
	if err := n.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// Netlink returns a netlink handle inside the namespace, closed when the test ends.
func (n *NetNS) Netlink(t testing.TB) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(netns.NsHandle(n.Fd()))
	if err != nil {
		t.Fatalf("netlink handle in %s: %v", n.path, err)
	}
	t.Cleanup(h.Close)
	return h
}

// Connect joins two namespaces by a veth pair, gives each end its addresses (in CIDR notation, IPv6
// without duplicate address detection, also of link-local ones: a router has none to ask for
// neighbours by meanwhile, so packets would be late) and brings both up. The pair goes with the
// namespaces.
func Connect(t testing.TB, a *NetNS, aName string, aAddrs []string, b *NetNS, bName string, bAddrs []string) {
	t.Helper()
	ha, hb := a.Netlink(t), b.Netlink(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.Fd())}
	if err := ha.LinkAdd(pair); err != nil {
		t.Fatalf("veth %s to %s: %v", aName, bName, err)
	}
	for _, end := range []struct {
		ns    *NetNS
		h     *netlink.Handle
		name  string
		addrs []string
	}{{a, ha, aName, aAddrs}, {b, hb, bName, bAddrs}} {
		link, err := end.h.LinkByName(end.name)
		if err != nil {
			t.Fatalf("find %s: %v", end.name, err)
		}
		for _, s := range end.addrs {
			addr, err := netlink.ParseAddr(s)
			if err != nil {
				t.Fatalf("address %q of %s: %v", s, end.name, err)
			}
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			if err := end.h.AddrAdd(link, addr); err != nil {
				t.Fatalf("address %s on %s: %v", s, end.name, err)
			}
		}
		err = end.ns.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/"+end.name+"/accept_dad", []byte("0"), 0o644)
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) { // IPv6 may be off
			t.Fatalf("%s without duplicate address detection: %v", end.name, err)
		}
		if err := end.h.LinkSetUp(link); err != nil {
			t.Fatalf("bring %s up: %v", end.name, err)
		}
	}
	// The kernel notifies IPv6 of carriers once a second only, when many links change: until
	// then an end receives no neighbour solicitation, and first packets come a second late. It
	// takes an IPv6 address for its own a moment after it was added.
	Eventually(t, 10*time.Second, func() string {
		for _, end := range []struct {
			h     *netlink.Handle
			name  string
			addrs []string
		}{{ha, aName, aAddrs}, {hb, bName, bAddrs}} {
			link, err := end.h.LinkByName(end.name)
			if err != nil {
				return fmt.Sprintf("find %s: %v", end.name, err)
			}
			if state := link.Attrs().OperState; state != netlink.OperUp {
				return fmt.Sprintf("%s of veth %s to %s is %s", end.name, aName, bName, state)
			}
			for _, s := range end.addrs {
				ip := netip.MustParsePrefix(s).Addr()
				if routes, err := end.h.RouteGet(ip.AsSlice()); err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
					return fmt.Sprintf("%s of %s is not local: %v, %v", s, end.name, routes, err)
				}
			}
		}
		return ""
	})
}

// LinkNames lists the interfaces of the namespace, for before-and-after comparisons.
func (n *NetNS) LinkNames(t testing.TB) []string {
	t.Helper()
	var names []string
	n.Must(t, func() error {
		ifs, err := net.Interfaces()
		for _, i := range ifs {
			names = append(names, i.Name)
		}
		return err
	})
	return names
}
