package service

import (
	"maps"
	"net/netip"
	"slices"
)

// backends are the endpoints of one port of a service and one family, by address and port.
type backends map[netip.AddrPort]Endpoint

// portName is by what the ports of a service and those of its slices find each other.
type portName struct {
	name  string
	proto uint8
}

// target is a port of a slice with the endpoints that serve it.
type target struct {
	port      uint16
	endpoints []Endpoint
}

// targets returns what serves the ports of a service.
func targets(parts []Slice) map[portName][]target {
	out := make(map[portName][]target)
	for _, s := range parts {
		for _, p := range s.Ports {
			if p.Port != 0 {
				n := portName{p.Name, p.Proto}
				out[n] = append(out[n], target{p.Port, s.Endpoints})
			}
		}
	}
	return out
}

// collect gathers the endpoints of a port. One that is in two slices, because it moves from one to
// the other, counts once, as the more detailed one: the slices differ in age, and nothing shows
// which is older.
func collect(list []target) (v4, v6 backends) {
	v4, v6 = make(backends), make(backends)
	for _, t := range list {
		for _, e := range t.endpoints {
			if !usable(e.Addr) {
				continue
			}
			all := v4
			if e.Addr.Is6() {
				all = v6
			}
			key := netip.AddrPortFrom(e.Addr, t.port)
			if known, ok := all[key]; ok {
				e = merge(known, e)
			}
			all[key] = e
		}
	}
	return v4, v6
}

func usable(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast()
}

func merge(a, b Endpoint) Endpoint {
	a.Ready, a.Serving, a.Terminating = a.Ready || b.Ready, a.Serving || b.Serving, a.Terminating || b.Terminating
	a.Node, a.Cluster = max(a.Node, b.Node), min(a.Cluster, b.Cluster)
	a.ForZones, a.ForNodes = union(a.ForZones, b.ForZones), union(a.ForNodes, b.ForNodes)
	return a
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// choose returns the backends that get traffic, sorted: those that are ready, or if there is none,
// those that are on their way out but serving still. Among them only this node's, if local, or else
// those hinted at for this node or zone, if all have hints and any is meant. Before all that it is
// decided which clusters' ready ones count.
func (b backends) choose(at Local, local bool, prefer Prefer) []netip.AddrPort {
	if local {
		b = b.filter(func(e Endpoint) bool { return e.Cluster == "" && e.Node != "" && e.Node == at.Node })
	}
	ready := b.filter(func(e Endpoint) bool { return e.Ready })
	if prefer != PreferNone {
		if better := ready.filter(func(e Endpoint) bool { return (e.Cluster == "") == (prefer == PreferLocal) }); len(better) > 0 {
			ready = better
		}
	}
	if len(ready) == 0 {
		ready = b.filter(func(e Endpoint) bool { return e.Serving && e.Terminating })
	} else if !local {
		ready = ready.hinted(at)
	}
	return slices.SortedFunc(maps.Keys(ready), netip.AddrPort.Compare)
}

// any reports whether there is a backend anywhere, that choose might return on its node.
func (b backends) any() bool {
	for _, e := range b {
		if e.Ready || (e.Serving && e.Terminating) {
			return true
		}
	}
	return false
}

func (b backends) filter(keep func(Endpoint) bool) backends {
	out := make(backends, len(b))
	for k, e := range b {
		if keep(e) {
			out[k] = e
		}
	}
	return out
}

func (b backends) hinted(at Local) backends {
	for _, hint := range []struct {
		me string
		of func(Endpoint) []string
	}{
		{at.Node, func(e Endpoint) []string { return e.ForNodes }},
		{at.Zone, func(e Endpoint) []string { return e.ForZones }},
	} {
		if hint.me == "" || len(b.filter(func(e Endpoint) bool { return len(hint.of(e)) == 0 })) > 0 {
			continue
		}
		if mine := b.filter(func(e Endpoint) bool { return slices.Contains(hint.of(e), hint.me) }); len(mine) > 0 {
			return mine
		}
	}
	return b
}
