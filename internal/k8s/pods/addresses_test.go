package pods_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// TestAddresses: a pod has the addresses of its status, unless they are its node's, or it has
// ended.
func TestAddresses(t *testing.T) {
	testenv.CheckLeaks(t)
	server := kubeapi.Start(t)
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	core := client.Kube.CoreV1().Pods("default")
	status := func(o *corev1.Pod, phase corev1.PodPhase, ips ...string) {
		t.Helper()
		o.Status.Phase, o.Status.PodIP, o.Status.PodIPs = phase, "", nil
		for _, ip := range ips {
			o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		if len(ips) > 0 {
			o.Status.PodIP = ips[0]
		}
		if _, err := core.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name, node string, phase corev1.PodPhase, ips ...string) *corev1.Pod {
		t.Helper()
		o := object(name, node)
		o.Spec.HostNetwork = name == "host"
		o, err := core.Create(t.Context(), o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status(o, phase, ips...)
		return o
	}
	both := create("both", "n1", corev1.PodRunning, "10.0.1.2", "fd00:1::2")
	create("host", "n1", corev1.PodRunning, "192.0.2.1")
	create("ended", "n1", corev1.PodSucceeded, "10.0.1.3")
	create("failed", "n1", corev1.PodFailed, "10.0.1.4")
	create("new", "n1", corev1.PodPending)
	create("elsewhere", "n2", corev1.PodRunning, "10.0.2.2")
	p, err := pods.New(pods.Config{Client: client, NodeName: "n1", Cluster: "c1", Changed: func(k8s.Key) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-p.Synced()
	want := func(want ...string) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			var got []string
			for _, a := range p.Addresses() {
				got = append(got, fmt.Sprintf("%s %s", a.IP, a.Pod))
				if !p.Has(a.Pod, a.UID) {
					t.Errorf("%s is no pod of the node", a.Pod)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				return fmt.Sprintf("pods have %q, want %q", got, want)
			}
			return ""
		})
	}
	want("10.0.1.2 default/both", "fd00:1::2 default/both")
	if key := k8s.KeyOf(both); !p.Has(key, "") || p.Has(key, "another") || p.Has(k8s.Key{Namespace: "default", Name: "elsewhere"}, "") {
		t.Error("a pod is known by its name and UID, on its node")
	}
	now, err := core.Get(t.Context(), "both", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status(now, corev1.PodRunning, "10.0.1.9")
	want("10.0.1.9 default/both")
	if err := core.Delete(t.Context(), "both", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	want()
}
