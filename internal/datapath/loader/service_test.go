package loader_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

var (
	vip4, vip6 = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")
)

// publish makes a frontend on port 80 for TCP and UDP lead to pods' service port.
func (n *testNode) publish(t testing.TB, change func(*datapath.Service), pods ...*testPod) {
	t.Helper()
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, proto := range []uint8{6, 17} {
			s := datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(vip, 80), Proto: proto}, ID: 7}
			for _, p := range pods {
				for _, a := range p.addrs() {
					if a.Is4() == vip.Is4() {
						s.Backends = append(s.Backends, netip.AddrPortFrom(a, service))
					}
				}
			}
			slices.SortFunc(s.Backends, netip.AddrPort.Compare)
			if change != nil {
				change(&s)
			}
			must(t, n.maps.UpsertService(s))
		}
	}
}

// echoVIP is echo through the service, from a socket that need not be connected.
func echoVIP(ns *testenv.NetNS, network string, vip netip.Addr, size int, timeout time.Duration) error {
	return echoAt(ns, network, netip.AddrPortFrom(vip, 80), size, timeout)
}

// echoAt sends size bytes to an address and port, waits for them to come back, and wants them from
// there.
func echoAt(ns *testenv.NetNS, network string, to netip.AddrPort, size int, timeout time.Duration) error {
	if network == "tcp" {
		var c net.Conn
		err := ns.Do(func() (err error) { c, err = net.DialTimeout("tcp", to.String(), timeout); return err })
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(max(timeout, time.Second)))
		sent := make(chan error, 1)
		go func() { _, err := c.Write(make([]byte, size)); sent <- err }()
		n, err := io.CopyN(io.Discard, c, int64(size))
		if err != nil {
			c.Close()
			<-sent
			return fmt.Errorf("after %d of %d bytes: %w", n, size, err)
		}
		return <-sent
	}
	var c *net.UDPConn
	if err := ns.Do(func() (err error) { c, err = net.ListenUDP("udp", nil); return err }); err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.WriteToUDPAddrPort(make([]byte, size), to); err != nil {
		return err
	}
	buf := make([]byte, 65536)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil {
		return err
	}
	if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); n != size || from != to {
		return fmt.Errorf("%d bytes came from %s, want %d from %s", n, from, size, to)
	}
	return nil
}

// reachesVIP is reaches through the service.
func reachesVIP(t *testing.T, what string, from *testenv.NetNS, want bool) {
	t.Helper()
	timeout := 10 * time.Second
	if !want {
		timeout = 300 * time.Millisecond
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, try := range []struct {
			network string
			size    int
		}{{"tcp", 10}, {"tcp", 3 << 20}, {"udp", 10}, {"udp", 8000}} {
			err := echoVIP(from, try.network, vip, try.size, timeout)
			if (err == nil) != want {
				t.Errorf("%s: %s of %d bytes to %s: %v", what, try.network, try.size, vip, err)
			}
			if !want && try.size > 10 {
				break
			}
		}
	}
}

// TestServices: pods reach backends of their node, of the other node, on the node itself, and
// themselves by a service's address, and policy evaluates who is behind it.
func TestServices(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			a, b, r := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
			for _, ns := range []*testenv.NetNS{a.ns, b.ns, r.ns, n1.ns} {
				serve(t, ns)
			}
			defer func() {
				if t.Failed() {
					metrics(t, n1, n2)
				}
			}()
			n1.publish(t, nil, b)
			reachesVIP(t, "a to b of its node", a.ns, true)
			n1.publish(t, nil, r)
			reachesVIP(t, "a to r of the other node", a.ns, true)
			n1.publish(t, nil, a)
			reachesVIP(t, "a to itself", a.ns, true)
			host := &testPod{ep: datapath.Endpoint{IPv4: n1.cfg.RouterIPv4, IPv6: n1.cfg.RouterIPv6}}
			n1.publish(t, nil, host)
			reachesVIP(t, "a to its node", a.ns, true)

			n1.publish(t, nil, b)
			n1.enforce(t, b, 1003)
			reachesVIP(t, "a to b, refused", a.ns, false)
			n1.enforce(t, b, 1001)
			reachesVIP(t, "a to b, allowed", a.ns, true)
			n1.publish(t, nil, r)
			n2.enforce(t, r, 1002)
			reachesVIP(t, "a to r, refused", a.ns, false)
			n2.enforce(t, r, 1001)
			reachesVIP(t, "a to r, allowed", a.ns, true)
			// A pod's own rules are not asked about itself.
			n1.enforce(t, a)
			n1.publish(t, nil, a)
			reachesVIP(t, "a to itself, enforcing", a.ns, true)
			n1.publish(t, nil)
			reachesVIP(t, "no backend", a.ns, false)
		})
	}
}

// keepOpen connects to an address by a port of the client's own choice, which may be that of other
// connections, and returns what sends a word and wants it back.
func keepOpen(t *testing.T, ns *testenv.NetNS, port int, to netip.AddrPort) (talk func() error) {
	t.Helper()
	d := net.Dialer{
		Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{Port: port},
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
		},
	}
	var c net.Conn
	must(t, ns.Do(func() (err error) { c, err = d.DialContext(t.Context(), "tcp", to.String()); return err }))
	t.Cleanup(func() { c.Close() })
	return func() error {
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write([]byte("word")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 4))
		return err
	}
}

// TestServiceThenDirect: a pod with a connection to a backend through a service opens one directly,
// from the same port; neither breaks the other, with the backend on its node or on another.
func TestServiceThenDirect(t *testing.T) {
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	join(t, n1, n2)
	a, b, r := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
	for i, to := range []*testPod{b, r} {
		serve(t, to.ns)
		n1.publish(t, nil, to)
		for _, vip := range []netip.Addr{vip4, vip6} {
			backend := to.ep.IPv4
			if vip.Is6() {
				backend = to.ep.IPv6
			}
			through := keepOpen(t, a.ns, 20000+i, netip.AddrPortFrom(vip, 80))
			must(t, through())
			direct := keepOpen(t, a.ns, 20000+i, netip.AddrPortFrom(backend, service))
			for range 3 {
				if err := errors.Join(direct(), through()); err != nil {
					t.Errorf("%s through %s, and directly: %v", backend, vip, err)
				}
			}
		}
	}
	if t.Failed() {
		metrics(t, n1, n2)
	}
}
