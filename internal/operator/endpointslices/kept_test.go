package endpointslices

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// leaveSlim has an operator of mode default follow one of mode slim, as by helm rollback: there are
// slices and no CiliumEndpoints, which agents make when they are restarted.
func leaveSlim(b *bench) {
	ctx := context.Background()
	b.env.Create(b.T, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "left", Labels: map[string]string{"env": "left"}}})
	if err := b.env.Client.Create(ctx, slimNode("n1", "192.0.2.1")); err != nil && !apierrors.IsAlreadyExists(err) {
		b.Fatal(err)
	}
	b.env.Create(b.T, identityOf("310", "web", "left"))
	names := []string{"told", "deleted", "done"}
	for n := range 22 {
		names = append(names, fmt.Sprint("kept-", n))
	}
	for n, name := range names {
		b.env.Create(b.T, slimPod("left", name, "web", fmt.Sprint("10.0.1.", n+1)))
	}
	// says waits until slices say of the pods of this scenario that they have these identities.
	says := func(more map[string]int64) {
		b.Helper()
		want := map[string]int64{}
		for _, name := range names[3:] {
			want[name] = 310
		}
		for name, id := range more {
			want[name] = id
		}
		controllers.Eventually(b.T, 90*time.Second, func() string {
			got := map[string]int64{}
			for _, s := range b.slices() {
				for _, e := range s.Endpoints {
					if s.Namespace == "left" {
						got[e.Name] = e.IdentityID
					}
				}
			}
			for name, id := range want {
				if got[name] != id {
					return fmt.Sprintf("%s has identity %d, want %d", name, got[name], id)
				}
			}
			if len(got) != len(want) {
				return fmt.Sprintf("%d pods are in slices, want %d: %v", len(got), len(want), got)
			}
			return ""
		})
	}
	cfg := quick()
	cfg.Max = 10
	slim := cfg
	slim.Mode = ModeSlim
	o := b.start(slim, resolveApp, nil)
	says(map[string]int64{"told": 310, "deleted": 310, "done": 310})
	o.stop()
	stop := b.witness(isKept)
	defer stop()
	b.still(cfg, nil)
	o = b.start(cfg, nil, nil)
	defer o.stop()
	// Pods that end leave, those that have no CiliumEndpoint included.
	if err := b.env.Client.Delete(ctx, slimPod("left", "deleted", ""), client.GracePeriodSeconds(0)); err != nil {
		b.Fatal(err)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`))
	if err := b.env.Client.Status().Patch(ctx, slimPod("left", "done", ""), patch); err != nil {
		b.Fatal(err)
	}
	says(map[string]int64{"told": 310})
	// Where an agent has been restarted, its CiliumEndpoint counts: when it comes and goes.
	b.make(cep("left", "told", 999))
	says(map[string]int64{"told": 999})
	if err := b.env.Client.Delete(ctx, cep("left", "told", 0)); err != nil {
		b.Fatal(err)
	}
	says(nil)
}

// TestKept: an entry stays without a CiliumEndpoint only if it is of a pod that is there, and has
// that pod's addresses.
func TestKept(t *testing.T) {
	t.Parallel()
	name := func(n string) key { return key{Namespace: "a", Name: n} }
	pod := func(n string, ips ...string) *corev1.Pod { return slimPod("a", n, "web", ips...) }
	slice := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-1", UID: "u", ResourceVersion: "5"}, Namespace: "a"}
	for _, n := range []string{"stays", "gone", "other", "moved", "waits", "host", "done", "told", "empty", "unowned"} {
		e := testEntry(n, 300)
		e.PodUID = "uid-" + n
		slice.Endpoints = append(slice.Endpoints, *e)
	}
	slice.Endpoints[8].Networking = nil
	slice.Endpoints[9].PodUID = ""
	other, host, done := pod("other", "10.0.0.1"), pod("host", "10.0.0.1"), pod("done", "10.0.0.1")
	other.UID, host.Spec.HostNetwork, done.Status.Phase = "another", true, corev1.PodFailed
	full := func(n string, id int64) *v2.CiliumEndpoint { return cep("a", n, id) }
	start := func() (*index, *kept) {
		b, s := newIndex(100, randomName), newKept()
		b.observe(slice)
		for _, p := range []*corev1.Pod{
			pod("stays", "10.0.0.1"), pod("gone", "10.0.0.1"), other, pod("moved", "10.0.0.2"), pod("waits"), host, done, pod("told", "10.0.0.1"),
			pod("empty", "10.0.0.1"), pod("unowned", "10.0.0.1"),
		} {
			s.setPod(b, p)
		}
		s.dropPod(b, name("gone"))
		s.setEndpoint(b, full("told", 301))
		s.setEndpoint(b, full("stays", 0)) // not complete
		if n := s.begin(b); n != 1 {
			t.Errorf("%d entries are kept, want 1", n)
		}
		b.begin()
		return b, s
	}
	id := func(b *index, n string) int64 {
		if e := b.want[name(n)]; e != nil {
			return e.IdentityID
		}
		return 0
	}
	for what, step := range map[string]struct {
		do   func(*index, *kept)
		want int64 // identity of the pod "stays"
	}{
		"nothing":               {func(*index, *kept) {}, 300},
		"the same pod":          {func(b *index, s *kept) { s.setPod(b, pod("stays", "10.0.0.1", "fd00::1")) }, 300},
		"an incomplete object":  {func(b *index, s *kept) { s.setEndpoint(b, full("stays", 0)); s.dropEndpoint(b, name("stays")) }, 300},
		"an object":             {func(b *index, s *kept) { s.setEndpoint(b, full("stays", 302)) }, 302},
		"the pod behind it":     {func(b *index, s *kept) { s.setEndpoint(b, full("stays", 302)); s.dropPod(b, name("stays")) }, 302},
		"its object goes":       {func(b *index, s *kept) { s.setEndpoint(b, full("stays", 302)); s.dropEndpoint(b, name("stays")) }, 0},
		"the pod goes":          {func(b *index, s *kept) { s.dropPod(b, name("stays")) }, 0},
		"its address goes":      {func(b *index, s *kept) { s.setPod(b, pod("stays")) }, 0},
		"another pod":           {func(b *index, s *kept) { p := pod("stays", "10.0.0.1"); p.UID = "another"; s.setPod(b, p) }, 0},
		"another pod of a name": {func(b *index, s *kept) { s.setPod(b, pod("gone", "10.0.0.1")) }, 300},
	} {
		b, s := start()
		step.do(b, s)
		if got := id(b, "stays"); got != step.want {
			t.Errorf("%s: the pod has identity %d, want %d", what, got, step.want)
		}
		for _, n := range []string{"gone", "other", "moved", "waits", "host", "done", "empty", "unowned"} {
			if id(b, n) != 0 {
				t.Errorf("%s: %s is kept", what, n)
			}
		}
		if id(b, "told") != 301 {
			t.Errorf("%s: a CiliumEndpoint does not count", what)
		}
	}
}
