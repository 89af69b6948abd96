package loader_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// refusedAt wants connections and datagrams to an address to be refused, by an answer and not by
// the client's timeout.
func refusedAt(t *testing.T, what string, from *testenv.NetNS, to ...netip.AddrPort) {
	t.Helper()
	for _, at := range to {
		for _, network := range []string{"tcp", "udp"} {
			if err := ask(from, network, at, 20*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %s to %s: %v, want a refusal", what, network, at, err)
			}
		}
	}
}

// ask connects to an address, says a word and wants any answer.
func ask(from *testenv.NetNS, network string, to netip.AddrPort, timeout time.Duration) error {
	var c net.Conn
	err := from.Do(func() (err error) { c, err = net.DialTimeout(network, to.String(), timeout); return err })
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("who")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 100))
	return err
}

// silentAt wants no answer at all.
func silentAt(t *testing.T, what string, from *testenv.NetNS, to ...netip.AddrPort) {
	t.Helper()
	for _, at := range to {
		for _, network := range []string{"tcp", "udp"} {
			var timeout net.Error
			if err := ask(from, network, at, 300*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%s: %s to %s: %v, want silence", what, network, at, err)
			}
		}
	}
}

// TestRefused: who asks for a service without backends is refused at once, in the pods and
// outside; who asks where another node would serve gets no answer.
func TestRefused(t *testing.T) {
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	join(t, n1, n2)
	outside := outsideOf(t, n1, n2)
	a := n1.pod(t, 1001, n2)
	n1.publish(t, nil)
	n1.open(t)
	vips := []netip.AddrPort{netip.AddrPortFrom(vip4, 80), netip.AddrPortFrom(vip6, 80)}
	ports := []netip.AddrPort{netip.AddrPortFrom(n1.cfg.NodeIPv4, outsidePort), netip.AddrPortFrom(n1.cfg.NodeIPv6, outsidePort)}
	refusedAt(t, "a pod", a.ns, vips...)
	refusedAt(t, "outside", outside, ports...)

	elsewhere := func(s *datapath.Service) { s.RemoteOnly = true }
	n1.publish(t, elsewhere)
	for _, at := range ports {
		for _, proto := range []uint8{6, 17} {
			must(t, n1.maps.UpsertService(datapath.Service{
				ServiceFrontend: datapath.ServiceFrontend{Addr: at, Proto: proto, Scope: datapath.ServiceExternal}, ID: 9, RemoteOnly: true,
			}))
		}
	}
	silentAt(t, "a pod, backends elsewhere", a.ns, vips...)
	silentAt(t, "outside, backends elsewhere", outside, ports...)
	// Outside of its ranges a service is as if it were not there.
	n1.publish(t, func(s *datapath.Service) { s.LimitSources = true }, a)
	silentAt(t, "a pod, not in the ranges", a.ns, vips...)
	if t.Failed() {
		metrics(t, n1, n2)
	}
}

// TestServiceErrors: what routers and hosts say of packets that go through a service reaches who
// has sent them, as if about what they have sent: a closed port behind a service refuses, wherever
// it is.
func TestServiceErrors(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			outside := outsideOf(t, n1, n2)
			a, b, r := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
			host := &testPod{ep: datapath.Endpoint{IPv4: n1.cfg.RouterIPv4, IPv6: n1.cfg.RouterIPv6}}
			vips := []netip.AddrPort{netip.AddrPortFrom(vip4, 80), netip.AddrPortFrom(vip6, 80)}
			ports := []netip.AddrPort{netip.AddrPortFrom(n1.cfg.NodeIPv4, outsidePort), netip.AddrPortFrom(n1.cfg.NodeIPv6, outsidePort)}
			for _, to := range []struct {
				what string
				pod  *testPod
			}{{"a pod of the node", b}, {"a pod of another node", r}, {"itself", a}, {"the node", host}} {
				n1.publish(t, nil, to.pod)
				refusedAt(t, "a pod, led to "+to.what, a.ns, vips...)
			}
			for _, to := range []struct {
				what  string
				addrs []netip.Addr
			}{{"a pod of the node", b.addrs()}, {"a pod of another node", r.addrs()}, {"the node", []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}}} {
				n1.open(t, to.addrs...)
				refusedAt(t, "outside, led to "+to.what, outside, ports...)
			}
			if t.Failed() {
				metrics(t, n1, n2)
			}
		})
	}
}

// TestServicePathMTU: a backend learns that its answers are too large for a hop on their way to a
// client outside, who only knows the service's address, wherever the backend is.
func TestServicePathMTU(t *testing.T) {
	for name, tunnel := range map[string]bool{"tunnel": true, "native": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n1, n2 := newTestNode(t, 1, tunnel), newTestNode(t, 2, tunnel)
			join(t, n1, n2)
			outside := outsideOf(t, n1, n2)
			// The second node is the router on the way, and sends less at once than the client
			// thinks. Were it the device that takes less, it would drop what the client sends
			// whenever that is one segment, as after a SYN that was lost.
			for _, client := range []string{"172.16.0.2", "fd98::2"} {
				must(t, n2.h.RouteAdd(&netlink.Route{
					LinkIndex: byName(t, n2.h, "out0").Attrs().Index, Dst: netlink.NewIPNet(net.ParseIP(client)), MTU: 1300, MTULock: true,
				}))
			}
			a, r := n1.pod(t, 1001, n2), n2.pod(t, 1003, n1)
			for _, ns := range []*testenv.NetNS{a.ns, r.ns, n1.ns} {
				serve(t, ns)
			}
			for _, to := range []struct {
				what  string
				addrs []netip.Addr
			}{{"a pod of the node", a.addrs()}, {"a pod of another node", r.addrs()}, {"the node", []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}}} {
				n1.open(t, to.addrs...)
				for _, at := range []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6} {
					if err := echoNodePort(outside, "tcp", at, 100_000, 20*time.Second); err != nil {
						t.Errorf("%s behind %s: %v", to.what, at, err)
					}
				}
			}
			if t.Failed() {
				metrics(t, n1, n2)
			}
		})
	}
}

// TestServiceReplyError: a backend gets an error when its client is gone.
func TestServiceReplyError(t *testing.T) {
	n1 := newTestNode(t, 1, false)
	must(t, n1.loader.Configure(n1.cfg))
	a, b := n1.pod(t, 1001), n1.pod(t, 1002)
	defer func() {
		if t.Failed() {
			metrics(t, n1)
		}
	}()
	for _, to := range []*testPod{b, a} {
		n1.publish(t, nil, to)
		for _, vip := range []netip.Addr{vip4, vip6} {
			var server, client *net.UDPConn
			must(t, to.ns.Do(func() (err error) {
				server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv6Unspecified(), service)))
				return err
			}))
			must(t, a.ns.Do(func() (err error) {
				client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, 80)))
				return err
			}))
			_, err := client.Write([]byte("who"))
			must(t, err)
			server.SetDeadline(time.Now().Add(20 * time.Second))
			_, from, err := server.ReadFromUDPAddrPort(make([]byte, 100))
			must(t, err)
			must(t, client.Close())
			// Only a connected socket gets errors.
			raw, err := server.SyscallConn()
			must(t, err)
			var connected error
			must(t, raw.Control(func(fd uintptr) {
				connected = unix.Connect(int(fd), &unix.SockaddrInet6{Addr: from.Addr().As16(), Port: int(from.Port())})
			}))
			must(t, connected)
			_, err = server.Write([]byte("me"))
			must(t, err)
			if _, err := server.Read(make([]byte, 100)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("the backend of %s of a client at %s that is gone: %v", vip, from, err)
			}
			server.Close()
		}
	}
}
