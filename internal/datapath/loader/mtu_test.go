package loader_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/testenv"
)

// serveSizes answers each datagram in a namespace with one of the size that it names.
func serveSizes(t testing.TB, ns *testenv.NetNS, discover int) {
	t.Helper()
	var u *net.UDPConn
	must(t, ns.Do(func() (err error) {
		u, err = net.ListenUDP("udp", &net.UDPAddr{Port: service})
		return err
	}))
	t.Cleanup(func() { u.Close() })
	raw, err := u.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		must(t, errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, discover)))
	}))
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := u.ReadFromUDPAddrPort(buf)
			var size int
			if _, scanErr := fmt.Sscan(string(buf[:n]), &size); err != nil || scanErr != nil {
				return
			}
			u.WriteToUDPAddrPort(make([]byte, size), from)
		}
	}()
}

// askSize asks serveSizes for a datagram, several times: those by which the sender learns how large
// its packets may be are lost.
func askSize(ns *testenv.NetNS, to netip.AddrPort, size int) error {
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = net.Dial("udp", to.String()); return err }); err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 65536)
	var n int
	var err error
	for range 6 {
		c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err = fmt.Fprint(c, size); err != nil {
			return err
		}
		if n, err = c.Read(buf); err == nil && n == size {
			return nil
		}
	}
	return fmt.Errorf("got %d bytes: %w", n, err)
}

// TestRepliesLargerThanTheDevice: what a pod replies to a client outside through a service is
// fragmented where the device has less room than the pod's, or the pod is told to send less.
func TestRepliesLargerThanTheDevice(t *testing.T) {
	t.Parallel()
	const mtu = 1300 // the pod's is 1400
	for name, discover := range map[string]int{"may be fragmented": unix.IP_PMTUDISC_DONT, "may not be": unix.IP_PMTUDISC_WANT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
			join(t, n1, n2)
			outside := outsideOf(t, n1, n2)
			a := n1.pod(t, 1001, n2)
			defer func() {
				if t.Failed() {
					metrics(t, n1)
				}
			}()
			links, err := link.New(link.Config{NetNSFD: n1.ns.Fd()}, slog.New(slog.DiscardHandler))
			must(t, err)
			defer links.Close()
			must(t, links.EnsureEndpoint(a.ep))
			must(t, n1.h.LinkSetMTU(byName(t, n1.h, "eth0"), mtu))
			must(t, n2.h.LinkSetMTU(byName(t, n2.h, "eth0"), mtu))
			n1.open(t, a.addrs()...)
			serveSizes(t, a.ns, discover)
			for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6} {
				for _, size := range []int{100, 4000, 1340} {
					if err := askSize(outside, netip.AddrPortFrom(at, outsidePort), size); err != nil {
						t.Errorf("a reply of %d bytes from %s: %v", size, at, err)
					}
				}
			}
		})
	}
}
