package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestSlowMetricsReaders: readers that ask for metrics and take none, and connections
// that ask for nothing, hold only so much and only for so long; others are answered then.
func TestSlowMetricsReaders(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	many := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "many"}, []string{"label"})
	// More than sockets hold, in few series: what a busy machine needs to write it must stay far
	// below the time that the strict server gives its readers.
	for i := range 100 {
		many.WithLabelValues(fmt.Sprint(strings.Repeat("x", 100<<10), i)).Set(1)
	}
	registry.MustRegister(many)
	start := func(timeout time.Duration) (addr string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- serveMetrics(ctx, l, registry, timeout) }()
		t.Cleanup(func() { cancel(); <-done })
		return l.Addr().String()
	}
	open := func(addr, request string) net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		return c
	}
	get := func(addr string, want int) func() string {
		return func() string {
			// To compress ten megabytes takes a busy machine as long as the strict server waits.
			client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
			res, err := client.Get("http://" + addr + "/metrics")
			if err != nil {
				return err.Error()
			}
			defer res.Body.Close()
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != want {
				return fmt.Sprintf("%s, want %d (%v)", res.Status, want, err)
			}
			return ""
		}
	}
	const ask = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
	patient, strict := start(time.Hour), start(10*time.Second)
	for range metricsAnswers {
		open(patient, ask)
		open(strict, ask)
	}
	controllers.Eventually(t, time.Minute, get(patient, http.StatusServiceUnavailable))
	controllers.Eventually(t, 2*time.Minute, get(strict, http.StatusOK))

	var idle []net.Conn
	for range metricsConnections - metricsAnswers {
		idle = append(idle, open(patient, ""))
	}
	c := open(patient, ask)
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 {
		t.Errorf("one more connection than there may be is answered (%v)", err)
	}
	for _, c := range idle {
		c.Close()
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestCountersOfPackets: dashboards and alerts that were made for Cilium find the values of labels
// that they select. What only Hawser has keeps its name, and reasons of one text are one series.
func TestCountersOfPackets(t *testing.T) {
	t.Parallel()
	var rows []datapath.Metric
	for r := datapath.ReasonForwarded; r == datapath.ReasonForwarded || !strings.HasPrefix(r.String(), "reason-"); r++ {
		for _, d := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
			rows = append(rows, datapath.Metric{Reason: r, Direction: d, Packets: 1, Bytes: 100})
		}
	}
	c := newStateCollector(nil)
	names := map[stateMetric]string{c.forwards: "forward_count", c.forwardBytes: "forward_bytes", c.drops: "drop_count", c.dropBytes: "drop_bytes", c.audited: "audited"}
	got := map[string]float64{}
	c.collectPackets(rows, func(m stateMetric, v float64, labels ...string) {
		series := strings.Join(append([]string{names[m]}, labels...), "|")
		if _, twice := got[series]; twice {
			t.Errorf("%s is reported twice", series)
		}
		got[series] = v
	})
	want := map[string]float64{"audited|ingress": 1, "audited|egress": 1}
	for _, d := range []string{"INGRESS", "EGRESS"} {
		want["forward_count|"+d], want["forward_bytes|"+d] = 1, 100
		for reason, n := range map[string]float64{
			"Policy denied": 1, "Policy denied by denylist": 1, "No matching local container found": 1, "Invalid source mac": 1,
			"Invalid source ip": 1, "Invalid packet": 1, "Unsupported L3 protocol": 1, "Unknown L4 protocol": 1,
			"First logical datagram fragment not found": 1, "TTL exceeded": 1, "CT: Map insertion failed": 1,
			"No configuration available to perform policy decision": 1, "Endpoint policy program not available": 1,
			"No tunnel/encapsulation endpoint (datapath BUG!)": 1, "Error writing to packet": 1, "Forbidden ICMPv6 message": 1,
			"Unknown connection tracking state": 1, "Invalid identity": 1, "Service backend not found": 2, // no-backend, no-local-backend
			"No mapping for NAT masquerade": 1, "Denied by LB src range check": 1, "Encapsulation traffic is prohibited": 1,
			"Unknown sender": 1, "Unsupported protocol for NAT masquerade": 1,
			"multicast": 1, "mtu-exceeded": 1, "service-changing": 1, "not-for-pods": 1, "source-route": 1, "tuple-in-use": 1,
		} {
			want["drop_count|"+reason+"|"+d], want["drop_bytes|"+reason+"|"+d] = n, 100*n
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the series of packets differ (-want +got):\n%s", diff)
	}
}
