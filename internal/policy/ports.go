package policy

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// portKey is a protocol and a prefix of ports: what a Key has besides direction and identity.
type portKey struct {
	proto uint8
	bits  uint8
	port  uint16
}

// String returns "ANY", "TCP", "80/TCP" or "80-87/TCP".
func (k portKey) String() string {
	last := k.port | uint16(0xffff>>k.bits)
	return PortMatch{Proto: k.proto, First: k.port, Last: last}.String()
}

// covers reports whether every packet that o matches is matched by k.
func (k portKey) covers(o portKey) bool {
	if k.proto == datapath.ProtoAny {
		return true
	}
	return k.proto == o.proto && k.bits <= o.bits && (k.port^o.port)>>(16-k.bits) == 0
}

func comparePortKeys(a, b portKey) int {
	return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.bits, b.bits), cmp.Compare(a.port, b.port))
}

// appendRange cuts the range of ports first to last into the fewest prefixes.
func appendRange(dst []portKey, proto uint8, first, last uint16) []portKey {
	for lo, hi := uint32(first), uint32(last); lo <= hi; {
		// The block that starts at lo: as large as lo's alignment and the rest of the range allow.
		size := min(bits.TrailingZeros32(lo|1<<16), bits.Len32(hi-lo+1)-1)
		dst = append(dst, portKey{proto, uint8(16 - size), uint16(lo)})
		lo += 1 << size
	}
	return dst
}

// appendKeys adds the keys of a match that needs no look-up.
func (m PortMatch) appendKeys(dst []portKey) []portKey {
	return appendRange(dst, m.Proto, m.First, m.Last)
}

// NamedPort is a port that a pod's specification gives a name.
type NamedPort struct {
	Name  string
	Proto uint8
	Port  uint16
}

// FormatNamedPorts returns the canonical text of a list of named ports: "name.PROTO.port" items
// sorted and joined by "_", without duplicates. Ports with an invalid name, the number 0 or a
// protocol other than TCP, UDP and SCTP are left out: no rule can name them.
func FormatNamedPorts(ports []NamedPort) string {
	items := make([]string, 0, len(ports))
	for _, p := range ports {
		if !datapath.ValidPortName(p.Name) || p.Port == 0 || !datapath.HasPorts(p.Proto) {
			continue
		}
		items = append(items, fmt.Sprintf("%s.%s.%d", p.Name, datapath.ProtoName(p.Proto), p.Port))
	}
	slices.Sort(items)
	return strings.Join(slices.Compact(items), "_")
}

// ParseNamedPorts reads the text of FormatNamedPorts.
func ParseNamedPorts(s string) ([]NamedPort, error) {
	if s == "" {
		return nil, nil
	}
	var out []NamedPort
	for item := range strings.SplitSeq(s, "_") {
		f := strings.Split(item, ".")
		if len(f) != 3 || !datapath.ValidPortName(f[0]) {
			return nil, fmt.Errorf("named port %q is not name.PROTO.port", clip(item))
		}
		proto, err := datapath.ParseProto(f[1])
		if err != nil || !datapath.HasPorts(proto) {
			return nil, fmt.Errorf("named port %q: the protocol has no ports", clip(item))
		}
		n, err := strconv.ParseUint(f[2], 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("named port %q: the port must be 1 to 65535", clip(item))
		}
		out = append(out, NamedPort{f[0], proto, uint16(n)})
	}
	return out, nil
}

// portSet is what one peer identity, or any peer, has in one direction of a rule set: keys sorted
// by comparePortKeys, none covered by another of the same list, no allow covered by a deny. In a
// direction with tiers an identity has tiers instead, sorted likewise, each key with all that
// applies to it. It is immutable. The nil portSet is empty.
type portSet struct {
	deny  []portKey
	allow []portKey
	tiers []decided
}

func (s *portSet) empty() bool { return s.len() == 0 }

// newPortSet reduces lists of keys to equivalent entries. Allows count only if enforced is true:
// otherwise what nothing denies passes anyway. base, if not nil, are the entries of any peer, which
// the kernel looks up too: what they decide alone is left out.
func newPortSet(allow, deny []portKey, enforced bool, base *portSet) *portSet {
	s := &portSet{}
	slices.SortFunc(deny, comparePortKeys)
	var denied coverSet
	var baseDeny, baseAllow []portKey
	if base != nil {
		baseDeny, baseAllow = base.deny, base.allow
	}
	var bd, ba coverSet
	bd.addAll(baseDeny)
	ba.addAll(baseAllow)
	for _, k := range deny {
		if !denied.covers(k) && !bd.covers(k) {
			denied.add(k)
		}
	}
	s.deny = denied.list
	if enforced {
		slices.SortFunc(allow, comparePortKeys)
		var allowed coverSet
		for _, k := range allow {
			if !denied.covers(k) && !bd.covers(k) && !allowed.covers(k) && !ba.covers(k) {
				allowed.add(k)
			}
		}
		s.allow = allowed.list
	}
	if s.empty() {
		return nil
	}
	return s
}

// coverSet answers whether one of its keys covers another key. Keys are added in the order of
// comparePortKeys, so that what covers comes before what is covered.
type coverSet struct {
	list []portKey
	set  map[portKey]struct{} // once the list is long
}

// scanLimit is the length up to which a list is scanned.
const scanLimit = 24

func (c *coverSet) add(k portKey) {
	c.list = append(c.list, k)
	if len(c.list) <= scanLimit {
		return
	}
	if c.set == nil {
		c.set = make(map[portKey]struct{}, 4*scanLimit)
		for _, k := range c.list {
			c.set[k] = struct{}{}
		}
	}
	c.set[k] = struct{}{}
}

func (c *coverSet) addAll(list []portKey) {
	if len(list) <= scanLimit {
		c.list = list[:len(list):len(list)]
		return
	}
	for _, k := range list {
		c.add(k)
	}
}

func (c *coverSet) covers(k portKey) bool {
	if c.set == nil {
		for i := range c.list {
			if c.list[i].covers(k) {
				return true
			}
		}
		return false
	}
	if _, ok := c.set[portKey{}]; ok {
		return true
	}
	for n := uint8(0); n <= k.bits; n++ {
		mask := uint16(0xffff) << (16 - n)
		if _, ok := c.set[portKey{k.proto, n, k.port & mask}]; ok {
			return true
		}
	}
	return false
}

// decision returns the verdict of the most specific entry that matches a packet, none if there is
// none.
func (s *portSet) decision(proto uint8, port uint16) (out datapath.PolicyEntry) {
	if s == nil {
		return out
	}
	if s.len() > scanLimit {
		return s.search(proto, port)
	}
	return s.scan(proto, port)
}

// scan is decision for short lists.
func (s *portSet) scan(proto uint8, port uint16) (out datapath.PolicyEntry) {
	best := -1
	probe := portKey{proto, 16, port}
	look := func(k portKey, says datapath.PolicyEntry) {
		if !k.covers(probe) {
			return
		}
		length := int(k.bits)
		if k.proto != datapath.ProtoAny {
			length += 8
		}
		if length > best {
			best, out = length, says
		}
	}
	for _, k := range s.deny {
		look(k, datapath.PolicyEntry{Deny: true})
	}
	for _, k := range s.allow {
		look(k, datapath.PolicyEntry{Allow: true})
	}
	for _, d := range s.tiers {
		look(d.portKey, d.PolicyEntry)
	}
	return out
}

// search is decision for long lists: it looks for each key that matches, the most specific first.
func (s *portSet) search(proto uint8, port uint16) datapath.PolicyEntry {
	for n := 16; n >= 0; n-- {
		if says, ok := s.at(portKey{proto, uint8(n), port & (uint16(0xffff) << (16 - n))}); ok {
			return says
		}
	}
	says, _ := s.at(portKey{})
	return says
}

// at returns the verdict of a key's entry.
func (s *portSet) at(k portKey) (datapath.PolicyEntry, bool) {
	if _, ok := slices.BinarySearchFunc(s.deny, k, comparePortKeys); ok {
		return datapath.PolicyEntry{Deny: true}, true
	}
	if _, ok := slices.BinarySearchFunc(s.allow, k, comparePortKeys); ok {
		return datapath.PolicyEntry{Allow: true}, true
	}
	i, ok := slices.BinarySearchFunc(s.tiers, k, func(d decided, k portKey) int { return comparePortKeys(d.portKey, k) })
	if !ok {
		return datapath.PolicyEntry{}, false
	}
	return s.tiers[i].PolicyEntry, true
}
