package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// wholeLists notes requests for all objects of the kinds that use identities.
type wholeLists struct {
	mu   sync.Mutex
	on   bool
	seen []string
}

func (w *wholeLists) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			q := r.URL.Query()
			all := r.Method == http.MethodGet && q.Get("watch") == "" && q.Get("fieldSelector")+q.Get("labelSelector") == "" &&
				!strings.Contains(r.URL.Path, "/namespaces/") && !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata")
			for _, kind := range []string{"/pods", "/ciliumendpoints", "/ciliumendpointslices", "/ciliumnodes"} {
				w.mu.Lock()
				if all && w.on && strings.HasSuffix(r.URL.Path, kind) {
					w.seen = append(w.seen, r.URL.String())
				}
				w.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
}

// TestFewAreAskedAboutSingly: where few identities may end, the operator reads no list of all pods,
// endpoints, slices or nodes for that, and ends none that the server says is used.
func TestFewAreAskedAboutSingly(t *testing.T) {
	env := controllers.Start(t)
	for _, agents := range []bool{false, true} {
		t.Run(map[bool]string{false: "operator", true: "agents"}[agents], func(t *testing.T) {
			tn := newTown(t, env)
			tn.gc.Interval, tn.gc.Agents, tn.gc.Timeout = 200*time.Millisecond, agents, time.Millisecond
			cfg := rest.CopyConfig(env.Server.Config)
			cfg.QPS, cfg.Burst = 2000, 2000
			lists := &wholeLists{}
			lists.wrap(cfg)
			tn.namespace("default", nil)
			ended := make(chan struct{}, 100)
			env.RunOn(t, cfg, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
				gc := tn.gc
				if !agents {
					var err error
					if gc.Pods, err = Setup(m, tn.control, tn.rules, nil, prometheus.NewRegistry(), log); err != nil {
						return err
					}
				}
				return SetupGC(m, gc, func(s Stats, _ time.Duration, err error) {
					lists.mu.Lock()
					lists.on = true // the caches are filled
					lists.mu.Unlock()
					for range s.Deleted {
						ended <- struct{}{}
					}
				}, log)
			})
			for i := range 3 {
				name := fmt.Sprint(1000 + i)
				tn.meddle(name)
				o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}, SecurityLabels: map[string]string{"k8s:app": name}}
				if err := env.Client.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 3 {
				select {
				case <-ended:
				case <-time.After(patience):
					t.Fatalf("%d of 3 identities that nobody uses have ended", i)
				}
			}
			lists.mu.Lock()
			defer lists.mu.Unlock()
			if len(lists.seen) > 0 {
				t.Errorf("%d lists of everything, the first: %s", len(lists.seen), lists.seen[0])
			}
		})
	}
}

// single returns a collector that asks a real server of one number at a time; its caches know nothing.
func single(t *testing.T, env *controllers.Env, pods *Controller) *collector {
	t.Helper()
	cfg := testConfig()
	cfg.Pods = pods
	c := newCollector(env.Client, env.Client, cfg, slog.New(slog.DiscardHandler))
	var err error
	if c.watch, err = client.NewWithWatch(env.Server.Config, client.Options{Scheme: env.Client.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUsersOf asks a real server about single numbers: endpoints that name them, and pods that are to
// have their labels, whatever a cache knows.
func TestUsersOf(t *testing.T) {
	env := controllers.Start(t)
	rules := testRules(t, 256, 65535)
	c := single(t, env, &Controller{book: newBook(rules, 0), live: env.Client})
	if err := env.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "few", Labels: map[string]string{"team": "red"}}}); err != nil {
		t.Fatal(err)
	}
	pod := func(name string, labels map[string]string, change ...func(*corev1.Pod)) string {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "few", Name: name, Labels: labels}}
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		for _, f := range change {
			f(p)
		}
		env.Create(t, p)
		ns := &corev1.Namespace{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Name: "few"}, ns); err != nil {
			t.Fatal(err)
		}
		target, err := rules.target(p, ns.Labels)
		if err != nil {
			t.Fatal(err)
		}
		return target.text
	}
	wanted := pod("a", map[string]string{"app": "a", "empty": ""})
	bare := pod("bare", nil)
	hostNetwork := pod("host", map[string]string{"app": "h"}, func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "few", Name: "e"}}
	e.Status.Identity = &v2.EndpointIdentity{ID: 3000}
	env.Create(t, e)
	other := strings.ReplaceAll(wanted, "app=a;", "app=b;")
	gone := strings.ReplaceAll(wanted, labels.KeyNamespace+"=few;", labels.KeyNamespace+"=gone;")
	for _, tt := range []struct {
		what  string
		id    int
		text  string
		named bool
		wants bool
	}{
		{"an endpoint names it", 3000, other, true, false},
		{"nobody", 3001, other, false, false},
		{"a pod is to have it", 3001, wanted, false, true},
		{"a pod without labels is to have it", 3001, bare, false, true},
		{"only a pod in the network of its node has the labels", 3001, hostNetwork, false, false},
		{"its namespace is gone", 3001, gone, false, false},
		{"labels that nobody can read", 3001, "", false, false},
	} {
		got, err := c.usersOf(t.Context(), identity.ID(tt.id), tt.text)
		if err != nil || got.named[int64(tt.id)] != tt.named || got.texts[tt.text] != tt.wants {
			t.Errorf("%s: named %v, wanted %v, %v", tt.what, got.named[int64(tt.id)], got.texts[tt.text], err)
		}
	}
}

// TestMissed has a watch tell what the caches have not heard.
func TestMissed(t *testing.T) {
	env := controllers.Start(t)
	c := single(t, env, nil)
	var last uint64
	for i := range 3 {
		e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("e", i)}}
		env.Create(t, e)
		before := last
		last = version(e.ResourceVersion)
		if before == 0 {
			continue
		}
		if v, err := c.missed(t.Context(), kindEndpoints, &v2.CiliumEndpointList{}, before); err != nil || v != last {
			t.Errorf("after version %d: %d, %v; want %d", before, v, err, last)
		}
	}
	if v, err := c.missed(t.Context(), kindEndpoints, &v2.CiliumEndpointList{}, last); err != nil || v != 0 {
		t.Errorf("after the last one: %d, %v", v, err)
	}
	short := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "short"}}
	env.Create(t, short)
	if err := env.Client.Delete(t.Context(), short); err != nil {
		t.Fatal(err)
	}
	if v, err := c.missed(t.Context(), kindEndpoints, &v2.CiliumEndpointList{}, last); err != nil || v != 0 {
		t.Errorf("after one that is gone: %d, %v", v, err)
	}
	if _, err := c.missed(t.Context(), kindEndpoints, &v2.CiliumEndpointList{}, 1); !errors.Is(err, errTooOld) {
		t.Errorf("after a version that the server does not remember: %v", err)
	}
}
