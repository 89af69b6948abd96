package agent

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestFlowMetrics: an agent that is asked for metrics of flows counts them though no client follows
// and none are kept, and serves them at their own address.
func TestFlowMetrics(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"), "--hubble-event-buffer-capacity", "0",
		"--hubble-metrics", "drop:sourceContext=pod;destinationContext=pod tcp policy:labelsContext=destination_app", "--hubble-metrics-server", "127.0.0.1:9965")
	n.policy("web.yaml", denyWeb)
	n.start()
	web, front := n.attached("web", map[string]string{"app": "web"}), n.attached("front", map[string]string{"app": "front"})
	to80, to81 := web.both(80)[0], web.both(81)[0]
	serveEcho(t, web.ns, to80)
	controllers.Eventually(t, time.Minute, func() string {
		_, _ = once(front.ns, to80, time.Second), once(front.ns, to81, 20*time.Millisecond)
		res, err := n.get("http://127.0.0.1:9965/metrics")
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return err.Error()
		}
		for _, want := range []string{
			`hubble_drop_total{destination="default/web",protocol="TCP",reason="POLICY_DENIED",source="default/front"}`,
			`hubble_tcp_flags_total{family="IPv4",flag="SYN"}`,
			`hubble_policy_verdicts_total{action="forwarded",destination_app="web",direction="ingress",match="l3-l4"}`,
			`hubble_policy_verdicts_total{action="dropped",destination_app="web",direction="ingress",match="none"}`,
			`hubble_lost_events_total{source="perf_event_ring_buffer"}`,
		} {
			if !strings.Contains(string(text), want) {
				return fmt.Sprintf("%s is not in\n%s", want, text)
			}
		}
		return ""
	})
	if p := n.part("flow-metrics"); p.State != "Ok" {
		t.Errorf("the status says %+v", p)
	}
	n.stop()
}
