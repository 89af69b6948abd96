package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
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

// begin forgets what was noted so far, and takes notes from now on.
func (w *wholeLists) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.seen = true, nil
}

// noted returns what was noted.
func (w *wholeLists) noted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// TestFewAreAskedAboutSingly: where few identities may end, be they objects or keys, the operator
// reads no list of all pods, endpoints, slices or nodes for that, and ends all that are unused.
// That the server has been restarted, and does not remember what was before, changes nothing.
func TestFewAreAskedAboutSingly(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"operator", "agents", "keys"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			env := servers.Take(t)
			in := func(*testCluster) {}
			if mode == "keys" {
				in = inEtcd(kvstoretest.StartEtcd(t))
			}
			tc := newTestCluster(t, env, in)
			tc.gc.Interval, tc.gc.Agents, tc.gc.Timeout = 200*time.Millisecond, mode == "agents", time.Millisecond
			lists := &wholeLists{}
			tc.namespace("default", nil)
			if mode == "agents" { // no pods are known
				cfg := rest.CopyConfig(env.Server.Config)
				cfg.QPS, cfg.Burst = 2000, 2000
				lists.wrap(cfg)
				controllers.Run(t, cfg, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
					return SetupGC(m, tc.gc, func(Stats, time.Duration, error) {}, log)
				})
			} else {
				tc.operator(connection{api: lists.wrap})
			}
			next := identity.ID(1000)
			// collected plants identities, and waits until they have ended.
			collected := func(n int) {
				t.Helper()
				var names []string
				for range n {
					o := tc.plant(next, map[string]string{"k8s:app": decimal(next)})
					tc.tamper(o.Name)
					names = append(names, o.Name)
					next++
				}
				tc.until(func() string {
					objects := tc.state().objects
					for _, name := range names {
						if o := objects[name]; o != nil && textOf(o) != "" {
							return "identity " + name + ", which is unused, has not ended"
						}
					}
					return ""
				})
			}
			collected(1) // the caches are filled
			lists.begin()
			collected(3)
			if seen := lists.noted(); len(seen) > 0 {
				t.Errorf("%d lists of everything, the first: %s", len(seen), seen[0])
			}
			env.Server.Stop()
			env.Server.Start()
			tc.until(func() string { // caches list again, each when it has found out
				lists.begin()
				collected(1)
				if seen := lists.noted(); len(seen) > 0 {
					return fmt.Sprintf("after a restart of the server: %d lists of everything, the first: %s", len(seen), seen[0])
				}
				return ""
			})
		})
	}
}

// single returns a collector that asks a real server of one ID at a time; its caches know
// nothing.
func single(t *testing.T, env *controllers.Env, pods *Controller) *collector {
	t.Helper()
	cfg := testConfig()
	cfg.Pods = pods
	c := newCollector(&asker{client: env.Client, live: env.Client, pods: pods}, cfg, slog.New(slog.DiscardHandler))
	var err error
	if c.watch, err = client.NewWithWatch(env.Server.Config, client.Options{Scheme: env.Client.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUsersOf asks a real server about single IDs: endpoints that name them, and pods that are
// to have their labels, whatever a cache knows.
func TestUsersOf(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
	rules := testRules(t, 256, 65535)
	c := single(t, env, &Controller{index: newIndex(rules, 0), live: env.Client})
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "few", Labels: map[string]string{"team": "red"}}}
	if err := env.Client.Create(t.Context(), ns); client.IgnoreAlreadyExists(err) != nil {
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
		{"no endpoint names it", 3001, other, false, false},
		{"a pod is to have it", 3001, wanted, false, true},
		{"a pod without labels is to have it", 3001, bare, false, true},
		{"only a pod in the network of its node has the labels", 3001, hostNetwork, false, false},
		{"its namespace is gone", 3001, gone, false, false},
		{"labels that cannot be parsed", 3001, "", false, false},
		{"a value that no pod's label can have", 3001, "k8s:app=team/web;", false, false},
		{"a value that is too long for a pod's label", 3001, "k8s:app=" + strings.Repeat("x", 64) + ";", false, false},
		{"a key that no pod's label can have", 3001, "k8s:a/b/c=x;", false, false},
		{"no namespace can be called so", 3001, "k8s:" + labels.KeyNamespace + "=a/b;", false, false},
	} {
		got, err := c.usersOf(t.Context(), identity.ID(tt.id), tt.text)
		if err != nil || got.named[int64(tt.id)] != tt.named || got.texts[tt.text] != tt.wants {
			t.Errorf("%s: named %v, wanted %v, %v", tt.what, got.named[int64(tt.id)], got.texts[tt.text], err)
		}
	}
}

// TestSelectorOf: labels that no pod can have are not looked for.
func TestSelectorOf(t *testing.T) {
	t.Parallel()
	in := func(namespace string) string { return "k8s:" + labels.KeyNamespace + "=" + namespace + ";" }
	for text, want := range map[string]string{
		in("a"):                     "a map[]",
		"k8s:app=a;":                " map[app:a]",
		"k8s:app=;" + in("a"):       "a map[app:]",
		"k8s:x.io/app=A_b;":         " map[x.io/app:A_b]",
		"other:a b/c=d/e;":          "",
		"other:b/c/d=d/e;k8s:app=a": " map[app:a]",
		"k8s:" + labels.KeyNamespaceLabels + ".a=b/c;k8s:app=a;": " map[app:a]",
		"":                  "",
		"app":               "",
		"k8s:app=team/web;": "",
		"k8s:app=" + strings.Repeat("x", 63) + ";": " map[app:" + strings.Repeat("x", 63) + "]",
		"k8s:app=" + strings.Repeat("x", 64) + ";": "",
		"k8s:a/b/c=x;":              "",
		in("a/b"):                   "",
		in("A"):                     "",
		in(strings.Repeat("x", 64)): "",
		"k8s:app=team/web;k8s:" + labels.KeyNamespace + "=default;": "",
	} {
		got := ""
		if namespace, own, ok := selectorOf(text); ok {
			got = fmt.Sprint(namespace, " ", map[string]string(own))
		}
		if got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
}

// TestOneUnknownKeepsNothingElse: of one identity the server never says whether a pod is to have
// it. That one stays, and all other unused ones end; so does one with labels that no pod can
// have.
func TestOneUnknownKeepsNothingElse(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"objects", "keys"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			env := servers.Take(t)
			in := func(*testCluster) {}
			if mode == "keys" {
				in = inEtcd(kvstoretest.StartEtcd(t))
			}
			tc := newTestCluster(t, env, in)
			tc.gc.Interval, tc.gc.Agents, tc.gc.Timeout = 200*time.Millisecond, false, time.Millisecond
			tc.namespace("default", nil)
			refuse := func(cfg *rest.Config) {
				cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return wrapped(next, func(r *http.Request) (*http.Response, error) {
						if strings.Contains(r.URL.Query().Get("labelSelector"), "unknown") {
							return nil, errors.New("the server does not answer")
						}
						return next.RoundTrip(r)
					})
				})
			}
			plant := func(number identity.ID, app string) {
				tc.plant(number, map[string]string{"k8s:app": app})
				tc.tamper(decimal(number))
			}
			plant(1000, "unknown")
			tc.operator(connection{api: refuse})
			plant(1001, "team/web")
			for number := identity.ID(1002); number < 1005; number++ {
				plant(number, decimal(number))
				tc.until(func() string {
					objects := tc.state().objects
					if o := objects["1000"]; o == nil || textOf(o) == "" {
						t.Fatal("an identity has ended though it may be in use")
					}
					for _, name := range []string{"1001", decimal(number)} {
						if o := objects[name]; o != nil && textOf(o) != "" {
							return "identity " + name + ", which is unused, has not ended"
						}
					}
					return ""
				})
			}
		})
	}
}

// TestMissed has a watch deliver what the caches have not observed.
func TestMissed(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
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
		if v, err := c.written(t.Context(), kindEndpoints, before); err != nil || v != last {
			t.Errorf("after version %d: %d, %v; want %d", before, v, err, last)
		}
	}
	if v, err := c.written(t.Context(), kindEndpoints, last); err != nil || v != 0 {
		t.Errorf("after the last one: %d, %v", v, err)
	}
	short := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "short"}}
	env.Create(t, short)
	if err := env.Client.Delete(t.Context(), short); err != nil {
		t.Fatal(err)
	}
	if v, err := c.written(t.Context(), kindEndpoints, last); err != nil || v != 0 {
		t.Errorf("after one that is gone: %d, %v", v, err)
	}
	if _, err := c.written(t.Context(), kindEndpoints, 1); !errors.Is(err, errTooOld) {
		t.Errorf("after a version that the server does not remember: %v", err)
	}
}
