package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// added runs an ADD for an interface of the pod and returns its result, for CHECK.
func (f *fixture) added(ifName string) (current.Result, map[string]any) {
	f.t.Helper()
	out := f.must("ADD", nil, "CNI_IFNAME="+ifName)
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
	return result, map[string]any{"prevResult": json.RawMessage(out)}
}

// leaves returns the interface through which the pod routes what an address sends to an outside
// one; nothing if it has no route.
func (f *fixture) leaves(from netip.Addr) string {
	f.t.Helper()
	to := netip.MustParseAddr("203.0.113.7")
	if from.Is6() {
		to = netip.MustParseAddr("2001:db8::7")
	}
	routes, err := f.pod.h.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
	if errors.Is(err, unix.ENETUNREACH) {
		return ""
	}
	if err != nil || len(routes) != 1 {
		f.t.Fatalf("the route from %s: %v, %v", from, routes, err)
	}
	link, err := f.pod.h.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		f.t.Fatal(err)
	}
	return link.Attrs().Name
}

func (f *fixture) wantLeaves(when, ifName string, result current.Result) {
	f.t.Helper()
	for _, c := range result.IPs {
		ip, _ := netip.AddrFromSlice(c.Address.IP)
		if got := f.leaves(ip.Unmap()); got != ifName {
			f.t.Errorf("%s: what %s sends leaves by %q, want %q", when, ip, got, ifName)
		}
	}
}

// TestFurtherInterface: a container has a second interface in its namespace. What either address
// sends leaves by its own interface, and all else by the first, until one of them goes.
func TestFurtherInterface(t *testing.T) {
	f := setUp(t)
	first, prev0 := f.added("eth0")
	second, prev1 := f.added("net1")
	both := func(when string) {
		t.Helper()
		f.wantLeaves(when, "eth0", first)
		f.wantLeaves(when, "net1", second)
		for _, any := range []string{"0.0.0.0", "::"} {
			if got := f.leaves(netip.MustParseAddr(any)); got != "eth0" {
				t.Errorf("%s: what has no address yet leaves by %q", when, got)
			}
		}
		f.must("CHECK", prev0)
		f.must("CHECK", prev1, "CNI_IFNAME=net1")
	}
	both("two interfaces")

	// The result says in which table the routes are.
	link, err := f.pod.h.LinkByName("net1")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range first.Routes {
		if r.Table != nil {
			t.Errorf("the first interface has route %v", r)
		}
	}
	for _, r := range second.Routes {
		if r.Table == nil || *r.Table != firstTable+link.Attrs().Index {
			t.Errorf("the second interface has route %v", r)
		}
	}

	// Without its rule, or its routes, the second is not as it was made.
	rules, err := f.pod.rules()
	if err != nil || len(rules) != 2 {
		t.Fatalf("rules of the pod: %v, %v", rules, err)
	}
	for _, r := range rules {
		if err := f.pod.h.RuleDel(&r); err != nil {
			t.Fatal(err)
		}
		_, err := f.run("CHECK", f.conf(prev1), "CNI_IFNAME=net1")
		f.wantError("rule gone", err, cnitypes.ErrInternal, "lacks its route")
		f.must("CHECK", prev0)
		if err := f.pod.h.RuleAdd(&r); err != nil {
			t.Fatal(err)
		}
	}
	both("the rules are back")

	// An ADD that fails, or is killed and repeated, leaves the two as they are, and nothing of a
	// third.
	third := "CNI_IFNAME=net2"
	f.agent.fault = func(call string, w http.ResponseWriter, _ *http.Request) bool {
		if call != "PUT /v1/endpoint/{id}" {
			return false
		}
		answer(w, 500, "injected fault")
		return true
	}
	_, err = f.run("ADD", f.conf(nil), third)
	f.wantError("a third", err, cnitypes.ErrInternal, "injected fault")
	f.agent.fault = nil
	both("a third failed")
	for range 2 {
		if _, err := f.run("ADD", f.conf(nil), third, "HAWSER_CNI_CRASH_AT="+StepAddPod); err == nil {
			t.Fatal("the plugin was not killed")
		}
	}
	f.must("DEL", nil, third)
	both("a third was killed")
	f.agent.expire()
	if now, err := f.pod.rules(); err != nil || len(now) != len(rules) {
		t.Errorf("rules of the pod: %v, %v", now, err)
	}
	if diff := cmp.Diff([]string{"eth0", "lo", "net1"}, links(t, f.pod.h)); diff != "" {
		t.Errorf("interfaces of the pod:\n%s", diff)
	}

	// A DEL of another container that has had the namespace is none of the second.
	f.must("DEL", nil, "CNI_CONTAINERID=former", "CNI_IFNAME=net1")
	both("a DEL of another container")

	f.must("DEL", nil, "CNI_IFNAME=net1")
	if rules, err := f.pod.rules(); err != nil || len(rules) > 0 {
		t.Errorf("rules of an interface that is gone: %v, %v", rules, err)
	}
	f.wantLeaves("the second is gone", "eth0", first)
	f.must("CHECK", prev0)

	second, prev1 = f.added("net1")
	both("the second came again")
	f.must("DEL", nil)
	f.wantLeaves("the first is gone", "net1", second)
	f.must("CHECK", prev1, "CNI_IFNAME=net1")
	first, prev0 = f.added("eth0")
	both("the first came again")
	f.agent.stop()
	f.must("DEL", nil, "CNI_IFNAME=net1")
	f.agent.start()
	f.must("DEL", nil)
	if diff := cmp.Diff([]string{"lo"}, links(t, f.pod.h)); diff != "" {
		t.Errorf("interfaces left in the pod:\n%s", diff)
	}
	if rules, err := f.pod.rules(); err != nil || len(rules) > 0 {
		t.Errorf("rules left in the pod: %v, %v", rules, err)
	}
}

// TestFurtherInterfaceOfOthers: the first interface is another plugin's, of one family. Its routes
// stay, and Hawser's lead its own addresses.
func TestFurtherInterfaceOfOthers(t *testing.T) {
	f := setUp(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	made := &netlink.Veth{LinkAttrs: attrs, PeerName: "veth7c1e4d2a", PeerNamespace: netlink.NsFd(f.node.ns.f.Fd())}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(f.pod.h.LinkAdd(made))
	must(f.pod.h.AddrAdd(made, &netlink.Addr{IPNet: ipNet(netip.MustParseAddr("10.9.0.2"))}))
	must(f.pod.h.LinkSetUp(made))
	must(f.pod.h.RouteAdd(&netlink.Route{LinkIndex: made.Attrs().Index, Dst: anyNet(netip.MustParseAddr("10.9.0.2")), Scope: netlink.SCOPE_LINK}))
	result, prev := f.added("net1")
	f.wantLeaves("beside another plugin's", "net1", result)
	f.must("CHECK", prev, "CNI_IFNAME=net1")
	if got := f.leaves(netip.MustParseAddr("10.9.0.2")); got != "eth0" {
		t.Errorf("what the other plugin's address sends leaves by %q", got)
	}
	if got := f.leaves(netip.MustParseAddr("::")); got != "net1" {
		t.Errorf("IPv6, which the other plugin has not, leaves by %q", got)
	}
	f.must("DEL", nil, "CNI_IFNAME=net1")
	if diff := cmp.Diff([]string{"eth0", "lo"}, links(t, f.pod.h)); diff != "" {
		t.Errorf("interfaces left in the pod:\n%s", diff)
	}
}

// TestInterfacesAtOnce: a runtime attaches the networks of a container side by side.
func TestInterfacesAtOnce(t *testing.T) {
	f := setUp(t)
	const many = 6
	var wg sync.WaitGroup
	outs, errs := make([][]byte, many), make([]error, many)
	for i := range many {
		wg.Go(func() { outs[i], errs[i] = f.run("ADD", f.conf(nil), fmt.Sprint("CNI_IFNAME=net", i)) })
	}
	wg.Wait()
	var main []string
	for i, out := range outs {
		var result current.Result
		if err := errors.Join(errs[i], json.Unmarshal(out, &result)); err != nil {
			t.Fatalf("ADD of net%d: %v", i, err)
		}
		f.wantLeaves("all are there", fmt.Sprint("net", i), result)
		f.must("CHECK", map[string]any{"prevResult": json.RawMessage(out)}, fmt.Sprint("CNI_IFNAME=net", i))
		for _, r := range result.Routes {
			if r.Table == nil {
				main = append(main, r.Dst.String())
			}
		}
	}
	slices.Sort(main)
	if diff := cmp.Diff([]string{"0.0.0.0/0", "10.1.0.1/32", "::/0", "fd00:1::1/128"}, main); diff != "" {
		t.Errorf("routes of the main table (-want +got):\n%s", diff)
	}
	for i := range many {
		f.must("DEL", nil, fmt.Sprint("CNI_IFNAME=net", i))
	}
	f.clean("after DEL")
}
