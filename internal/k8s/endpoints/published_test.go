package endpoints_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
)

// TestKnown follows the state of a pod back to its own node, the indicator of "Loose and Strict
// modes for pod readiness" in CFP-27752: by its CiliumEndpoint, and by slices.
func TestKnown(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	pod := r.pod("team", "web")
	key := k8s.Key{Namespace: "team", Name: "web"}
	begin := func(slices bool) (*endpoints.Endpoints, chan k8s.Key, func()) {
		notified := make(chan k8s.Key, 1000)
		e, err := endpoints.New(endpoints.Config{
			Hosts: []netip.Addr{netip.MustParseAddr(ownHost)}, Slices: slices, Shared: true,
			Accept: func(identity.ID) error { return nil }, OnPublished: func(k k8s.Key) { notified <- k },
		}, r.client, ipcache.New())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		stop := func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		return e, notified, stop
	}
	expect := func(what string, e *endpoints.Endpoints, notified chan k8s.Key, want endpoints.Known) {
		t.Helper()
		r.eventually(func() string {
			for len(notified) > 0 {
				if k := <-notified; k != key {
					t.Errorf("notified of %s", k)
				}
			}
			if uid, known, ok := e.Known(key); !ok || known != want || uid != string(pod.UID) {
				return fmt.Sprintf("%s: known %d, %v, of %q; want %d", what, known, ok, uid, want)
			}
			return ""
		})
	}
	at := func(host uint16, id identity.ID) endpoints.Local {
		l := local(pod, host, id)
		l.Number = 7
		return l
	}
	e, notified, stop := begin(false)
	if _, _, ok := e.Known(key); ok {
		t.Error("something is known of a pod that is not there")
	}
	e.Set(at(7, 0))
	expect("without an identity", e, notified, endpoints.KnownNot)
	e.Set(at(7, 500))
	expect("with an identity", e, notified, endpoints.KnownWhole)
	e.Set(at(7, 0))
	expect("with an identity of before", e, notified, endpoints.KnownBefore)
	e.Set(at(7, 501))
	expect("with another", e, notified, endpoints.KnownWhole)
	e.Set(at(8, 501))
	expect("with another address", e, notified, endpoints.KnownWhole)
	r.delete("team", "web")
	expect("made again", e, notified, endpoints.KnownWhole)
	stop()

	e, notified, stop = begin(true)
	defer stop()
	e.Set(at(8, 501))
	expect("the object is not what nodes follow", e, notified, endpoints.KnownNot)
	publish := func(name string, id identity.ID, pair v2.AddressPair) *v2alpha1.CiliumEndpointSlice {
		t.Helper()
		slice := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Namespace: "team", Endpoints: []v2alpha1.CoreCiliumEndpoint{{
			Name: "web", IdentityID: int64(id), Networking: &v2.EndpointNetworking{NodeIP: ownHost, Addressing: []*v2.AddressPair{&pair}},
		}}}
		made := &v2alpha1.CiliumEndpointSlice{}
		if err := r.alpha.Post().Resource(v2alpha1.ResourceEndpointSlices).Body(slice).Do(t.Context()).Into(made); err != nil {
			t.Fatal(err)
		}
		return made
	}
	update := func(slice *v2alpha1.CiliumEndpointSlice) {
		t.Helper()
		if err := r.alpha.Put().Resource(v2alpha1.ResourceEndpointSlices).Name(slice.Name).Body(slice).Do(t.Context()).Into(slice); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := r.alpha.Delete().Resource(v2alpha1.ResourceEndpointSlices).Name(name).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	both := v2.AddressPair{IPv4: "10.0.1.8", IPv6: "fd00:1::8"}
	s1 := publish("s1", 501, v2.AddressPair{IPv4: both.IPv4})
	expect("one of two addresses", e, notified, endpoints.KnownNot)
	s1.Endpoints[0].Networking.Addressing[0].IPv6 = both.IPv6
	update(s1)
	expect("in a slice", e, notified, endpoints.KnownWhole)

	// The slice does not change, for it does not say of which sandbox the addresses are.
	e.Remove(at(8, 501))
	again := at(8, 501)
	again.Number, again.Attachment = 9, "decade:eth0"
	e.Set(again)
	expect("another sandbox with its addresses", e, notified, endpoints.KnownWhole)

	s2 := publish("s2", 500, both)
	r.observed("s2", e)
	expect("moving, and in the other slice as it was", e, notified, endpoints.KnownWhole)
	s2.Endpoints[0].IdentityID = 501
	update(s2)
	s1.Endpoints = []v2alpha1.CoreCiliumEndpoint{}
	update(s1)
	r.observed("s1", e)
	expect("moved", e, notified, endpoints.KnownWhole)
	s2.Endpoints = []v2alpha1.CoreCiliumEndpoint{}
	update(s2)
	expect("taken out of its slice", e, notified, endpoints.KnownNot)
	publish("s3", 501, both)
	expect("in a slice again", e, notified, endpoints.KnownWhole)
	remove("s3")
	expect("its slice is gone", e, notified, endpoints.KnownNot)

	// What is published of a pod that is gone, and withdrawn only then, is not of the next one of
	// its name.
	s4 := publish("s4", 501, both)
	expect("in a slice once more", e, notified, endpoints.KnownWhole)
	e.Remove(again)
	s4.Endpoints = []v2alpha1.CoreCiliumEndpoint{}
	update(s4)
	r.observed("s4", e)
	e.Set(at(8, 501))
	expect("an unknown pod", e, notified, endpoints.KnownNot)
}

// observed waits until the newest version of a slice was observed.
func (r *harness) observed(slice string, e *endpoints.Endpoints) {
	r.t.Helper()
	now := &v2alpha1.CiliumEndpointSlice{}
	if err := r.alpha.Get().Resource(v2alpha1.ResourceEndpointSlices).Name(slice).Do(r.t.Context()).Into(now); err != nil {
		r.t.Fatal(err)
	}
	r.eventually(func() string {
		if want := k8s.VersionOf(now); e.Reached() < want {
			return fmt.Sprintf("slice %s: version %d was not observed", slice, want)
		}
		return ""
	})
}
