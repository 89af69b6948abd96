package agent

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// ask sends a datagram of the given size until it is answered, and returns whether it was. With
// df it must not be fragmented on its way.
func ask(t testing.TB, ns namespace, to netip.AddrPort, size int, df bool, timeout time.Duration) error {
	t.Helper()
	c := dialUDP(t, ns, to)
	if c == nil {
		t.FailNow()
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	mode4, mode6 := unix.IP_PMTUDISC_DONT, unix.IPV6_PMTUDISC_DONT
	if df {
		mode4, mode6 = unix.IP_PMTUDISC_DO, unix.IPV6_PMTUDISC_DO
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		if to.Addr().Is4() {
			serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, mode4)
		} else {
			serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, mode6)
		}
	}); err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	msg := make([]byte, size)
	for i := range msg {
		msg[i] = byte(rand.Uint32())
	}
	buf := make([]byte, 64<<10)
	for deadline := time.Now().Add(timeout); ; {
		if _, err := c.Write(msg); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := c.Read(buf)
		if err == nil && bytes.Equal(buf[:n], msg) {
			return nil
		}
		if err == nil {
			return fmt.Errorf("the answer of %d bytes is not the question of %d", n, size)
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// ping sends echo requests until one is answered.
func ping(t testing.TB, ns namespace, to netip.Addr, timeout time.Duration) error {
	t.Helper()
	network, listen, proto := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, listen, proto = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var c *icmp.PacketConn
	if err := ns.Do(func() (err error) { c, err = icmp.ListenPacket(network, listen); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id := int(rand.Uint32() & 0xffff)
	buf := make([]byte, 2048)
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		b, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("hawser")}}).Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				break
			}
			m, err := icmp.ParseMessage(proto, buf[:n])
			if echo, ok := m.Body.(*icmp.Echo); err == nil && m.Type == reply && ok && echo.ID == id {
				return nil
			}
		}
	}
	return errors.New("no answer to an echo request")
}

// transfer sends megabytes through one connection there and back.
func transfer(t testing.TB, ns namespace, to netip.AddrPort, bytesToSend int) error {
	t.Helper()
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = net.DialTimeout("tcp", to.String(), 5*time.Second); return err }); err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	block := make([]byte, 1<<16)
	for i := range block {
		block[i] = byte(rand.Uint32())
	}
	sent := make(chan error, 1)
	go func() {
		for range bytesToSend / len(block) {
			if _, err := c.Write(block); err != nil {
				sent <- err
				return
			}
		}
		sent <- c.(*net.TCPConn).CloseWrite()
	}()
	back := make([]byte, len(block))
	for i := range bytesToSend / len(block) {
		if _, err := io.ReadFull(c, back); err != nil {
			return fmt.Errorf("after %d bytes: %w", i*len(block), err)
		}
		if !bytes.Equal(back, block) {
			return fmt.Errorf("block %d came back changed: %s...", i, hex.EncodeToString(back[:8]))
		}
	}
	return <-sent
}

const patient, impatient = 5 * time.Second, 400 * time.Millisecond

// reaches checks that everything gets through to an echo server: all protocols, the largest packet
// that the path takes in one piece, and ones in many.
func reaches(t *testing.T, what string, ns namespace, to netip.AddrPort, mtu int) {
	t.Helper()
	if err := ping(t, ns, to.Addr(), patient); err != nil {
		t.Errorf("%s %s: %v", what, to, err)
	}
	if err := ask(t, ns, to, 100, false, patient); err != nil {
		t.Errorf("%s %s: UDP: %v", what, to, err)
	}
	if err := once(ns, to, patient); err != nil {
		t.Errorf("%s %s: TCP: %v", what, to, err)
	}
	headers := 28
	if to.Addr().Is6() {
		headers = 48
	}
	if err := ask(t, ns, to, mtu-headers, true, patient); err != nil {
		t.Errorf("%s %s: one packet of %d bytes: %v", what, to, mtu, err)
	}
	if err := ask(t, ns, to, 8000, false, patient); err != nil {
		t.Errorf("%s %s: 8000 bytes in fragments: %v", what, to, err)
	}
	if err := transfer(t, ns, to, 8<<20); err != nil {
		t.Errorf("%s %s: 8 MiB over TCP: %v", what, to, err)
	}
}

// refused checks that nothing gets through.
func refused(t *testing.T, what string, ns namespace, to netip.AddrPort) {
	t.Helper()
	if ask(t, ns, to, 100, false, impatient) == nil {
		t.Errorf("%s %s: UDP got through", what, to)
	}
	if ask(t, ns, to, 8000, false, impatient) == nil {
		t.Errorf("%s %s: fragments got through", what, to)
	}
	if once(ns, to, impatient) == nil {
		t.Errorf("%s %s: TCP got through", what, to)
	}
}

// routeVia adds a route to the pods' networks to a namespace outside.
func routeVia(t testing.TB, ns *testenv.NetNS, dst, via string) {
	t.Helper()
	h := ns.Netlink(t)
	p := netip.MustParsePrefix(dst)
	if err := h.RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Gw: net.ParseIP(via),
	}); err != nil {
		t.Fatal(err)
	}
}

// TestOneNode: pods, their node and what is outside the cluster.
func TestOneNode(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.start()
	cfg, err := n.client.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mtu := cfg.Status.RouteMTU
	a, b := n.attached("a", map[string]string{"app": "a"}), n.attached("b", map[string]string{"app": "b"})
	for _, to := range b.both(80) {
		serveEcho(t, b.ns, to)
		reaches(t, "pod to pod", a.ns, to, mtu)
		reaches(t, "node to pod", n.ns, to, mtu)
	}
	routeVia(t, outside, pods4, node4)
	routeVia(t, outside, pods6, node6)
	for _, to := range b.both(80) {
		reaches(t, "outside to pod", outside, to, mtu)
	}
	for i, ip := range []string{node4, node6} {
		to := netip.AddrPortFrom(netip.MustParseAddr(ip), 8080)
		serveEcho(t, n.ns, to)
		reaches(t, "pod to its node", a.ns, to, mtu)
		router := []rest.NodeAddressingElement{cfg.Status.Addressing.IPv4, cfg.Status.Addressing.IPv6}[i].IP
		if err := ping(t, a.ns, netip.MustParseAddr(router), patient); err != nil {
			t.Errorf("pod to its router %s: %v", router, err)
		}
	}
	for i, ip := range []string{outside4, outside6} {
		to := netip.AddrPortFrom(netip.MustParseAddr(ip), 8080)
		serveEcho(t, outside, to)
		reaches(t, "pod to the outside", a.ns, to, mtu)
		// The outside sees the node's address, not the pod's.
		plain := listenUDP(t, outside, netip.AddrPortFrom(to.Addr(), 8081))
		c := dialUDP(t, a.ns, netip.AddrPortFrom(to.Addr(), 8081))
		if _, err := c.Write([]byte("who am I")); err != nil {
			t.Fatal(err)
		}
		_ = plain.SetReadDeadline(time.Now().Add(patient))
		_, from, err := plain.ReadFromUDPAddrPort(make([]byte, 64))
		if want := []string{node4, node6}[i]; err != nil || from.Addr().Unmap().String() != want {
			t.Errorf("the outside sees %v, %v; want %s", from, err, want)
		}
		c.Close()
		plain.Close()
	}
	// Forged sources go nowhere, and are counted.
	forged := dialForged(t, a, b)
	if forged {
		t.Error("a packet with a forged source got through")
	}
	m, err := n.client.Map(t.Context(), "metrics")
	if err != nil || !slices.ContainsFunc(m.Cache, func(e rest.BPFMapEntry) bool { return e.Metric.Packets > 0 && e.Key != "" }) {
		t.Errorf("counters: %+v, %v", m, err)
	}
}

// dialForged sends from pod a with an address that is not its own, and returns whether b observed
// it.
func dialForged(t *testing.T, a, b *machinePod) bool {
	t.Helper()
	h := a.ns.Netlink(t)
	link, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := netlink.ParseAddr("10.0.1.200/32")
	if err := h.AddrAdd(link, addr); err != nil {
		t.Fatal(err)
	}
	server := listenUDP(t, b.ns, netip.AddrPortFrom(b.ip4, 82))
	defer server.Close()
	var c *net.UDPConn
	a.ns.Must(t, func() (err error) {
		c, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("10.0.1.200")}, &net.UDPAddr{IP: b.ip4.AsSlice(), Port: 82})
		return err
	})
	defer c.Close()
	for range 5 {
		_, _ = c.Write([]byte("forged"))
	}
	_ = server.SetReadDeadline(time.Now().Add(impatient))
	_, _, err = server.ReadFromUDP(make([]byte, 64))
	return err == nil
}

// TestTwoNodes: pods of two nodes that share an etcd, with encapsulation and without.
func TestTwoNodes(t *testing.T) {
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			store, n1, n2 := nodesWithStore(t, "--routing-mode", mode)
			for _, n := range []*machineNode{n1, n2} {
				n.policy("web.yaml", denyWeb)
				n.start()
			}
			cfg, err := n1.client.Config(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			mtu := cfg.Status.RouteMTU
			if mtu == 0 {
				mtu = cfg.Status.DeviceMTU
			}
			if want := map[string]int{"tunnel": 1450, "native": 1500}[mode]; mtu != want {
				t.Errorf("the MTU of pods is %d, want %d", mtu, want)
			}
			front, intruder := n1.attached("front", map[string]string{"app": "front"}), n1.attached("intruder", map[string]string{"app": "intruder"})
			web, open := n2.attached("web", map[string]string{"app": "web"}), n2.attached("open", map[string]string{"app": "open"})
			if a, b := front.endpoint().Status.Identity.ID, web.endpoint().Status.Identity.ID; a == b {
				t.Fatalf("front and web share identity %d", a)
			}
			for _, to := range open.both(80) {
				serveEcho(t, open.ns, to)
				reaches(t, "to a pod without policy", front.ns, to, mtu)
				reaches(t, "node to the other node's pod", n1.ns, to, mtu)
			}
			for _, to := range web.both(80) {
				serveEcho(t, web.ns, to)
				if err := ask(t, front.ns, to, mtu-60, true, patient); err != nil {
					t.Errorf("front to web %s: %v", to, err)
				}
				if err := transfer(t, front.ns, to, 4<<20); err != nil {
					t.Errorf("front to web %s: %v", to, err)
				}
				refused(t, "intruder to web", intruder.ns, to)
			}
			for _, to := range web.both(81) {
				serveEcho(t, web.ns, to)
				refused(t, "front to another port of web", front.ns, to)
			}
			// Both agents killed and started again under traffic between the nodes.
			var flows []*flow
			for _, to := range web.both(80) {
				flows = append(flows, startFlow(t, "front to web "+to.String(), front.ns, to))
			}
			for i := range count(4, 2, 100) {
				n := []*machineNode{n1, n2}[i%2]
				n.kill()
				n.start()
			}
			for _, f := range flows {
				if sent, lost := f.finish(); len(lost) > 0 {
					t.Errorf("%s: %d of %d datagrams got lost, the first sent at %s", f.name, len(lost), sent, lost[0].UTC().Format("15:04:05.000"))
					for _, n := range []*machineNode{n1, n2} {
						counters, err := n.client.Map(t.Context(), "metrics")
						for _, c := range counters.Cache {
							t.Logf("%s: %s %s", n.name, c.Key, c.Value)
						}
						if err != nil {
							t.Log(err)
						}
					}
				}
			}
			refused(t, "intruder to web after the restarts", intruder.ns, web.both(80)[0])
			// Without the store everything that is known goes on, and pods come and go.
			store.Stop()
			for _, to := range web.both(80) {
				if err := ask(t, front.ns, to, 100, false, patient); err != nil {
					t.Errorf("without the store, front to web %s: %v", to, err)
				}
			}
			refused(t, "intruder to web without the store", intruder.ns, web.both(80)[0])
			n2.kill()
			n2.launch()
			for _, to := range web.both(80) {
				if err := ask(t, front.ns, to, 100, false, patient); err != nil {
					t.Errorf("agent started without the store, front to web %s: %v", to, err)
				}
			}
			// A pod of an identity that the node knows starts at once, and its rules hold.
			n2.serving(false)
			began := time.Now()
			late := n2.attached("web-2", map[string]string{"app": "web"})
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("a pod with known labels took %v without the store", took)
			}
			if a, b := late.endpoint().Status.Identity.ID, web.endpoint().Status.Identity.ID; a != b {
				t.Errorf("a pod like web has identity %d without the store, web has %d", a, b)
			}
			serveEcho(t, late.ns, late.both(81)[0])
			refused(t, "open to another port of the pod that started without the store", open.ns, late.both(81)[0])
			// So does one of labels that no pod had, with a temporary identity. Its rules hold, and
			// no other node knows it by its labels.
			began = time.Now()
			fresh := n2.attached("web-3", map[string]string{"app": "web", "release": "new"})
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a pod with unknown labels took %v without the store", took)
			}
			fresh.temporary("without the store", identity.Init)
			gone := n2.attached("gone", map[string]string{"app": "gone"})
			gone.temporary("without the store", identity.Init)
			if err := gone.del(); err != nil {
				t.Error(err)
			}
			serveEcho(t, fresh.ns, fresh.both(81)[0])
			refused(t, "open to another port of the pod with a temporary identity", open.ns, fresh.both(81)[0])
			store.Start()
			n2.ready()
			for end := time.Now().Add(60 * time.Second); identity.ID(fresh.endpoint().Status.Identity.ID).IsTemporary(); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the store is back, and the pod keeps its temporary identity")
				}
			}
			serveEcho(t, fresh.ns, fresh.both(80)[0])
			if err := ask(t, front.ns, fresh.both(80)[0], 100, false, patient); err != nil {
				t.Errorf("front to the pod that had a temporary identity: %v", err)
			}
			onlyUsed(t, store, n1, n2)
			if err := ask(t, front.ns, late.both(80)[0], 100, false, 0); err == nil {
				t.Error("a port without a server answers")
			}
			serveEcho(t, late.ns, late.both(80)[0])
			if err := ask(t, front.ns, late.both(80)[0], 100, false, patient); err != nil {
				t.Errorf("front to the pod that started without the store: %v", err)
			}
			if err := late.del(); err != nil {
				t.Error(err)
			}
			if err := web.del(); err != nil {
				t.Error(err)
			}
			n1.stop()
			n2.stop()
		})
	}
}

// onlyUsed waits until the store has references only to identities that endpoints of the nodes
// have, and one for each.
func onlyUsed(t testing.TB, store *kvstoretest.Etcd, nodes ...*machineNode) {
	t.Helper()
	c := store.Client()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		want := map[string]int{}
		for _, n := range nodes {
			used := map[int]bool{}
			eps, err := n.client.Endpoints(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, ep := range eps {
				if id := ep.Status.Identity.ID; id >= int(identity.MinGlobal) && !used[id] {
					used[id] = true
					want[strconv.Itoa(id)]++
				}
			}
		}
		r, err := c.Get(t.Context(), "cilium/state/identities/v1/value/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]int{}
		for _, kv := range r.Kvs {
			have[string(kv.Value)]++
		}
		diff := cmp.Diff(want, have)
		if diff == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("references of nodes to identities (-want +have):\n%s", diff)
		}
	}
}

// TestPolicyChange: verdicts follow the files, also for flows that are established, and a file
// that became faulty leaves its last good version in force.
func TestPolicyChange(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	web, front := n.attached("web", map[string]string{"app": "web"}), n.attached("front", map[string]string{"app": "front"})
	var flows []*flow
	var conns []net.Conn
	for _, to := range web.both(90) {
		serveEcho(t, web.ns, to)
		f := startFlow(t, "front to web "+to.String(), front.ns, to)
		defer f.finish()
		flows = append(flows, f)
		var c net.Conn
		front.ns.Must(t, func() (err error) { c, err = net.DialTimeout("tcp", to.String(), patient); return err })
		defer c.Close()
		conns = append(conns, c)
	}
	// passes reports whether every flow, or none, gets answers for a while.
	passes := func(f *flow) bool {
		_, before := f.counts()
		time.Sleep(150 * time.Millisecond)
		_, after := f.counts()
		return after > before
	}
	until := func(want bool, why string) {
		t.Helper()
		for _, f := range flows {
			deadline := time.Now().Add(40 * time.Second)
			for passes(f) != want {
				if time.Now().After(deadline) {
					for _, name := range []string{"endpoints", "policy", "ct"} {
						m, err := n.client.Map(t.Context(), name)
						for _, c := range m.Cache {
							t.Logf("%s: %s: %s", name, c.Key, c.Value)
						}
						if err != nil {
							t.Log(err)
						}
					}
					t.Fatalf("%s: %s passes %v for 10 s", why, f.name, !want)
				}
			}
		}
	}
	always := func(want bool, why string) {
		t.Helper()
		for range 4 {
			for _, f := range flows {
				if passes(f) != want {
					t.Errorf("%s: %s passes %v", why, f.name, !want)
				}
			}
		}
	}
	exchange := func(c net.Conn, within time.Duration) error {
		_ = c.SetDeadline(time.Now().Add(within))
		if _, err := c.Write([]byte("12345678")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 8))
		return err
	}
	until(true, "without policy")
	for _, c := range conns {
		if err := exchange(c, 20*time.Second); err != nil {
			t.Errorf("without policy: %v", err)
		}
	}
	began := time.Now()
	n.policy("web.yaml", denyWeb)
	until(false, "with a policy for another port")
	t.Logf("the first verdicts changed within %v", time.Since(began).Round(time.Millisecond))
	for _, c := range conns {
		// On a busy machine the flows may have stood still before the verdicts changed.
		for deadline := time.Now().Add(20 * time.Second); exchange(c, time.Second) == nil; {
			if time.Now().After(deadline) {
				t.Error("an established connection survived a policy that does not allow it")
				break
			}
		}
	}
	const faulty = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: web, namespace: default}\nspec: {endpointSelector: {}, ingres: []}\n"
	n.policy("web.yaml", faulty)
	reported := func() rest.PolicyFile {
		t.Helper()
		for deadline := time.Now().Add(40 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			files, err := n.client.PolicyFiles(t.Context())
			if err == nil && len(files) == 1 && files[0].State == rest.PolicyFileStateFaulty {
				return files[0]
			}
			if time.Now().After(deadline) {
				t.Fatalf("the faulty file is not reported: %+v, %v", files, err)
			}
		}
	}
	if f := reported(); f.Error == "" || !f.InForce {
		t.Errorf("the faulty file is shown as %+v, want its error and that the old version is in force", f)
	}
	always(false, "with a faulty file")
	n.kill()
	n.start()
	if f := reported(); !f.InForce {
		t.Errorf("after a restart the faulty file is shown as %+v", f)
	}
	always(false, "with a faulty file after a restart")
	n.policy("web.yaml", "")
	until(true, "without the file")
	n.stop()
}
