package clusterpool

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// requests counts the requests for single CiliumNodes, and holds writes back until there are as
// many at once as it waits for.
type requests struct {
	next http.RoundTripper

	mu       sync.Mutex
	reads    map[string]int // by node
	writing  int
	together chan struct{} // closed when enough write
	want     int
}

// RoundTrip implements [http.RoundTripper].
func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	_, name, ok := strings.Cut(req.URL.Path, "/ciliumnodes/")
	if !ok {
		return r.next.RoundTrip(req)
	}
	r.mu.Lock()
	if req.Method == http.MethodGet {
		r.reads[name]++
	} else if r.writing++; r.writing == r.want {
		close(r.together)
	}
	r.mu.Unlock()
	if req.Method != http.MethodGet && r.want > 0 {
		select {
		case <-r.together:
		case <-time.After(30 * time.Second): // the test fails, but must not hang
		}
	}
	return r.next.RoundTrip(req)
}

// WrappedRoundTripper lets connections be closed.
func (r *requests) WrappedRoundTripper() http.RoundTripper { return r.next }

// TestNewLeader has an operator begin where thousands of nodes have all they need: a new one must
// not wait until it has asked for each of these, and new ones not for each other. With HAWSER_LONG
// it prints what 5,000 cost.
func TestNewLeader(t *testing.T) {
	known, fresh := 150, 8
	if os.Getenv("HAWSER_LONG") != "" {
		known = 5000
	}
	env := controllers.Start(t)
	create := func(name string, cidrs ...string) {
		n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Spec.IPAM.PodCIDRs = cidrs
		if err := env.Client.Create(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for part := range 16 {
		wg.Go(func() {
			for i := part; i < known; i += 16 {
				create(fmt.Sprint("known", i), fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
			}
		})
	}
	wg.Wait()
	for i := range fresh {
		create(fmt.Sprint("new", i))
	}
	seen := &requests{reads: map[string]int{}, together: make(chan struct{}), want: 4}
	cfg := rest.CopyConfig(env.Server.Config)
	d := kube.Defaults()
	cfg.QPS, cfg.Burst = d.QPS, d.Burst
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		seen.next = next
		return seen
	})
	began := time.Now()
	controllers.Run(t, cfg, func(ctx context.Context, m manager.Manager, _ *slog.Logger) error {
		return Setup(ctx, m, config("10.0.0.0/8", ""), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	})
	held := map[string]string{}
	for i := range fresh {
		controllers.Eventually(t, 2*time.Minute, func() string {
			var n v2.CiliumNode
			if err := env.Client.Get(t.Context(), client.ObjectKey{Name: fmt.Sprint("new", i)}, &n); err != nil {
				return err.Error()
			}
			if len(n.Spec.IPAM.PodCIDRs) != 1 {
				return n.Name + " has no block"
			}
			if other := held[n.Spec.IPAM.PodCIDRs[0]]; other != "" {
				t.Errorf("%s and %s have %v", other, n.Name, n.Spec.IPAM.PodCIDRs)
			}
			held[n.Spec.IPAM.PodCIDRs[0]] = n.Name
			return ""
		})
	}
	t.Logf("%d new nodes beside %d known ones were served %s after the operator began", fresh, known, time.Since(began).Round(time.Millisecond))
	seen.mu.Lock()
	defer seen.mu.Unlock()
	asked := 0
	for name := range seen.reads {
		if strings.HasPrefix(name, "known") {
			asked++
		}
	}
	if asked > 0 {
		t.Errorf("the server was asked for %d of %d nodes that have what they need", asked, known)
	}
	if seen.writing < seen.want {
		t.Errorf("%d nodes were written; want %d at once", seen.writing, seen.want)
	}
	select {
	case <-seen.together:
	default:
		t.Errorf("fewer than %d nodes were written at once", seen.want)
	}
}
