package pods_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func object(name, node string) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": "x", "io.kubernetes.pod.namespace": "forged"}},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "robot", AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "c", Image: "none", Ports: []corev1.ContainerPort{
				{Name: "web", ContainerPort: 80}, {ContainerPort: 81}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP},
			}}},
			InitContainers: []corev1.Container{
				{Name: "once", Image: "none", Ports: []corev1.ContainerPort{{Name: "never", ContainerPort: 1}}},
				{Name: "side", Image: "none", RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "assoc", ContainerPort: 9, Protocol: corev1.ProtocolSCTP}}},
			},
		},
	}
}

// TestPods asks for pods that the watch knows, does not know yet, and that are others by now.
func TestPods(t *testing.T) {
	testenv.CheckLeaks(t)
	server := kubeapi.Start(t)
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	core := client.Kube.CoreV1()
	create := func(o *corev1.Pod) *corev1.Pod {
		t.Helper()
		out, err := core.Pods("default").Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	known := create(object("known", "n1"))
	static := object("static", "n1")
	static.Annotations = map[string]string{"kubernetes.io/config.hash": "the-runtime's-uid", "kubernetes.io/config.mirror": "the-runtime's-uid"}
	create(static)
	poser := object("poser", "n1")
	poser.Annotations = map[string]string{"kubernetes.io/config.hash": "the-runtime's-uid"}
	posed := create(poser)
	create(object("elsewhere", "n2"))
	owned := func(name, kind, owner string) {
		t.Helper()
		o := object(name, "n1")
		o.Labels["pod-template-hash"] = "5d4f"
		yes := true
		o.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Other", Name: "no-controller", UID: "u1"}, {APIVersion: "apps/v1", Kind: kind, Name: owner, UID: "u2", Controller: &yes},
		}
		create(o)
	}
	owned("deployed", "ReplicaSet", "front-5d4f")
	owned("replicated", "ReplicaSet", "back")
	owned("daemon", "DaemonSet", "log-5d4f")

	var mu sync.Mutex
	changed := map[string]int{}
	changes := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return changed[name]
	}
	p, err := pods.New(pods.Config{Client: client, NodeName: "n1", Cluster: "c1", Changed: func(k k8s.Key) {
		mu.Lock()
		changed[k.Name]++
		mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string) k8s.Key { return k8s.Key{Namespace: "default", Name: name} }
	// Before anything is known the server is asked.
	early, err := p.Get(ctx, key("known"), string(known.UID))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-p.Synced()
	info, err := p.Get(ctx, key("known"), string(known.UID))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(early, info); diff != "" {
		t.Errorf("the server and the watch do not agree:\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"k8s:app=x", "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default", "k8s:io.cilium.k8s.policy.cluster=c1",
		"k8s:io.cilium.k8s.policy.serviceaccount=robot", "k8s:io.kubernetes.pod.namespace=default",
	}, info.Labels.Strings()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]policy.NamedPort{{Name: "web", Proto: 6, Port: 80}, {Name: "dns", Proto: 17, Port: 53}, {Name: "assoc", Proto: 132, Port: 9}}, info.Ports); diff != "" {
		t.Errorf("named ports (-want +got):\n%s", diff)
	}
	for name, want := range map[string]pods.Workload{
		"deployed": {Kind: "Deployment", Name: "front"}, "replicated": {Kind: "ReplicaSet", Name: "back"}, "daemon": {Kind: "DaemonSet", Name: "log-5d4f"},
		"known": {Kind: "Pod", Name: "known"}, "elsewhere": {},
	} {
		if got := p.Workload(key(name)); got != want {
			t.Errorf("%s was made by %+v, want %+v", name, got, want)
		}
	}
	for name, uid := range map[string]string{"elsewhere": "", "missing": "", "known": "another", "poser": "the-runtime's-uid"} {
		if got, err := p.Get(ctx, key(name), uid); !errors.Is(err, pods.ErrNotFound) {
			t.Errorf("%s with UID %q: %v, %v", name, uid, got, err)
		}
	}
	if got, err := p.Get(ctx, key("static"), "the-runtime's-uid"); err != nil || got.Runtime != "the-runtime's-uid" {
		t.Errorf("a static pod by the runtime's UID: %q, %v", got.Runtime, err)
	}
	// An annotation that anybody may write makes no pod another one.
	if got, err := p.Get(ctx, key("poser"), string(posed.UID)); err != nil || got.Runtime != string(posed.UID) {
		t.Errorf("a pod that says it were static is known to the runtime as %q, want %q: %v", got.Runtime, posed.UID, err)
	}
	// A pod that comes while one waits for it.
	late := make(chan error, 1)
	go func() {
		_, err := p.Get(ctx, key("late"), "")
		late <- err
	}()
	time.Sleep(50 * time.Millisecond)
	create(object("late", "n1"))
	if err := <-late; err != nil {
		t.Error(err)
	}
	// Changes are reported once each, and only those that matter.
	before := changes("known")
	patch := func(body string) {
		t.Helper()
		if _, err := core.Pods("default").Patch(ctx, "known", types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"metadata":{"annotations":{"a":"b"}}}`)
	patch(`{"metadata":{"labels":{"app":"y"}}}`)
	if _, err := core.Namespaces().Patch(ctx, "default", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"red"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		now, ok, err := p.Known(key("known"), "")
		if err == nil && ok && slices.Contains(now.Labels.Strings(), "k8s:app=y") && slices.Contains(now.Labels.Strings(), "k8s:io.cilium.k8s.namespace.labels.team=red") &&
			changes("known") == before+2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("labels %v, notified %d times, want %d", now.Labels, changes("known"), before+2)
		}
	}
	// What is known is known without a server.
	server.Stop()
	if _, err := p.Get(ctx, key("known"), string(known.UID)); err != nil {
		t.Errorf("without a server: %v", err)
	}
	if _, err := p.Get(ctx, key("missing"), ""); err == nil || errors.Is(err, pods.ErrNotFound) {
		t.Errorf("a pod that is unknown: %v", err)
	}
	server.Start()
}
