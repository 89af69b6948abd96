package loader_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// discovers sets what a socket does about the path's MTU: unix.IP_PMTUDISC_WANT or its like.
func discovers(c syscall.Conn, discover int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		v6 := unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, discover)
		if v6 != nil { // a socket of IPv4
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover)
			return
		}
		// One of both families takes the options of both.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover)
	})
	return errors.Join(err, set)
}

// options is an extension header of IPv6 with an option that receivers skip.
func options(length int) string {
	b := make([]byte, length)
	b[1], b[2], b[3] = byte(length/8-1), 0x1e, byte(length-4)
	return string(b)
}

// serveSizes answers in a namespace with as many bytes as a datagram names, or the begin of a
// connection; with IPv6 behind an extension header with destination options, if any are given.
func serveSizes(t testing.TB, ns *testenv.NetNS, discover int, header string) {
	t.Helper()
	var u *net.UDPConn
	var l net.Listener
	must(t, ns.Do(func() (err error) {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // which takes no extension headers
		if l, err = plain.Listen(t.Context(), "tcp", fmt.Sprint(":", service)); err != nil {
			return err
		}
		u, err = net.ListenUDP("udp", &net.UDPAddr{Port: service})
		return err
	}))
	done := make(chan struct{}, 2)
	t.Cleanup(func() { u.Close(); l.Close(); <-done; <-done })
	must(t, discovers(u, discover))
	if header != "" {
		for _, c := range []syscall.Conn{u, l.(*net.TCPListener)} {
			raw, err := c.SyscallConn()
			must(t, err)
			must(t, raw.Control(func(fd uintptr) {
				must(t, unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, header))
			}))
		}
	}
	go func() {
		defer func() { done <- struct{}{} }()
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
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var size int
				if _, err := fmt.Fscanln(c, &size); err == nil {
					c.Write(make([]byte, size))
				}
			}()
		}
	}()
}

// askSize asks serveSizes for a datagram, several times: those by which the sender learns how large
// its packets may be are lost.
func askSize(ns *testenv.NetNS, to netip.AddrPort, size int) error {
	return exchange(ns, to, unix.IP_PMTUDISC_WANT, []byte(fmt.Sprint(size)), size)
}

// exchange sends a datagram and wants one of a size back, several times.
func exchange(ns *testenv.NetNS, to netip.AddrPort, discover int, what []byte, size int) error {
	var c *net.UDPConn
	err := ns.Do(func() (err error) { c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); return err })
	if err != nil {
		return err
	}
	defer c.Close()
	if err := discovers(c, discover); err != nil {
		return err
	}
	buf := make([]byte, 65536)
	var n int
	for range 6 {
		c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err = c.Write(what); err != nil { // what is known of the path by now
			continue
		}
		if n, err = c.Read(buf); err == nil && n == size {
			return nil
		}
	}
	return fmt.Errorf("got %d bytes: %w", n, err)
}

// askStream asks serveSizes for bytes by TCP.
func askStream(ns *testenv.NetNS, to netip.AddrPort, size int) error {
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintln(c, size); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	if err == nil && n != int64(size) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", n, err)
	}
	return nil
}

// TestRepliesLargerThanTheDevice: what a pod of any node replies to a client outside through a
// service is fragmented where the client's device has less room than the pod's, or the pod is told
// to send less.
func TestRepliesLargerThanTheDevice(t *testing.T) {
	t.Parallel()
	const mtu = 1300 // the pods' is 1400
	frontends := []netip.AddrPort{netip.MustParseAddrPort("192.168.7.1:30080"), netip.MustParseAddrPort("[fd7::1]:30080")}
	for name, tt := range map[string]struct {
		discover int
		header   string
		tracked  bool
	}{
		"may be fragmented":             {unix.IP_PMTUDISC_DONT, "", false},
		"may be, and are tracked":       {unix.IP_PMTUDISC_DONT, "", true},
		"may not be":                    {unix.IP_PMTUDISC_WANT, "", false},
		"may not be, with options":      {unix.IP_PMTUDISC_WANT, options(8), false},
		"may not be, with many options": {unix.IP_PMTUDISC_WANT, options(40), false},
	} {
		for mode, tunnel := range map[string]bool{"tunnel": true, "native": false} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
				join(t, n1, n2)
				outside := outsideHost(t, n1, "eth1", 7)
				a, r := n1.pod(t, 1001, n2), n2.pod(t, 1003, n1)
				eth1, oh := byName(t, n1.h, "eth1"), outside.Netlink(t)
				eth0 := byName(t, oh, "eth0")
				must(t, n1.h.LinkSetMTU(eth1, mtu))
				must(t, oh.LinkSetMTU(eth0, mtu))
				n1.cfg.NodePort, n1.cfg.OtherIfIndexes = true, []int{eth1.Attrs().Index}
				must(t, n1.loader.Configure(n1.cfg))
				if tt.tracked { // netfilter reassembles datagrams then
					must(t, n1.ns.Do(func() error {
						return nft("add table inet t; add chain inet t c { type filter hook forward priority 0; }; add rule inet t c ct state new counter")
					}))
				}
				defer func() {
					if t.Failed() {
						metrics(t, n1, n2)
					}
				}()
				for _, at := range frontends {
					// The client takes larger segments than fit.
					must(t, oh.RouteAdd(&netlink.Route{
						LinkIndex: eth0.Attrs().Index, Scope: netlink.SCOPE_LINK, AdvMSS: 1400,
						Dst: &net.IPNet{IP: at.Addr().AsSlice(), Mask: net.CIDRMask(at.Addr().BitLen(), at.Addr().BitLen())},
					}))
				}
				for what, pod := range map[string]*testPod{"a pod of the node": a, "a pod of another node": r} {
					serveSizes(t, pod.ns, tt.discover, tt.header)
					n1.openAt(t, []netip.Addr{frontends[0].Addr(), frontends[1].Addr()}, pod.addrs()...)
					for _, at := range frontends {
						for _, size := range []int{100, 4000, 1290} {
							if err := askSize(outside, at, size); err != nil {
								t.Errorf("a reply of %d bytes of %s from %s: %v", size, what, at, err)
							}
						}
						if err := askStream(outside, at, 300_000); err != nil {
							t.Errorf("a stream of %s from %s: %v", what, at, err)
						}
					}
				}
			})
		}
	}
}

// TestRequestsLargerThanTheDevice: what a client outside sends a backend of another node is
// fragmented where the nodes' network has less room than the client's, or the client is told to
// send less.
func TestRequestsLargerThanTheDevice(t *testing.T) {
	t.Parallel()
	const mtu = 1300
	for name, discover := range map[string]int{"may be fragmented": unix.IP_PMTUDISC_DONT, "may not be": unix.IP_PMTUDISC_WANT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
			join(t, n1, n2)
			outside := outsideHost(t, n1, "eth1", 7)
			r := n2.pod(t, 1003, n1)
			must(t, n1.h.LinkSetMTU(byName(t, n1.h, "eth0"), mtu))
			must(t, n2.h.LinkSetMTU(byName(t, n2.h, "eth0"), mtu))
			n1.cfg.NodePort, n1.cfg.OtherIfIndexes = true, []int{byName(t, n1.h, "eth1").Attrs().Index}
			must(t, n1.loader.Configure(n1.cfg))
			serve(t, r.ns)
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			frontends := []netip.Addr{ip("192.168.7.1"), ip("fd7::1")}
			n1.openAt(t, frontends, r.addrs()...)
			for _, at := range frontends {
				for _, size := range []int{100, 4000, 1290} {
					if err := exchange(outside, netip.AddrPortFrom(at, outsidePort), discover, []byte(strings.Repeat("x", size)), size); err != nil {
						t.Errorf("a request of %d bytes to %s: %v", size, at, err)
					}
				}
				if err := echoNodePort(outside, "tcp", at, 100_000, 10*time.Second); err != nil {
					t.Errorf("TCP to %s: %v", at, err)
				}
			}
		})
	}
}

// TestRefusedWithoutChecksum: a packet of SCTP of which a device is to make the checksum is not
// answered, as the device would write that into the answer, and is counted once.
func TestRefusedWithoutChecksum(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, 1, false)
	must(t, n.loader.Configure(n.cfg))
	a := n.pod(t, 1001)
	vip := netip.MustParseAddrPort("10.96.0.9:80")
	must(t, n.maps.UpsertService(datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: vip, Proto: 132}, ID: 9}))
	const sctp = 12
	packet := make([]byte, 20+sctp)
	packet[0], packet[3], packet[8], packet[9] = 4<<4|5, byte(len(packet)), 64, 132
	copy(packet[12:], a.ep.IPv4.AsSlice())
	copy(packet[16:], vip.Addr().AsSlice())
	sum := ^onesSum(packet[:20])
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	packet[20], packet[21], packet[22], packet[23] = 0x0f, 0xa0, 0, 80
	frame := append(append(append([]byte{}, a.ep.HostMAC...), a.ep.MAC...), 8, 0)
	frame = append(frame, packet...)
	for i, left := range []int{0, ethLen + ipv4Len} {
		sendPartial(t, a.ns, "eth0", frame, left, 8)
		testenv.Eventually(t, 10*time.Second, func() string {
			if got := n.dropped(t, datapath.ReasonNoBackend); got != uint64(i+1) {
				return fmt.Sprintf("%d packets were dropped for want of a backend, want %d", got, i+1)
			}
			return ""
		})
	}
	if got := n.dropped(t, datapath.ReasonEncapFailed); got != 0 {
		t.Errorf("%d packets were counted as dropped twice", got)
	}
}
