package endpoints_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
)

// named returns what objects say of addresses in 10.0.1.0/24.
func named(e *endpoints.Endpoints) (out []string) {
	for _, a := range e.Addresses(netip.MustParsePrefix("10.0.1.0/24").Contains) {
		out = append(out, fmt.Sprintf("%s %s %s", a.IP, a.Pod, a.UID))
	}
	slices.Sort(out)
	return out
}

// TestAddresses: which addresses objects give to pods is known before any object is changed: those
// of this node's own, of its entries in slices, and of objects that name another node.
func TestAddresses(t *testing.T) {
	for _, sliced := range []bool{false, true} {
		t.Run(fmt.Sprintf("slices %t", sliced), func(t *testing.T) {
			t.Parallel()
			r := newHarness(t)
			r.namespace("team")
			r.create(object("team", "left", ownHost, "10.0.1.10", 300))
			r.create(object("team", "moved", otherHost, "10.0.1.11", 300))
			r.create(object("team", "away", otherHost, "10.0.2.10", 300))
			want := []string{"10.0.1.10 team/left ", "10.0.1.11 team/moved "}
			if sliced {
				entry := func(name, host, ip, uid string) v2alpha1.CoreCiliumEndpoint {
					return v2alpha1.CoreCiliumEndpoint{Name: name, IdentityID: 300, PodUID: uid, Networking: &v2.EndpointNetworking{NodeIP: host, Addressing: []*v2.AddressPair{{IPv4: ip}}}}
				}
				s := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Namespace: "team", Endpoints: []v2alpha1.CoreCiliumEndpoint{
					entry("entry", ownHost, "10.0.1.12", "1"), entry("foreign", otherHost, "10.0.1.13", "2"),
				}}
				if err := r.alpha.Post().Resource(v2alpha1.ResourceEndpointSlices).Body(s).Do(t.Context()).Error(); err != nil {
					t.Fatal(err)
				}
				want = []string{"10.0.1.10 team/left ", "10.0.1.12 team/entry 1", "10.0.1.13 team/foreign 2"}
			}
			var e *endpoints.Endpoints
			var got []string
			var gone error
			observed := make(chan struct{})
			e, err := endpoints.New(endpoints.Config{
				Hosts: []netip.Addr{netip.MustParseAddr(ownHost)}, Slices: sliced, Interval: 300 * time.Millisecond, Accept: func(identity.ID) error { return nil },
				Observed: func(context.Context) {
					time.Sleep(500 * time.Millisecond) // what would be written is written by then
					got = named(e)
					_, gone = r.get("team", "left")
					close(observed)
				},
			}, r.client, ipcache.New())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			<-observed
			if !slices.Equal(got, want) || gone != nil {
				t.Errorf("objects name %q, want %q; %v", got, want, gone)
			}
			r.eventually(func() string {
				if now := named(e); !slices.Equal(now, want[1:]) {
					return fmt.Sprintf("objects name %q after this node's own has gone, want %q", now, want[1:])
				}
				return ""
			})
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNewBeforeStale: after a reboot a new pod's object is written before those of all former pods
// are deleted, which takes long at the configured rate.
func TestNewBeforeStale(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	const former = 80
	for i := range former {
		r.create(object("team", fmt.Sprint("former-", i), ownHost, fmt.Sprintf("10.0.1.%d", i+10), 300))
	}
	pod := r.pod("team", "new")
	_, r.client = r.slowly()
	e, _, _ := r.start(false)
	list := func() (left int) {
		objects := &v2.CiliumEndpointList{}
		if err := r.client.UrgentV2.Get().Namespace("team").Resource(v2.ResourceEndpoints).Do(t.Context()).Into(objects); err != nil {
			t.Fatal(err)
		}
		for _, o := range objects.Items {
			if o.Name != "new" {
				left++
			}
		}
		return left
	}
	r.eventually(func() string {
		if left := list(); left == former {
			return "none is deleted"
		}
		return ""
	})
	e.Set(local(pod, 7, 500))
	r.eventually(func() string {
		if _, err := r.get("team", "new"); err != nil {
			return err.Error()
		}
		return ""
	})
	left := list()
	t.Logf("%d of %d were left when the new pod's object was there", left, former)
	if left < former/3 {
		t.Errorf("the new pod's object came after %d of %d deletions", former-left, former)
	}
	r.eventually(func() string {
		if left := list(); left > 0 {
			return fmt.Sprintf("%d are left", left)
		}
		return ""
	})
}
