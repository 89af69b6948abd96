package nodemanager

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// maxLag is how long a description may be behind the changes that were made ("Eventual
// consistency in the Amazon EC2 API"). Until then, what was changed counts, not what is described.
const maxLag = 2 * time.Minute

// maxChanges bounds the changes that are remembered until a description is read that began later:
// as long as there is none, the oldest go.
const maxChanges = 4096

// prefixesRest is how long no prefix is asked of a subnet that had none.
const prefixesRest = 10 * time.Minute

// change is one that the cloud has confirmed.
type change struct {
	at   time.Time
	call Call
	// iface is the interface as it was created or attached, or the one that was changed.
	iface Interface
	units []netip.Prefix
}

// inventory is the state of a cloud: the last description, with the changes since applied. It has
// no lock of its own.
type inventory struct {
	lag        time.Duration
	snapshot   *Snapshot
	begun      time.Time            // when the snapshot was
	first      time.Time            // when the first one was
	interfaces map[string]Interface // by ID
	alone      map[string]time.Time // instances that were read since, and when that was begun
	byInstance map[string][]string
	changes    []change // oldest first
	limits     map[string]Limits
	scattered  map[string]time.Time // subnets without a prefix
}

func newInventory(lag time.Duration) *inventory {
	return &inventory{
		lag: lag, limits: map[string]Limits{}, scattered: map[string]time.Time{},
		interfaces: map[string]Interface{}, alone: map[string]time.Time{}, byInstance: map[string][]string{},
	}
}

// replace takes a description that was begun at a time. An instance that was read alone since is as
// it was then: a description of many pages may take minutes.
func (v *inventory) replace(s *Snapshot, begun time.Time) {
	before := v.interfaces
	v.snapshot, v.begun = s, begun
	if v.first.IsZero() {
		v.first = begun
	}
	v.interfaces = make(map[string]Interface, len(s.Interfaces))
	for _, i := range s.Interfaces {
		v.interfaces[i.ID] = i
	}
	maps.DeleteFunc(v.alone, func(_ string, at time.Time) bool { return !at.After(begun) })
	newer := func(_ string, i Interface) bool { return !v.alone[i.Instance].IsZero() }
	maps.DeleteFunc(v.interfaces, newer)
	for id, i := range before {
		if newer(id, i) {
			v.interfaces[id] = i
		}
	}
	// Those that began later have these, too.
	v.changes = slices.DeleteFunc(v.changes, func(c change) bool { return begun.Sub(c.at) > v.lag })
	v.again(begun, func(Interface) bool { return true })
	for id, since := range v.scattered {
		if time.Since(since) > prefixesRest {
			delete(v.scattered, id)
		}
	}
	v.index()
}

// early reports whether the description may be behind changes that an operator before this one has
// made.
func (v *inventory) early() bool { return v.begun.Sub(v.first) < v.lag }

// replaceInstance takes a description of one instance, unless that of everything is newer. Its data
// of other instances are ignored: the ID comes from a CiliumNode, which others may write.
func (v *inventory) replaceInstance(instance string, list []Interface, begun time.Time) {
	if begun.Before(v.begun) {
		return
	}
	v.alone[instance] = begun
	maps.DeleteFunc(v.interfaces, func(_ string, i Interface) bool { return i.Instance == instance })
	for _, i := range list {
		if i.Instance == instance {
			v.interfaces[i.ID] = i
		}
	}
	v.again(begun, func(i Interface) bool { return i.Instance == instance })
	v.index()
}

// again makes the changes that a description may lack.
func (v *inventory) again(begun time.Time, of func(Interface) bool) {
	for _, c := range v.changes {
		if begun.Sub(c.at) <= v.lag && of(c.iface) {
			v.apply(c)
		}
	}
}

// note makes a change that the cloud has confirmed.
func (v *inventory) note(c change) {
	v.changes = append(v.changes[max(0, len(v.changes)-maxChanges+1):], c)
	id := c.iface.ID
	before := v.interfaces[id].Instance
	v.apply(c)
	if after := v.interfaces[id].Instance; after != before {
		if left := slices.DeleteFunc(v.byInstance[before], func(s string) bool { return s == id }); len(left) > 0 {
			v.byInstance[before] = left
		} else {
			delete(v.byInstance, before)
		}
		v.place(id, after)
	}
}

// place notes whose interface it is.
func (v *inventory) place(id, instance string) {
	if instance != "" {
		v.byInstance[instance] = append(v.byInstance[instance], id)
	}
}

func (v *inventory) apply(c change) {
	i, ok := v.interfaces[c.iface.ID]
	if !ok && c.call != Create {
		return
	}
	i = i.clone()
	switch c.call {
	case Create:
		if ok {
			return
		}
		i = c.iface.clone()
	case Attach:
		if i.Attachment == "" {
			i.Attachment, i.Index, i.Instance = c.iface.Attachment, c.iface.Index, c.iface.Instance
		}
	case Modify:
		i.DeleteOnTermination = c.iface.DeleteOnTermination
	case Assign:
		for _, u := range c.units {
			if !slices.Contains(i.Held, u) {
				i.Held = append(i.Held, u)
			}
		}
	case AssignIPv6:
		for _, u := range c.units {
			if !slices.Contains(i.IPv6Prefixes, u) {
				i.IPv6Prefixes = append(i.IPv6Prefixes, u)
			}
		}
	case Unassign:
		i.Held = slices.DeleteFunc(i.Held, func(u netip.Prefix) bool { return slices.Contains(c.units, u) })
	case Associate:
		i.PublicIP, i.StaticIP = c.iface.PublicIP, c.iface.StaticIP
	case Delete:
		delete(v.interfaces, i.ID)
		return
	}
	v.interfaces[i.ID] = i
}

func (v *inventory) index() {
	v.byInstance = map[string][]string{}
	for id, i := range v.interfaces {
		v.place(id, i.Instance)
	}
}

// of returns the interfaces of an instance.
func (v *inventory) of(instance string) (attached, loose []Interface) {
	for _, id := range slices.Sorted(slices.Values(v.byInstance[instance])) {
		if i := v.interfaces[id]; i.Attachment != "" {
			attached = append(attached, i)
		} else if i.Managed {
			loose = append(loose, i)
		}
	}
	slices.SortStableFunc(attached, func(a, b Interface) int { return a.Index - b.Index })
	return attached, loose
}

// subnets returns them as they are thought to be now.
func (v *inventory) subnets() map[string]Subnet {
	if len(v.scattered) == 0 {
		return v.snapshot.Subnets
	}
	out := maps.Clone(v.snapshot.Subnets)
	for id := range v.scattered {
		s := out[id]
		s.NoPrefixes = true
		out[id] = s
	}
	return out
}

// spend notes that addresses of a subnet are not free any more, or are again. Before anything was
// read there are none.
func (v *inventory) spend(subnet string, n int) {
	if v.snapshot == nil {
		return
	}
	if s, ok := v.snapshot.Subnets[subnet]; ok {
		s.Free = max(s.Free-n, 0)
		v.snapshot.Subnets[subnet] = s
	}
}

// cost is how many addresses of its subnet a step needs.
func (s *Step) cost() (subnet string, n int) {
	n = s.Addresses + prefixSize*s.Prefixes
	switch s.Call {
	case Create:
		return s.Subnet, n + 1
	case Assign:
		return s.Interface.Subnet, n
	}
	return "", 0
}
