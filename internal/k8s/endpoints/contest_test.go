package endpoints_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv"
)

const interval = 100 * time.Millisecond

// node runs the Endpoints of a node until the test ends.
func (r *harness) node(host string, slices bool, out *testenv.Log) *endpoints.Endpoints {
	r.t.Helper()
	return r.nodeBy(r.client, host, slices, out)
}

// nodeBy is node with a connection of its own.
func (r *harness) nodeBy(c *k8s.Client, host string, slices bool, out *testenv.Log) *endpoints.Endpoints {
	r.t.Helper()
	e, err := endpoints.New(endpoints.Config{
		Hosts: []netip.Addr{netip.MustParseAddr(host)}, Slices: slices, Interval: interval, Log: slog.New(slog.NewTextHandler(out, nil)),
		Accept: func(identity.ID) error { return nil },
	}, c, ipcache.New())
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	return e
}

// counted returns a connection, and how many requests were made by it.
func (r *harness) counted() (*atomic.Int64, *k8s.Client) {
	r.t.Helper()
	n := &atomic.Int64{}
	cfg := rest.CopyConfig(r.server.Config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			n.Add(1)
			return next.RoundTrip(req)
		})
	})
	c, err := k8s.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return n, c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// waitObject waits until the object describes a pod on a node, by an address.
func (r *harness) waitObject(what string, uid types.UID, host, ip string) *v2.CiliumEndpoint {
	r.t.Helper()
	var o *v2.CiliumEndpoint
	r.eventually(func() (wrong string) {
		var err error
		if o, err = r.get("team", "web"); err != nil {
			return what + ": " + err.Error()
		}
		n := o.Status.Networking
		if len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != uid || n == nil || n.NodeIP != host || n.Addressing[0].IPv4 != ip {
			return fmt.Sprintf("%s: the object names %+v on %+v, want pod %s on %s, %s", what, o.OwnerReferences, n, uid, host, ip)
		}
		return ""
	})
	return o
}

// TestForceDeleted: a node goes on running a pod that was deleted by force, and another node runs
// the pod that took its name. The object describes the pod that exists, whichever node comes first,
// and no node makes and deletes it again and again.
func TestForceDeleted(t *testing.T) {
	for _, slices := range []bool{false, true} {
		t.Run(fmt.Sprintf("slices=%t", slices), func(t *testing.T) {
			t.Parallel()
			r := newHarness(t)
			r.namespace("team")
			var logs testenv.Log
			asked, counted := r.counted()
			one, two := r.nodeBy(counted, ownHost, slices, &logs), r.node(otherHost, slices, &logs)
			old := r.pod("team", "web")
			one.Set(local(old, 7, 500))
			r.waitObject("the pod before", old.UID, ownHost, "10.0.1.7")
			if err := r.client.Kube.CoreV1().Pods("team").Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
				t.Fatal(err)
			}
			pod := r.pod("team", "web")
			two.Set(local(pod, 9, 500))
			r.waitObject("the pod that exists", pod.UID, otherHost, "10.0.1.9")
			one.Set(local(old, 7, 501)) // such as a change of the namespace's labels
			time.Sleep(10 * interval)   // for both to compare
			converged := r.waitObject("the nodes have compared", pod.UID, otherHost, "10.0.1.9")
			before := asked.Load()
			time.Sleep(10 * interval)
			// A comparison makes three requests at most, and looks at this one less and less often.
			if n := asked.Load() - before; n > 3*12 {
				t.Errorf("the node of the pod that is gone made %d requests within ten comparisons", n)
			}
			if now := r.waitObject("the nodes compare again", pod.UID, otherHost, "10.0.1.9"); now.UID != converged.UID || now.ResourceVersion != converged.ResourceVersion {
				t.Errorf("two nodes write one object: %s at %s, then %s at %s", converged.UID, converged.ResourceVersion, now.UID, now.ResourceVersion)
			}
			if n := strings.Count(logs.String(), "cannot publish"); n < 1 || n > 2 {
				t.Errorf("the node of the pod that is gone says so %d times:\n%s", n, logs.String())
			}
			one.Remove(local(old, 7, 501))
			time.Sleep(3 * interval)
			if now := r.waitObject("the endpoint of the pod before is gone", pod.UID, otherHost, "10.0.1.9"); now.UID != converged.UID {
				t.Error("the object was deleted with the endpoint of another pod")
			}
		})
	}
}

// TestSameNameOnOneNode: the endpoint of a pod that is gone is published again after the one of the
// pod that took its name, as after a restart of the agent.
func TestSameNameOnOneNode(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	old := r.pod("team", "web")
	if err := r.client.Kube.CoreV1().Pods("team").Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	pod := r.pod("team", "web")
	o := object("team", "web", ownHost, "10.0.1.9", 500)
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: pod.UID}}
	made := r.create(o)
	var logs testenv.Log
	e := r.node(ownHost, false, &logs)
	e.Set(local(pod, 9, 500))
	e.Set(local(old, 7, 500))
	r.eventually(func() string {
		if uid, _, ok := e.Known(k8s.Key{Namespace: "team", Name: "web"}); !ok || uid != string(pod.UID) {
			return "the pod that is gone speaks for the name"
		}
		return ""
	})
	if now := r.waitObject("the pod that exists", pod.UID, ownHost, "10.0.1.9"); now.UID != made.UID {
		t.Error("its object was made anew")
	}
	// Another one of the name, while the endpoints of both before are there.
	if err := r.client.Kube.CoreV1().Pods("team").Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	third := r.pod("team", "web")
	e.Set(local(third, 11, 500))
	r.waitObject("a third pod of the name", third.UID, ownHost, "10.0.1.11")
}

// TestInterfaces: a pod has two interfaces. The object describes the one with the lower ID, and
// of the other when that is gone.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	pod := r.pod("team", "web")
	var logs testenv.Log
	e := r.node(ownHost, false, &logs)
	e.Set(local(pod, 8, 500))
	e.Set(local(pod, 7, 500))
	r.waitObject("two interfaces", pod.UID, ownHost, "10.0.1.7")
	e.Remove(local(pod, 7, 500))
	r.waitObject("the first is gone", pod.UID, ownHost, "10.0.1.8")
	e.Remove(local(pod, 8, 500))
	r.eventually(func() string {
		if _, err := r.get("team", "web"); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the object of a pod without interfaces is there: %v", err)
		}
		return ""
	})
}

// TestRelabel: the object has the labels that the pod has, also when they change and when another
// client changes the object's.
func TestRelabel(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	pod := r.pod("team", "web")
	var logs testenv.Log
	e := r.node(ownHost, false, &logs)
	at := func(l ...labels.Label) endpoints.Local {
		out := local(pod, 7, 500)
		out.Labels = labels.NewSet(l...)
		return out
	}
	has := func(what, want string) {
		t.Helper()
		r.eventually(func() string {
			o, err := r.get("team", "web")
			if err != nil {
				return what + ": " + err.Error()
			}
			if got := fmt.Sprint(o.Labels); got != want {
				return fmt.Sprintf("%s: the object's labels are %s, want %s", what, got, want)
			}
			return ""
		})
	}
	e.Set(at(labels.New(labels.SourceK8s, "app", "web"), labels.New(labels.SourceK8s, "tier", "back")))
	has("a new pod", "map[app:web tier:back]")
	e.Set(at(labels.New(labels.SourceK8s, "app", "shop")))
	has("other labels", "map[app:shop]")
	err := r.v2.Patch(types.MergePatchType).Namespace("team").Resource(v2.ResourceEndpoints).Name("web").
		Body([]byte(`{"metadata":{"labels":{"app":"mine"}}}`)).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	has("another client changed them", "map[app:shop]")
	e.Set(at())
	has("no labels", "map[]")
}

// TestRefusedPatch: a change that the server does not take is no success.
func TestRefusedPatch(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	pod := r.pod("team", "web")
	var logs testenv.Log
	e := r.node(ownHost, false, &logs)
	e.Set(local(pod, 7, 500))
	r.waitObject("a new pod", pod.UID, ownHost, "10.0.1.7")
	bad := local(pod, 7, 500)
	bad.State = "no such state"
	e.Set(bad)
	r.eventually(func() string {
		if text := logs.String(); !strings.Contains(text, "cannot publish a pod to other nodes yet") || !strings.Contains(text, "no such state") {
			return "nothing is said of a change that the server refused:\n" + text
		}
		return ""
	})
	e.Set(local(pod, 7, 501))
	r.eventually(func() string {
		if o, err := r.get("team", "web"); err != nil || o.Status.Identity.ID != 501 {
			return fmt.Sprintf("the object after that: %v, %v", o.Status.Identity, err)
		}
		return ""
	})
}
