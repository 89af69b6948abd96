package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestFloodHidesNoDrop: while a pod floods the node with packets, both such as are refused and such
// as open flows, who follows what is dropped sees each packet of another pod that is.
func TestFloodHidesNoDrop(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"), "--hubble-event-buffer-capacity", "65535",
		"--prometheus-serve-addr", "127.0.0.1:9962")
	n.policy("web.yaml", denyWeb)
	n.start()
	web, sink := n.attached("web", map[string]string{"app": "web"}), n.attached("sink", map[string]string{"app": "sink"})
	flooder, intruder := n.attached("flooder", map[string]string{"app": "flooder"}), n.attached("intruder", map[string]string{"app": "intruder"})
	to := web.both(80)[0]
	follows := followFlows(t, n.flowConn(n.path("run/hubble.sock")), &observer.GetFlowsRequest{
		Whitelist: []*flowpb.FlowFilter{{SourcePod: []string{"default/intruder"}, Verdict: []flowpb.Verdict{flowpb.Verdict_DROPPED}}},
	})
	controllers.Eventually(t, time.Minute, func() string {
		_ = once(intruder.ns, netip.AddrPortFrom(to.Addr(), 81), 20*time.Millisecond)
		if len(follows.of(flows.EventDrop, "intruder", "web")) == 0 {
			return "it does not follow yet"
		}
		return ""
	})

	stop := make(chan struct{})
	var floods sync.WaitGroup
	for _, target := range []netip.Addr{to.Addr(), sink.ip4} {
		var conn net.PacketConn
		flooder.ns.Must(t, func() (err error) { conn, err = net.ListenPacket("udp4", ":0"); return err })
		floods.Go(func() {
			defer conn.Close()
			for port := uint16(1); ; port++ {
				select {
				case <-stop:
					return
				default:
					_, _ = conn.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(target, port|1)))
				}
			}
		})
	}
	end := sync.OnceFunc(func() { close(stop); floods.Wait() })
	defer end()
	sent := sniffOpenings(t, intruder)
	// On a busy machine the time may be over before the first packet is sent.
	for tries := 0; tries < 1000 && len(sent()) < 50; tries++ {
		_ = once(intruder.ns, to, 20*time.Millisecond)
	}
	end()
	controllers.Eventually(t, time.Minute, func() string {
		shown := openings(follows.of(flows.EventDrop, "intruder", "web"), flowpb.Verdict_DROPPED)
		want := sent()
		if len(want) < 50 {
			return fmt.Sprintf("the capture has only %d openings", len(want))
		}
		for c := range want {
			if shown[c] == 0 {
				return fmt.Sprintf("no flow shows the refused connection %v; %d of %d are shown", c, len(shown), len(want))
			}
		}
		return ""
	})
	status, err := observer.NewObserverClient(n.flowConn(n.path("run/hubble.sock"))).ServerStatus(t.Context(), &observer.ServerStatusRequest{})
	if err != nil || status.GetSeenFlows() < 1000 {
		t.Errorf("the flood was none: %v, %v", status, err)
	}
	n.metric(`cilium_monitor_events_lost_total{type="drop"}`) // fails if there is none
}

// TestFloodErasesNoTrace: what a pod did is shown also after another one has caused more flows than
// the node remembers, and so is that others are missing.
func TestFloodErasesNoTrace(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	const capacity = 512
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"), "--hubble-event-buffer-capacity", fmt.Sprint(capacity))
	n.policy("web.yaml", denyWeb)
	n.start()
	web, flooder := n.attached("web", map[string]string{"app": "web"}), n.attached("flooder", map[string]string{"app": "flooder"})
	intruder := n.attached("intruder", map[string]string{"app": "intruder"})
	to := web.both(80)[0]
	client := observer.NewObserverClient(n.flowConn(n.path("run/hubble.sock")))
	// past is what the node has of the intruder, and how much is missing of all.
	past := func(req *observer.GetFlowsRequest) (list []*flowpb.Flow, lost uint64) {
		t.Helper()
		req.Whitelist = []*flowpb.FlowFilter{{SourcePod: []string{"default/intruder"}, EventType: []*flowpb.EventTypeFilter{{Type: flows.EventDrop}}}}
		stream, err := client.GetFlows(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for {
			res, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return list, lost
			}
			if err != nil {
				t.Fatal(err)
			}
			if lost += res.GetLostEvents().GetNumEventsLost(); res.GetFlow() != nil {
				list = append(list, res.GetFlow())
			}
		}
	}
	var before []*flowpb.Flow
	controllers.Eventually(t, time.Minute, func() string {
		_ = once(intruder.ns, to, 20*time.Millisecond)
		if before, _ = past(&observer.GetFlowsRequest{}); len(before) == 0 {
			return "no flow shows the refused connection"
		}
		return ""
	})
	var conn net.PacketConn
	flooder.ns.Must(t, func() (err error) { conn, err = net.ListenPacket("udp4", ":0"); return err })
	defer conn.Close()
	controllers.Eventually(t, time.Minute, func() string {
		for port := range uint16(1000) {
			_, _ = conn.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Addr(), port+1)))
		}
		st, err := client.ServerStatus(t.Context(), &observer.ServerStatusRequest{})
		if err != nil || st.GetSeenFlows() < 8*capacity {
			return fmt.Sprintf("the flood is none yet: %v, %v", st, err)
		}
		return ""
	})
	for _, req := range []*observer.GetFlowsRequest{{}, {Number: 20}, {Since: before[0].GetTime()}} {
		after, lost := past(req)
		if !slices.EqualFunc(after[:min(len(after), len(before))], before, func(a, b *flowpb.Flow) bool { return a.GetUuid() == b.GetUuid() }) {
			t.Errorf("%v: after the flood %d flows of the intruder are shown, of %d before", req, len(after), len(before))
		}
		if lost == 0 {
			t.Errorf("%v: nothing says that flows are missing", req)
		}
	}
}
