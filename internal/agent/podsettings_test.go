package agent

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
)

// sysctl reads a kernel parameter below net/ipv4 in a pod.
func (p *machinePod) sysctl(name string) string {
	p.node.t.Helper()
	var b []byte
	p.ns.Must(p.node.t, func() (err error) { b, err = os.ReadFile("/proc/sys/net/ipv4/" + name); return err })
	return strings.TrimSpace(string(b))
}

// setSysctl writes one.
func (p *machinePod) setSysctl(name, value string) {
	p.node.t.Helper()
	p.ns.Must(p.node.t, func() error { return os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644) })
}

// TestReservedPorts: a word says that no ports are reserved, for a ConfigMap cannot set an option
// empty.
func TestReservedPorts(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"none": "", " none\n": "", "": "", "auto": "8472", "none,8472": "error", "auto none": "error"} {
		c := Defaults()
		c.PodReservedPorts = value
		got, err := c.podReservedPorts()
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %q (%v), want %q", value, got, err, want)
		}
	}
}

// TestPodSettings: what the options ask for is in pods that the real plugin attaches, and the
// kernel goes by it.
func TestPodSettings(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	first := n.attached("first", nil)
	for name, want := range map[string]string{"ip_local_reserved_ports": "8472", "tcp_mtu_probing": "1", "tcp_base_mss": "1024", "tcp_mtu_probe_floor": "48"} {
		if got := first.sysctl(name); got != want {
			t.Errorf("without options: %s is %q, want %q", name, got, want)
		}
	}
	again := func(flags ...string) {
		t.Helper()
		n.stop()
		n.flags = append(n.flags, flags...)
		n.start()
	}

	again("--container-ip-local-reserved-ports", "auto,20000-20100,30000", "--packetization-layer-pmtud-mode", "always")
	p := n.newPod("reserved", nil)
	// Other programs have reserved more than what one read of a small buffer returns: none of these
	// may be lost.
	var odd []string
	for port := 40001; port < 40600; port += 2 {
		odd = append(odd, strconv.Itoa(port))
	}
	p.setSysctl("ip_local_reserved_ports", strings.Join(odd, ","))
	if err := p.add(); err != nil {
		t.Fatal(err)
	}
	want := "8472,20000-20100,30000," + strings.Join(odd, ",")
	var got string
	p.ns.Must(t, func() error {
		f, err := os.Open("/proc/sys/net/ipv4/ip_local_reserved_ports")
		if err != nil {
			return err
		}
		defer f.Close()
		buf := make([]byte, 1<<16)
		n, err := f.Read(buf)
		got = strings.TrimSpace(string(buf[:n]))
		return err
	})
	if got != want {
		t.Errorf("reserved ports are %q, want %q", got, want)
	}
	if got := p.sysctl("tcp_mtu_probing"); got != "2" {
		t.Errorf("tcp_mtu_probing is %s with always", got)
	}
	p.setSysctl("ip_local_port_range", "20000 20101")
	var l net.Listener
	p.ns.Must(t, func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err })
	if port := l.Addr().(*net.TCPAddr).Port; port != 20101 {
		t.Errorf("a socket that asks for no port has %d, which is reserved", port)
	}
	l.Close()

	again("--container-ip-local-reserved-ports=none", "--packetization-layer-pmtud-mode", "disabled")
	p = n.newPod("disabled", nil)
	p.setSysctl("tcp_mtu_probing", "2")
	if err := p.add(); err != nil {
		t.Fatal(err)
	}
	if ports, probing := p.sysctl("ip_local_reserved_ports"), p.sysctl("tcp_mtu_probing"); ports != "" || probing != "0" {
		t.Errorf("without reserved ports, and with disabled: %q, %s", ports, probing)
	}

	again("--packetization-layer-pmtud-mode", "unset")
	p = n.newPod("unset", nil)
	p.setSysctl("tcp_mtu_probing", "2")
	if err := p.add(); err != nil {
		t.Fatal(err)
	}
	if got := p.sysctl("tcp_mtu_probing"); got != "2" {
		t.Errorf("unset has changed tcp_mtu_probing to %s", got)
	}
	n.stop()
}

// upload sends bytes to a TCP server in another namespace and returns how many of them have
// arrived, unharmed, when all have or the wait times out.
func upload(t testing.TB, from namespace, to namespace, at netip.AddrPort, size int, timeout time.Duration) int {
	t.Helper()
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", at.String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	block := make([]byte, 1<<20)
	if _, err := rand.Read(block); err != nil {
		t.Fatal(err)
	}
	var arrived atomic.Int64
	received := make(chan error, 1)
	deadline := time.Now().Add(timeout)
	go func() {
		received <- func() error {
			if err := l.(*net.TCPListener).SetDeadline(deadline); err != nil {
				return err
			}
			c, err := l.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetReadDeadline(deadline); err != nil {
				return err
			}
			buf := make([]byte, 1<<16)
			for at := 0; ; {
				n, err := c.Read(buf[:min(len(buf), len(block)-at)])
				if !bytes.Equal(buf[:n], block[at:at+n]) {
					return fmt.Errorf("the bytes after %d are not those that were sent", arrived.Load())
				}
				at = (at + n) % len(block)
				arrived.Add(int64(n))
				if err != nil {
					return err
				}
			}
		}()
	}()
	var c net.Conn
	err := from.Do(func() (err error) { c, err = net.DialTimeout("tcp", at.String(), timeout); return err })
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(deadline)
	for left := size; left > 0 && err == nil; {
		var n int
		n, err = c.Write(block[:min(left, len(block))])
		left -= n
	}
	if err == nil {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	if err := <-received; !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("upload to %s: %v", at, err)
	}
	c.Close()
	return int(arrived.Load())
}

// TestBlackHole: on the way out of the cluster packets vanish that are too large, without an
// ICMP error. TCP of pods finds that out, and does not with the option that takes it away.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	for mode, through := range map[string]bool{"blackhole": true, "unset": false} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			n, outside := newNode(t)
			n.flags = append(n.flags, "--packetization-layer-pmtud-mode", mode)
			n.start()
			p := n.attached("sender", nil)
			// A packet that waits for segmentation would be evaluated by its whole length.
			p.ns.Must(t, func() error { return run("ip", "link", "set", "eth0", "gso_max_segs", "1") })
			outside.Must(t, func() error {
				return run("nft", "table inet hole { chain in { type filter hook input priority 0; meta length > 1300 drop; }; }")
			})
			for _, at := range []string{outside4, outside6} {
				const size = 100_000
				timeout := 4 * time.Second
				if through {
					timeout = 60 * time.Second // three retransmissions until the kernel suspects anything
				}
				got := upload(t, p.ns, outside, netip.AddrPortFrom(netip.MustParseAddr(at), 7777), size, timeout)
				if through && got != size || !through && got == size {
					t.Errorf("to %s: %d of %d bytes arrived", at, got, size)
				}
			}
			n.stop()
		})
	}
}

// run executes a command.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// largest listens on a device and returns a function that returns how long the longest frame was
// since it was last asked. A frame that waits for segmentation counts whole.
func largest(t testing.TB, ns namespace, device string) func() int {
	t.Helper()
	const everything = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
	fd := -1
	if err := ns.Do(func() error {
		dev, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: dev.Index}))
	}); err != nil {
		t.Fatal(err)
	}
	var most atomic.Int64
	done, stop := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n, _, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC); err == nil && int64(n) > most.Load() {
				most.Store(int64(n))
			}
		}
	}()
	return func() int { return int(most.Swap(0)) }
}

// segmentSizes are the limits of a device: of IPv6 before segmentation and after reassembly, then
// of IPv4.
func segmentSizes(t testing.TB, ns *testenv.NetNS, device string) [4]uint32 {
	t.Helper()
	h := ns.Netlink(t)
	defer h.Close()
	link, err := h.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	a := link.Attrs()
	return [4]uint32{a.GSOMaxSize, a.GROMaxSize, a.GSOIPv4MaxSize, a.GROIPv4MaxSize}
}

// part returns what the status says of a part of the agent.
func (n *machineNode) part(name string) rest.PartStatus {
	n.t.Helper()
	st, err := n.client.Health(n.t.Context(), false)
	if err != nil {
		n.t.Fatal(err)
	}
	if i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == name }); i >= 0 {
		return st.Parts[i]
	}
	return rest.PartStatus{}
}

// frame is the most that a frame has whose packet is not beyond 64 KiB.
const frame = 65536 + 14

// TestBigTCP: packets beyond 64 KiB from pod to pod, and out of the cluster under the node's
// address; without the options there are none, and what they did is undone.
func TestBigTCP(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.flags = append(n.flags, "--routing-mode", "native")
	const big = 196608
	legacy, all := [4]uint32{65536, 65536, 65536, 65536}, [4]uint32{big, 65536, big, big}
	sizes := func(when string, want [4]uint32, pods ...*machinePod) {
		t.Helper()
		for _, device := range []string{"eth0", "hawser_host", "hawser_net"} {
			if got := segmentSizes(t, n.ns, device); got != want {
				t.Errorf("%s: %s has %v, want %v", when, device, got, want)
			}
		}
		for _, p := range pods {
			if got := segmentSizes(t, p.ns, "eth0"); got != want {
				t.Errorf("%s: eth0 of pod %s has %v, want %v", when, p.name, got, want)
			}
			if got := segmentSizes(t, n.ns, p.endpoint().Status.Networking.InterfaceName); got != want {
				t.Errorf("%s: the host's side of pod %s has %v, want %v", when, p.name, got, want)
			}
		}
	}
	const size = 64 << 20
	stream := func(what string, from, to *machinePod, beyond bool) {
		t.Helper()
		inPod, out := largest(t, to.ns, "eth0"), largest(t, outside, "eth0")
		paths := []struct {
			ns   namespace
			seen func() int
			at   netip.AddrPort
		}{{to.ns, inPod, to.both(7777)[0]}, {to.ns, inPod, to.both(7777)[1]},
			{outside, out, netip.AddrPortFrom(netip.MustParseAddr(outside4), 7777)}, {outside, out, netip.AddrPortFrom(netip.MustParseAddr(outside6), 7777)}}
		for _, path := range paths {
			path.seen()
			began := time.Now()
			if got := upload(t, from.ns, path.ns, path.at, size, 2*time.Minute); got != size {
				t.Errorf("%s: to %s: %d of %d bytes arrived", what, path.at, got, size)
			}
			most := path.seen()
			t.Logf("%s: to %s: %.1f Gbit/s, frames of up to %d bytes", what, path.at, size*8/time.Since(began).Seconds()/1e9, most)
			if (most > frame) != beyond {
				t.Errorf("%s: to %s: frames of up to %d bytes", what, path.at, most)
			}
		}
	}
	n.start()
	a, b := n.attached("a", nil), n.attached("b", nil)
	sizes("without the options", legacy, a, b)
	stream("without the options", a, b, false)

	n.stop()
	plain := slices.Clone(n.flags)
	n.flags = append(n.flags, "--enable-ipv4-big-tcp", "--enable-ipv6-big-tcp")
	n.start()
	c, d := n.attached("c", nil), n.attached("d", nil)
	sizes("with both options", all, c, d)
	stream("with both options", c, d, true)
	// To a former pod they are cut where they must be.
	for _, at := range b.both(7777) {
		if got := upload(t, c.ns, b.ns, at, size, 2*time.Minute); got != size {
			t.Errorf("to a pod of before, %s: %d of %d bytes arrived", at, got, size)
		}
	}
	if p := n.part("big-tcp"); p.State != rest.StateOk || !strings.Contains(p.Msg, "196608") {
		t.Errorf("the status says %+v", p)
	}
	if st, err := n.client.Health(t.Context(), false); err != nil || !st.IPv6BigTCP.Enabled || st.IPv4BigTCP.MaxGSO != big {
		t.Errorf("the status says %+v, %+v, %v", st.IPv4BigTCP, st.IPv6BigTCP, err)
	}

	// One family. What the agent before this one did for the other goes.
	n.kill()
	n.flags = append(slices.Clone(plain), "--enable-ipv4-big-tcp")
	n.start()
	sizes("with IPv4 alone", [4]uint32{65536, 65536, big, big}, n.attached("e", nil))

	n.kill()
	n.flags = plain
	n.start()
	sizes("without the options again", legacy, n.attached("f", nil))
	if st, err := n.client.Health(t.Context(), false); err != nil || st.IPv6BigTCP.Enabled || st.IPv4BigTCP.Enabled {
		t.Errorf("the status says %+v, %+v, %v", st.IPv4BigTCP, st.IPv6BigTCP, err)
	}
	n.stop()
}

// TestBigTCPWithoutDevice: the options on a node whose device takes no such packets. The node
// works, and says that they have no effect.
func TestBigTCPWithoutDevice(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	ns := testenv.NewNetNS(t)
	for _, args := range [][]string{
		{"tuntap", "add", "dev", "tap0", "mode", "tap"}, {"addr", "add", node4 + "/24", "dev", "tap0"}, {"addr", "add", node6 + "/64", "dev", "tap0", "nodad"},
		{"link", "set", "tap0", "up"},
	} {
		ns.Must(t, func() error { return run("ip", args...) })
	}
	n := nodeIn(t, ns, "n1", pods4, pods6)
	n.flags[slices.Index(n.flags, "eth0")] = "tap0"
	n.flags = append(n.flags, "--routing-mode", "native", "--enable-ipv4-big-tcp", "--enable-ipv6-big-tcp")
	n.start()
	p := n.part("big-tcp")
	for _, want := range []string{"--enable-ipv4-big-tcp", "--enable-ipv6-big-tcp", "without effect", "tap0", "65536"} {
		if p.State != rest.StateWarning || !strings.Contains(p.Msg, want) {
			t.Errorf("the status does not say %q: %+v", want, p)
		}
	}
	if log := n.logText(); !strings.Contains(log, "no BIG TCP on this node") {
		t.Error("the log does not say it")
	}
	if got := segmentSizes(t, n.attached("a", nil).ns, "eth0"); got != [4]uint32{65536, 65536, 65536, 65536} {
		t.Errorf("a pod has %v", got)
	}
	n.stop()
}
