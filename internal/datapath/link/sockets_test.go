package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEndUDP: of several connected sockets those are ended that are asked for, of both families and
// of IPv4 by sockets of IPv6; their owners learn of it, and the others go on.
func TestEndUDP(t *testing.T) {
	n := newNode(t)
	var listeners, sockets []*net.UDPConn
	must(t, n.inNS(func() error {
		for _, at := range []string{"127.0.0.1:0", "127.0.0.1:0", "[::1]:0", "[::1]:0"} {
			l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
			c, err := net.DialUDP("udp", nil, l.LocalAddr().(*net.UDPAddr))
			if err != nil {
				return err
			}
			sockets = append(sockets, c)
		}
		// A socket of IPv6 whose peer is of IPv4.
		c, err := mapped(listeners[0].LocalAddr().(*net.UDPAddr).AddrPort())
		sockets = append(sockets, c)
		return err
	}))
	for _, c := range append(listeners, sockets...) {
		defer c.Close()
	}
	peer := func(i int) netip.AddrPort { return listeners[i].LocalAddr().(*net.UDPAddr).AddrPort() }
	doomed := map[netip.AddrPort]bool{peer(0): true, peer(2): true}
	seen := map[uint64]bool{}
	end := func(cookie uint64, to netip.AddrPort) bool {
		seen[cookie] = true
		return doomed[to]
	}
	if got, err := n.EndUDP(end); got != 3 || err != nil {
		t.Fatalf("%d sockets were ended, %v; want 3", got, err)
	}
	for i, want := range []bool{true, false, true, false, true} {
		c := sockets[i]
		cookie, err := cookieOf(c)
		if must(t, err); !seen[cookie] {
			t.Errorf("socket %d was not asked about by its number", i)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if want {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("socket %d was ended: %v", i, err)
			}
			continue
		}
		if _, err := c.Write([]byte{1}); err != nil {
			t.Errorf("socket %d was not to be ended: %v", i, err)
		}
	}
	if got, err := n.EndUDP(end); got != 0 || err != nil {
		t.Errorf("once more: %d, %v", got, err)
	}
}

// mapped connects a socket of IPv6 to a peer of IPv4.
func mapped(to netip.AddrPort) (*net.UDPConn, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "udp")
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}); err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("%T is no socket for datagrams", c)
	}
	return u, nil
}

func cookieOf(c *net.UDPConn) (cookie uint64, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	return cookie, errors.Join(cerr, err)
}
