package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/internal/k8s"
)

// TestBudget has clients of several kinds of objects send what they can: together they keep to one
// budget, also those of a copy of the configuration with connections of its own.
func TestBudget(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var sent atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		http.NotFound(w, r)
	}))
	t.Cleanup(srv.Close)
	const burst = 10
	conf := Config{Server: k8s.Server{APIServer: srv.URL}, QPS: 0.01, Burst: burst}
	cfg, err := conf.Rest("operator/1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		own := rest.CopyConfig(cfg)
		Apart(own)
		h, err := rest.HTTPClientFor(own)
		if err != nil {
			t.Fatal(err)
		}
		defer utilnet.CloseIdleConnectionsFor(h.Transport)
		c, err := kubernetes.NewForConfigAndClient(own, h)
		if err != nil {
			t.Fatal(err)
		}
		for range burst {
			wg.Go(func() { _, _ = c.CoreV1().Pods("a").Get(ctx, "a", metav1.GetOptions{}) })
			wg.Go(func() { _, _ = c.CoordinationV1().Leases("a").Get(ctx, "a", metav1.GetOptions{}) })
			wg.Go(func() { _, _ = c.DiscoveryV1().EndpointSlices("a").Get(ctx, "a", metav1.GetOptions{}) })
		}
	}
	wg.Wait()
	if n := sent.Load(); n != burst {
		t.Errorf("clients of six kinds sent %d requests; their budget is %d", n, burst)
	}
}
