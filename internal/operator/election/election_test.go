package election

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

// quick is an election for tests: a leader that is silent is replaced after three seconds.
func quick() Config {
	return Config{LeaseDuration: 3 * time.Second, RenewDeadline: 1500 * time.Millisecond, RetryPeriod: 200 * time.Millisecond}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	d := Defaults()
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.RetryPeriod = 0 }, "--leader-election-retry-period"},
		{func(c *Config) { c.RetryPeriod = 9 * time.Millisecond }, "--leader-election-retry-period: 9ms is below"},
		{func(c *Config) { c.RenewDeadline = 2 * time.Second }, "--leader-election-renew-deadline"},
		{func(c *Config) { c.LeaseDuration = 11 * time.Second }, "two operators lead at once"},
		{func(c *Config) { c.RequestTimeout = -1 }, "--leader-election-resource-lock-timeout"},
	} {
		c := Defaults()
		tt.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v; want %q", c, err, tt.want)
		}
		if _, err := New(c, &rest.Config{}, "default", "a", nil); err == nil {
			t.Errorf("%+v: an election was made", c)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	a, b := Identity("host-1"), Identity("host-1")
	if a == b || !regexp.MustCompile(`^host-1-[a-z2-7]{10}$`).MatchString(a) {
		t.Errorf("identities %q and %q", a, b)
	}
}

// candidate is one operator of a test.
type candidate struct {
	*Election
	cancel context.CancelFunc
	done   chan error
	begun  chan struct{} // closed when it leads
}

type arena struct {
	*testing.T
	kube      *kubeapi.Server
	namespace string
	times     Config
	// working counts leaders at work: never more than one.
	working atomic.Int32
	log     *testenv.Log
}

func (a *arena) run(id string, kube *rest.Config, work func(context.Context) error) *candidate {
	a.Helper()
	e, err := New(a.times, kube, a.namespace, id, slog.New(slog.NewTextHandler(a.log, nil)))
	if err != nil {
		a.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &candidate{e, cancel, make(chan error, 1), make(chan struct{})}
	go func() {
		c.done <- e.Run(ctx, func(ctx context.Context) error {
			if n := a.working.Add(1); n != 1 {
				a.Errorf("%s leads, and so do %d others", id, n-1)
			}
			defer a.working.Add(-1)
			close(c.begun)
			return work(ctx)
		})
		close(c.done)
	}()
	a.Cleanup(func() {
		cancel()
		for range c.done { // until it is closed
		}
	})
	return c
}

// touch writes the lease without changing who has it.
func (a *arena) touch() {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":"%d"}}}`, time.Now().UnixNano())
	client, err := kubernetes.NewForConfig(a.kube.Config)
	if err == nil {
		_, err = client.CoordinationV1().Leases(a.namespace).Patch(a.Context(), "cilium-operator-resource-lock", types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		a.Error(err)
	}
}

func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	time.Sleep(300 * time.Millisecond) // work that takes a while to end must have ended before another begins
	return nil
}

func (a *arena) leads(c *candidate, within time.Duration) {
	a.Helper()
	select {
	case <-c.begun:
	case err := <-c.done:
		a.Fatalf("%s ended: %v\n%s", c.Identity(), err, a.log)
	case <-time.After(within):
		a.Fatalf("%s does not lead after %s\n%s", c.Identity(), within, a.log)
	}
	if !c.Leading() || c.Held() != nil {
		a.Errorf("%s leads; it says %t, %v", c.Identity(), c.Leading(), c.Held())
	}
}

func (a *arena) ended(c *candidate, within time.Duration) error {
	a.Helper()
	select {
	case err := <-c.done:
		if c.Leading() {
			a.Errorf("%s says that it leads, after its end", c.Identity())
		}
		return err
	case <-time.After(within):
		a.Fatalf("%s has not ended after %s\n%s", c.Identity(), within, a.log)
		return nil
	}
}

func TestElection(t *testing.T) {
	kube := kubeapi.Start(t)
	client, err := kubernetes.NewForConfig(kube.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		test func(*arena)
	}{
		{"released on exit", releasedOnExit},
		{"work that fails", workFails},
		{"late renewal", lateRenewal},
		{"silent leader", silentLeader},
		{"stuck work", stuckWork},
		{"cancelled while waiting", cancelledWhileWaiting},
		{"server restarts", serverRestarts},
		{"lease deleted", leaseDeleted},
		{"lease taken", leaseTaken},
		{"many", manyCandidates},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := &arena{T: t, kube: kube, namespace: strings.ReplaceAll(row.name, " ", "-"), times: quick(), log: &testenv.Log{}}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}
			if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			row.test(a)
		})
	}
}

func releasedOnExit(a *arena) {
	a.times.LeaseDuration, a.times.RenewDeadline = time.Minute, 40*time.Second // so that no candidate waits for a lease to end
	// Work that has not ended in time must not write once the lease is given back.
	var leader atomic.Pointer[candidate]
	given := false
	cfg := rest.CopyConfig(a.kube.Config)
	cfg.ContentType = "application/json"
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if c := leader.Load(); c != nil && r.Method == http.MethodPut {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				if bytes.Contains(body, []byte(`"holderIdentity":""`)) {
					given = true
					if err := c.Held(); !errors.Is(err, ErrLost) {
						a.Errorf("the lease counts as held while it is given back: %v", err)
					}
				}
			}
			return next.RoundTrip(r)
		})
	})
	first := a.run("first", cfg, untilEnd)
	a.leads(first, 60*time.Second)
	leader.Store(first)
	second := a.run("second", a.kube.Config, untilEnd)
	time.Sleep(quick().RetryPeriod * 3)
	if second.Leading() || second.Held() == nil || second.Leader() != "first" {
		a.Errorf("the second leads: %t, %v, sees %q", second.Leading(), second.Held(), second.Leader())
	}
	began := time.Now()
	first.cancel()
	if err := a.ended(first, 30*time.Second); err != nil {
		a.Error(err)
	}
	a.leads(second, 30*time.Second)
	if took := time.Since(began); took > a.times.LeaseDuration/2 {
		a.Errorf("the second led after %s: the lease was not given back", took)
	}
	if !given {
		a.Error("no request gives the lease back")
	}
}

func workFails(a *arena) {
	// A lease must be given back within one RetryPeriod, which a busy machine needs more of.
	a.times = Config{LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second}
	fault := errors.New("the work failed")
	first := a.run("first", a.kube.Config, func(context.Context) error { return fault })
	if err := a.ended(first, 60*time.Second); !errors.Is(err, fault) {
		a.Errorf("ended with %v", err)
	}
	second := a.run("second", a.kube.Config, func(context.Context) error { return nil })
	if err := a.ended(second, a.times.LeaseDuration/2); err == nil { // it was given back
		a.Error("a leader that just stops working is no fault")
	}
}

func lateRenewal(a *arena) {
	// A lease must be given back within one RetryPeriod, which a busy machine needs more of.
	a.times = Config{LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second}
	// Another client writes the lease just before each of the first requests by which it is given
	// back.
	ending, writes := make(chan struct{}), 0
	cfg := rest.CopyConfig(a.kube.Config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			select {
			case <-ending:
				if r.Method == http.MethodPut && writes < 3 {
					writes++
					a.touch()
				}
			default:
			}
			return next.RoundTrip(r)
		})
	})
	first := a.run("first", cfg, func(context.Context) error { close(ending); return nil })
	if err := a.ended(first, 60*time.Second); err == nil {
		a.Error("a leader that just stops working is no fault")
	}
	if text := a.log.String(); writes == 0 || strings.Contains(text, "cannot release the lease") {
		a.Errorf("%d writes came between\n%s", writes, text)
	}
}

func silentLeader(a *arena) {
	// The way to the server is cut for the first only.
	cut := make(chan struct{})
	cfg := rest.CopyConfig(a.kube.Config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			select {
			case <-cut:
				<-r.Context().Done() // as a packet that is lost
				return nil, r.Context().Err()
			default:
				return next.RoundTrip(r)
			}
		})
	})
	first := a.run("first", cfg, untilEnd)
	a.leads(first, 60*time.Second)
	second := a.run("second", a.kube.Config, untilEnd)
	began := time.Now()
	close(cut)
	err := a.ended(first, 30*time.Second)
	if !errors.Is(err, ErrLost) {
		a.Errorf("ended with %v", err)
	}
	if took := time.Since(began); took > quick().RenewDeadline+quick().RetryPeriod+stopGrace+5*time.Second {
		a.Errorf("it took %s to end", took)
	}
	a.leads(second, 30*time.Second)
}

func stuckWork(a *arena) {
	cut, stuck := make(chan struct{}), make(chan struct{})
	cfg := rest.CopyConfig(a.kube.Config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			select {
			case <-cut:
				return nil, errors.New("no way to the server")
			default:
				return next.RoundTrip(r)
			}
		})
	})
	first := a.run("first", cfg, func(context.Context) error { <-stuck; return nil })
	a.leads(first, 60*time.Second)
	close(cut)
	if err := a.ended(first, 30*time.Second); !errors.Is(err, ErrLost) {
		a.Errorf("ended with %v", err)
	}
	close(stuck)
}

func cancelledWhileWaiting(a *arena) {
	first := a.run("first", a.kube.Config, untilEnd)
	a.leads(first, 60*time.Second)
	second := a.run("second", a.kube.Config, untilEnd)
	second.cancel()
	if err := a.ended(second, 30*time.Second); err != nil {
		a.Error(err)
	}
}

func serverRestarts(a *arena) {
	first := a.run("first", a.kube.Config, untilEnd)
	a.leads(first, 60*time.Second)
	a.kube.Stop()
	if err := a.ended(first, 30*time.Second); !errors.Is(err, ErrLost) {
		a.Errorf("ended with %v", err)
	}
	a.kube.Start()
	a.leads(a.run("second", a.kube.Config, untilEnd), 60*time.Second)
}

// leaseDeleted: whoever waits makes the lease anew at once. The leader must have ended by then.
func leaseDeleted(a *arena) {
	a.times.LeaseDuration, a.times.RenewDeadline = time.Minute, 40*time.Second // so that no candidate waits for a lease to end
	first := a.run("first", a.kube.Config, untilEnd)
	a.leads(first, 60*time.Second)
	second := a.run("second", a.kube.Config, untilEnd)
	a.handOver(first, second, func(leases coordinationv1.LeaseInterface) error {
		// The leader may be the first to see that it is gone, and goes on to lead.
		for ; second.Leader() != "second" && a.Context().Err() == nil; time.Sleep(a.times.RetryPeriod / 8) {
			if l, err := leases.Get(a.Context(), LockName, metav1.GetOptions{}); err != nil || *l.Spec.HolderIdentity != "first" {
				continue
			}
			if err := leases.Delete(a.Context(), LockName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
}

// leaseTaken: the lease names another one while its leader works, as in an old copy of the server.
func leaseTaken(a *arena) {
	a.times.LeaseDuration, a.times.RenewDeadline = time.Minute, 40*time.Second
	first := a.run("first", a.kube.Config, untilEnd)
	a.leads(first, 60*time.Second)
	a.handOver(first, nil, func(leases coordinationv1.LeaseInterface) error {
		_, err := leases.Patch(a.Context(), LockName, types.MergePatchType, []byte(`{"spec":{"holderIdentity":"other"}}`), metav1.PatchOptions{})
		return err
	})
}

// handOver changes the lease. The first must end soon, and write nothing more; then the second, if
// there is one, leads.
func (a *arena) handOver(first, second *candidate, change func(coordinationv1.LeaseInterface) error) {
	a.Helper()
	client, err := kubernetes.NewForConfig(a.kube.Config)
	if err == nil {
		err = change(client.CoordinationV1().Leases(a.namespace))
	}
	if err != nil {
		a.Fatal(err)
	}
	began := time.Now()
	if err := a.ended(first, 15*time.Second); !errors.Is(err, ErrLost) {
		a.Errorf("ended with %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		a.Errorf("the first led for another %s", took)
	}
	if err := first.Held(); !errors.Is(err, ErrLost) {
		a.Errorf("the first may go on to write: %v", err)
	}
	if second != nil {
		a.leads(second, 30*time.Second)
	}
}

func manyCandidates(a *arena) {
	a.times = Config{LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 2 * time.Second}
	var all []*candidate
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, a.run(id, a.kube.Config, untilEnd))
	}
	for len(all) > 0 {
		next := make(chan int, len(all))
		for i, c := range all {
			go func() {
				select {
				case <-c.begun:
					next <- i
				case <-a.Context().Done():
				}
			}()
		}
		i := <-next
		all[i].cancel()
		if err := a.ended(all[i], 30*time.Second); err != nil {
			a.Error(err)
		}
		all = append(all[:i:i], all[i+1:]...)
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer srv.Close()
	e, err := New(quick(), &rest.Config{Host: srv.URL}, "default", "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: e.Fence(transport)}
	send := func(method string) error {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL, strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	check := func(when string, wantWrite bool) {
		t.Helper()
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			before := sent.Load()
			err := send(method)
			if wantWrite && err != nil || !wantWrite && (!errors.Is(err, ErrLost) || sent.Load() != before) {
				t.Errorf("%s: %s: %v", when, method, err)
			}
		}
		if err := send(http.MethodGet); err != nil {
			t.Errorf("%s: reading: %v", when, err)
		}
	}
	check("before election", false)
	now, long := renewedNow(), quick().LeaseDuration
	for when, c := range map[string]struct {
		renewed renewal
		write   bool
	}{
		"while leading":                               {*now, true},
		"after a long pause":                          {renewal{now.at.Add(-long), now.wall.Add(-long)}, false},
		"after the machine was suspended":             {renewal{now.at, now.wall.Add(-long)}, false},
		"with the clock put back":                     {renewal{now.at, now.wall.Add(time.Hour)}, true},
		"after a long pause, with the clock put back": {renewal{now.at.Add(-long), now.wall.Add(time.Hour)}, false},
	} {
		e.lock.renewed.Store(&c.renewed)
		check(when, c.write)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
