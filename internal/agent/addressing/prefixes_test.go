package addressing

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
)

// TestPrefixesOfInvalidStatus: what is invalid of a status's IPv6 prefixes is said and left out;
// the interface, with its IPv4 addresses, is not.
func TestPrefixesOfInvalidStatus(t *testing.T) {
	t.Parallel()
	many := make([]string, 200)
	for n := range many {
		many[n] = fmt.Sprintf("fd00:98:0:1:%x::/80", n+100)
	}
	for name, c := range map[string]struct {
		prefixes []string
		left     int
	}{
		"good":                     {[]string{prefixAt(1).String(), "2600:1f18:0:1:2::/80"}, 2},
		"twice":                    {[]string{prefixAt(1).String(), prefixAt(1).String()}, 1},
		"no prefix":                {[]string{"pods"}, 0},
		"an address":               {[]string{"2600:1f18::1"}, 0},
		"of IPv4":                  {[]string{"10.0.0.0/28"}, 0},
		"of mapped IPv4":           {[]string{"::ffff:10.0.0.0/112"}, 0},
		"a subnet":                 {[]string{"fd00:98:0:1::/64"}, 0},
		"everything":               {[]string{"::/0"}, 0},
		"longer":                   {[]string{"fd00:98:0:1::/96"}, 0},
		"an address's":             {[]string{"fd00:98:0:1::5/80"}, 0},
		"spelled in another way":   {[]string{"fd00:0098:0:1:5::/80"}, 0},
		"groups":                   {[]string{"ff02::/80"}, 0},
		"of links":                 {[]string{"fe80::/80"}, 0},
		"this machine":             {[]string{"::/80"}, 0},
		"the metadata service":     {[]string{"fd00:ec2::/80"}, 0},
		"another interface's":      {[]string{prefixAt(0).String()}, 0},
		"without end":              {many, maxPrefixes - 1},
		"a good one beside others": {[]string{"::/0", prefixAt(1).String(), "x"}, 1},
	} {
		o := withPrefixes(eniNode(1, map[int][]string{0: {"10.0.0.9"}, 1: {"10.0.1.9"}}), 0)
		e := o.Status.ENI.ENIs["eni-1"]
		e.IPv6Prefixes = c.prefixes
		o.Status.ENI.ENIs["eni-1"] = e
		list, err := interfacesOf(ENI, ipam.Both, o, nil)
		if len(list) != 2 || len(list[0].Prefixes) != 1 || len(list[1].Prefixes) != c.left {
			t.Errorf("%s: %+v", name, list)
		}
		if faulty := c.left < len(c.prefixes) && name != "twice"; (err != nil) != faulty || err != nil && (!strings.Contains(err.Error(), `"eni-1"`) || len(err.Error()) > 4096) {
			t.Errorf("%s: it is said: %v", name, err)
		}
		if list, err := interfacesOf(ENI, ipam.IPv4, o, nil); err != nil || len(list) != 2 || list[0].Prefixes != nil {
			t.Errorf("%s, of a node without IPv6: %+v, %v", name, list, err)
		}
	}
	// Of two that claim one it is of that which had it, while pods have addresses of that.
	o := withPrefixes(eniNode(1, map[int][]string{0: nil, 1: nil}), 1)
	needed, err := interfacesOf(ENI, ipam.Both, o, nil)
	if err != nil || len(needed) != 2 {
		t.Fatal(needed, err)
	}
	e := o.Status.ENI.ENIs["eni-0"]
	e.IPv6Prefixes = []string{prefixAt(1).String()}
	o.Status.ENI.ENIs["eni-0"] = e
	for _, hidden := range []bool{false, true} {
		if hidden {
			delete(o.Status.ENI.ENIs, "eni-1")
		}
		list, err := interfacesOf(ENI, ipam.Both, o, needed[1:])
		if err == nil || len(list) != 2 || len(list[0].Prefixes) != 0 || len(list[1].Prefixes) != 1 || list[1].Kept != hidden {
			t.Errorf("%+v, %v", list, err)
		}
	}
}

// prefixed is a node on AWS whose second interface has a prefix.
type prefixed struct {
	*testing.T
	*Singles
	dir    string
	pool   *ipam.IPAM
	kernel *kernel
}

// object is the node's object as it should be.
func (p *prefixed) object(generation int64) *v2.CiliumNode {
	return withPrefixes(eniNode(generation, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.10", "10.0.1.11", "10.0.1.12"}}), 1)
}

// give asks for an address, which is to be given or not.
func (p *prefixed) give(want bool) (ip netip.Addr) {
	p.Helper()
	r, err := p.pool.AllocateNext(ipam.IPv6, "ns/p", "", false)
	if (err == nil) != want {
		p.Errorf("given: %+v, %v", r.IPv6, err)
	}
	if err == nil {
		if ip = r.IPv6.IP; !prefixAt(1).Contains(ip) || !p.kernel.leads(ip) {
			p.Errorf("%s is given", ip)
		}
	}
	return ip
}

// newPrefixed makes one whose object has not been observed.
func newPrefixed(t *testing.T) *prefixed {
	t.Helper()
	p := &prefixed{T: t, dir: t.TempDir(), kernel: &kernel{plugged: map[string]bool{macOf(0): true}}}
	p.Singles, p.pool = eniSinglesOf(t, p.dir, ipam.Both)
	return p
}

// begin connects the interfaces, of which the second is plugged or not.
func (p *prefixed) begin(plugged bool) *recorder {
	p.Helper()
	p.kernel.plug(macOf(1), plugged)
	p.Connect(Uplinks{Network: p.kernel, Masquerade: ipam.IPv4, NativeCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:98::/56")}})
	p.pool.Open()
	return runSingles(p.T, p.Singles)
}

// plug plugs the second interface, or unplugs it.
func (p *prefixed) plug(on bool) {
	p.kernel.plug(macOf(1), on)
	p.InterfacesChanged(nil, nil)
	synctest.Wait()
}

// TestPrefix: a node's IPv6 addresses are given of its prefix while packets of the interface pass;
// nothing of it is agreed to be released.
func TestPrefix(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newPrefixed(t)
		s.Observe(eniNode(1, map[int][]string{0: {"10.0.0.10"}}))
		if err := s.missing(); err == nil || !strings.Contains(err.Error(), "ipv6-pool") {
			t.Errorf("without a prefix: %v", err)
		}
		early := eniNode(2, map[int][]string{0: {"10.0.0.10"}, 1: nil})
		early.Spec.IPAM.IPv6Pool = v2.AllocationMap{prefixAt(1).String(): {Resource: "eni-1"}}
		s.Observe(early)
		if s.missing() == nil {
			t.Error("the pool alone shows a prefix, and nothing is missing")
		}
		s.Observe(s.object(3))
		if err := s.missing(); err != nil {
			t.Errorf("with a prefix: %v", err)
		}
		s.begin(false)
		s.give(false)
		s.plug(true)
		ip := s.give(true)
		if w := s.kernel.want[1]; len(w.Subnets) != 2 || w.Subnets[1].Router() != gateway6 || len(w.Pods) != 4 || w.Pods[3] != prefixAt(1) {
			t.Errorf("the kernel side gets %+v", w)
		} else if slices.ContainsFunc(w.VPCCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
			t.Errorf("IPv6 leaves by the interface to some networks only: %v", w.VPCCIDRs)
		}
		if i, ok := s.InterfaceOf(ip); !ok || i.ID != "eni-1" || i.Gateway != gateway6 {
			t.Errorf("of %s: %+v, %v", ip, i, ok)
		}
		if i, ok := s.InterfaceOf(netip.MustParseAddr("10.0.1.10")); !ok || i.Gateway.String() != "10.0.1.1" {
			t.Errorf("of IPv4: %+v, %v", i, ok)
		}
		status, _ := s.status(s.Singles.object)
		if used := status["ipam"].(map[string]any)["ipv6-used"].(map[string]any); used[ip.String()] != (v2.AllocationIP{Owner: "ns/p", Resource: "eni-1"}) || len(used) != 1 {
			t.Errorf("used: %v", used)
		}

		// Who asks for a release gets none, of an address or of all.
		marked, free := s.object(4), prefixAt(1).Addr().Next().Next()
		marked.Status.IPAM.ReleaseIPv6s = map[string]v2.IPReleaseStatus{prefixAt(1).String(): v2.IPMarkedForRelease, ip.String(): v2.IPMarkedForRelease, free.String(): v2.IPMarkedForRelease}
		s.Observe(marked)
		status, _ = s.status(marked)
		answers := status["ipam"].(map[string]any)["release-ipv6s"].(map[string]any)
		if len(answers) != 2 || answers[ip.String()] != v2.IPDoNotRelease || answers[free.String()] != v2.IPDoNotRelease {
			t.Errorf("releases are answered with %v", answers)
		}
		if got := s.give(true); got != free {
			t.Errorf("%s is given, want %s", got, free)
		}
		s.plug(false)
		s.give(false)
		s.plug(true)
		s.give(true)
	})
	// The node's own address is in it: whoever has written that gets nothing given.
	s := newPrefixed(t)
	s.cfg.Hosts = []netip.Addr{prefixAt(1).Addr().Next()}
	s.Observe(s.object(1))
	if s.missing() == nil {
		t.Error("a node is to begin with a prefix that has its own address")
	}
	s.pool.Open()
	s.give(false)
}

// TestPrefixMasqueraded: what leaves the range that is not masqueraded leaves as the node, so by
// the main table.
func TestPrefixMasqueraded(t *testing.T) {
	t.Parallel()
	s := newPrefixed(t)
	s.Observe(s.object(1))
	native := netip.MustParsePrefix("fd00:98::/56")
	s.Connect(Uplinks{Network: s.kernel, Masquerade: ipam.Both, NativeCIDRs: []netip.Prefix{native, netip.MustParsePrefix("172.20.0.0/16")}})
	var of6 []netip.Prefix
	for _, p := range s.kernel.want[1].VPCCIDRs {
		if p.Addr().Is6() {
			of6 = append(of6, p)
		}
	}
	if len(of6) != 1 || of6[0] != native {
		t.Errorf("by the interface leaves what is sent to %v", of6)
	}
}

// TestPrefixTakenAway: what pods have of a prefix stays over a status and a pool without it, and an
// agent that starts anew then; nothing is given of it, and it goes with the last pod.
func TestPrefixTakenAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newPrefixed(t)
		s.Observe(s.object(1))
		agent := s.begin(true)
		first, second := s.give(true), s.give(true)
		for generation, hide := range []func(o *v2.CiliumNode){
			func(o *v2.CiliumNode) { delete(o.Status.ENI.ENIs, "eni-1") },
			func(o *v2.CiliumNode) { o.Spec.IPAM.IPv6Pool = nil },
			func(o *v2.CiliumNode) { delete(o.Status.ENI.ENIs, "eni-1"); o.Spec.IPAM.IPv6Pool = nil },
			func(o *v2.CiliumNode) { // its prefix alone is not shown
				e := o.Status.ENI.ENIs["eni-1"]
				e.IPv6Prefixes = nil
				o.Status.ENI.ENIs["eni-1"] = e
			},
			func(o *v2.CiliumNode) { // another one, which it has not
				o.Spec.IPAM.IPv6Pool = v2.AllocationMap{prefixAt(0).String(): {Resource: "eni-1"}}
			},
			func(o *v2.CiliumNode) { // it is of another length
				o.Spec.IPAM.IPv6Pool = v2.AllocationMap{"fd00:98:0:1::/64": {Resource: "eni-1"}}
			},
		} {
			o := s.object(int64(2 + generation))
			hide(o)
			s.Observe(o)
			synctest.Wait()
			s.give(false)
			if fault, _, _ := agent.seen(); !strings.Contains(fault, "get no IPv6 address") {
				t.Errorf("%d: it is said: %q", generation, fault)
			}
			next, pool := eniSinglesOf(t, s.dir, ipam.Both)
			next.before = []netip.Addr{first, second}
			pool.AssignAddresses(next.want())
			k := &kernel{plugged: map[string]bool{macOf(0): true, macOf(1): true}}
			for _, ip := range next.before {
				if i, ok := s.InterfaceOf(ip); !ok || i.ID != "eni-1" || !s.kernel.leads(ip) {
					t.Errorf("%d: %s has no way any more: %+v, %v", generation, ip, i, ok)
				}
				if err := pool.Restore(ip, "ns/p"); err != nil {
					t.Errorf("%d: %v", generation, err)
				}
			}
			next.Connect(Uplinks{Network: k})
			pool.Open()
			if !k.leads(first) || !k.leads(second) {
				t.Errorf("%d: addresses of pods have no way after a restart", generation)
			}
			if r, err := pool.AllocateNext(ipam.IPv6, "ns/q", "", false); err == nil {
				t.Errorf("%d: %s is given after a restart", generation, r.IPv6.IP)
			}
		}
		s.Observe(s.object(20))
		synctest.Wait()
		s.give(true)
		if fault, _, _ := agent.seen(); fault != "" {
			t.Errorf("in the end: %q", fault)
		}

		gone := s.object(21)
		gone.Spec.IPAM.IPv6Pool = nil
		s.Observe(gone)
		for _, a := range s.pool.Dump() {
			s.pool.FreeOf(a.IP, a.Owner)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, ok := s.InterfaceOf(first); ok || s.kernel.given(first) {
			t.Error("a prefix that was taken away, and of which no pod has an address, is still given to the kernel side")
		}
	})
}

// TestStateOfBefore: what an agent without prefixes has stored is read, and is written as it was.
func TestStateOfBefore(t *testing.T) {
	t.Parallel()
	const text = `{"uid":"u","generation":3,"pool":{"10.0.0.5":"eni-1","fd00::5":"eni-1"},"leaving":{"10.0.0.5":true}}`
	var state singlesState
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		t.Fatal(err)
	}
	if id, ok := state.Pool.of(netip.MustParseAddr("fd00::5")); id != "eni-1" || !ok || !state.Leaving[netip.MustParsePrefix("10.0.0.5/32")] {
		t.Errorf("%+v", state)
	}
	if data, err := json.Marshal(state); err != nil || string(data) != text {
		t.Errorf("%s, %v", data, err)
	}
	state.Pool[prefixAt(1)] = "eni-1"
	data, err := json.Marshal(state)
	var again singlesState
	if err == nil {
		err = json.Unmarshal(data, &again)
	}
	if id, ok := again.Pool.of(prefixAt(1).Addr().Next()); err != nil || !ok || id != "eni-1" {
		t.Errorf("%s, %v", data, err)
	}
	if err := json.Unmarshal([]byte(`{"pool":{"x":"y"}}`), &again); err == nil {
		t.Error("what is no address is read")
	}
}
