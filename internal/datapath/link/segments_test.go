package link

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Segment sizes: what we set is undone, by another process too, and what others set stays. CleanUp
// leaves none.
func TestSegments(t *testing.T) {
	n := newNode(t)
	sizes := func(device string) [3]uint32 {
		t.Helper()
		var out [3]uint32
		a := linkNamed(t, n.h, device).Attrs()
		for i, s := range segmentSizes() {
			out[i] = s.of(a)
		}
		return out
	}
	const legacy, big, admins = legacySegment, bigSegment, 131072
	check := func(when string, device string, want [3]uint32) {
		t.Helper()
		if got := sizes(device); got != want {
			t.Errorf("%s: %s has %v, want %v", when, device, got, want)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "other"
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other1"}))
	must(t, n.h.LinkSetGSOMaxSize(linkNamed(t, n.h, "other"), admins))
	must(t, n.h.LinkSetGSOMaxSize(linkNamed(t, n.h, "eth0"), admins))

	plain := nativeNode()
	_, err := n.SetNode(plain)
	must(t, err)
	check("without", "eth0", [3]uint32{admins, legacy, legacy})
	check("without", HostDevice, [3]uint32{legacy, legacy, legacy})

	asked := nativeNode()
	asked.BigTCP4, asked.BigTCP6 = true, true
	for range 2 {
		d, err := n.SetNode(asked)
		must(t, err)
		if d.SegmentSize4 != big || d.SegmentSize6 != big || d.SegmentLimit != 524280 || d.RouteMTU != d.DeviceMTU-jumboOption {
			t.Errorf("the devices are %+v", d)
		}
		for _, device := range []string{"eth0", HostDevice, NetDevice} {
			check("with both", device, [3]uint32{big, big, big})
		}
	}
	asked.BigTCP6 = false
	d, err := n.SetNode(asked)
	must(t, err)
	if d.SegmentSize4 != big || d.SegmentSize6 != 0 {
		t.Errorf("the devices are %+v", d)
	}
	check("with IPv4", "eth0", [3]uint32{legacy, big, big})
	check("with IPv4", NetDevice, [3]uint32{legacy, big, big})

	// Another process, that was interrupted before it came to the device, and one after it.
	must(t, n.h.LinkSetGSOIPv4MaxSize(linkNamed(t, n.h, "eth0"), legacy))
	next := newLinks(t, n.ns)
	_, err = next.SetNode(asked)
	must(t, err)
	check("with IPv4 again", "eth0", [3]uint32{legacy, big, big})
	_, err = newLinks(t, n.ns).SetNode(plain)
	must(t, err)
	for _, device := range []string{"eth0", HostDevice, NetDevice} {
		check("without again", device, [3]uint32{legacy, legacy, legacy})
	}
	check("without again", "other", [3]uint32{admins, legacy, legacy})

	_, err = next.SetNode(asked)
	must(t, err)
	must(t, next.CleanUp())
	check("cleaned up", "eth0", [3]uint32{legacy, legacy, legacy})
	check("cleaned up", "other", [3]uint32{admins, legacy, legacy})

	small := nativeNode()
	small.BigTCP6, small.MTU = true, minMTU
	if _, err := n.SetNode(small); err == nil {
		t.Error("IPv6 has no room for its smallest packet, and that is no error")
	}
	tunnel := tunnelNode()
	tunnel.BigTCP6 = true
	if _, err := n.SetNode(tunnel); err == nil {
		t.Error("BIG TCP in a tunnel is not refused")
	}
}
