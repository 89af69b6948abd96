package link

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Names in nftables of what keeps pods from addresses. The table is one of its own: masquerading,
// which replaces its table, can be off.
const (
	guardTable = "hawser_guard"
	guardChain = "forward"
)

// reconcileGuard makes our table refuse what pods send to the addresses that are not for them. What
// a pod sends to another address that a service leads there comes by here as well: the programs
// have rewritten it by then. The node's own processes do not come by.
func (l *Links) reconcileGuard(n datapath.Node) error {
	want := slices.Clone(n.NotForPods)
	slices.SortFunc(want, netip.Addr.Compare)
	want = slices.Compact(want)
	if len(want) == 0 {
		return l.removeTable(guardTable)
	}
	c, err := l.nft()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}
	if guardUnchanged(c, table, want) {
		return nil
	}
	err = installGuard(c, table, want, guardRefuses())
	if err == nil {
		return nil
	}
	// A kernel without that part of nftables drops: senders wait in place of being told.
	if c, err = l.nft(); err != nil {
		return err
	}
	if err := installGuard(c, table, want, &expr.Verdict{Kind: expr.VerdictDrop}); err != nil {
		return fmt.Errorf("keep pods from %v in nftables: %w", want, err)
	}
	return nil
}

func guardRefuses() expr.Any {
	return &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}
}

// installGuard replaces the table whole, in one transaction.
func installGuard(c *nftables.Conn, table *nftables.Table, want []netip.Addr, refuse expr.Any) error {
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	accept := nftables.ChainPolicyAccept
	chain := c.AddChain(&nftables.Chain{
		Name: guardChain, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	for _, ip := range want {
		proto, offset := byte(unix.NFPROTO_IPV4), uint32(16) // of the destination in the header
		if ip.Is6() {
			proto, offset = unix.NFPROTO_IPV6, 24
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, UserData: guardMark(want), Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(EndpointPrefix)},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(ip.BitLen() / 8)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ip.AsSlice()},
			&expr.Counter{},
			refuse,
		}})
	}
	return c.Flush()
}

// guardMark identifies the rules; it is stored with each.
func guardMark(want []netip.Addr) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "guard 1 %v", want))
	return ruleComment(fmt.Sprintf("hawser %x", sum[:16]))
}

func guardUnchanged(c *nftables.Conn, table *nftables.Table, want []netip.Addr) bool {
	chain, err := c.ListChain(table, guardChain)
	if err != nil || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward {
		return false
	}
	rules, err := c.GetRules(table, chain)
	if err != nil || len(rules) != len(want) {
		return false
	}
	mark := guardMark(want)
	return !slices.ContainsFunc(rules, func(r *nftables.Rule) bool { return !bytes.Equal(r.UserData, mark) })
}
