// Package pool divides address ranges into blocks of one size and records their owners. The
// operator assigns nodes their addresses from it.
//
// What always holds: no two prefixes that are held overlap, whatever was claimed, released and
// allocated in whatever order. Prefixes that do not fit the ranges or the block size, as left by an
// older configuration, can be claimed too and are avoided like any other.
//
// Several pools can share what is held: see [Pool.Share]. A prefix that is held in one is avoided
// in the others, whose ranges may overlap.
//
// A [Pool] is plain memory: no I/O, no clock, no goroutine. It is not safe for concurrent use.
package pool

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/validate"
)

// Quarantine is how long a block is given to no other node after its node was seen without it, or
// is gone. Neither proves that no pod uses the block: whoever deletes a Node, or its CiliumNode,
// does not end its pods, and the agent writes an object that was deleted or edited as it was.
const Quarantine = 2 * time.Minute

// ErrExhausted is wrapped by the error of [Pool.Allocate] when no block is free.
var ErrExhausted = errors.New("no free block of addresses")

// TakenError is the error of [Pool.Claim] for a prefix that overlaps one of another owner.
type TakenError struct {
	// Wanted is the prefix that was claimed, Held the first one that is in its way, Owner who holds
	// that.
	Wanted, Held netip.Prefix
	Owner        string
}

// Error names both prefixes and the owner.
func (e *TakenError) Error() string {
	if e.Wanted == e.Held {
		return fmt.Sprintf("%s is held by %s", e.Held, e.Owner)
	}
	return fmt.Sprintf("%s overlaps %s, which is held by %s", e.Wanted, e.Held, e.Owner)
}

// held is one prefix with its owner.
type held struct {
	prefix netip.Prefix
	owner  string
}

// Pool divides ranges of one address family.
type Pool struct {
	ranges []netip.Prefix // masked, disjoint, in the order in which they are used
	bits   int            // length of a block's prefix
	*space
	// next is where the search for a free block starts: behind the last one given out, so that a
	// block that was released stays unused as long as there are others.
	nextRange int
	next      netip.Addr
}

// space is what is held.
type space struct {
	taken  []held // sorted by address, disjoint
	avoid  []held // likewise; without an owner
	owners map[string][]netip.Prefix
}

// Validate reports whether ranges can be divided into blocks of /bits: all of one family, disjoint,
// none smaller than a block.
func Validate(ranges []netip.Prefix, bits int) error {
	var errs validate.Errors
	for i, r := range ranges {
		switch {
		case !r.IsValid():
			errs.Add("a range is not valid")
			continue
		case r.Addr().Is4() != ranges[0].Addr().Is4():
			errs.Add("%s is of another family than %s", r, ranges[0])
		case r.Addr().Is4In6():
			errs.Add("%s is an IPv4 range in the form of IPv6; write it as IPv4", r)
		case bits > r.Addr().BitLen():
			errs.Add("blocks of /%d do not exist in the family of %s", bits, r)
		case bits < r.Bits():
			errs.Add("%s is smaller than a block of /%d", r, bits)
		}
		for _, other := range ranges[:i] {
			errs.If(other.IsValid() && r.Overlaps(other), "%s overlaps %s", r, other)
		}
	}
	errs.If(bits < 1, "a block of /%d is not a block", bits)
	return errs.Err()
}

// New returns a pool of blocks of /bits in ranges, which are used in the order given. A pool
// without ranges has no block to allocate; claims work.
func New(ranges []netip.Prefix, bits int) (*Pool, error) {
	return cutInto(ranges, bits, &space{owners: map[string][]netip.Prefix{}})
}

// Share returns a pool of blocks of /bits in other ranges. What is held in it is what is held in p.
// It goes on where before, which may be nil, would have gone on, so that a block that was released
// stays unused as long as without the change.
func (p *Pool) Share(ranges []netip.Prefix, bits int, before *Pool) (*Pool, error) {
	n, err := cutInto(ranges, bits, p.space)
	if err != nil || before == nil {
		return n, err
	}
	for i, r := range n.ranges {
		if before.next.IsValid() && r.Contains(before.next) {
			n.nextRange, n.next = i, before.next
		}
	}
	return n, nil
}

func cutInto(ranges []netip.Prefix, bits int, s *space) (*Pool, error) {
	if err := Validate(ranges, bits); err != nil {
		return nil, err
	}
	p := &Pool{bits: bits, space: s}
	for _, r := range ranges {
		p.ranges = append(p.ranges, r.Masked())
	}
	if len(p.ranges) > 0 {
		p.next = p.ranges[0].Addr()
	}
	return p, nil
}

// Claim records prefix for owner. It is no error if owner holds exactly that prefix already.
// Nothing is recorded with an error, which is a [*TakenError] if the prefix overlaps another, also
// one of owner itself.
func (p *Pool) Claim(owner string, prefix netip.Prefix) error {
	if !prefix.IsValid() {
		return errors.New("the prefix is not valid")
	}
	prefix = prefix.Masked()
	if h, ok := overlap(p.taken, prefix); ok {
		if h.owner == owner && h.prefix == prefix {
			return nil
		}
		return &TakenError{Wanted: prefix, Held: h.prefix, Owner: h.owner}
	}
	p.insert(owner, prefix)
	return nil
}

// Allocate records a free block for owner. An error wraps [ErrExhausted].
func (p *Pool) Allocate(owner string) (netip.Prefix, error) {
	// Every range is searched from its start, the one where the search begins from there, and at
	// the end that one once more.
	for i := range len(p.ranges) + 1 {
		n := (p.nextRange + i) % max(1, len(p.ranges))
		if len(p.ranges) == 0 {
			break
		}
		from := p.ranges[n].Addr()
		if i == 0 {
			from = p.next
		}
		block, ok := p.free(p.ranges[n], from)
		if !ok {
			continue
		}
		p.insert(owner, block)
		p.nextRange, p.next = n, last(block).Next()
		if !p.next.IsValid() || !p.ranges[n].Contains(p.next) {
			p.nextRange = (n + 1) % len(p.ranges)
			p.next = p.ranges[p.nextRange].Addr()
		}
		return block, nil
	}
	if len(p.ranges) == 0 {
		return netip.Prefix{}, fmt.Errorf("%w: there is no range to take it from", ErrExhausted)
	}
	what := "are held"
	if len(p.avoid) > 0 {
		what = "are held or in dispute"
	}
	return netip.Prefix{}, fmt.Errorf("%w: all %s of /%d in %s %s", ErrExhausted, p.capacity(), p.bits, p.describe(), what)
}

// FamilyNames are those of the families that [Family] distinguishes.
var FamilyNames = [2]string{"IPv4", "IPv6"}

// Family returns 0 for a prefix of IPv4 and 1 for one of IPv6.
func Family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// Avoid has no block be allocated that overlaps one of these prefixes, which may overlap each other
// and what is held. It replaces what it was given before, for all pools that share what is held.
// Claims do not heed it.
func (p *Pool) Avoid(prefixes []netip.Prefix) {
	sorted := slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare)
	p.avoid = nil
	for _, a := range sorted {
		if n := len(p.avoid); n == 0 || !p.avoid[n-1].prefix.Overlaps(a) { // else the one before contains it
			p.avoid = append(p.avoid, held{prefix: a})
		}
	}
}

// Avoids reports whether prefix overlaps one that [Pool.Avoid] was given.
func (p *Pool) Avoids(prefix netip.Prefix) bool {
	_, ok := overlap(p.avoid, prefix)
	return ok
}

// Release gives back what owner holds, and returns it.
func (p *Pool) Release(owner string) []netip.Prefix {
	gone := p.owners[owner]
	for _, prefix := range gone {
		p.remove(prefix)
	}
	delete(p.owners, owner)
	return gone
}

// ReleaseOne gives back one prefix of owner. It reports whether owner held it.
func (p *Pool) ReleaseOne(owner string, prefix netip.Prefix) bool {
	i := slices.Index(p.owners[owner], prefix)
	if i < 0 {
		return false
	}
	p.remove(prefix)
	p.owners[owner] = slices.Delete(p.owners[owner], i, i+1)
	if len(p.owners[owner]) == 0 {
		delete(p.owners, owner)
	}
	return true
}

// Holds returns what owner holds, in the order in which it came to it.
func (p *Pool) Holds(owner string) []netip.Prefix { return slices.Clone(p.owners[owner]) }

// Holding is one prefix that is held.
type Holding struct {
	Prefix netip.Prefix
	Owner  string
}

// Overlapping returns what is held and overlaps prefix, sorted by address.
func (p *Pool) Overlapping(prefix netip.Prefix) []Holding {
	if !prefix.IsValid() {
		return nil
	}
	prefix = prefix.Masked()
	var out []Holding
	for i := max(0, search(p.taken, prefix.Addr())-1); i < len(p.taken); i++ {
		h := p.taken[i]
		if h.prefix.Overlaps(prefix) {
			out = append(out, Holding{h.prefix, h.owner})
		} else if prefix.Addr().Less(h.prefix.Addr()) {
			break
		}
	}
	return out
}

// Len returns how many prefixes are held.
func (p *Pool) Len() int { return len(p.taken) }

// Capacity returns how many blocks the ranges have, held or not. It is exact up to 2^53.
func (p *Pool) Capacity() float64 {
	f, _ := new(big.Float).SetInt(p.blocks()).Float64()
	return f
}

func (p *Pool) blocks() *big.Int {
	sum := new(big.Int)
	for _, r := range p.ranges {
		sum.Add(sum, new(big.Int).Lsh(big.NewInt(1), uint(p.bits-r.Bits())))
	}
	return sum
}

func (p *Pool) capacity() string {
	n := p.blocks()
	if n.IsInt64() && n.Int64() == 1 {
		return "1 block"
	}
	return n.String() + " blocks"
}

func (p *Pool) describe() string {
	var names []string
	for _, r := range p.ranges {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// search returns the index of the first prefix of a sorted list that starts at a or behind it.
func search(list []held, a netip.Addr) int {
	i, _ := slices.BinarySearchFunc(list, a, func(h held, a netip.Addr) int { return h.prefix.Addr().Compare(a) })
	return i
}

// overlap returns a prefix of a sorted list that overlaps prefix. Those of the list are disjoint,
// so only the neighbours can.
func overlap(list []held, prefix netip.Prefix) (held, bool) {
	i := search(list, prefix.Addr())
	if i > 0 && list[i-1].prefix.Overlaps(prefix) {
		return list[i-1], true
	}
	if i < len(list) && list[i].prefix.Overlaps(prefix) {
		return list[i], true
	}
	return held{}, false
}

// free returns the first free block of r that starts at from or behind it.
func (p *Pool) free(r netip.Prefix, from netip.Addr) (netip.Prefix, bool) {
	for from.IsValid() && r.Contains(from) {
		block := netip.PrefixFrom(from, p.bits).Masked()
		if block.Addr() != from { // from lies within a block: an older configuration had smaller ones
			from = last(block).Next()
			continue
		}
		h, ok := overlap(p.taken, block)
		if !ok {
			h, ok = overlap(p.avoid, block)
		}
		if !ok {
			return block, true
		}
		end := last(h.prefix)
		if end.Less(last(block)) {
			end = last(block)
		}
		from = end.Next()
	}
	return netip.Prefix{}, false
}

func (p *Pool) insert(owner string, prefix netip.Prefix) {
	p.taken = slices.Insert(p.taken, search(p.taken, prefix.Addr()), held{prefix, owner})
	p.owners[owner] = append(p.owners[owner], prefix)
}

func (p *Pool) remove(prefix netip.Prefix) {
	if i := search(p.taken, prefix.Addr()); i < len(p.taken) && p.taken[i].prefix == prefix {
		p.taken = slices.Delete(p.taken, i, i+1)
	}
}

// last returns the highest address of a masked prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
