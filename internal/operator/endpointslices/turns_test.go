package endpointslices

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hawser-net/hawser/api/v2alpha1"
)

// counting is a server that takes every write, and counts them by namespace.
type counting struct {
	client.Client
	mu     sync.Mutex
	wrote  map[string]int
	writes uint64
}

func (s *counting) take(o client.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.wrote[o.(*v2alpha1.CiliumEndpointSlice).Namespace]++
	o.SetUID("uid-1")
	o.SetResourceVersion(strconv.FormatUint(s.writes, 10))
	return nil
}

func (s *counting) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	return s.take(o)
}

func (s *counting) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	return s.take(o)
}

// TestTurns: a namespace with priority changes more than may be written. It has most writes, and
// the others are written nevertheless.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mt, err := newMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		server := &counting{wrote: map[string]int{}}
		c := &controller{
			client: server, log: slog.New(slog.DiscardHandler), metrics: mt, limiter: rate.NewLimiter(5, 1), delay: 500 * time.Millisecond,
			index: newIndex(1, randomName), queue: newQueue(), since: map[string]time.Time{}, urgent: map[string]bool{"busy": true}, nodes: map[string]bool{},
		}
		ctx, cancel := context.WithCancel(t.Context())
		c.index.begin()
		set := func(namespace, name string, id int64) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.index.set(key{Namespace: namespace, Name: name}, testEntry(name, id))
			c.plan()
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.work(ctx)
		}()
		for i := range 3 {
			set("shop", fmt.Sprint("web-", i), 5)
		}
		for n := range int64(300) { // a minute
			for i := range 10 {
				set("busy", fmt.Sprint("job-", i), 1000+n)
			}
			time.Sleep(200 * time.Millisecond)
		}
		cancel()
		<-done
		server.mu.Lock()
		defer server.mu.Unlock()
		if server.wrote["shop"] != 3 || server.wrote["busy"] < 6*server.wrote["shop"] || server.writes < 250 {
			t.Errorf("%d writes: %v; want all 3 of shop, and most of busy", server.writes, server.wrote)
		}
	})
}
