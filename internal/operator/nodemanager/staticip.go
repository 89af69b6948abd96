package nodemanager

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// StaticProvider is a [Provider] of a cloud whose public addresses are kept apart from its
// machines, and led to one by a call. The contract of Provider applies to its methods, too.
type StaticProvider interface {
	// StaticIPs returns the public addresses of the operator's account and region that have all of
	// tags.
	StaticIPs(ctx context.Context, tags map[string]string) ([]StaticIP, error)
	// Associate has an address lead to the primary address of an interface. One that leads there
	// already is no error; one that leads elsewhere stays there, and the error is of kind [Taken].
	Associate(ctx context.Context, a StaticIP, to Interface) error
}

// StaticIP is a public address that is kept apart from machines.
type StaticIP struct {
	// ID is the cloud's name for it, IP the address.
	ID, IP string
	// Used is set if it is associated: with the address Private of Interface, if that is set.
	Used      bool
	Interface string
	Private   netip.Addr
}

// StaticView is everything that is decided by about the public address of a node.
type StaticView struct {
	// Wanted is set if the node has spec.ipam.static-ip-tags, Provided if its cloud has such
	// addresses.
	Wanted, Provided bool
	// Shown is what status.ipam.assigned-static-ip is.
	Shown string
	// First is the first interface of the instance; nil if it is not known.
	First *Interface
	// Looked is set if Found is known: the addresses that have all tags.
	Looked bool
	Found  []StaticIP
	// Reserved are the addresses of calls that descriptions may not show yet, each with its
	// interface; "" for one of another owner.
	Reserved map[string]string
}

// StaticDecision is what becomes of the public address of a node.
type StaticDecision struct {
	// Show is what status.ipam.assigned-static-ip is to be.
	Show string
	// Look is set if the addresses must be known.
	Look bool
	// Has is the address that leads to the node already, though its interface does not show it yet.
	Has *StaticIP
	// Take is the address that is to lead to the node.
	Take *StaticIP
	// Fault is for people: why there is none, and what to do.
	Fault string
}

// DecideStatic reports what becomes of the public address of a node. The status shows the state in
// the cloud, so that it is right whichever operator made the call, and whichever of two calls came
// last.
func DecideStatic(v *StaticView) (d StaticDecision) {
	i := v.First
	if i == nil {
		d.Show = v.Shown // nothing is known
	} else if i.StaticIP != "" && (v.Wanted || v.Shown == i.PublicIP) {
		d.Show = i.PublicIP
	}
	switch {
	case !v.Wanted:
	case !v.Provided:
		d.Fault = "spec.ipam.static-ip-tags asks for a public address, which the operator assigns with --ipam=eni only: remove them"
	case i == nil || !i.Primary.IsValid():
		d.Fault = "spec.ipam.static-ip-tags asks for an elastic IP, and no address of the instance's first interface can be seen: this is retried automatically"
	case i.StaticIP != "": // once for each node, whichever operator did it
	case !v.Looked:
		d.Look = true
	default:
		d.choose(v)
	}
	return d
}

// choose chooses by weight. A node whose association is unknown, because the answer was lost,
// requests the same one again, which changes nothing; and nodes that search at the same time rarely
// choose the same.
func (d *StaticDecision) choose(v *StaticView) {
	var most uint64
	for k := range v.Found {
		a := &v.Found[k]
		if a.Interface == v.First.ID && a.Private == v.First.Primary {
			d.Has, d.Take = a, nil
			return
		}
		if by, ok := v.Reserved[a.ID]; a.Used || ok && by != v.First.ID {
			continue
		}
		if w := weight(a.ID, v.First.ID); d.Take == nil || w > most {
			d.Take, most = a, w
		}
	}
	switch {
	case d.Take != nil:
	case len(v.Found) == 0:
		d.Fault = "no elastic IP in the operator's account and region has the tags of spec.ipam.static-ip-tags: allocate one with these tags, or correct them"
	default:
		d.Fault = fmt.Sprintf("none of the %d elastic IPs with the tags of spec.ipam.static-ip-tags is free: allocate another one with these tags, or disassociate one", len(v.Found))
	}
}

// weight is that of an address for an interface, the same for every operator.
func weight(address, iface string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(iface + "\x00" + address))
	return h.Sum64()
}

// reservation is of a public address that a call was about.
type reservation struct {
	iface string
	at    time.Time
}

// staticView gathers the state of a node's public address. It must be called with mu held.
func (m *Manager) staticView(o *v2.CiliumNode, attached []Interface) *StaticView {
	v := &StaticView{Wanted: len(o.Spec.IPAM.StaticIPTags) > 0, Shown: o.Status.IPAM.AssignedStaticIP}
	_, v.Provided = m.provider.(StaticProvider)
	if k := slices.IndexFunc(attached, func(i Interface) bool { return i.Index == 0 }); k >= 0 {
		v.First = &attached[k]
	}
	return v
}

// static decides about the public address of a node. It adds to w the status, when to check again,
// and whether there is a call to make, and returns what to write. It must be called with mu held.
func (m *Manager) static(o *v2.CiliumNode, n *node, w *work, attached []Interface) map[string]any {
	d := DecideStatic(m.staticView(o, attached))
	if d.Look {
		left := time.Until(n.static.notBefore)
		if w.static = left <= 0; !w.static {
			d.Fault, w.next = n.static.why, min(w.next, left)
		}
	}
	w.add(d.Fault)
	if d.Show == o.Status.IPAM.AssignedStaticIP {
		return nil
	}
	var value any = d.Show
	if d.Show == "" {
		value = nil
	}
	return map[string]any{"ipam": map[string]any{"assigned-static-ip": value}}
}

// associate gets a node its public address. A failure is reported by the next decision; an error
// means that the operator no longer leads.
func (m *Manager) associate(ctx context.Context, o *v2.CiliumNode) error {
	err := m.findStatic(ctx, o)
	if err != nil && (ctx.Err() != nil || errors.Is(err, ErrNotLeading)) {
		return ErrNotLeading
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[o.Name]
	switch {
	case n == nil:
		return nil
	case err == nil:
		n.static = attempts{}
		return nil
	}
	again := n.static.failed(err.Error())
	if kindOf(err) == Taken {
		n.static.why = "" // no action is needed
	}
	m.log.Warn("a node has no public address", "node", o.Name, "error", err, "cause", errors.Unwrap(err), "again", again)
	return nil
}

// findStatic looks which addresses there are, and takes one. An association whose answer was lost
// is found by that look: the address leads to the node then.
func (m *Manager) findStatic(ctx context.Context, o *v2.CiliumNode) error {
	p, ok := m.provider.(StaticProvider)
	if !ok {
		return nil
	}
	found, err := p.StaticIPs(ctx, o.Spec.IPAM.StaticIPTags)
	if err != nil {
		return err
	}
	d, first := m.reserve(o, found)
	switch {
	case d.Fault != "":
		return &Error{Text: d.Fault}
	case d.Has != nil:
		first.PublicIP, first.StaticIP = d.Has.IP, d.Has.ID
	case d.Take != nil:
		if err := p.Associate(ctx, *d.Take, first); err != nil {
			if kindOf(err) == Taken {
				m.mu.Lock()
				m.reserved[d.Take.ID] = reservation{at: time.Now()}
				m.mu.Unlock()
			}
			return err
		}
		first.PublicIP, first.StaticIP = d.Take.IP, d.Take.ID
		m.log.Info("associated a public address", "node", o.Name, "address", first.PublicIP, "interface", first.ID)
	default:
		return nil // it has one by now
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv.note(change{at: time.Now(), call: Associate, iface: first})
	return nil
}

// reserve decides by what was found, and sets aside what is to be taken: other nodes leave it
// alone until descriptions show whose it is. It returns the first interface of the instance, too.
func (m *Manager) reserve(o *v2.CiliumNode, found []StaticIP) (StaticDecision, Interface) {
	m.mu.Lock()
	defer m.mu.Unlock()
	attached, _ := m.inv.of(m.provider.Instance(o))
	v := m.staticView(o, attached)
	now := time.Now()
	maps.DeleteFunc(m.reserved, func(_ string, r reservation) bool { return now.Sub(r.at) > m.inv.lag })
	v.Looked, v.Found, v.Reserved = true, found, map[string]string{}
	for id, r := range m.reserved {
		v.Reserved[id] = r.iface
	}
	d := DecideStatic(v)
	if v.First == nil {
		return d, Interface{}
	}
	if d.Take != nil {
		m.reserved[d.Take.ID] = reservation{v.First.ID, now}
	}
	return d, *v.First
}
