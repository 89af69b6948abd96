package nodemanager

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// faultIPv6 begins what is said of IPv6, behind what is said of IPv4.
const faultIPv6 = "no IPv6 addresses for pods"

// startIPv6 decides by chance who has and wants what of IPv6.
func (w *world) startIPv6() {
	w.v.IPv6 = w.r.IntN(3) > 0
	w.v.Limits.IPv6 = w.r.IntN(4)
	for id, s := range w.v.Subnets {
		s.IPv6 = w.r.IntN(2) == 0
		w.v.Subnets[id] = s
	}
	w.v.UsedIPv6 = map[netip.Addr]string{}
}

// assignIPv6 delegates a prefix, or does not. It reports what must not have been asked for.
func (w *world) assignIPv6(i *Interface) string {
	switch {
	case !w.v.IPv6 || w.v.IPv6Rest > 0:
		return "an IPv6 prefix is asked for, unwanted or too early"
	case !w.v.Subnets[i.Subnet].IPv6 || !w.v.Limits.Prefixes:
		return "an IPv6 prefix is asked for where there is none"
	case i.OtherIPv6+len(i.IPv6Prefixes) >= w.v.Limits.IPv6:
		return i.ID + " has no room for an IPv6 prefix"
	case i.Index < w.v.First:
		return "an IPv6 prefix is asked for on an interface whose addresses pods do not get"
	}
	for _, other := range w.v.Attached {
		if other.Index >= w.v.First && len(other.IPv6Prefixes) > 0 {
			return "an IPv6 prefix is asked for, and the node has one"
		}
	}
	if w.r.IntN(3) == 0 {
		w.v.IPv6Fault, w.v.IPv6Rest = "refused", time.Duration(w.r.IntN(4))*time.Second
		return ""
	}
	w.v.IPv6Fault = ""
	i.IPv6Prefixes = append(i.IPv6Prefixes, netip.MustParsePrefix(fmt.Sprintf("2001:db8:0:0:%x::/80", w.made<<8+len(w.log))))
	return ""
}

// others have another user assign IPv6 addresses and prefixes.
func (w *world) others() {
	if i := &w.v.Attached[w.r.IntN(len(w.v.Attached))]; w.r.IntN(40) == 0 {
		i.OtherIPv6 = w.r.IntN(3)
	} else if w.r.IntN(400) == 0 {
		i.IPv6Prefixes = append(i.IPv6Prefixes, netip.MustParsePrefix(fmt.Sprintf("2001:db8:1:0:%x::/80", len(w.log))))
	}
}

// checkIPv6 compares a decision with what is there.
func (w *world) checkIPv6(d Decision) string {
	want := map[netip.Prefix]string{}
	for _, i := range w.v.Attached {
		for _, p := range i.IPv6Prefixes {
			if w.v.IPv6 && i.Index >= w.v.First {
				want[p] = i.ID
			}
		}
	}
	// What was decided is from before the call.
	if d.Step.Call != AssignIPv6 && !maps.Equal(want, d.IPv6Pool) {
		return fmt.Sprintf("IPv6 prefixes of pods are %v, want %v", d.IPv6Pool, want)
	}
	return ""
}

// checkConvergedIPv6 says whether a node at rest has the prefix that it can have, or a status that
// says why not not.
func (w *world) checkConvergedIPv6(d Decision) string {
	has, could, usable := 0, "", 0
	for _, i := range w.v.Attached {
		if i.Index < w.v.First {
			continue
		}
		usable++
		has += len(i.IPv6Prefixes)
		if w.v.Subnets[i.Subnet].IPv6 && i.OtherIPv6+len(i.IPv6Prefixes) < w.v.Limits.IPv6 && w.v.Limits.Prefixes {
			could = i.ID
		}
	}
	reported := strings.Contains(d.Fault, faultIPv6)
	switch {
	case !w.v.IPv6 || has > 0 || usable == 0:
		if reported {
			return "nothing of IPv6 is missing, and the fault is " + d.Fault
		}
	case could != "" && w.v.IPv6Fault == "" && d.Step.Call == Nothing && w.v.IPv6Rest <= 0:
		return "no IPv6 prefix is asked for, and " + could + " can have one"
	case could == "" && !reported:
		return "there is no IPv6, and the status does not say so"
	}
	return ""
}

// TestIPv6Place has each reason for which a node has no IPv6 prefix be said, and IPv4 go first.
func TestIPv6Place(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*View)
		call   Call
		on     string
		fault  string
	}{
		{"the first interface", func(*View) {}, AssignIPv6, "a", ""},
		{"the first whose addresses pods get", func(v *View) { v.First = 1 }, AssignIPv6, "b", ""},
		{"none that is excluded", func(v *View) {
			v.Exclude, v.Attached[0].Tags = map[string]string{"no": "pods"}, map[string]string{"no": "pods"}
		}, AssignIPv6, "b", ""},
		{"the first in a subnet with IPv6", func(v *View) { v.Attached[0].Subnet = "four" }, AssignIPv6, "b", ""},
		{"the first with room", func(v *View) { v.Attached[0].OtherIPv6 = 2 }, AssignIPv6, "b", ""},
		{"unwanted", func(v *View) { v.IPv6 = false }, Nothing, "", ""},
		{"has one", func(v *View) { v.Attached[1].IPv6Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8::/80")} }, Nothing, "", ""},
		{"IPv4 first", func(v *View) { v.PreAllocate = 1 }, Assign, "a", ""},
		{"IPv4 goes on beside what is missing", func(v *View) { v.PreAllocate, v.Limits.IPv6 = 1, 0 }, Assign, "a", "instance type t does not support IPv6"},
		{"not Nitro", func(v *View) { v.Limits.Prefixes = false }, Nothing, "", "instance type t is not built on the Nitro System"},
		{"no CIDR", func(v *View) { v.Attached[0].Subnet, v.Attached[1].Subnet = "four", "four" }, Nothing, "",
			"no IPv6 addresses for pods: subnet four (10.0.4.0/24) has no IPv6 CIDR block: associate one with it, or set --enable-ipv6=false for operator and agents"},
		{"full", func(v *View) { v.Attached[0].OtherIPv6, v.Attached[1].OtherIPv6 = 2, 2 }, Nothing, "", "others have assigned all 2 IPv6 addresses that a, b can hold"},
		{"a subnet that is not known yet", func(v *View) { v.Attached[0].Subnet, v.Attached[1].Subnet = "new", "new" }, Nothing, "", ""},
		{"refused", func(v *View) { v.IPv6Fault, v.IPv6Rest = "permission is missing", time.Second }, Nothing, "", "no IPv6 addresses for pods: permission is missing"},
		{"refused, and tried again", func(v *View) { v.IPv6Fault = "permission is missing" }, AssignIPv6, "a", "permission is missing"},
		{"no interface yet", func(v *View) { v.First = 5 }, Nothing, "", ""},
		{"an address without its prefix", func(v *View) {
			v.UsedIPv6 = map[netip.Addr]string{netip.MustParseAddr("2001:db8::5"): "default/a"}
		}, AssignIPv6, "a", "address 2001:db8::5 of default/a is in no prefix of the instance any more"},
	} {
		v := &View{
			InstanceType: "t", IPv6: true, Limits: Limits{Interfaces: 2, Addresses: 4, Prefixes: true, IPv6: 2}, Now: time.Unix(1000, 0),
			Subnets:  map[string]Subnet{"six": {ID: "six", Free: 9, IPv6: true}, "four": {ID: "four", CIDR: "10.0.4.0/24", Free: 9}},
			Attached: []Interface{{ID: "a", Attachment: "x", Subnet: "six"}, {ID: "b", Attachment: "y", Index: 1, Subnet: "six"}},
		}
		c.change(v)
		d := Decide(v)
		if d.Step.Call != c.call || c.on != "" && d.Step.Interface.ID != c.on || c.fault == "" && d.Fault != "" || !strings.Contains(d.Fault, c.fault) {
			t.Errorf("%s: %s of %q, fault %q", c.name, d.Step.Call, d.Step.Interface.ID, d.Fault)
		}
		if v.IPv6Rest > 0 && d.Again != v.IPv6Rest {
			t.Errorf("%s: looks again after %v", c.name, d.Again)
		}
	}
}

// TestIPv6Subnet has interfaces be made where there is IPv6, as long as the node has no prefix.
func TestIPv6Subnet(t *testing.T) {
	t.Parallel()
	v := &View{
		PreAllocate: 8, First: 1, IPv6: true, Groups: []string{"sg"}, Limits: Limits{Interfaces: 3, Addresses: 4, Prefixes: true, IPv6: 2}, Choice: []string{"four", "six"},
		Subnets:  map[string]Subnet{"six": {ID: "six", Free: 9, IPv6: true}, "four": {ID: "four", Free: 99}},
		Attached: []Interface{{ID: "a", Attachment: "x", Subnet: "four"}},
	}
	made := func(want string) {
		t.Helper()
		if d := Decide(v); d.Step.Call != Create || d.Step.Subnet != want {
			t.Errorf("%s in %q, want %q", d.Step.Call, d.Step.Subnet, want)
		}
	}
	made("six")
	v.IPv6 = false
	made("four")
	v.IPv6 = true
	held := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.2/32"), netip.MustParsePrefix("10.0.0.3/32")}
	v.Attached = append(v.Attached, Interface{ID: "b", Attachment: "y", Index: 1, Subnet: "six", Held: held})
	made("four")
	v.Attached[1].Subnet = "four"
	made("six")
}

// TestIPv6Pool has the spec have the prefixes that are delegated, and nothing else.
func TestIPv6Pool(t *testing.T) {
	t.Parallel()
	p, q := netip.MustParsePrefix("2001:db8:0:0:1::/80"), netip.MustParsePrefix("2001:db8:0:0:2::/80")
	o := &v2.CiliumNode{}
	o.Spec.IPAM.IPv6Pool = v2.AllocationMap{p.String(): {Resource: "a"}, "2001:db8:0:0:2:0:0:0/80": {Resource: "b"}, "nonsense": {}}
	want := fmt.Sprint(map[string]any{"ipam": map[string]any{"ipv6-pool": map[string]any{q.String(): map[string]any{"resource": "b"}, "2001:db8:0:0:2:0:0:0/80": nil, "nonsense": nil}}})
	if got := fmt.Sprint(poolIPv6(o, map[netip.Prefix]string{p: "a", q: "b"})); got != want {
		t.Errorf("the patch is %s, want %s", got, want)
	}
	o.Spec.IPAM.IPv6Pool = v2.AllocationMap{p.String(): {Resource: "a"}}
	if got := poolIPv6(o, map[netip.Prefix]string{p: "a"}); got != nil {
		t.Errorf("all is in line, and the patch is %v", got)
	}
}

// sixless is a cloud in which a node wants IPv6 and an address, and the subnet has neither.
type sixless struct{ reads }

func (*sixless) Describe(_ *v2.CiliumNode, _ *Snapshot, v *View) {
	v.IPv6, v.Groups, v.Choice = true, []string{"sg"}, []string{"s"}
}

// TestIPv6FaultHidesNothing has a node that can have no IPv6 wait after a failure of IPv4: its
// status says both, and that of IPv4 first.
func TestIPv6FaultHidesNothing(t *testing.T) {
	t.Parallel()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	m := newManager(Defaults(), &sixless{}, metrics, slog.New(slog.DiscardHandler))
	m.inv.replace(&Snapshot{
		Subnets:    map[string]Subnet{"s": {ID: "s", Free: 100}},
		Interfaces: []Interface{{ID: "eni", Instance: "i-1", Attachment: "a", Subnet: "s"}},
	}, time.Now())
	m.fault = nil
	o := &v2.CiliumNode{}
	o.Name, o.Spec.InstanceID = "n", "i-1"
	limits := Limits{Interfaces: 2, Addresses: 10, Prefixes: true, IPv6: 10}
	const without = "no IPv6 addresses for pods: subnet s has no IPv6 CIDR block"
	if w := m.decide(o, 0, limits); w.Step.Call != Assign || w.blocked || !strings.HasPrefix(w.Fault, without) {
		t.Errorf("%s, blocked %v: %s", w.Step.Call, w.blocked, w.Fault)
	}
	m.backoff("n", "permission is missing")
	if w := m.decide(o, 0, limits); !w.blocked || !strings.HasPrefix(w.Fault, "permission is missing; "+without) {
		t.Errorf("blocked %v: %s", w.blocked, w.Fault)
	}
	// What fails of IPv6 keeps no other call waiting.
	m.nodes["n"].notBefore = time.Time{}
	m.failedIPv6("n", errors.New("refused"))
	if w := m.decide(o, 0, limits); w.blocked || w.Step.Call != Assign {
		t.Errorf("%s, blocked %v", w.Step.Call, w.blocked)
	}
}
