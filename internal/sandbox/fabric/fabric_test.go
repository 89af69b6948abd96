package fabric

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/testenv"
)

func in(t *testing.T, ns *testenv.NetNS, args ...string) {
	t.Helper()
	ns.Must(t, func() error {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return nil
	})
}

// instance is a namespace whose first interface ends at the router.
type instance struct {
	ns    *testenv.NetNS
	first cloud.Interface
	host  Host
}

func newInstance(t *testing.T, router *testenv.NetNS, k int) instance {
	t.Helper()
	ns := testenv.NewNetNS(t)
	name := fmt.Sprintf("n%d", k)
	ip := netip.MustParseAddr(fmt.Sprintf("10.9.0.%d", 10+k))
	testenv.Connect(t, ns, "eth0", []string{ip.String() + "/24"}, router, name, nil)
	in(t, ns, "ip", "route", "add", "default", "via", "10.9.0.1")
	h := ns.Netlink(t)
	defer h.Close()
	link, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return instance{ns, cloud.Interface{ID: "eni-" + name + "-0", Subnet: "nodes", MAC: link.Attrs().HardwareAddr.String(), Instance: "i-" + name, Primary: ip},
		Host{Name: name, Instance: "i-" + name, Namespace: ns.Path(), First: name}}
}

// eni is a second interface of an instance.
func (i instance) eni(k int, addrs ...string) cloud.Interface {
	out := cloud.Interface{
		ID: fmt.Sprintf("eni-%s-%d", i.host.Name, k), Subnet: "pods", MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", i.first.Primary.As4()[3], k), Instance: i.host.Instance, Index: k,
		Primary: netip.MustParseAddr(addrs[0]),
	}
	for _, a := range addrs[1:] {
		out.Addresses = append(out.Addresses, netip.MustParseAddr(a))
	}
	return out
}

// configure gives a plugged device addresses, and has what they send leave by it.
func (i instance) configure(t *testing.T, dev string, addrs ...string) {
	t.Helper()
	in(t, i.ns, "ip", "link", "set", dev, "up")
	in(t, i.ns, "ip", "route", "add", "10.8.0.1/32", "dev", dev, "table", "100")
	in(t, i.ns, "ip", "route", "add", "default", "via", "10.8.0.1", "dev", dev, "table", "100", "onlink")
	for _, a := range addrs {
		in(t, i.ns, "ip", "addr", "add", a+"/32", "dev", "lo")
		in(t, i.ns, "ip", "rule", "add", "from", a, "lookup", "100", "priority", "111")
	}
}

// reaches sends a datagram from an address to another and reports whether it came.
func reaches(t *testing.T, from instance, src string, to instance, dst string) bool {
	t.Helper()
	var server, client *net.UDPConn
	to.ns.Must(t, func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(dst), Port: 4000})
		return err
	})
	defer server.Close()
	from.ns.Must(t, func() (err error) {
		client, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(src)}, &net.UDPAddr{IP: net.ParseIP(dst), Port: 4000})
		return err
	})
	defer client.Close()
	for range 3 {
		_, _ = client.Write([]byte("x")) // a refusal of the time before is not this one's
		_ = server.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, _, err := server.ReadFromUDPAddrPort(make([]byte, 10)); err == nil {
			return true
		}
	}
	return false
}

// TestFabric plugs interfaces of two instances: addresses are reached where they are assigned, and
// nowhere else; what comes under an address of another interface is dropped; what the cloud takes
// away is unplugged; a namespace that is made anew gets its interfaces again.
func TestFabric(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	router := testenv.NewNetNS(t)
	for path, value := range map[string]string{"ip_forward": "1", "conf/all/rp_filter": "0"} {
		router.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/"+path, []byte(value), 0o644) })
	}
	in(t, router, "ip", "addr", "add", "10.9.0.1/32", "dev", "lo")
	a, b := newInstance(t, router, 1), newInstance(t, router, 2)
	f := Fabric{Router: router.Path(), Hosts: []Host{a.host, b.host}, Gateway: func(p netip.Prefix) netip.Addr { return p.Addr().Next() }}
	view := cloud.View{Subnets: []cloud.Subnet{{ID: "nodes", CIDR: netip.MustParsePrefix("10.9.0.0/24")}, {ID: "pods", CIDR: netip.MustParsePrefix("10.8.0.0/24")}}}
	with := func(more ...cloud.Interface) cloud.View {
		v := view
		v.Interfaces = append([]cloud.Interface{a.first, b.first}, more...)
		return v
	}
	apply := func(v cloud.View) {
		t.Helper()
		for range 2 { // the second finds nothing to do, and breaks nothing
			if err := f.Apply(v); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(with())
	if !reaches(t, a, "10.9.0.11", b, "10.9.0.12") {
		t.Fatal("the first interfaces do not reach each other")
	}
	a1, b1 := a.eni(1, "10.8.0.5", "10.8.0.6"), b.eni(1, "10.8.0.7", "10.8.0.8")
	apply(with(a1, b1))
	a.configure(t, "eth1", "10.8.0.6", "10.8.0.66")
	b.configure(t, "eth1", "10.8.0.8", "10.8.0.88")
	if !reaches(t, a, "10.8.0.6", b, "10.8.0.8") || !reaches(t, b, "10.9.0.12", a, "10.8.0.6") {
		t.Error("assigned addresses are not reached")
	}
	if reaches(t, a, "10.8.0.6", b, "10.8.0.88") {
		t.Error("an unassigned address is reached")
	}
	if reaches(t, a, "10.8.0.66", b, "10.8.0.8") {
		t.Error("a packet passes under an unassigned address")
	}
	in(t, a.ns, "ip", "addr", "add", "10.8.0.8/32", "dev", "lo")
	in(t, a.ns, "ip", "rule", "add", "from", "10.8.0.8", "lookup", "100", "priority", "111")
	if reaches(t, a, "10.8.0.8", b, "10.9.0.12") {
		t.Error("a packet passes under an address of another instance")
	}
	in(t, a.ns, "ip", "addr", "del", "10.8.0.8/32", "dev", "lo")

	// An address moves from one interface to another instance's.
	a1.Addresses = nil
	b1.Addresses = append(b1.Addresses, netip.MustParseAddr("10.8.0.6"))
	apply(with(a1, b1))
	in(t, b.ns, "ip", "addr", "add", "10.8.0.6/32", "dev", "lo")
	if reaches(t, b, "10.9.0.12", a, "10.8.0.66") {
		t.Error("the other's address is reached")
	}
	in(t, a.ns, "ip", "addr", "del", "10.8.0.6/32", "dev", "lo")
	if !reaches(t, a, "10.9.0.11", b, "10.8.0.6") {
		t.Error("an address is not reached at the interface that has it now")
	}

	// Detached, and another interface in its place.
	apply(with(b1))
	names := a.ns.LinkNames(t)
	for _, n := range names {
		if n == "eth1" {
			t.Error("an interface that was detached is still plugged in")
		}
	}
	other := a.eni(1, "10.8.0.9")
	other.ID, other.MAC = "eni-other", "02:00:00:00:99:99"
	apply(with(other, b1))
	h := a.ns.Netlink(t)
	defer h.Close()
	if link, err := h.LinkByName("eth1"); err != nil || link.Attrs().HardwareAddr.String() != other.MAC {
		t.Errorf("the new interface: %v, %v", link, err)
	} else if link.Attrs().OperState == netlink.OperUp {
		t.Error("a device that was just plugged in is up by itself")
	}
	// A reboot loses what is plugged in; it comes back.
	in(t, a.ns, "ip", "link", "del", "eth1")
	apply(with(other, b1))
	if _, err := h.LinkByName("eth1"); err != nil {
		t.Errorf("the interface does not come back: %v", err)
	}
}

// TestGatewayAnswersEveryAddress: a node asks for its gateway's hardware address on a second
// interface, which has no address itself, under the one of its first: pods' packets leave it only
// if the gateway answers, as those of clouds do. What is no question is dropped as before.
func TestGatewayAnswersEveryAddress(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	router := testenv.NewNetNS(t)
	for path, value := range map[string]string{"ip_forward": "1", "conf/all/rp_filter": "0"} {
		router.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/"+path, []byte(value), 0o644) })
	}
	in(t, router, "ip", "addr", "add", "10.9.0.1/32", "dev", "lo")
	a, b := newInstance(t, router, 1), newInstance(t, router, 2)
	f := Fabric{Router: router.Path(), Hosts: []Host{a.host, b.host}, Gateway: func(p netip.Prefix) netip.Addr { return p.Addr().Next() }}
	a1 := a.eni(1, "10.8.0.5", "10.8.0.6")
	view := cloud.View{
		Subnets:    []cloud.Subnet{{ID: "nodes", CIDR: netip.MustParsePrefix("10.9.0.0/24")}, {ID: "pods", CIDR: netip.MustParsePrefix("10.8.0.0/24")}},
		Interfaces: []cloud.Interface{a.first, b.first, a1},
	}
	if err := f.Apply(view); err != nil {
		t.Fatal(err)
	}
	a.configure(t, "eth1")
	in(t, a.ns, "ip", "rule", "add", "from", "10.8.0.0/24", "lookup", "100", "priority", "111")
	pod := instance{ns: testenv.NewNetNS(t)}
	testenv.Connect(t, pod.ns, "eth0", []string{"10.8.0.6/32", "10.8.0.66/32"}, a.ns, "pod", []string{"169.254.1.1/32"})
	in(t, pod.ns, "ip", "route", "add", "default", "via", "169.254.1.1", "dev", "eth0", "onlink")
	for _, ip := range []string{"10.8.0.6/32", "10.8.0.66/32"} {
		in(t, a.ns, "ip", "route", "add", ip, "dev", "pod")
	}
	a.ns.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) })
	if !reaches(t, pod, "10.8.0.6", b, "10.9.0.12") {
		t.Error("a pod's packets do not leave by an interface without an address")
	}
	if reaches(t, pod, "10.8.0.66", b, "10.9.0.12") {
		t.Error("a pod's packet passes under an unassigned address")
	}
	// The node's own address by the second interface is refused as a source of packets still.
	in(t, a.ns, "ip", "route", "replace", "10.9.0.12/32", "via", "10.8.0.1", "dev", "eth1", "onlink")
	if reaches(t, a, "10.9.0.11", b, "10.9.0.12") {
		t.Error("a packet passes under the address of another interface of the instance")
	}
}
