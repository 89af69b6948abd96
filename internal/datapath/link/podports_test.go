package link

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// farServer answers with the address and port that it sees, for TCP and UDP at one port, to all
// who have been connected so far and are still.
func farServer(t *testing.T, in netns.NsHandle, ip string) (port int) {
	t.Helper()
	var l net.Listener
	var c net.PacketConn
	inThread(t, in, func() (err error) {
		if l, err = net.Listen("tcp", net.JoinHostPort(ip, "0")); err != nil {
			return err
		}
		port = l.Addr().(*net.TCPAddr).Port
		c, err = net.ListenPacket("udp", l.Addr().String())
		return err
	})
	t.Cleanup(func() { l.Close(); c.Close() })
	go func() {
		for {
			peer, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(peer, "%s", peer.RemoteAddr())
			t.Cleanup(func() { peer.Close() })
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo([]byte(from.String()), from)
		}
	}()
	return port
}

// asSeen connects from a port and returns how the server sees that; the connection stays.
func asSeen(t *testing.T, from netns.NsHandle, network string, port uint16, to string) (seen netip.AddrPort) {
	t.Helper()
	inThread(t, from, func() error {
		d := net.Dialer{Timeout: 5 * time.Second, Control: func(network, _ string, raw syscall.RawConn) (err error) {
			raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
			return err
		}}
		if strings.HasPrefix(network, "tcp") {
			d.LocalAddr = &net.TCPAddr{Port: int(port)}
		} else {
			d.LocalAddr = &net.UDPAddr{Port: int(port)}
		}
		c, err := d.DialContext(context.Background(), network, to)
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("no answer to port %d: %w", port, err)
		}
		seen, err = netip.ParseAddrPort(string(buf[:n]))
		return err
	})
	return netip.AddrPortFrom(seen.Addr().Unmap(), seen.Port())
}

// TestMasqueradePorts: a pod's flow leaves by no port that SNAT may have for a client outside,
// whether the pod has chosen it or the kernel, and by no node port; it keeps its own otherwise.
// Replies arrive.
func TestMasqueradePorts(t *testing.T) {
	for name, snat := range map[string]datapath.PortRange{
		"default": {}, "the middle": {First: 30000, Last: 40000}, "the lower end": {First: 1024, Last: 50000}, "all": {First: 1024, Last: 65535},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			desired := tunnelNode()
			desired.MasqueradePorts = snat
			_, err := n.SetNode(desired)
			must(t, err)
			if snat == (datapath.PortRange{}) {
				snat = datapath.DefaultMasqueradePorts()
			}
			ports := []uint16{800, 1024, snat.First - 1, snat.First, snat.First + 7, snat.Last - 7, snat.Last, 60999}
			slices.Sort(ports)
			ports = slices.Compact(ports)
			var pods []netns.NsHandle
			for i := range 2 {
				_, pod := n.realPod(t, 7+i)
				pods = append(pods, pod)
			}
			for family, at := range map[string][2]string{"4": {"192.0.2.2", "192.0.2.1"}, "6": {"2001:db8::2", "2001:db8::1"}} {
				for _, network := range []string{"tcp" + family, "udp" + family} {
					for _, port := range ports {
						to := net.JoinHostPort(at[0], fmt.Sprint(farServer(t, n.far, at[0])))
						var got []uint16
						for _, pod := range pods {
							seen := asSeen(t, pod, network, port, to)
							if seen.Addr().String() != at[1] {
								t.Errorf("%s from port %d: seen as %s", network, port, seen)
							}
							got = append(got, seen.Port())
						}
						what := fmt.Sprintf("%s from port %d of two pods: seen from %d", network, port, got)
						inside := func(p uint16) bool { return p >= snat.First && p <= snat.Last }
						_, some := podPorts(snat)
						if some && slices.ContainsFunc(got, inside) {
							t.Errorf("%s, which SNAT may use", what)
						}
						if slices.ContainsFunc(got, func(p uint16) bool { return (p < 1024) != (port < 1024) }) {
							t.Errorf("%s, on the other side of 1024", what)
						}
						if got[0] == got[1] {
							t.Errorf("%s: one for both", what)
						}
						if allowed, _ := podPorts(snat); (port < 1024 || !some || port >= allowed.First && port <= allowed.Last) && got[0] != port {
							t.Errorf("%s: need not have been changed", what)
						}
					}
				}
			}
		})
	}
}

// TestMasqueradePortsUpgrade: the table of an agent before this one is replaced; one that is right
// stays as it is.
func TestMasqueradePortsUpgrade(t *testing.T) {
	n := newNode(t)
	handles := func() string { return n.output(t, "nft", "-s", "-a", "list", "table", "inet", nftTable) }
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	before := handles()
	for _, want := range []string{"tcp", "udp"} {
		rule := want + " sport >= 1024 masquerade to :32768-60999"
		if !strings.Contains(before, rule) {
			t.Errorf("no rule %q in\n%s", rule, before)
		}
	}
	_, err = n.SetNode(tunnelNode())
	must(t, err)
	if after := handles(); after != before {
		t.Errorf("the table was replaced:\n%s\n%s", before, after)
	}
	other := tunnelNode()
	other.MasqueradePorts = datapath.PortRange{First: 50000, Last: 65535}
	_, err = n.SetNode(other)
	must(t, err)
	if got := handles(); !strings.Contains(got, "masquerade to :32768-49999") {
		t.Errorf("the range has changed, but:\n%s", got)
	}
	n.output(t, "nft", "delete", "table", "inet", nftTable)
	n.output(t, "nft", `table inet hawser { chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.1.0.0/24 masquerade; }; }`)
	_, err = n.SetNode(tunnelNode())
	must(t, err)
	if got := handles(); !strings.Contains(got, "masquerade to :32768-60999") || strings.Count(got, "jump masqueraded") != 2 {
		t.Errorf("after an agent before this one:\n%s", got)
	}
}

func TestPodPorts(t *testing.T) {
	t.Parallel()
	for snat, want := range map[datapath.PortRange]string{
		{}:                          "32768-60999 true",
		{First: 61000, Last: 65535}: "32768-60999 true",
		{First: 1024, Last: 1024}:   "32768-65535 true",
		{First: 1024, Last: 50000}:  "50001-65535 true",
		{First: 1024, Last: 60000}:  "60001-65535 true",
		{First: 33000, Last: 65535}: "1024-32999 true",
		{First: 1024, Last: 65534}:  "65535 true",
		{First: 1025, Last: 65535}:  "1024 true",
		{First: 30000, Last: 40000}: "40001-65535 true",
		{First: 50000, Last: 50000}: "32768-49999 true",
		{First: 1024, Last: 65535}:  "1024-1023 false",
	} {
		r, ok := podPorts(snat)
		if got := fmt.Sprintf("%s %t", r, ok); got != want {
			t.Errorf("%s: %s, want %s", snat, got, want)
		}
	}
}
