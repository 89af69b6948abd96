package restapi

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/service"
)

// ListServices is GET /service: the desired frontends, which are those of the kernel unless it is
// reported to lag behind. A node without a source of services has none.
func (a *API) ListServices(context.Context, server.ListServicesRequestObject) (server.ListServicesResponseObject, error) {
	out := server.ListServices200JSONResponse{}
	if a.Services == nil {
		return out, nil
	}
	var rows []service.Frontend
	for _, r := range a.Services.All() {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(x, y service.Frontend) int { return x.Compare(y.ServiceFrontend) })
	for _, r := range rows {
		spec := serviceSpec(r)
		out = append(out, rest.Service{Spec: spec, Status: rest.ServiceStatus{Realized: spec}})
	}
	return out, nil
}

func serviceSpec(r service.Frontend) rest.ServiceSpec {
	proto := datapath.ProtoName(r.Proto)
	spec := rest.ServiceSpec{
		ID:              int(r.ID),
		FrontendAddress: rest.FrontendAddress{IP: r.Addr.Addr().String(), Port: int(r.Addr.Port()), Protocol: proto, Scope: "internal"},
		Flags: rest.ServiceFlags{
			Name: r.Owner.Name, Namespace: r.Owner.Namespace, Type: r.Kind.String(), PortName: r.PortName, TrafficPolicy: "Cluster",
			AffinitySeconds: int(r.Affinity.Seconds()), Elsewhere: r.RemoteOnly, Restricted: r.LimitSources, SourceRanges: prefixTexts(r.Sources),
			Algorithm: algorithm(r.Service), Forwarding: forwarding(r.Service),
		},
	}
	switch r.Scope {
	case datapath.ServiceExternal:
		spec.FrontendAddress.Scope = "external"
	case datapath.ServiceNode:
		spec.FrontendAddress.Scope = "node"
	case datapath.ServiceRemoteNode:
		spec.FrontendAddress.Scope = "other-node"
	}
	if r.Local {
		spec.Flags.TrafficPolicy = "Local"
	}
	for _, b := range r.Backends {
		spec.BackendAddresses = append(spec.BackendAddresses, rest.BackendAddress{IP: b.Addr().String(), Port: int(b.Port()), Protocol: proto, State: "active"})
	}
	return spec
}

func algorithm(s datapath.Service) string {
	if s.Maglev {
		return service.Maglev
	}
	return service.Random
}

// forwarding is how clients outside reach a pod on another node; empty if no client outside is led.
func forwarding(s datapath.Service) string {
	switch {
	case s.Scope != datapath.ServiceExternal:
		return ""
	case s.DSR:
		return string(service.ForwardDSR)
	}
	return string(service.ForwardSNAT)
}

func prefixTexts(list []netip.Prefix) (out []string) {
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}

func serviceEntry(r datapath.Service) rest.BPFMapEntry {
	e := rest.MapService{
		Frontend: r.Addr.String(), Proto: datapath.ProtoName(r.Proto), Scope: r.Scope.String(), ID: int(r.ID), AffinitySeconds: int(r.Affinity.Seconds()),
		Elsewhere: r.RemoteOnly, Restricted: r.LimitSources, SourceRanges: prefixTexts(r.Sources), Algorithm: algorithm(r),
		Forwarding: forwarding(r),
	}
	for _, b := range r.Backends {
		e.Backends = append(e.Backends, b.String())
	}
	value := "none, rejected"
	switch {
	case len(e.Backends) > 0:
		value = strings.Join(e.Backends, ", ")
	case r.RemoteOnly:
		value = "none on this node, dropped"
	}
	if r.Maglev {
		value += " by " + service.Maglev
	}
	if r.DSR {
		value += ", DSR"
	}
	if r.LimitSources {
		value += " for " + cmp.Or(strings.Join(e.SourceRanges, ", "), "no client")
	}
	return rest.BPFMapEntry{Key: fmt.Sprintf("%s from %s", r.ServiceFrontend, r.Scope), Value: value, Service: e}
}
