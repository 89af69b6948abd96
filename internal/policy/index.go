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
	sels  index.Prefixes[*activeSelector]
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
