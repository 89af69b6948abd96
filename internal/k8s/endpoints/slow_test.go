package endpoints_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv"
)

// slowly returns a connection at the rate that agents have by default, and for how long the server
// does not answer writes in the namespaces whose names begin with slow, as while an admission
// webhook hangs.
func (r *harness) slowly() (*atomic.Int64, *k8s.Client) {
	r.t.Helper()
	pause := &atomic.Int64{}
	cfg := rest.CopyConfig(r.server.Config)
	cfg.QPS, cfg.Burst = k8s.Defaults().QPS, k8s.Defaults().Burst
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/namespaces/slow") {
				select {
				case <-time.After(time.Duration(pause.Load())):
				case <-req.Context().Done():
					return nil, req.Context().Err()
				}
			}
			return next.RoundTrip(req)
		})
	})
	c, err := k8s.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return pause, c
}

// published returns how many objects name an identity, in namespaces that are slow and in others.
func (r *harness) published(id int64) (slow, others int) {
	r.t.Helper()
	var list v2.CiliumEndpointList
	if err := r.v2.Get().Resource(v2.ResourceEndpoints).Do(r.t.Context()).Into(&list); err != nil {
		r.t.Fatal(err)
	}
	for _, o := range list.Items {
		switch {
		case o.Status.Identity == nil || o.Status.Identity.ID != id:
		case strings.HasPrefix(o.Namespace, "slow"):
			slow++
		default:
			others++
		}
	}
	return slow, others
}

// TestManyAtOnce: all pods of a node are known to others within seconds, when they come and when
// their identity changes, although the server does not answer for those of some namespaces; and
// these are published when it does.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	pause, client := r.slowly()
	pause.Store(int64(10 * time.Second))
	var logs testenv.Log
	e := r.nodeBy(client, ownHost, false, &logs)
	if err := e.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	const slowOnes, otherOnes = 60, 240
	var all []*corev1.Pod
	add := func(namespaces []string, n int) {
		for _, ns := range namespaces {
			r.namespace(ns)
		}
		for i := range n {
			name := fmt.Sprint("pod-", i)
			all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespaces[i%len(namespaces)], Name: name, UID: types.UID("of-" + name)}})
		}
	}
	add([]string{"slow"}, slowOnes-1) // of one tenant
	add([]string{"slow-too"}, 1)
	add([]string{"one", "two", "three"}, otherOnes)
	within := 20 * time.Second // at the configured rate it takes 22 s without a slow namespace
	for i, id := range []int64{500, 501} {
		what := []string{"new pods", "another identity"}[i]
		began := time.Now()
		for n, pod := range all {
			l := local(pod, uint16(n%200+1), identity.ID(id))
			l.IPv4, l.IPv6 = netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), netip.Addr{}
			e.Set(l)
		}
		for {
			slow, others := r.published(id)
			if others == otherOnes {
				t.Logf("%s: all others are published after %v, and %d of slow namespaces", what, time.Since(began), slow)
				break
			}
			if time.Since(began) > within {
				t.Fatalf("%s: %d of %d in other namespaces are published after %v", what, others, otherOnes, within)
			}
			time.Sleep(interval)
		}
	}
	pause.Store(0)
	deadline := time.Now().Add(time.Minute) // requests that wait go on doing so
	for {
		slow, _ := r.published(501)
		if slow == slowOnes {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d in slow namespaces are published when the server answers", slow, slowOnes)
		}
		time.Sleep(interval)
	}
}
