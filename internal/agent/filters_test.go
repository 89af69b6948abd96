package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/api/rest"
)

// filtered reports whether both hooks of an interface have a program at our place.
func filtered(h *netlink.Handle, l netlink.Link, parents ...uint32) bool {
	for _, parent := range parents {
		list, err := h.FilterList(l, parent)
		if err != nil || !slices.ContainsFunc(list, func(f netlink.Filter) bool {
			b, ok := f.(*netlink.BpfFilter)
			return ok && b.Priority == 1 && b.Handle == 1
		}) {
			return false
		}
	}
	return true
}

// An adversary on the node takes the filters off a pod's interface again and again, while the pod
// sends what its policy denies. They are back in moments, and where they cannot be put back the
// interface is shut. Without an agent nothing notices; the next one repairs that when it starts.
func TestDetachedFilters(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.policy("deny.yaml", `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: deny, namespace: default}
spec:
  endpointSelector: {}
  egressDeny: [{toEntities: [all]}]
  ingressDeny: [{fromEntities: [all]}]
`)
	n.start()
	pod := n.attached("jailed", map[string]string{"app": "jailed"})
	ifName := pod.endpoint().Status.Networking.InterfaceName
	h := n.ns.Netlink(t)
	link, err := h.LinkByName(ifName)
	if err != nil {
		t.Fatal(err)
	}

	// What gets out is counted. The pod sends all the time, about 5,000 datagrams a second.
	var passed, sent atomic.Int64
	sink := listenUDP(t, outside, netip.MustParseAddrPort(outside4+":9999"))
	source := dialUDP(t, pod.ns, netip.MustParseAddrPort(outside4+":9999"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 64)
		for {
			if _, _, err := sink.ReadFrom(buf); errors.Is(err, net.ErrClosed) {
				return
			}
			passed.Add(1)
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		var buf [8]byte
		for ; ctx.Err() == nil; time.Sleep(200 * time.Microsecond) {
			binary.BigEndian.PutUint64(buf[:], uint64(sent.Add(1)))
			_, _ = source.Write(buf[:]) // refused, or the interface is down
		}
	}()
	defer func() {
		cancel()
		sink.Close()
		<-done
		<-done
		source.Close()
	}()
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not after a minute", what)
			}
		}
	}
	// closed requires that nothing gets out any more, of a good number of datagrams.
	closed := func(when string) {
		t.Helper()
		// What was on its way through the node arrives.
		last := passed.Load()
		for begun := sent.Load(); sent.Load() < begun+200; time.Sleep(time.Millisecond) {
			last = passed.Load()
		}
		for begun := sent.Load(); sent.Load() < begun+500; time.Sleep(time.Millisecond) {
		}
		if now := passed.Load(); now != last {
			t.Errorf("%s: %d datagrams passed that the policy denies", when, now-last)
		}
	}
	both := []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}
	closed("before anything was done")
	for _, how := range []string{"tc qdisc del dev IF clsact", "tc filter del dev IF ingress", "tc filter del dev IF egress"} {
		var windows []time.Duration
		before, begun := passed.Load(), sent.Load()
		for range count(50, 10, 500) {
			fields := strings.Fields(strings.ReplaceAll(how, "IF", ifName))
			n.command(fields[0], fields[1:]...)
			at := time.Now()
			eventually(how, func() bool { return filtered(h, link, both...) })
			windows = append(windows, time.Since(at))
		}
		slices.Sort(windows)
		t.Logf("%s, %d times: back after %v at the median, %v at most; %d of %d denied datagrams passed", how, len(windows),
			windows[len(windows)/2], windows[len(windows)-1], passed.Load()-before, sent.Load()-begun)
		closed(how)
	}

	// Another qdisc is where the filters were, before the agent could do anything: the interface is
	// shut and stays so, and the status says why. It is up again when that is gone.
	up := func() bool {
		l, err := h.LinkByName(ifName)
		return err == nil && l.Attrs().Flags&net.FlagUp != 0
	}
	said := func() (msg string) {
		st, err := n.client.Health(context.Background(), false)
		if i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "filters" }); err == nil && i >= 0 {
			msg = st.Parts[i].Msg
		}
		return msg
	}
	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.command("tc", "qdisc", "del", "dev", ifName, "clsact")
	n.command("tc", "qdisc", "add", "dev", ifName, "ingress")
	if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually("another qdisc: the interface is shut", func() bool { return !up() })
	closed("another qdisc")
	eventually("another qdisc: the status says it", func() bool { return strings.Contains(said(), ifName) })
	n.command("tc", "qdisc", "del", "dev", ifName, "ingress")
	eventually("another qdisc: that is gone", func() bool { return up() && filtered(h, link, both...) })
	eventually("another qdisc: the status says so", func() bool { return !strings.Contains(said(), ifName) })
	closed("that is gone")

	// The node's own devices, and one that is made anew.
	for _, dev := range []struct {
		name    string
		parents []uint32
	}{{"hawser_vxlan", both[:1]}, {"hawser_host", both[1:]}} {
		n.command("tc", "qdisc", "del", "dev", dev.name, "clsact")
		l, err := h.LinkByName(dev.name)
		if err != nil {
			t.Fatal(err)
		}
		eventually("filters of "+dev.name, func() bool { return filtered(h, l, dev.parents...) })
	}
	n.command("ip", "link", "del", "hawser_vxlan")
	eventually("a tunnel device that was removed", func() bool {
		l, err := h.LinkByName("hawser_vxlan")
		return err == nil && l.Attrs().Flags&net.FlagUp != 0 && filtered(h, l, both[:1]...)
	})
	closed("a tunnel device that was removed")

	// Without an agent the pod is open: this is what the traffic above would show. An agent that
	// starts closes it.
	n.kill()
	before := passed.Load()
	n.command("tc", "qdisc", "del", "dev", ifName, "clsact")
	eventually("without an agent", func() bool { return passed.Load() > before })
	n.start()
	eventually("an agent starts", func() bool { return filtered(h, link, both...) })
	closed("an agent has started")
	n.stop()
}
