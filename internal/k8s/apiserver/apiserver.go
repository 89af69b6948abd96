// Package apiserver reports at which addresses the Kubernetes API itself is served: those of the
// EndpointSlices of the service default/kubernetes.
//
// [Run] starts no goroutine but those of following objects.
package apiserver

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/hawser-net/hawser/internal/k8s"
)

// Run calls changed with all addresses, sorted, whenever they are others than before, and first
// when they have all been observed. It ends with ctx and returns nil then.
func Run(ctx context.Context, client *k8s.Client, log *slog.Logger, changed func([]netip.Addr)) error {
	slicesOf := map[k8s.Key][]netip.Addr{}
	synced := false
	var last []netip.Addr
	notify := func() {
		if !synced {
			return
		}
		var now []netip.Addr
		for _, list := range slicesOf {
			now = append(now, list...)
		}
		slices.SortFunc(now, netip.Addr.Compare)
		if now = slices.Compact(now); last == nil || !slices.Equal(now, last) {
			last = append([]netip.Addr{}, now...)
			changed(now)
		}
	}
	return k8s.Follow(ctx, k8s.Kind(client.Kube.DiscoveryV1().RESTClient(), "endpointslices", "default"), k8s.Options[*discoveryv1.EndpointSlice]{
		Log: log, LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	}, k8s.Handler[*discoveryv1.EndpointSlice]{
		Upsert: func(o *discoveryv1.EndpointSlice) {
			var list []netip.Addr
			for _, e := range o.Endpoints {
				for _, text := range e.Addresses {
					if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
						list = append(list, ip.Unmap())
					}
				}
			}
			slicesOf[k8s.KeyOf(o)] = list
			notify()
		},
		Delete: func(key k8s.Key) {
			delete(slicesOf, key)
			notify()
		},
		Synced: func() {
			synced = true
			notify()
		},
	})
}
