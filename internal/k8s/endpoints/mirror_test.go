package endpoints_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestStaticPod: the object of a static pod is made anew while the pod goes on. Its CiliumEndpoint
// becomes the new object's, whether the agent observes that first or has to ask, and goes with the
// endpoint.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	const runtime = "1f4c0ffee1f4c0ffee1f4c0ffee1f4c0"
	key := k8s.Key{Namespace: "team", Name: "web"}
	mirror := func() *corev1.Pod {
		t.Helper()
		pod, err := r.client.Kube.CoreV1().Pods("team").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"kubernetes.io/config.hash": runtime, "kubernetes.io/config.mirror": runtime}},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	// remade deletes the mirror, and with it, as Kubernetes does, what belongs to it.
	remade := func(collect bool) *corev1.Pod {
		t.Helper()
		if err := r.client.Kube.CoreV1().Pods("team").Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
		if collect {
			r.delete("team", "web")
		}
		return mirror()
	}
	var logs testenv.Log
	e := r.node(ownHost, false, &logs)
	pod := mirror()
	endpoint := func() endpoints.Local {
		l := local(pod, 7, 500)
		l.UID = runtime
		return l
	}
	e.Mirror(key, runtime, string(pod.UID))
	e.Set(endpoint())
	r.waitObject("a static pod", pod.UID, ownHost, "10.0.1.7")
	for _, collect := range []bool{true, false} {
		pod = remade(collect)
		e.Mirror(key, runtime, string(pod.UID)) // as the watch of pods shows
		e.Set(endpoint())
		r.waitObject("made anew, and observed", pod.UID, ownHost, "10.0.1.7")
	}
	pod = remade(true)
	e.Set(endpoint())
	r.waitObject("made anew, and not observed", pod.UID, ownHost, "10.0.1.7")
	if uid, _, ok := e.Known(k8s.Key{Namespace: "team", Name: "web"}); !ok || types.UID(uid) != pod.UID {
		t.Errorf("the endpoint is known as pod %q's, want %q", uid, pod.UID)
	}
	// An agent that starts, and has not observed pods yet.
	again := r.node(ownHost, false, &logs)
	again.Set(endpoint())
	r.waitObject("after a restart", pod.UID, ownHost, "10.0.1.7")
	e.Remove(endpoint())
	again.Remove(endpoint())
	r.eventually(func() string {
		if _, err := r.get("team", "web"); err == nil {
			return "the object of an endpoint that is gone is there"
		}
		return ""
	})
}

// TestMirrorOfAnother: what is said of the static pod of one name is nothing about a pod of another
// name, whichever UID it names: that is published as before.
func TestMirrorOfAnother(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	var logs testenv.Log
	e := r.node(ownHost, false, &logs)
	pod := r.pod("team", "web")
	e.Set(local(pod, 7, 500))
	r.waitObject("a pod", pod.UID, ownHost, "10.0.1.7")
	e.Mirror(k8s.Key{Namespace: "evil", Name: "web"}, string(pod.UID), "another")
	e.Set(local(pod, 7, 501))
	r.eventually(func() string {
		o, err := r.get("team", "web")
		if err != nil || o.Status.Identity == nil || o.Status.Identity.ID != 501 {
			return fmt.Sprintf("the pod's identity is %+v, want 501: %v", o.Status.Identity, err)
		}
		return ""
	})
	r.waitObject("a pod of whose UID another spoke", pod.UID, ownHost, "10.0.1.7")
}
