package loader_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/testenv"
)

// connectFrom connects in a namespace from a port, 0 for any, until the test ends.
func connectFrom(t *testing.T, ns *testenv.NetNS, network string, port uint16, to netip.AddrPort) (c net.Conn, err error) {
	t.Helper()
	d := net.Dialer{Timeout: 20 * time.Second}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{Port: int(port)}
	} else {
		d.LocalAddr = &net.UDPAddr{Port: int(port)}
	}
	if err := ns.Do(func() (err error) { c, err = d.Dial(network, to.String()); return err }); err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	return c, nil
}

// echoed sends a text by a connection to who sends it back.
func echoed(c net.Conn, text string) error {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err == nil && !bytes.Equal(buf[:n], []byte(text)) {
		return fmt.Errorf("got %q", buf[:n])
	}
	return err
}

// TestMasqueradedPods: a pod that leaves the cluster with the node's address gets its replies,
// whatever port it sends from: that by which a client outside is forwarded to the same backend, and
// that of a frontend. And the client gets its own.
func TestMasqueradedPods(t *testing.T) {
	n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
	join(t, n1, n2)
	n1.cfg.MasqueradePorts = datapath.PortRange{First: 61000, Last: 61000}
	server := outsideOf(t, n1, n2)
	a, b := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2)
	serve(t, server)
	serve(t, b.ns)
	links, err := link.New(link.Config{NetNSFD: n1.ns.Fd()}, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(links.Close)
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	_, err = links.SetNode(datapath.Node{
		Device: "eth0", RouterIPv4: n1.cfg.RouterIPv4, RouterIPv6: n1.cfg.RouterIPv6,
		Masquerade4: true, Masquerade6: true, MasqueradePorts: n1.cfg.MasqueradePorts,
		PodCIDRs:     prefixes("10.1.0.0/24", "fd00:1::/64"),
		ClusterCIDRs: prefixes("10.0.0.0/8", "192.168.0.0/24", "fd00::/16", "fd99::/64"),
	})
	must(t, err)
	defer func() {
		if t.Failed() {
			metrics(t, n1, n2)
		}
	}()
	for at, outside := range map[netip.Addr]netip.Addr{n1.cfg.NodeIPv4: ip("172.16.0.2"), n1.cfg.NodeIPv6: ip("fd98::2")} {
		to := netip.AddrPortFrom(outside, service)
		for _, network := range []string{"tcp", "udp"} {
			n1.open(t, outside)
			var client net.Conn
			testenv.Eventually(t, time.Minute, func() string {
				client, err = connectFrom(t, n2.ns, network, 0, netip.AddrPortFrom(at, outsidePort))
				if err == nil {
					err = echoed(client, "client")
				}
				if err != nil {
					return fmt.Sprintf("%s to %s: no client is forwarded: %v", network, at, err)
				}
				return ""
			})
			n1.open(t, b.addrs()...)
			for _, port := range []uint16{61000, outsidePort} {
				pod, err := connectFrom(t, a.ns, network, port, to)
				if err == nil {
					err = echoed(pod, "pod")
					if c, ok := pod.(*net.TCPConn); ok {
						c.SetLinger(0) // the next has the port at once
					}
					pod.Close()
				}
				if err != nil {
					t.Errorf("%s from port %d of a pod to %s: %v", network, port, to, err)
				}
				if err := echoed(client, "client again"); err != nil {
					t.Errorf("%s from port %d of a pod to %s: the client: %v", network, port, to, err)
				}
			}
		}
	}
}
