package loader_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
)

// clientEnv, if set, makes the test's program a client in a cgroup.
const clientEnv = "HAWSER_TEST_CGROUP_CLIENT"

// outcome is what a client in the cgroup saw.
type outcome struct {
	Peer string // who it was connected to, or got the answer from
	Got  string // what the other side said
	Err  string
}

// testCgroup makes a cgroup for the test.
func testCgroup(t *testing.T) string {
	t.Helper()
	testenv.RequireRoot(t)
	root, err := loader.FindCgroup()
	must(t, err)
	return testenv.NewCgroup(t, root)
}

// onlyCgroup2 makes this process's mounts those of a machine that has no cgroups of version 1.
func onlyCgroup2() error {
	const dir = "/sys/fs/cgroup"
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of one's own: %w", err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroups of version 2: %w", err)
	}
	return nil
}

// TestOnlyCgroup2: the hooks are found a place for, and work, on a machine that has cgroups of
// version 2 only, as most have by now. It runs TestNodesOwnProcesses again with mounts of its own.
func TestOnlyCgroup2(t *testing.T) {
	testenv.RequireRoot(t)
	if os.Getenv(onlyEnv) != "" {
		root, err := loader.FindCgroup()
		must(t, err)
		if root != "/sys/fs/cgroup" {
			t.Errorf("cgroups of version 2 are found at %s", root)
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^(TestOnlyCgroup2|TestNodesOwnProcesses)$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), onlyEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"--- PASS: TestOnlyCgroup2", "--- PASS: TestNodesOwnProcesses"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("%v, and %q is to be among:\n%s", err, want, out)
		}
	}
}

// clientIn runs a client as a process of the cgroup and the namespace.
func clientIn(t *testing.T, ns *testenv.NetNS, cgroup, network string, to netip.AddrPort) outcome {
	t.Helper()
	dir, err := os.Open(cgroup)
	must(t, err)
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), clientEnv+"="+network+" "+to.String(), onlyEnv+"=")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	must(t, ns.Do(cmd.Start))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("client: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	var o outcome
	line, _, _ := strings.Cut(stdout.String(), "\n")
	if err := json.Unmarshal([]byte(line), &o); err != nil {
		t.Fatalf("client said %q: %v", stdout.String(), err)
	}
	return o
}

// onlyEnv, if set, makes the test's program hide all cgroups but those of version 2 first: see
// TestOnlyCgroup2.
const onlyEnv = "HAWSER_TEST_CGROUP2_ONLY"

// TestMain is the client instead, in a process of its own, if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv(onlyEnv) != "" {
		if err := onlyCgroup2(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	network, to, ok := strings.Cut(os.Getenv(clientEnv), " ")
	if !ok {
		os.Exit(m.Run())
	}
	var o outcome
	if err := client(network, to, &o); err != nil {
		o.Err = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(network, to string, o *outcome) error {
	deadline := time.Now().Add(3 * time.Second)
	buf := make([]byte, 100)
	if network == "unconnected" {
		c, err := net.ListenPacket("udp", ":0")
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(deadline)
		addr, err := net.ResolveUDPAddr("udp", to)
		if err != nil {
			return err
		}
		// Datagrams of one socket stay together.
		for range 5 {
			if _, err := c.WriteTo([]byte("who"), addr); err != nil {
				return err
			}
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return err
			}
			if o.Got != "" && o.Got != string(buf[:n]) {
				return fmt.Errorf("%s answered, then %s", o.Got, buf[:n])
			}
			o.Got, o.Peer = string(buf[:n]), from.String()
		}
		return nil
	}
	c, err := net.DialTimeout(network, to, 3*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(deadline)
	// What the kernel says, not what was asked for.
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var peer unix.Sockaddr
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.Getpeername(int(fd)) }); err != nil || peerErr != nil {
		return errors.Join(err, peerErr)
	}
	switch a := peer.(type) {
	case *unix.SockaddrInet4:
		o.Peer = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		o.Peer = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	}
	if _, err := c.Write([]byte("who")); err != nil {
		return err
	}
	n, err := c.Read(buf)
	if err != nil && err != io.EOF {
		return err
	}
	o.Got = string(buf[:n])
	return nil
}

// answerAs serves TCP and UDP on the service port with a name.
func answerAs(t *testing.T, ns *testenv.NetNS, name string) {
	t.Helper()
	serveBy(t, ns, func(c net.Conn) { c.Write([]byte(name)) }, func([]byte, netip.AddrPort) []byte { return []byte(name) })
}

// TestNodesOwnProcesses: a process of the node reaches a service by its address and never sees the
// backend's, whatever its socket; one of a pod, in the same cgroup, is left to the pod's interface.
func TestNodesOwnProcesses(t *testing.T) {
	cgroup := testCgroup(t)
	n1, n2 := newTestNode(t, 1, true), newTestNode(t, 2, true)
	n1.cfg.CgroupRoot = cgroup
	join(t, n1, n2)
	a, b := n1.pod(t, 1001, n2), n1.pod(t, 1002, n2)
	answerAs(t, a.ns, "a")
	answerAs(t, b.ns, "b")
	try := func(what string, ns *testenv.NetNS, network string, vip netip.Addr, want outcome) {
		t.Helper()
		got := clientIn(t, ns, cgroup, network, netip.AddrPortFrom(vip, 80))
		if want.Err != "" && strings.Contains(got.Err, want.Err) {
			return
		}
		if want.Got == "any" && (got.Got == "a" || got.Got == "b") {
			want.Got = got.Got
		}
		if got != want {
			t.Errorf("%s, %s to %s: %+v, want %+v", what, network, vip, got, want)
		}
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		peer := netip.AddrPortFrom(vip, 80).String()
		for _, network := range []string{"tcp", "udp", "unconnected"} {
			n1.publish(t, nil, b)
			try("the node", n1.ns, network, vip, outcome{Peer: peer, Got: "b"})
			n1.publish(t, nil, a, b)
			for range 3 {
				try("the node, to either", n1.ns, network, vip, outcome{Peer: peer, Got: "any"})
			}
			n1.publish(t, nil)
			try("the node, no backend", n1.ns, network, vip, outcome{Err: "refused"})
			// The pod's own packets are translated where policy can see it.
			n1.publish(t, nil, b)
			before := n1.flowsVia(t)
			try("a pod", a.ns, network, vip, outcome{Peer: peer, Got: "b"})
			if after := n1.flowsVia(t); after != before+1 {
				t.Errorf("%s of a pod to %s: %d translated flows became %d", network, vip, before, after)
			}
		}
	}
	// A node's own ports at any of its addresses for itself: for its processes, not for pods.
	own4, own6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
	for _, at := range []netip.Addr{own4, own6} {
		for _, proto := range []uint8{6, 17} {
			s := datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.AddrPortFrom(at, 80), Proto: proto, Scope: datapath.ServiceNode}, ID: 8}
			for _, to := range b.addrs() {
				if to.Is4() == at.Is4() {
					s.Backends = append(s.Backends, netip.AddrPortFrom(to, service))
				}
			}
			must(t, n1.maps.UpsertService(s))
		}
	}
	for _, at := range []netip.Addr{own4, netip.MustParseAddr("127.0.0.5"), own6} {
		for _, network := range []string{"tcp", "udp", "unconnected"} {
			try("the node to itself", n1.ns, network, at, outcome{Peer: netip.AddrPortFrom(at, 80).String(), Got: "b"})
		}
		try("a pod to itself", a.ns, "tcp", at, outcome{Err: "refused"})
	}
	// The error that a process gets from services that are not for it.
	for _, vip := range []netip.Addr{vip4, vip6} {
		n1.publish(t, func(s *datapath.Service) { s.RemoteOnly = true })
		try("the node, to backends elsewhere", n1.ns, "tcp", vip, outcome{Err: "no route to host"})
		n1.publish(t, func(s *datapath.Service) { s.LimitSources = true }, b)
		try("the node, not in the ranges", n1.ns, "tcp", vip, outcome{Err: "not permitted"})
		n1.publish(t, func(s *datapath.Service) {
			s.LimitSources, s.Sources = true, []netip.Prefix{netip.PrefixFrom(n1.cfg.NodeIPv4, 24).Masked()}
			if s.Addr.Addr().Is6() {
				s.Sources = []netip.Prefix{netip.PrefixFrom(n1.cfg.NodeIPv6, 64).Masked()}
			}
		}, b)
		try("the node, in the ranges", n1.ns, "tcp", vip, outcome{Peer: netip.AddrPortFrom(vip, 80).String(), Got: "b"})
	}
	// An address that is no service's is the process's own business.
	if got := clientIn(t, n1.ns, cgroup, "tcp", netip.AddrPortFrom(a.ep.IPv4, service)); got.Got != "a" {
		t.Errorf("the node to a pod directly: %+v", got)
	}

	n1.cfg.CgroupRoot = ""
	must(t, n1.loader.Configure(n1.cfg))
	if got := clientIn(t, n1.ns, cgroup, "udp", netip.AddrPortFrom(vip4, 80)); got.Err == "" {
		t.Errorf("without hooks: %+v", got)
	}
}

// flowsVia counts the flows that go through a service.
func (n *testNode) flowsVia(t *testing.T) (count int) {
	t.Helper()
	must(t, n.maps.CT(func(e datapath.CTEntry) bool {
		if e.Service.IsValid() {
			count++
		}
		return true
	}))
	return count
}
