package identity

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/hawser-net/hawser/internal/labels"
)

// WorldOf returns the identity of an address that nothing else is known of: with both families that
// of its own.
func WorldOf(ip netip.Addr, dualStack bool) ID {
	switch {
	case !dualStack:
		return World
	case ip.Is4():
		return WorldIPv4
	}
	return WorldIPv6
}

// CIDRLabels returns the labels of the identity that stands for a prefix outside the cluster: one
// "cidr:" label with the prefix itself, and reserved:world (reserved:world-ipv4 or -ipv6 when the
// node has both families). The prefix is masked first. A prefix of length 0 is the world itself and
// has no cidr label: its identity is reserved, not allocated. An invalid prefix has no labels at
// all.
//
// Rules that name a wider prefix match by containment (see CIDRPrefix), so that the labels need not
// list every covering prefix.
func CIDRLabels(p netip.Prefix, dualStack bool) labels.Set {
	if !p.IsValid() {
		return nil
	}
	p = p.Masked()
	world := labels.Reserved(WorldOf(p.Addr(), dualStack).String())
	if p.Bits() == 0 {
		return labels.NewSet(world)
	}
	return labels.NewSet(labels.Label{Source: labels.SourceCIDR, Key: cidrKey(p)}, world)
}

// cidrKey writes a prefix as a label key, in which colons are not used: 2001-db8--0/32.
func cidrKey(p netip.Prefix) string {
	if p.Addr().Is4() {
		return p.String()
	}
	addr := strings.ReplaceAll(p.Addr().String(), ":", "-")
	if strings.HasPrefix(addr, "-") {
		addr = "0" + addr
	}
	if strings.HasSuffix(addr, "-") {
		addr += "0"
	}
	return fmt.Sprintf("%s/%d", addr, p.Bits())
}

// BlockLabels returns the labels of the identity (of BlockScope) that stands for a block of
// addresses: one "block:" label with the prefix, masked. An invalid prefix has no labels at all.
func BlockLabels(p netip.Prefix) labels.Set {
	if !p.IsValid() {
		return nil
	}
	return labels.NewSet(labels.Label{Source: labels.SourceBlock, Key: cidrKey(p.Masked())})
}

// BlockPrefix is the inverse of BlockLabels.
func BlockPrefix(s labels.Set) (netip.Prefix, bool) {
	if len(s) != 1 || s[0].Source != labels.SourceBlock {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(strings.ReplaceAll(s[0].Key, "-", ":"))
	if err != nil {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// CIDRPrefix returns the prefix that a label set stands for, from its cidr: label; the longest if
// it has several. It is the inverse of CIDRLabels for all prefixes but those of length 0.
func CIDRPrefix(s labels.Set) (netip.Prefix, bool) {
	var best netip.Prefix
	for _, l := range s {
		if l.Source != labels.SourceCIDR {
			continue
		}
		p, err := netip.ParsePrefix(strings.ReplaceAll(l.Key, "-", ":"))
		if err != nil {
			continue
		}
		if !best.IsValid() || p.Bits() > best.Bits() {
			best = p.Masked()
		}
	}
	return best, best.IsValid()
}
