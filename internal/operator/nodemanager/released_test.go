package nodemanager

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// TestReleasedBefore has an operator release an address, and another one lead that gets a
// description from before the cloud as it was before: no pod gets that address, until the cloud
// must know better.
func TestReleasedBefore(t *testing.T) {
	t.Parallel()
	kept, left, begun := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), time.Now()
	described := func(m *Manager, at time.Time, held ...netip.Addr) {
		i := Interface{ID: "eni", Instance: "i-1", Attachment: "x"}
		for _, a := range held {
			i.Held = append(i.Held, netip.PrefixFrom(a, 32))
		}
		m.inv.replace(&Snapshot{Interfaces: []Interface{i}, Subnets: map[string]Subnet{}}, at)
	}
	node := func(pool ...netip.Addr) *v2.CiliumNode {
		o := &v2.CiliumNode{}
		o.Name, o.Spec.InstanceID, o.Spec.IPAM.Pool = "n", "i-1", v2.AllocationMap{}
		o.Status.IPAM.Used = v2.AllocationMap{kept.String(): {Owner: "default/a"}}
		for _, a := range pool {
			o.Spec.IPAM.Pool[a.String()] = v2.AllocationIP{Resource: "eni"}
		}
		return o
	}
	limits := Limits{Interfaces: 1, Addresses: 3}

	before := newReads(t, &reads{})
	described(before, begun, kept, left)
	o := node(kept, left)
	o.Status.IPAM.ReleaseIPs = map[string]v2.IPReleaseStatus{left.String(): v2.IPReadyForRelease}
	w := before.decide(o, 0, limits)
	if _, ok := w.Pool[left]; ok || w.spec == nil {
		t.Fatalf("it is not released: %+v", w.Decision)
	}

	after := func(change func(*Manager, *v2.CiliumNode)) (pool string) {
		m, o := newReads(t, &reads{}), node(kept)
		o.Annotations = map[string]string{}
		for k, v := range w.annotations {
			o.Annotations[k] = fmt.Sprint(v)
		}
		described(m, time.Now(), kept, left)
		change(m, o)
		return fmt.Sprint(slices.SortedFunc(maps.Keys(m.decide(o, 0, limits).Pool), netip.Addr.Compare))
	}
	both := fmt.Sprint([]netip.Addr{kept, left})
	for name, c := range map[string]struct {
		change func(*Manager, *v2.CiliumNode)
		want   string
	}{
		"as it was described before":                 {func(*Manager, *v2.CiliumNode) {}, fmt.Sprint([]netip.Addr{kept})},
		"that it was released is not known any more": {func(_ *Manager, o *v2.CiliumNode) { o.Annotations = nil }, both},
		"a pod has it": {func(_ *Manager, o *v2.CiliumNode) {
			o.Status.IPAM.Used[left.String()] = v2.AllocationIP{Owner: "default/b"}
		}, both},
		"this operator has assigned it since": {func(m *Manager, _ *v2.CiliumNode) {
			m.inv.note(change{at: time.Now(), call: Assign, iface: Interface{ID: "eni"}, units: []netip.Prefix{netip.PrefixFrom(left, 32)}})
		}, both},
		"it is assigned long after": {func(m *Manager, _ *v2.CiliumNode) {
			described(m, time.Now().Add(2*maxLag), kept, left)
		}, both},
	} {
		if got := after(c.change); got != c.want {
			t.Errorf("%s: pods get %s, not %s", name, got, c.want)
		}
	}
}

// TestNotedReleases: the addresses released last are noted, each once, and those that a node has
// again are not.
func TestNotedReleases(t *testing.T) {
	t.Parallel()
	at := func(k int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(k >> 8), byte(k)}) }
	o := &v2.CiliumNode{}
	o.Annotations = map[string]string{}
	for k := range maxReleased + 10 {
		v := &View{Pool: map[netip.Addr]bool{at(k): true, at(1000): true}}
		d := &Decision{Pool: map[netip.Addr]string{at(1000): "eni"}, Releases: map[netip.Addr]v2.IPReleaseStatus{at(k): v2.IPReadyForRelease}}
		if k == maxReleased {
			d.Pool[at(20)] = "eni" // again
		}
		o.Annotations[releasedAnnotation] = notedReleases(o, v, d)[releasedAnnotation].(string)
	}
	var want []string
	for k := 9; k < maxReleased+10; k++ {
		if k != 20 {
			want = append(want, at(k).String())
		}
	}
	if got := o.Annotations[releasedAnnotation]; got != strings.Join(want[max(0, len(want)-maxReleased):], ",") {
		t.Errorf("%d addresses: %s", strings.Count(got, ",")+1, got)
	}
	if a := notedReleases(o, &View{Pool: map[netip.Addr]bool{at(3): true}}, &Decision{}); a != nil {
		t.Errorf("what is taken away by others: %v", a)
	}
}
