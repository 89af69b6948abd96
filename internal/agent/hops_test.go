package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hop sends datagrams that get no further than ttl hops until a router on the way reports it, and
// returns which.
func hop(t testing.TB, ns namespace, to netip.AddrPort, ttl int, timeout time.Duration) (netip.Addr, error) {
	t.Helper()
	family, level, recvErr, setTTL := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR, unix.IP_TTL
	var peer unix.Sockaddr
	wantType := byte(11)
	if to.Addr().Is4() {
		peer = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, level, recvErr, setTTL, wantType = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR, unix.IPV6_UNICAST_HOPS, 3
		peer = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd := -1
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, level, recvErr, 1), unix.SetsockoptInt(fd, level, setTTL, ttl), unix.Connect(fd, peer))
	})
	defer unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	buf, oob := make([]byte, 512), make([]byte, 512)
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		if _, err := unix.Write(fd, []byte("how far")); err != nil && !errors.Is(err, unix.EHOSTUNREACH) {
			return netip.Addr{}, err
		}
		fds := []unix.PollFd{{Fd: int32(fd)}} // errors are returned in any case
		if n, err := unix.Poll(fds, 200); n == 0 || err != nil {
			continue
		}
		_, n, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil {
			return netip.Addr{}, err
		}
		for _, m := range messages {
			// struct sock_extended_err, then the address of who says it (ip(7), IP_RECVERR).
			if int(m.Header.Level) != level || int(m.Header.Type) != recvErr || len(m.Data) < 16+8 {
				continue
			}
			if m.Data[5] != wantType {
				return netip.Addr{}, fmt.Errorf("ICMP error of type %d", m.Data[5])
			}
			from := m.Data[16:]
			if family == unix.AF_INET {
				return netip.AddrFrom4([4]byte(from[4:8])), nil
			}
			return netip.AddrFrom16([16]byte(from[8:24])), nil
		}
	}
	return netip.Addr{}, errors.New("no router reports that the hop limit was exceeded")
}

// TestHops: a trace from a pod to another, here and on another node, or to the outside, shows the
// node that the packet passes, and arrives.
func TestHops(t *testing.T) {
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			_, n1, n2 := nodesWithStore(t, "--routing-mode", mode)
			for _, n := range []*machineNode{n1, n2} {
				n.policy("web.yaml", denyWeb)
				n.start()
			}
			front, other, intruder := n1.attached("front", map[string]string{"app": "front"}), n1.attached("other", map[string]string{"app": "other"}),
				n1.attached("intruder", map[string]string{"app": "intruder"})
			web, open := n2.attached("web", map[string]string{"app": "web"}), n2.attached("open", map[string]string{"app": "open"})
			routers := func(n *machineNode) [2]netip.Addr {
				cfg, err := n.client.Config(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				a := cfg.Status.Addressing
				return [2]netip.Addr{netip.MustParseAddr(a.IPv4.IP), netip.MustParseAddr(a.IPv6.IP)}
			}
			here, there := routers(n1), routers(n2)
			device := [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
			for i, to := range other.both(80) {
				if from, err := hop(t, front.ns, to, 1, patient); err != nil || from != here[i] {
					t.Errorf("pod to pod %s: %s, %v; want %s", to, from, err, here[i])
				}
			}
			for i, to := range open.both(80) {
				serveEcho(t, open.ns, to)
				if err := ask(t, front.ns, to, 100, false, patient); err != nil {
					t.Errorf("to a pod of the other node %s: %v", to, err)
				}
				ttl := 1 // the tunnel is no hop
				if mode == "native" {
					if from, err := hop(t, front.ns, to, 1, patient); err != nil || from != here[i] {
						t.Errorf("first hop to %s: %s, %v; want %s", to, from, err, here[i])
					}
					ttl = 2
				}
				if from, err := hop(t, front.ns, to, ttl, patient); err != nil || from != there[i] && from != device[i] {
					t.Errorf("last hop to %s: %s, %v; want %s or %s", to, from, err, there[i], device[i])
				}
			}
			for i, to := range device {
				if from, err := hop(t, front.ns, netip.AddrPortFrom(to, 9), 1, patient); err != nil || from != here[i] {
					t.Errorf("first hop to the outside %s: %s, %v; want %s", to, from, err, here[i])
				}
			}
			// Who may not talk to a pod does not learn how far it is.
			ttl := map[string]int{"tunnel": 1, "native": 2}[mode]
			for _, to := range web.both(80) {
				if from, err := hop(t, intruder.ns, to, ttl, impatient); err == nil {
					t.Errorf("where policy lets nothing through to %s, %s says that the time has run out", to, from)
				}
			}
		})
	}
}
