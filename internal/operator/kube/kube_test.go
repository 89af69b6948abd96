package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: a, user: {token: secret}}]
`

func TestRest(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	for path, text := range map[string]string{good: kubeconfig, bad: "nonsense: ["} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, tt := range []struct {
		name            string
		config          Config
		host, token     string
		wantErrContains string
	}{
		{"file", Config{Server: k8s.Server{KubeconfigPath: good}}, "https://192.0.2.1:6443", "secret", ""},
		{"file and address", Config{Server: k8s.Server{KubeconfigPath: good, APIServer: "https://192.0.2.9:1"}}, "https://192.0.2.9:1", "secret", ""},
		{"address", Config{Server: k8s.Server{APIServer: "http://192.0.2.9:1"}}, "http://192.0.2.9:1", "", ""},
		{"no file", Config{Server: k8s.Server{KubeconfigPath: filepath.Join(dir, "none")}}, "", "", "--k8s-kubeconfig-path"},
		{"bad file", Config{Server: k8s.Server{KubeconfigPath: bad}}, "", "", bad},
		{"nothing", Config{}, "", "", "must say where the cluster is"},
	} {
		tt.config.QPS, tt.config.Burst = 7, 8
		cfg, err := tt.config.Rest("agent/1")
		if tt.wantErrContains != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErrContains) {
				t.Errorf("%s: %v; want %q", tt.name, err, tt.wantErrContains)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if cfg.Host != tt.host || cfg.BearerToken != tt.token || cfg.QPS != 7 || cfg.Burst != 8 || cfg.UserAgent != "agent/1" {
			t.Errorf("%s: %s, token %q, %g/%d, %q", tt.name, cfg.Host, cfg.BearerToken, cfg.QPS, cfg.Burst, cfg.UserAgent)
		}
	}
}

func TestNamespace(t *testing.T) {
	t.Parallel()
	d := Defaults()
	if err := d.Validate(); err != nil || d.InNamespace() != "default" {
		t.Errorf("%v, %q", err, d.InNamespace())
	}
	d.Namespace = "kube-system"
	if err := d.Validate(); err != nil || d.InNamespace() != "kube-system" {
		t.Errorf("%v, %q", err, d.InNamespace())
	}
}

func TestProber(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, answer, version, want string }{
		{"good", `{"gitVersion":"v1.36.3"}`, "v1.36.3", ""},
		{"nonsense", "nonsense", "", "cannot be read"},
		{"silent", "", "", "does not answer"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if tt.answer == "" {
				<-r.Context().Done()
			}
			_, _ = w.Write([]byte(tt.answer))
		}))
		p, err := NewProber(&rest.Config{Host: srv.URL})
		if err != nil {
			t.Fatal(err)
		}
		wait := time.Minute
		if tt.answer == "" {
			wait = 200 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		v, err := p.Version(ctx)
		cancel()
		if tt.want == "" && (err != nil || v.GitVersion != tt.version) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, %v", tt.name, v, err)
		}
		p.Close()
		srv.Close()
	}
}

// TestSlim has the caches keep what the controllers read, and nothing else.
func TestSlim(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{
		Name: "n", Namespace: "ns", UID: "u", ResourceVersion: "5", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"large": "text"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, Finalizers: []string{"f"}, OwnerReferences: []metav1.OwnerReference{{Name: "o"}},
	}
	wantMeta := metav1.ObjectMeta{Name: "n", Namespace: "ns", UID: "u", ResourceVersion: "5", Labels: meta.Labels, OwnerReferences: meta.OwnerReferences}
	start := metav1.NewTime(time.Unix(1000, 0))
	pod := &corev1.Pod{ObjectMeta: *meta.DeepCopy(),
		Spec: corev1.PodSpec{NodeName: "node", HostNetwork: true, ServiceAccountName: "sa", Containers: []corev1.Container{{Name: "c"}}, Volumes: []corev1.Volume{{Name: "v"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &start, PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}, HostIP: "192.0.2.2",
			Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "True"}, {Type: corev1.PodReady, Status: "True", Message: "text"}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}}},
	}
	got, err := slimPod(pod)
	want := &corev1.Pod{ObjectMeta: wantMeta, Spec: corev1.PodSpec{NodeName: "node", HostNetwork: true, ServiceAccountName: "sa"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &start, PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}, HostIP: "192.0.2.2",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}}}
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("pod: %v (-want +got):\n%s", err, diff)
	}
	node := &corev1.Node{ObjectMeta: *meta.DeepCopy(),
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k"}}, PodCIDRs: []string{"10.0.0.0/24"}, ProviderID: "p"},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Message: "m"}}, Addresses: []corev1.NodeAddress{{Address: "192.0.2.1"}},
			Images: []corev1.ContainerImage{{Names: []string{"i"}}}},
	}
	got, err = slimNode(node)
	wantNode := &corev1.Node{ObjectMeta: wantMeta, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k"}}, PodCIDRs: []string{"10.0.0.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Message: "m"}}, Addresses: []corev1.NodeAddress{{Address: "192.0.2.1"}}}}
	if diff := cmp.Diff(any(wantNode), got); diff != "" || err != nil {
		t.Errorf("node: %v (-want +got):\n%s", err, diff)
	}
	tombstone := toolscache.DeletedFinalStateUnknown{Key: "k"}
	for _, f := range []toolscache.TransformFunc{slimPod, slimNode} {
		if got, err := f(tombstone); err != nil || got != tombstone {
			t.Errorf("a tombstone became %v, %v", got, err)
		}
	}
}
