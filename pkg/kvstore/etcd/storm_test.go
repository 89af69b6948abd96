package etcd

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/pkg/retry"
)

// storm is a server and stub clients on a clock of their own. The clients work as real ones do,
// with the pauses of this package and the reconnect rule of gRPC; only the network and the server
// are left out.
type storm struct {
	mu      sync.Mutex
	began   time.Time
	perSec  []int
	up      bool
	changed chan struct{} // closed and replaced when up changes
}

// serve counts one request, or one handshake.
func (s *storm) serve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	sec := int(time.Since(s.began) / time.Second)
	for len(s.perSec) <= sec {
		s.perSec = append(s.perSec, 0)
	}
	s.perSec[sec]++
}

func (s *storm) state() (up bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up, s.changed
}

func (s *storm) set(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = up
	close(s.changed)
	s.changed = make(chan struct{})
}

// The work of one client on a busy cluster: a request a second on average for identities and
// addresses of pods that come and go; and what it has to ask for when it is back: its watches, the
// keep-alive of its lease, and a health check of two requests.
const (
	workPause  = time.Second
	comingBack = 4 + 1 + 2
)

// client connects, works and connects again, until ctx ends.
func (s *storm) client(ctx context.Context, back *comeback, spread bool) {
	work := make(chan struct{}, 1<<10) // requests that wait for the connection
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for retry.Sleep(ctx, rand.N(2*workPause)) {
			work <- struct{}{}
		}
	})
	for ctx.Err() == nil {
		if !s.connect(ctx, back, spread) {
			return
		}
		back.opened()
		for range 1 + comingBack { // the handshake, and what follows without being asked for
			s.serve()
		}
		check := time.NewTicker(Defaults().CheckInterval)
		for connected := true; connected; {
			up, changed := s.state()
			if !up {
				break
			}
			select {
			case <-ctx.Done():
				check.Stop()
				return
			case <-changed:
				connected = false
			case <-check.C:
				s.serve()
				s.serve()
			case <-work:
				if back.admit(ctx) == nil {
					s.serve()
				}
			}
		}
		check.Stop()
		back.closed()
	}
}

// connect tries until the server is there: at once, then with gRPC's growing pauses, each attempt
// after this package's wait.
func (s *storm) connect(ctx context.Context, back *comeback, spread bool) bool {
	pause := reconnect.BaseDelay
	for {
		attempt := time.Now()
		if spread && back.wait(ctx) != nil {
			return false
		}
		if up, _ := s.state(); up {
			return true
		}
		jittered := time.Duration(float64(pause) * (1 + reconnect.Jitter*(2*rand.Float64()-1)))
		if !retry.Sleep(ctx, max(0, jittered-time.Since(attempt))) {
			return false
		}
		pause = min(time.Duration(float64(pause)*reconnect.Multiplier), reconnect.MaxDelay)
	}
}

// run returns the steady load, requests a second, and the peak after a restart of the server that
// took down, in the time that is watched.
func (s *storm) run(t *testing.T, clients int, down, watched time.Duration, spread bool) (steady, peak int) {
	const warm = 75 // seconds
	ctx, cancel := context.WithCancel(t.Context())
	s.began, s.up, s.changed = time.Now(), true, make(chan struct{})
	var wg sync.WaitGroup
	for range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if !retry.Sleep(ctx, rand.N(30*time.Second)) { // they did not start together
				return
			}
			back := newComeback(Defaults().QPS)
			back.clients = clients
			s.client(ctx, back, spread)
		}()
	}
	time.Sleep(warm * time.Second)
	s.set(false)
	time.Sleep(down)
	s.set(true)
	time.Sleep(watched)
	cancel()
	wg.Wait()
	for _, n := range s.perSec[warm-5 : warm] {
		steady += n / 5
	}
	for _, n := range s.perSec[warm+1:] {
		peak = max(peak, n)
	}
	return steady, peak
}

// TestStorm restarts a server under 2,000 clients: those that come back must not ask for twice what
// they ask for in quiet times, in any second. A restart may be over before a client has noticed, or
// last.
func TestStorm(t *testing.T) {
	const clients = 2000
	for _, down := range []time.Duration{0, 20 * time.Second} {
		t.Run(down.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s storm
				steady, peak := s.run(t, clients, down, 75*time.Second, true)
				t.Logf("%d clients: steady %d requests a second, peak %d (%.2f x)", clients, steady, peak, float64(peak)/float64(steady))
				if peak >= 2*steady {
					t.Errorf("the peak is %.2f times the steady load", float64(peak)/float64(steady))
				}
			})
		})
	}
	// The test must be able to fail: without the wait they all come at once, and check the store
	// together again and again, first after 30 s.
	synctest.Test(t, func(t *testing.T) {
		var s storm
		steady, peak := s.run(t, clients, 0, 45*time.Second, false)
		t.Logf("without the wait: steady %d, peak %d (%.2f x)", steady, peak, float64(peak)/float64(steady))
		if peak < 2*steady {
			t.Errorf("without the wait the peak is only %d at a steady load of %d: this test shows nothing", peak, steady)
		}
	})
}
