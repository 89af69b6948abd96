package policy

import (
	"net/netip"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy/index"
)

// prefixIndex holds the selectors by prefix of one kind, and the identities that stand for
// prefixes.
type prefixIndex struct {
	peers map[*peer]struct{}
	sels  map[netip.Prefix][]*activeSelector
	lens  [2][129]int // how many selectors per family and length
}

func newPrefixIndex() prefixIndex {
	return prefixIndex{peers: map[*peer]struct{}{}, sels: map[netip.Prefix][]*activeSelector{}}
}

func (x *prefixIndex) add(as *activeSelector) {
	c := as.sel.cidr
	x.sels[c] = append(x.sels[c], as)
	x.lens[family(c)][c.Bits()]++
}

func (x *prefixIndex) remove(as *activeSelector) {
	c := as.sel.cidr
	if list := index.Without(x.sels[c], as); len(list) > 0 {
		x.sels[c] = list
	} else {
		delete(x.sels, c)
	}
	x.lens[family(c)][c.Bits()]--
}

// visitCovering calls fn for the selectors whose prefix contains p.
func (x *prefixIndex) visitCovering(p netip.Prefix, fn func(*activeSelector)) {
	lens := &x.lens[family(p)]
	for n := 0; n <= p.Bits(); n++ {
		if lens[n] == 0 {
			continue
		}
		outer, _ := p.Addr().Prefix(n) // n is within the address
		for _, as := range x.sels[outer] {
			fn(as)
		}
	}
}

// longest returns the identity whose prefix is the longest around the address, 0 if there is none.
func (x *prefixIndex) longest(a netip.Addr) identity.ID {
	best, id := -1, identity.Unknown
	for p := range x.peers {
		if p.prefix.Contains(a) && p.prefix.Bits() > best {
			best, id = p.prefix.Bits(), p.id
		}
	}
	return id
}

func family(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 1
	}
	return 0
}
