package agent

import (
	"fmt"
	"net"
	"net/netip"
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
