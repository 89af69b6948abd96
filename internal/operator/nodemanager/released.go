package nodemanager

import (
	"net/netip"
	"slices"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// A cloud may return an outdated description for a while after a change. The operator that made the
// change applies it to the description. A new leader knows of none, and would assign an address
// that the previous leader has just released, and that may be another node's by now. So the object
// of a node records its last releases.

// releasedAnnotation has the addresses of a CiliumNode that were released last, the last one at the
// end.
const releasedAnnotation = "network.hawser.net/released-addresses"

// maxReleased bounds them: nodes release a few at once, and seldom.
const maxReleased = 256

func releasedOf(o *v2.CiliumNode) (out []netip.Addr) {
	for text := range strings.SplitSeq(o.Annotations[releasedAnnotation], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// viewReleased adds to a view what an operator before this one has released, as long as that may be
// described as if it were assigned still. It must be called with mu held.
func (m *Manager) viewReleased(o *v2.CiliumNode, v *View) {
	if !m.inv.early() {
		return
	}
	v.Released = map[netip.Addr]bool{}
	for _, a := range releasedOf(o) {
		v.Released[a] = true
	}
	if len(v.Released) == 0 {
		return
	}
	for _, c := range m.inv.changes {
		var own []netip.Prefix
		switch c.call {
		case Assign:
			own = c.units
		case Create:
			own = c.iface.Held
		}
		for _, u := range own {
			addrs(u, func(a netip.Addr) { delete(v.Released, a) })
		}
	}
}

// outdated reports whether the cloud may describe a unit of the node that it has no more.
func (v *View) outdated(unit netip.Prefix) bool {
	if len(v.Released) == 0 {
		return false
	}
	released, shown := false, false
	addrs(unit, func(a netip.Addr) {
		_, used := v.Used[a]
		released, shown = released || v.Released[a], shown || used || v.Pool[a]
	})
	return released && !shown
}

// notedReleases returns the annotations that a node's object is to have: with those addresses that
// a decision takes out of the pool to release them. They are written with the pool.
func notedReleases(o *v2.CiliumNode, v *View, d *Decision) map[string]any {
	var leave []netip.Addr
	for a := range v.Pool {
		if _, stays := d.Pool[a]; !stays && d.Releases[a] == v2.IPReadyForRelease {
			leave = append(leave, a)
		}
	}
	if len(leave) == 0 {
		return nil
	}
	slices.SortFunc(leave, netip.Addr.Compare)
	all := slices.DeleteFunc(releasedOf(o), func(a netip.Addr) bool {
		_, again := d.Pool[a]
		return again || slices.Contains(leave, a)
	})
	all = append(all, leave...)
	var texts []string
	for _, a := range all[max(0, len(all)-maxReleased):] {
		texts = append(texts, a.String())
	}
	return map[string]any{releasedAnnotation: strings.Join(texts, ",")}
}
