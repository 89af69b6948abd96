package endpoints_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/testenv"
)

// runs has the kubelet report a pod's phase and address.
func (r *harness) runs(pod *corev1.Pod, phase corev1.PodPhase, ip string) {
	r.t.Helper()
	pod = pod.DeepCopy()
	pod.ResourceVersion, pod.Status.Phase = "", phase
	if ip != "" {
		pod.Status.PodIP, pod.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	}
	if _, err := r.client.Kube.CoreV1().Pods(pod.Namespace).UpdateStatus(r.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// TestPodsOfAnotherPlugin: the objects of pods that run on this node without an endpoint, since
// another plugin has attached them, stay, and go with their pods; those of pods that are gone, have
// ended, or have another address, go. One whose endpoint is here goes with that, pod or no pod.
func TestPodsOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	for _, slices := range []bool{false, true} {
		t.Run(fmt.Sprintf("slices=%t", slices), func(t *testing.T) {
			t.Parallel()
			r := newHarness(t)
			r.namespace("team")
			pods := map[string]*corev1.Pod{}
			for i, c := range []struct {
				name, ip string
				phase    corev1.PodPhase
				owned    bool
			}{
				{"runs", "10.0.1.20", corev1.PodRunning, true},
				{"unowned", "10.0.1.21", corev1.PodRunning, false},
				{"starts", "", corev1.PodPending, true},
				{"ended", "10.0.1.23", corev1.PodSucceeded, true},
				{"moved", "10.0.1.99", corev1.PodRunning, true},
				{"replaced", "10.0.1.25", corev1.PodRunning, true},
				{"taken", "10.0.1.26", corev1.PodRunning, true},
			} {
				pod := r.pod("team", c.name)
				r.runs(pod, c.phase, c.ip)
				pods[c.name] = pod
				o := object("team", c.name, ownHost, fmt.Sprintf("10.0.1.%d", 20+i), 300)
				if c.owned {
					owner := pod.UID
					if c.name == "replaced" {
						owner = "of-before"
					}
					o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.name, UID: owner}}
				}
				r.create(o)
			}
			r.create(object("team", "gone", ownHost, "10.0.1.30", 300))
			there := func(name string) bool {
				_, err := r.get("team", name)
				return !apierrors.IsNotFound(err)
			}
			mine, other := r.pod("team", "mine"), r.pod("team", "other")
			r.runs(mine, corev1.PodRunning, "10.0.1.7")
			l, taker := local(mine, 7, 500), local(other, 8, 500)
			taker.IPv4 = netip.MustParseAddr("10.0.1.26")
			var logs testenv.Log
			e := r.node(ownHost, slices, &logs)
			e.Set(l)
			e.Set(taker)
			gone := func(names ...string) {
				t.Helper()
				r.eventually(func() string {
					for _, name := range names {
						if there(name) {
							return "the object of " + name + " is there"
						}
					}
					return ""
				})
			}
			gone("gone", "ended", "moved", "replaced", "taken")
			r.eventually(func() string {
				if !there("mine") {
					return "this node's own pod has no object"
				}
				return ""
			})
			time.Sleep(20 * interval) // nothing reports what does not happen
			for _, name := range []string{"runs", "unowned", "starts"} {
				if !there(name) {
					t.Errorf("the object of %s was deleted, whose pod runs here", name)
				}
			}
			e.Remove(l)
			gone("mine")
			r.runs(pods["runs"], corev1.PodFailed, "10.0.1.20")
			if err := r.client.Kube.CoreV1().Pods("team").Delete(t.Context(), "unowned", *metav1.NewDeleteOptions(0)); err != nil {
				t.Fatal(err)
			}
			gone("runs", "unowned")
		})
	}
}
