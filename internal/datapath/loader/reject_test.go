package loader_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// dialAs connects from an address, which the thread's namespace need not have, and returns what
// became of it.
func dialAs(network string, from netip.Addr, to netip.AddrPort, timeout time.Duration) error {
	d := net.Dialer{Timeout: timeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Control: func(_, _ string, c syscall.RawConn) (err error) {
		option := func(fd uintptr) {
			if from.Is4() {
				err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			}
		}
		return errors.Join(c.Control(option), err)
	}}
	if network == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	c, err := d.Dial(network, to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if network == "udp" {
		// Again and again: kernels limit the rate of ICMP errors, and who asks once may get
		// nothing.
		for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
			c.Write([]byte("?"))
			c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err = c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
		}
	}
	return err
}

// TestRejectedByNetfilter: without a tunnel, a client outside or a pod whose connection netfilter
// rejects is refused at once: the resets bear the destination's address, and are not taken for
// forged. A process of the node that binds a pod's address is not taken for the pod.
func TestRejectedByNetfilter(t *testing.T) {
	n1, n2 := newTestNode(t, 1, false), newTestNode(t, 2, false)
	join(t, n1, n2)
	a, b, r := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2), n2.pod(t, 1003, n1)
	for _, p := range []*testPod{a, b, r} {
		serve(t, p.ns)
	}
	clients := []netip.Addr{ip("192.168.0.50"), ip("fd99::50")}
	services := []netip.Addr{ip("10.96.0.9"), ip("fd00:96::9")}
	for i, c := range clients {
		// As the world: the network of the nodes has others, and n2 sends what is for the service
		// to n1.
		addAddr(t, n2.h, byName(t, n2.h, "eth0"), c, c.BitLen())
		via := []netip.Addr{n1.cfg.NodeIPv4, n1.cfg.NodeIPv6}[i]
		addRoute(t, n2.h, byName(t, n2.h, "eth0"), netip.PrefixFrom(services[i], services[i].BitLen()).String(), via)
		addRoute(t, n1.h, byName(t, n1.h, "eth0"), netip.PrefixFrom(services[i], services[i].BitLen()).String(), []netip.Addr{n2.cfg.NodeIPv4, n2.cfg.NodeIPv6}[i])
	}
	must(t, n1.ns.Do(func() error {
		// What is for the service goes out where it came in. A redirect would use up what the
		// kernel lets n1 send to this client, and the refusal would not be sent.
		for _, dev := range []string{"all", "eth0"} {
			must(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/send_redirects", []byte("0"), 0))
		}
		rules := "table inet firewall {\nchain forward { type filter hook forward priority 0\n"
		for i, family := range []string{"ip", "ip6"} {
			for _, refused := range []netip.Addr{a.addrs()[i], services[i], r.addrs()[i]} {
				rules += fmt.Sprintf("%s daddr %s meta l4proto tcp reject with tcp reset\n%s daddr %s reject\n", family, refused, family, refused)
			}
		}
		return nft(rules + "}\n}\n")
	}))
	defer func() {
		if t.Failed() {
			metrics(t, n1, n2)
		}
	}()
	for i, client := range clients {
		for what, row := range map[string]struct {
			ns   interface{ Do(func() error) error }
			from netip.Addr
			to   netip.Addr
		}{
			"a client outside refused a pod":     {n2.ns, client, a.addrs()[i]},
			"a client outside refused a service": {n2.ns, client, services[i]},
			"a pod refused another node's":       {b.ns, b.addrs()[i], r.addrs()[i]},
		} {
			for _, network := range []string{"tcp", "udp"} {
				var err error
				must(t, row.ns.Do(func() error {
					err = dialAs(network, row.from, netip.AddrPortFrom(row.to, service), 20*time.Second)
					return nil
				}))
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s by %s: %v", what, network, err)
				}
			}
		}
		// The way is there for others: the client reaches the pod that no rule refuses.
		must(t, n2.ns.Do(func() error {
			return dialAs("tcp", client, netip.AddrPortFrom(b.addrs()[i], service), 20*time.Second)
		}))
		// A process of the node that binds the pod's address.
		must(t, n1.ns.Do(func() error {
			for _, as := range []netip.Addr{a.addrs()[i], b.addrs()[i]} {
				if err := dialAs("tcp", as, netip.AddrPortFrom(r.addrs()[i], service), 300*time.Millisecond); err == nil || errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("a process of the node as %s: %v", as, err)
				}
			}
			return nil
		}))
	}
}
