package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// balancerLab is a balancer behind a router, with machines on networks of their own.
type balancerLab struct {
	t                    *testing.T
	balancer             *machineNode
	router               *testenv.NetNS
	client, foreign      *testenv.NetNS
	backends             [2]*testenv.NetNS
	backend4, backend6   [2]netip.Addr
	balanced4, balanced6 netip.Addr // addresses that the router leads to the balancer
}

func newBalancerLab(t *testing.T) *balancerLab {
	t.Helper()
	ns := testenv.NewNetNS(t)
	l := &balancerLab{t: t, router: testenv.NewNetNS(t), balanced4: netip.MustParseAddr("198.18.0.80"), balanced6: netip.MustParseAddr("2001:db8:18::80")}
	testenv.Connect(t, ns, "eth0", []string{node4 + "/24", node6 + "/64"}, l.router, "eth0", []string{outside4 + "/24", outside6 + "/64"})
	machine := func(number int) (*testenv.NetNS, netip.Addr, netip.Addr) {
		m := testenv.NewNetNS(t)
		at := func(host int) []string {
			return []string{fmt.Sprintf("10.99.%d.%d/24", number, host), fmt.Sprintf("2001:db8:99:%d::%d/64", number, host)}
		}
		testenv.Connect(t, m, "eth0", at(2), l.router, fmt.Sprintf("m%d", number), at(1))
		defaultRoutes(t, m, fmt.Sprintf("10.99.%d.1", number), fmt.Sprintf("2001:db8:99:%d::1", number))
		return m, netip.MustParsePrefix(at(2)[0]).Addr(), netip.MustParsePrefix(at(2)[1]).Addr()
	}
	l.client, _, _ = machine(1)
	l.foreign, _, _ = machine(2)
	for i := range l.backends {
		l.backends[i], l.backend4[i], l.backend6[i] = machine(3 + i)
	}
	for path, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0"} {
		l.router.Must(t, func() error { return os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644) })
	}
	bin := nodeIn(t, ns, "lb", "", "")
	defaultRoutes(t, ns, outside4, outside6)
	for to, by := range map[netip.Addr]string{l.balanced4: node4, l.balanced6: node6} {
		in(t, l.router, "ip", "route", "add", to.String(), "via", by)
	}
	root, err := loader.FindCgroup()
	if err != nil {
		t.Fatal(err)
	}
	bin.flags = append(bin.flags, "--datapath-mode", "lb-only", "--cgroup-root", testenv.NewCgroup(t, root),
		"--lb-state-file", bin.path("services.yaml"), "--lb-state-file-interval", "50ms")
	l.balancer = bin
	return l
}

func defaultRoutes(t testing.TB, ns *testenv.NetNS, by4, by6 string) {
	t.Helper()
	in(t, ns, "ip", "-4", "route", "add", "default", "via", by4)
	in(t, ns, "ip", "-6", "route", "add", "default", "via", by6)
}

// services writes the file: the service "web" with the backends given, and "empty" with none.
func (l *balancerLab) services(backends ...int) {
	l.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `services:
- metadata: {namespace: default, name: web}
  spec: {type: LoadBalancer, clusterIPs: [10.96.0.80, "fd00:96::80"], ports: [{name: echo, port: 80, nodePort: 30080}, {name: echo-udp, protocol: UDP, port: 80, nodePort: 30080}]}
  status: {loadBalancer: {ingress: [{ip: %s}, {ip: %q}]}}
- metadata: {namespace: default, name: empty}
  spec: {type: LoadBalancer, clusterIP: 10.96.0.81, ports: [{port: 81}, {name: udp, protocol: UDP, port: 81}]}
  status: {loadBalancer: {ingress: [{ip: %s}]}}
- metadata: {namespace: default, name: own}
  spec: {type: LoadBalancer, clusterIP: 10.96.0.82, ports: [{protocol: UDP, port: 82}]}
  status: {loadBalancer: {ingress: [{ip: %s}]}}
endpoints:
- metadata: {namespace: default, name: own, labels: {kubernetes.io/service-name: own}}
  addressType: IPv4
  ports: [{port: 8082, protocol: UDP}]
  endpoints: [{addresses: [%s]}]
`, l.balanced4, l.balanced6.String(), l.balanced4, l.balanced4, l.backend4[0])
	for family, ips := range map[string][2]netip.Addr{"IPv4": l.backend4, "IPv6": l.backend6} {
		fmt.Fprintf(&b, `- metadata: {namespace: default, name: web-%s, labels: {kubernetes.io/service-name: web}}
  addressType: %s
  ports: [{name: echo, port: 8080}, {name: echo-udp, protocol: UDP, port: 8080}]
  endpoints: [`, strings.ToLower(family), family)
		for _, i := range backends {
			fmt.Fprintf(&b, `{addresses: [%q]}, `, ips[i])
		}
		b.WriteString("]\n")
	}
	l.write(b.String())
}

func (l *balancerLab) write(text string) {
	l.t.Helper()
	tmp := l.balancer.path("services.tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(tmp, l.balancer.path("services.yaml")); err != nil {
		l.t.Fatal(err)
	}
}

// addresses are where a client finds the service.
func (l *balancerLab) addresses() []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(l.balanced4, 80), netip.AddrPortFrom(l.balanced6, 80),
		netip.MustParseAddrPort(node4 + ":30080"), netip.MustParseAddrPort("[" + node6 + "]:30080"),
	}
}

// TestLBOnly: a node without pods, and without Kubernetes, leads clients to backends on other
// machines by a file of services. It gives out no address and attaches no pod, a service without
// backends refuses, what is not from the backend does not reach a client, and the kernel goes on
// when the agent ends or the file is broken.
func TestLBOnly(t *testing.T) {
	t.Parallel()
	l := newBalancerLab(t)
	n := l.balancer
	var served [2][2]*echoServer
	for i := range l.backends {
		served[i] = [2]*echoServer{serveEcho(t, l.backends[i], netip.AddrPortFrom(l.backend4[i], 8080)), serveEcho(t, l.backends[i], netip.AddrPortFrom(l.backend6[i], 8080))}
	}
	connections := func(i int) int64 { return served[i][0].connections.Load() + served[i][1].connections.Load() }
	l.services(0, 1)
	n.start()
	reach := func(when string, times int) {
		t.Helper()
		for _, to := range l.addresses() {
			for range times {
				if err := once(l.client, to, patient); err != nil {
					t.Errorf("%s: %s: %v", when, to, err)
				}
			}
			c := dialUDP(t, l.client, to)
			if err := asks(c, "hello", patient); err != nil {
				t.Errorf("%s: %s by datagrams: %v", when, to, err)
			}
			c.Close()
		}
	}
	reach("two backends", 16)
	if connections(0) == 0 || connections(1) == 0 {
		t.Errorf("64 connections: %d and %d at the backends", connections(0), connections(1))
	}

	t.Run("no pods", l.noPods)
	t.Run("without backends", l.refuses)
	t.Run("forged answers", l.forgedAnswers)

	// One backend goes: new flows choose the other.
	l.services(1)
	controllers.Eventually(t, time.Minute, func() string { return l.backendsListed(l.backend4[0], false) })
	before := connections(0)
	reach("one backend", 8)
	if now := connections(0); now != before {
		t.Errorf("%d connections reached a backend that is none any more", now-before)
	}

	// A file that is invalid, or in which nothing is, changes nothing, and the status shows it.
	for text, fault := range map[string]string{"services: [{metadata: {name: web}, spec: {clusterIP: nonsense}}]\n": "nonsense", "": "there is no list"} {
		l.write(text)
		controllers.Eventually(t, time.Minute, func() string {
			if text := l.status(); !strings.Contains(text, fault) {
				return "the status does not name the file: " + text
			}
			return ""
		})
		reach("a broken file", 2)
	}
	n.kill()
	reach("no agent", 4)
	l.emptyAtTheStart(func() { reach("an agent that cannot read its file", 2) })
	l.services(0)
	n.ready()
	controllers.Eventually(t, time.Minute, func() string { return l.backendsListed(l.backend4[1], false) })
	before = connections(1)
	reach("after a restart", 4)
	if now := connections(1); now != before {
		t.Errorf("%d connections reached a backend that went while no agent ran", now-before)
	}
	n.stop()
}

// emptyAtTheStart: an agent that finds its file cut to nothing says so, does not become ready and
// takes no service away.
func (l *balancerLab) emptyAtTheStart(reach func()) {
	l.t.Helper()
	if err := os.Truncate(l.balancer.path("services.yaml"), 0); err != nil {
		l.t.Fatal(err)
	}
	l.balancer.launch()
	controllers.Eventually(l.t, time.Minute, func() string {
		st, err := l.balancer.client.Health(l.t.Context(), false)
		if err != nil {
			return err.Error()
		}
		if slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == partSync && p.State == rest.StateOk }) {
			l.t.Fatal("the agent says that it has observed everything, and there was nothing in the file")
		}
		if i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "services-file" }); i < 0 || st.Parts[i].State != rest.StateFailure ||
			!strings.Contains(st.Parts[i].Msg, "no services are known yet") {
			return fmt.Sprintf("the status does not name the file: %+v", st.Parts)
		}
		return ""
	})
	reach()
}

func (l *balancerLab) status() string {
	l.t.Helper()
	st, err := l.balancer.client.Health(l.t.Context(), false)
	if err != nil {
		l.t.Fatal(err)
	}
	return fmt.Sprintf("%+v", st)
}

// backendsListed reports what is wrong if a backend is in the list of services, or not.
func (l *balancerLab) backendsListed(ip netip.Addr, want bool) string {
	l.t.Helper()
	list, err := l.balancer.client.Services(l.t.Context())
	if err != nil {
		return err.Error()
	}
	found := slices.ContainsFunc(list, func(s rest.Service) bool {
		return s.Spec.Flags.Name == "web" && slices.ContainsFunc(s.Spec.BackendAddresses, func(b rest.BackendAddress) bool { return b.IP == ip.String() })
	})
	if len(list) == 0 || found != want {
		return fmt.Sprintf("%d services; backend %s is listed: %v", len(list), ip, found)
	}
	return ""
}

// noPods: neither the plugin nor the API attaches a pod or gives out an address.
func (l *balancerLab) noPods(t *testing.T) {
	n := l.balancer
	before := n.audit()
	err := n.newPod("web", nil).add()
	if err == nil || !strings.Contains(err.Error(), "lb-only") {
		t.Errorf("ADD on a balancer: %v, want an error that names the mode", err)
	}
	for _, call := range [][3]string{
		{"POST", "/ipam?family=ipv4", ""}, {"POST", "/ipam/10.0.1.7", ""}, {"DELETE", "/ipam/10.0.1.7", ""},
		{"PUT", "/endpoint/cilium-local:0", `{"container-id": "c", "addressing": {"ipv4": "10.0.1.7"}}`},
	} {
		if code, text := n.call(call[0], call[1], call[2], "Content-Type", "application/json"); code != 501 || !strings.Contains(text, "lb-only") {
			t.Errorf("%s %s: %d %s, want 501 and the mode", call[0], call[1], code, text)
		}
	}
	n.sameAudit(before, "after attempts to attach pods")
	cfg, err := n.client.Config(t.Context())
	if err != nil || cfg.Status.DatapathMode != rest.DatapathModeLbOnly || cfg.Status.Addressing.IPv4.Enabled {
		t.Errorf("the configuration says %q, addresses %+v: %v", cfg.Status.DatapathMode, cfg.Status.Addressing, err)
	}
}

// refuses: a service without backends refuses its clients at once.
func (l *balancerLab) refuses(t *testing.T) {
	at := netip.AddrPortFrom(l.balanced4, 81)
	began := time.Now()
	if err := once(l.client, at, patient); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > time.Second {
		t.Errorf("a service without backends, after %v: %v; want a refusal", time.Since(began), err)
	}
	c := dialUDP(t, l.client, at)
	defer c.Close()
	if err := asks(c, "anybody", patient); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a datagram to a service without backends: %v; want a refusal", err)
	}
}

// forgedAnswers: only the backend answers for the service, however many ports others try: a foreign
// host from the backend's port, and the backend's machine from another one. The backend itself
// does the same, and the client sees it.
func (l *balancerLab) forgedAnswers(t *testing.T) {
	c := dialUDP(t, l.client, netip.AddrPortFrom(l.balanced4, 82))
	defer c.Close()
	backend := listenUDP(t, l.backends[0], netip.AddrPortFrom(l.backend4[0], 8082))
	defer backend.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	_ = backend.SetReadDeadline(time.Now().Add(patient))
	if _, _, err := backend.ReadFromUDPAddrPort(buf); err != nil {
		t.Fatalf("the backend is not asked: %v", err)
	}
	foreign := listenUDP(t, l.foreign, netip.MustParseAddrPort("10.99.2.2:8082"))
	defer foreign.Close()
	other := listenUDP(t, l.backends[0], netip.AddrPortFrom(l.backend4[0], 8083))
	defer other.Close()
	for _, x := range []struct {
		from *net.UDPConn
		text string
	}{{foreign, "forged"}, {other, "forged"}, {backend, "answer"}} {
		for port := 61000; port <= 65535; port++ {
			to := netip.AddrPortFrom(netip.MustParseAddr(node4), uint16(port))
			if _, err := x.from.WriteToUDPAddrPort([]byte(x.text), to); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatal(err)
			}
			if port%100 == 0 {
				time.Sleep(time.Millisecond) // queues of the links are short
			}
		}
	}
	for answered := false; !answered; {
		_ = c.SetReadDeadline(time.Now().Add(patient))
		k, err := c.Read(buf)
		switch {
		case err != nil:
			t.Fatalf("the backend's own answer does not come: %v", err)
		case string(buf[:k]) == "answer":
			answered = true
		default:
			t.Errorf("the client got %q from a host that is not its backend", buf[:k])
		}
	}
}

// TestLBOnlyWithPods: a node that has pods does not become one without, and one without may.
func TestLBOnlyWithPods(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	p := n.attached("web", nil)
	n.stop()
	pods := n.flags
	root, err := loader.FindCgroup()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path("services.yaml"), []byte("services: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lb := append(slices.Clone(pods), "--datapath-mode", "lb-only", "--cgroup-root", testenv.NewCgroup(t, root), "--lb-state-file", n.path("services.yaml"))
	n.flags = lb
	n.launch()
	n.died()
	if text := n.logText(); !strings.Contains(text, "drain the node first") {
		t.Error("the agent does not say why it does not start with pods attached")
	}
	n.flags = pods
	n.start()
	if err := p.del(); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.flags = lb
	n.start()
	n.stop()
	n.flags = pods
	n.start()
	n.attached("again", nil)
}

// in runs a command in a namespace.
func in(t testing.TB, ns *testenv.NetNS, name string, args ...string) {
	t.Helper()
	ns.Must(t, func() error {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	})
}

// asks sends a datagram and waits for it to come back.
func asks(c *net.UDPConn, text string, timeout time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err == nil && string(buf[:n]) != text {
		err = fmt.Errorf("%q came back for %q", buf[:n], text)
	}
	return err
}
