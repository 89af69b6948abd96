package agent

import (
	"bufio"
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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
)

// askerEnv, if set, makes the test's program one that asks a service by datagrams; see askForEver.
const askerEnv = "HAWSER_TEST_ASKER"

// askForEver connects a socket for datagrams and asks who is there, again and again, until its
// input ends. It says who answers when that is another than before, and when its socket was ended;
// then it connects anew.
func askForEver(to string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	last, buf := "", make([]byte, 100)
	for {
		c, err := net.Dial("udp", to)
		if err != nil {
			fmt.Println("cannot connect:", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for {
			_, err := c.Write([]byte("who"))
			if err == nil {
				_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				var n int
				if n, err = c.Read(buf); err == nil && string(buf[:n]) != last {
					last = string(buf[:n])
					fmt.Println(last)
				}
			}
			// The first who waits for an answer gets an error, and a sender that there is no
			// destination.
			if errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EDESTADDRREQ) {
				fmt.Println("ended")
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		c.Close()
	}
}

// asker is such a program on a node, as one of its own processes.
func (n *machineNode) asker(cgroup string, to netip.AddrPort) (said <-chan string) {
	n.t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		n.t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), askerEnv+"="+to.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	in, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	n.ns.Must(n.t, cmd.Start)
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	n.t.Cleanup(func() {
		in.Close()
		for range lines {
		}
		_ = cmd.Wait()
	})
	return lines
}

// answerAs answers datagrams at an address by a name.
func answerAs(t *testing.T, ns namespace, at netip.AddrPort, name string) {
	t.Helper()
	c := listenUDP(t, ns, at)
	if c == nil {
		t.FailNow()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteToUDPAddrPort([]byte(name), from)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
}

// TestSocketsOfFormerBackends: a process of the node whose socket for datagrams is connected to a
// service is notified when its backend is none any more, and meets another when it connects anew;
// also when the backend went while no agent ran. Who has another backend is left alone.
func TestSocketsOfFormerBackends(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	root, err := loader.FindCgroup()
	if err != nil {
		t.Fatal(err)
	}
	cgroup := testenv.NewCgroup(t, root)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes", "--kube-proxy-replacement", "--cgroup-root", cgroup)
	n.start()
	var pods []*machinePod
	for i := range 3 {
		p := c.pod(n, fmt.Sprintf("dns-%d", i), nil)
		answerAs(t, p.ns, netip.AddrPortFrom(p.ip4, 5353), p.name)
		pods = append(pods, p)
	}
	slices := c.client.Kube.DiscoveryV1().EndpointSlices("default")
	service := func(name string, first *machinePod) netip.AddrPort {
		t.Helper()
		svc, err := c.client.Kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		port, proto, portName := int32(5353), corev1.ProtocolUDP, "dns"
		if _, err := slices.Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{first.ip4.String()}}},
			Ports:     []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &proto}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 53)
	}
	move := func(name string, to *machinePod) {
		t.Helper()
		s, err := slices.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			s.Endpoints[0].Addresses[0] = to.ip4.String()
			_, err = slices.Update(t.Context(), s, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	says := func(what string, said <-chan string, want ...string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for len(want) > 0 {
			select {
			case got := <-said:
				if strings.HasPrefix(got, "cannot connect") {
					continue
				}
				if got != want[0] {
					t.Fatalf("%s: it says %q, want %q", what, got, want)
				}
				want = want[1:]
			case <-deadline:
				t.Fatalf("%s: it does not say %q", what, want)
			}
		}
	}
	a, b := n.asker(cgroup, service("a", pods[0])), n.asker(cgroup, service("b", pods[0]))
	says("a at first", a, "dns-0")
	says("b at first", b, "dns-0")
	move("a", pods[1])
	says("a, whose backend went", a, "ended", "dns-1")
	n.kill()
	move("a", pods[2])
	n.start()
	says("a, whose backend went while no agent ran", a, "ended", "dns-2")
	// The same backend, by another service, went on all the time.
	move("b", pods[1])
	says("b, whose backend went at last", b, "ended", "dns-1")
	n.stop()
}
