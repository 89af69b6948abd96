package link

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestGuard: pods do not reach the addresses that are not for them, and are told so at once; the
// node itself does, and pods reach all others. What somebody removes comes again.
func TestGuard(t *testing.T) {
	n := newNode(t)
	const metadata4, metadata6 = "169.254.169.254", "fd00:ec2::254"
	desired := tunnelNode()
	desired.Masquerade4, desired.Masquerade6 = true, true
	desired.NotForPods = []netip.Addr{netip.MustParseAddr(metadata4), netip.MustParseAddr(metadata6)}
	_, err := n.SetNode(desired)
	must(t, err)
	_, pod := n.realPod(t, 7)
	// Both services are on the other machine.
	far := linkNamed(t, n.peer, "eth0")
	for _, ip := range []string{metadata4, metadata6} {
		a := netip.MustParseAddr(ip)
		must(t, n.peer.AddrAdd(far, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD}))
	}
	for _, r := range [][2]string{{"10.1.0.0/24", "192.0.2.1"}, {"fd00:1::/112", "2001:db8::1"}} {
		_, dst, _ := net.ParseCIDR(r[0])
		must(t, n.peer.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Dst: dst, Gw: net.ParseIP(r[1])}))
	}
	for dst, gw := range map[string]string{metadata4 + "/32": "192.0.2.2", metadata6 + "/128": "2001:db8::2"} {
		n.output(t, "ip", "route", "add", dst, "via", gw)
	}
	asks := func(what string, from netns.NsHandle, to string, want bool) {
		t.Helper()
		var l net.Listener
		inThread(t, n.far, func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(to, "0")); return err })
		defer l.Close()
		start := time.Now()
		var got error
		inThread(t, from, func() error {
			c, err := net.DialTimeout("tcp", l.Addr().String(), 3*time.Second)
			if got = err; err == nil {
				c.Close()
			}
			return nil
		})
		if (got == nil) != want {
			t.Errorf("%s: %s: %v", what, to, got)
		}
		if took := time.Since(start); !want && (took > 2500*time.Millisecond || !errors.Is(got, unix.EHOSTUNREACH) && !errors.Is(got, unix.EACCES)) {
			t.Errorf("%s: %s: %v after %s: the pod is not told", what, to, got, took)
		}
	}
	all := func(what string, pods bool) {
		t.Helper()
		for _, to := range []string{metadata4, metadata6} {
			asks(what+", a pod", pod, to, pods)
			asks(what+", the node", n.ns, to, true)
		}
		asks(what+", a pod elsewhere", pod, "192.0.2.2", true)
		asks(what+", a pod elsewhere", pod, "2001:db8::2", true)
	}
	all("at first", false)
	for what, cmd := range map[string][]string{
		"a rule gone":  {"flush", "chain", "inet", guardTable, guardChain},
		"all gone":     {"delete", "table", "inet", guardTable},
		"a rule added": {"add", "rule", "inet", guardTable, guardChain, "accept"},
	} {
		n.output(t, "nft", cmd...)
		_, err = n.SetNode(desired)
		must(t, err)
		all(what, false)
	}
	before := n.output(t, "nft", "-a", "-s", "list", "table", "inet", guardTable)
	_, err = n.SetNode(desired)
	must(t, err)
	if after := n.output(t, "nft", "-a", "-s", "list", "table", "inet", guardTable); after != before {
		t.Errorf("what is right is written again:\n%s\n%s", before, after)
	}
	desired.NotForPods = nil
	_, err = n.SetNode(desired)
	must(t, err)
	if out := n.output(t, "nft", "list", "ruleset"); strings.Contains(out, guardTable) {
		t.Errorf("nothing is refused any more, but:\n%s", out)
	}
	all("allowed", true)
}
