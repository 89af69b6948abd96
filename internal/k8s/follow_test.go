package k8s_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func newClient(t testing.TB, server *kubeapi.Server) *k8s.Client {
	t.Helper()
	c, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// record keeps what a handler is called with, in order.
type record struct {
	mu       sync.Mutex
	observed []string
	values   map[k8s.Key]string
	synced   int
	calls    int // handler calls under way
	races    int
	last     *corev1.ConfigMap
}

func (r *record) enter() func() {
	r.mu.Lock()
	if r.calls++; r.calls > 1 {
		r.races++
	}
	return func() { r.calls--; r.mu.Unlock() }
}

func (r *record) handler() k8s.Handler[*corev1.ConfigMap] {
	r.values = map[k8s.Key]string{}
	return k8s.Handler[*corev1.ConfigMap]{
		Upsert: func(m *corev1.ConfigMap) {
			defer r.enter()()
			r.observed = append(r.observed, "upsert "+m.Name+"="+m.Data["v"])
			r.values[k8s.KeyOf(m)] = m.Data["v"]
			r.last = m
		},
		Delete: func(k k8s.Key) {
			defer r.enter()()
			r.observed = append(r.observed, "delete "+k.Name)
			delete(r.values, k)
		},
		Synced: func() {
			defer r.enter()()
			r.observed = append(r.observed, "synced")
			r.synced++
		},
	}
}

func (r *record) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.observed
	r.observed = nil
	return out
}

// eventually waits until what was delivered since the last take is exactly want.
func (r *record) eventually(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = append(got, r.take()...); len(got) >= len(want) {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("observed (-want +got):\n%s", diff)
	}
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"keep": "yes"}}, Data: map[string]string{"v": value, "big": strings.Repeat("x", 1000)}}
}

// TestFollow goes through the life of objects, a restart of the server, and changes made while
// no client was connected.
func TestFollow(t *testing.T) {
	testenv.CheckLeaks(t)
	server := kubeapi.Start(t)
	c := newClient(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	maps := c.Kube.CoreV1().ConfigMaps("default")
	create := func(m *corev1.ConfigMap) *corev1.ConfigMap {
		t.Helper()
		out, err := maps.Create(ctx, m, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	remove := func(name string) {
		t.Helper()
		if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(configMap("a", "1"))
	create(configMap("stays", "1"))

	var r record
	done := make(chan error, 1)
	go func() {
		done <- k8s.Follow(ctx, k8s.Kind(c.Kube.CoreV1().RESTClient(), "configmaps", "default"), k8s.Options[*corev1.ConfigMap]{
			LabelSelector: "keep=yes",
			Transform:     func(m *corev1.ConfigMap) *corev1.ConfigMap { delete(m.Data, "big"); return m },
		}, r.handler())
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	var first []string
	for deadline := time.Now().Add(time.Minute); len(first) < 3; time.Sleep(5 * time.Millisecond) {
		if first = append(first, r.take()...); time.Now().After(deadline) {
			t.Fatalf("observed only %v", first)
		}
	}
	slices.Sort(first[:2])
	if diff := cmp.Diff([]string{"upsert a=1", "upsert stays=1", "synced"}, first); diff != "" {
		t.Fatalf("first list (-want +got):\n%s", diff)
	}
	if r.last.ManagedFields != nil || r.last.Data["big"] != "" {
		t.Error("the handler got what the transform drops")
	}

	b := create(configMap("b", "1"))
	r.eventually(t, "upsert b=1")
	b.Data = map[string]string{"v": "2"}
	if _, err := maps.Update(ctx, b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "upsert b=2")
	remove("b")
	r.eventually(t, "delete b")

	// A restart notifies of nothing that is known, and observes what comes after.
	server.Stop()
	time.Sleep(300 * time.Millisecond)
	server.Start()
	create(configMap("c", "1"))
	r.eventually(t, "upsert c=1")
	if r.synced != 1 {
		t.Errorf("Synced was called %d times", r.synced)
	}
	if r.races > 0 {
		t.Error("two handler functions ran at once")
	}
}

// cutSource is a source whose watches can be cut, and whose next watch then answers 410 Gone, as
// after a compaction.
type cutSource struct {
	k8s.Source
	mu      sync.Mutex
	current []watch.Interface
	away    bool
	gone    int
}

func (s *cutSource) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		return nil, errors.New("away")
	}
	return s.Source.List(ctx, o)
}

func (s *cutSource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errors.New("away")
	}
	if s.gone > 0 {
		s.gone--
		return nil, apierrors.NewResourceExpired("too old")
	}
	w, err := s.Source.Watch(ctx, o)
	if err == nil {
		s.current = append(s.current, w)
	}
	return w, err
}

func (s *cutSource) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.gone = true, 1
	for _, w := range s.current {
		w.Stop()
	}
	s.current = nil
}

func (s *cutSource) back() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
}

// TestFollowGone deletes, replaces and changes objects while no client watches, and has the watch
// begin anew.
func TestFollowGone(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	c := newClient(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	maps := c.Kube.CoreV1().ConfigMaps("default")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"deleted", "replaced", "changed", "same"} {
		_, err := maps.Create(ctx, configMap(name, "1"), metav1.CreateOptions{})
		must(err)
	}
	src := &cutSource{Source: k8s.Kind(c.Kube.CoreV1().RESTClient(), "configmaps", "default")}
	var r record
	done := make(chan error, 1)
	h := r.handler()
	go func() {
		done <- k8s.Follow(ctx, src, k8s.Options[*corev1.ConfigMap]{LabelSelector: "keep=yes"}, h)
	}()
	defer func() { cancel(); <-done }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		ok := r.synced == 1
		r.mu.Unlock()
		if ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no first list; observed %v", r.take())
		}
	}
	r.take()
	src.cut()
	must(maps.Delete(ctx, "deleted", metav1.DeleteOptions{}))
	must(maps.Delete(ctx, "replaced", metav1.DeleteOptions{}))
	_, err := maps.Create(ctx, configMap("replaced", "2"), metav1.CreateOptions{})
	must(err)
	_, err = maps.Patch(ctx, "changed", types.MergePatchType, []byte(`{"data":{"v":"2"}}`), metav1.PatchOptions{})
	must(err)
	src.back()
	var got []string
	for deadline := time.Now().Add(30 * time.Second); len(got) < 4 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got = append(got, r.take()...)
	}
	if len(got) < 4 || got[0] != "delete deleted" {
		t.Fatalf("observed %v, the deletion should be first", got)
	}
	if i, j := slices.Index(got, "delete replaced"), slices.Index(got, "upsert replaced=2"); i < 0 || j < i {
		t.Errorf("observed %v, a replaced object should be deleted, then delivered", got)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"delete deleted", "delete replaced", "upsert changed=2", "upsert replaced=2"}, got); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
}

// TestFollowMetadata follows namespaces by their metadata alone.
func TestFollowMetadata(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	c := newClient(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	found := make(chan map[string]string, 100)
	done := make(chan error, 1)
	go func() {
		done <- k8s.Follow(ctx, c.MetadataOf(corev1.SchemeGroupVersion.WithResource("namespaces")), k8s.Options[*metav1.PartialObjectMetadata]{},
			k8s.Handler[*metav1.PartialObjectMetadata]{
				Upsert: func(o *metav1.PartialObjectMetadata) {
					if o.Name == "observed" {
						found <- o.Labels
					}
				},
				Delete: func(k8s.Key) {},
			})
	}()
	defer func() { cancel(); <-done }()
	if _, err := c.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "observed", Labels: map[string]string{"team": "x"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-found:
		if got["team"] != "x" || got["kubernetes.io/metadata.name"] != "observed" {
			t.Errorf("labels %v", got)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the namespace was never observed")
	}
}

// countedSource is a source that calls sixth a moment after it was asked for the sixth time.
type countedSource struct {
	k8s.Source
	asked int
	sixth func()
}

func (s *countedSource) count() {
	if s.asked++; s.asked == 6 {
		time.AfterFunc(500*time.Millisecond, s.sixth)
	}
}

func (s *countedSource) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.count()
	return s.Source.List(ctx, o)
}

func (s *countedSource) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.count()
	return s.Source.Watch(ctx, o)
}

// TestFollowEndsAtOnce has Follow end while no server answers and it waits for its next attempt.
func TestFollowEndsAtOnce(t *testing.T) {
	t.Parallel()
	cfg := k8s.Defaults()
	cfg.APIServer = "http://127.0.0.1:1"
	rc, err := cfg.REST()
	if err != nil {
		t.Fatal(err)
	}
	c, err := k8s.New(rc)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var r record
	// After the sixth attempt it waits for at least six seconds.
	var ended time.Time
	src := &countedSource{Source: k8s.Kind(c.Kube.CoreV1().RESTClient(), "configmaps", ""), sixth: func() { ended = time.Now(); cancel() }}
	err = k8s.Follow(ctx, src, k8s.Options[*corev1.ConfigMap]{Log: slog.New(slog.NewTextHandler(&text, nil))}, r.handler())
	if err != nil {
		t.Error(err)
	}
	if late := time.Since(ended); late > 5*time.Second {
		t.Errorf("ended %s after its context, and %d attempts", late, src.asked)
	}
	if n := strings.Count(text.String(), "cannot follow"); n != 1 || !strings.Contains(text.String(), "ConfigMap") {
		t.Errorf("the log should say once what cannot be followed: %q", text.String())
	}
}

func TestFollowRefuses(t *testing.T) {
	t.Parallel()
	if err := k8s.Follow(t.Context(), nil, k8s.Options[*corev1.Pod]{}, k8s.Handler[*corev1.Pod]{}); err == nil {
		t.Error("no source and no handler are accepted")
	}
}

// TestWaitForKinds waits for a kind that is there, and names one that is not.
func TestWaitForKinds(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	c := newClient(t, server)
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	lost := schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}
	if err := c.WaitForKinds(t.Context(), time.Second, slog.New(slog.DiscardHandler), leases); err != nil {
		t.Error(err)
	}
	err := c.WaitForKinds(t.Context(), 100*time.Millisecond, slog.New(slog.DiscardHandler), leases, lost)
	if err == nil || !strings.Contains(err.Error(), "things.v1.example.org") || strings.Contains(err.Error(), "leases") {
		t.Errorf("the error should name what is missing: %v", err)
	}
	if v, err := c.Version(t.Context()); err != nil || v != kubeapi.Version {
		t.Errorf("version %q, %v", v, err)
	}
	server.Stop()
	var text strings.Builder
	short, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer stop()
	if err := c.WaitForKinds(short, time.Millisecond, slog.New(slog.NewTextHandler(&text, nil)), leases); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that is away was not waited for: %v", err)
	}
	if !strings.Contains(text.String(), c.Host()) {
		t.Errorf("the log does not name the server: %s", text.String())
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	end := errors.New("the end")
	cancel(end)
	if err := c.WaitForKinds(ctx, time.Minute, slog.New(slog.DiscardHandler), leases); !errors.Is(err, end) {
		t.Errorf("an ended context: %v", err)
	}
}

// TestConfig reads a kubeconfig file and refuses what is invalid.
func TestConfig(t *testing.T) {
	server := kubeapi.Start(t)
	kubeconfig := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.Config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: server.Config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	cfg := k8s.Defaults()
	cfg.KubeconfigPath = path
	rc, err := cfg.REST()
	if err != nil {
		t.Fatal(err)
	}
	var agent string
	rc.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) { agent = req.UserAgent(); return rt.RoundTrip(req) })
	})
	c, err := k8s.New(rc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Version(t.Context()); err != nil || agent != cfg.UserAgent {
		t.Errorf("asked as %q: %v", agent, err)
	}
	cfg.APIServer = "https://127.0.0.1:1"
	if rc, err := cfg.REST(); err != nil || rc.Host != cfg.APIServer {
		t.Errorf("--k8s-api-server does not replace the file's: %v, %v", rc, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.REST(); err == nil {
		t.Error("a broken kubeconfig is accepted")
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []k8s.Config{{Server: k8s.Server{APIServer: "nonsense"}, QPS: 1, Burst: 1}, {QPS: 0, Burst: 1}, {QPS: 1}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	none := k8s.Defaults()
	if _, err := none.REST(); err == nil || !strings.Contains(fmt.Sprint(err), "--k8s-kubeconfig-path") {
		t.Errorf("no way to the server: %v", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
