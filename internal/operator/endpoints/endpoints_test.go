package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

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
		{func(c *Config) { c.GCInterval = -1 }, "--cilium-endpoint-gc-interval"},
		{func(c *Config) { c.RestartInterval = -1 }, "--unmanaged-pod-watcher-interval"},
		{func(c *Config) { c.RestartSelector = "a in" }, "--pod-restart-selector"},
	} {
		c := Defaults()
		tt.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v; want %q", c, err, tt.want)
		}
	}
}

// TestRestartSelector: words select all pods and none, for a ConfigMap cannot set an option empty.
func TestRestartSelector(t *testing.T) {
	t.Parallel()
	dns, other := labels.Set{"k8s-app": "kube-dns"}, labels.Set{"app": "other"}
	for value, want := range map[string][2]bool{"k8s-app=kube-dns": {true, false}, "all": {true, true}, "": {true, true}, "none": {}} {
		c := Defaults()
		c.RestartSelector = value
		if err := c.Validate(); err != nil {
			t.Errorf("%q: %v", value, err)
		}
		selector, err := c.restarted()
		got := [2]bool{selector != nil && selector.Matches(dns), selector != nil && selector.Matches(other)}
		if err != nil || got != want {
			t.Errorf("%q selects %v (%v), want %v", value, got, err, want)
		}
	}
	c := Defaults()
	c.RestartSelector = "none"
	if err := SetupRestart(nil, c, prometheus.NewRegistry(), nil); err != nil { // nothing is added
		t.Error(err)
	}
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"k8s-app": "kube-dns"}}}
	p.Spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	p.Status.Phase = corev1.PodRunning
	for _, c := range change {
		c(p)
	}
	return p
}

func phase(is corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = is } }

func endpoint(name string, owners ...metav1.OwnerReference) *v2.CiliumEndpoint {
	return &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: owners}}
}

func ownedBy(p *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}
}

func names(t *testing.T, env *controllers.Env, list client.ObjectList) []string {
	t.Helper()
	if err := env.Client.List(t.Context(), list, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	var out []string
	switch l := list.(type) {
	case *v2.CiliumEndpointList:
		for _, e := range l.Items {
			out = append(out, e.Name)
		}
	case *corev1.PodList:
		for _, p := range l.Items {
			out = append(out, p.Name)
		}
	}
	return out
}

func TestEndpoints(t *testing.T) {
	env := controllers.Start(t)
	t.Run("collection", func(t *testing.T) { collection(t, env) })
	t.Run("restart", func(t *testing.T) { restart(t, env) })
	t.Run("none wanted", func(t *testing.T) { none(t, env) })
}

func collection(t *testing.T, env *controllers.Env) {
	running, ended, failed, reborn := pod("running"), pod("ended", phase(corev1.PodSucceeded)), pod("failed", phase(corev1.PodFailed)), pod("reborn")
	for _, p := range []*corev1.Pod{running, ended, failed, reborn} {
		env.Create(t, p)
	}
	foreign := ownedBy(reborn)
	foreign.UID = "of-the-pod-before"
	for _, e := range []*v2.CiliumEndpoint{
		endpoint("running", ownedBy(running)), endpoint("ended", ownedBy(ended)), endpoint("failed", ownedBy(failed)), endpoint("reborn", foreign),
		endpoint("of-no-pod", metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "never-was", UID: "x"}),
		endpoint("of-something", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Machine", Name: "m", UID: "x"}),
		endpoint("named-otherwise", ownedBy(running)), endpoint("no-owner"),
	} {
		env.Create(t, e)
	}
	c := &collector{client: env.Client, live: env.Client, log: slog.New(slog.DiscardHandler), interval: 5 * time.Minute, now: time.Now}
	all := []string{"ended", "failed", "named-otherwise", "no-owner", "of-no-pod", "of-something", "reborn", "running"}
	round := func(want ...string) {
		t.Helper()
		if err := c.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, names(t, env, &v2.CiliumEndpointList{})); diff != "" {
			t.Fatalf("CiliumEndpoints (-want +got):\n%s", diff)
		}
	}
	round(all...) // all of them are young
	// A cache that lacks the pods is not believed.
	c.client = blind{env.Client}
	c.now = func() time.Time { return time.Now().Add(c.interval + 2*time.Second) }
	round("named-otherwise", "of-something", "running")
	c.client = env.Client
	round("named-otherwise", "of-something", "running")
	// One that was written since it was read stays.
	e := endpoint("running")
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
		t.Fatal(err)
	}
	e.ResourceVersion = "1"
	if err := c.remove(t.Context(), e, podName{running.Name, running.UID}); err != nil {
		t.Fatal(err)
	}
	round("named-otherwise", "of-something", "running")
}

// blind is a cache that shows no pods.
type blind struct{ client.Client }

func (b blind) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, ok := o.(*corev1.Pod); ok {
		key.Name = "not-in-the-cache"
	}
	return b.Client.Get(ctx, key, o, opts...)
}

func restart(t *testing.T, env *controllers.Env) {
	selector, err := labels.Parse("k8s-app=kube-dns")
	if err != nil {
		t.Fatal(err)
	}
	var ended []*corev1.Pod
	for _, p := range []*corev1.Pod{
		pod("a"), pod("b"), pod("managed"), pod("waits", phase(corev1.PodPending)), pod("done", phase(corev1.PodSucceeded)),
		pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), pod("other", func(p *corev1.Pod) { p.Labels = nil }),
	} {
		env.Create(t, p)
		ended = append(ended, p)
	}
	env.Create(t, endpoint("managed", ownedBy(ended[2])))
	now := time.Now()
	r := &restarter{
		client: env.Client, live: env.Client, log: slog.New(slog.DiscardHandler), selector: selector, now: func() time.Time { return now },
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{Name: "unmanaged"}), last: map[types.NamespacedName]time.Time{},
	}
	round := func(unmanaged int, want ...string) {
		t.Helper()
		if err := r.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A pod on a node is deleted by its kubelet; there is none here.
		var left []string
		var pods corev1.PodList
		if err := env.Client.List(t.Context(), &pods, client.InNamespace("default")); err != nil {
			t.Fatal(err)
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp.IsZero() {
				left = append(left, p.Name)
			} else if err := env.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, left); diff != "" {
			t.Fatalf("pods (-want +got):\n%s", diff)
		}
		if got := testutil.ToFloat64(r.gauge); got != float64(unmanaged) {
			t.Errorf("%v pods are said to be unmanaged, want %d", got, unmanaged)
		}
	}
	others := []string{"done", "host", "managed", "other", "waits"}
	round(2, append([]string{"a", "b"}, others...)...) // young
	now = now.Add(youngest + 2*time.Second)
	round(2, append([]string{"b"}, others...)...) // one in a round
	round(1, others...)
	round(0, others...)
	// The same name again, too soon: then when its time has come.
	env.Create(t, pod("a"))
	now = now.Add(youngest + time.Minute)
	round(1, append([]string{"a"}, others...)...)
	now = now.Add(rest)
	round(1, others...)
	// One that a slice names has an endpoint of which there is no object yet. Another pod of its
	// name is not named.
	env.Create(t, pod("sliced"))
	p := &corev1.Pod{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "sliced"}, p); err != nil {
		t.Fatal(err)
	}
	env.Create(t, pod("born-again"))
	env.Create(t, &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-1"}, Namespace: "default",
		Endpoints: []v2alpha1.CoreCiliumEndpoint{{Name: "sliced", PodUID: string(p.UID)}, {Name: "born-again", PodUID: "former"}}})
	r.sliced = true
	now = now.Add(youngest + time.Minute)
	others = append(others, "sliced")
	slices.Sort(others)
	round(1, others...)
	round(0, others...)
}

func none(t *testing.T, env *controllers.Env) {
	p := pod("running")
	env.Create(t, p)
	for i := range 3 {
		env.Create(t, endpoint(fmt.Sprint("running", i), ownedBy(p)))
	}
	cfg := Defaults()
	cfg.NoObjects = true
	env.Run(t, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		if err := SetupRestart(m, cfg, prometheus.NewRegistry(), log); err != nil {
			return err
		}
		return SetupGC(m, cfg, log)
	})
	controllers.Eventually(t, 2*time.Minute, func() string {
		if left := names(t, env, &v2.CiliumEndpointList{}); len(left) > 0 {
			return fmt.Sprint("left: ", left)
		}
		return ""
	})
	if got := names(t, env, &corev1.PodList{}); len(got) != 1 {
		t.Errorf("pods: %v", got)
	}
}
