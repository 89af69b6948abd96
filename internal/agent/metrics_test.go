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

	"github.com/prometheus/client_golang/prometheus"

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
