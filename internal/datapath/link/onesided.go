package link

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// The programs give packets from other nodes to pods at once, past netfilter, and what pods send
// takes the stack. So netfilter sees one side of some connections: those of pods with other nodes,
// and with native routing those between pods of two nodes. After the first packet it takes what
// follows for invalid, and kube-proxy with iptables, as many firewalls, drops such packets. They
// are marked untracked before anybody sees them, which the programs' own tracking allows.
//
// What is invalid and would be masqueraded were it not, a pod's packet of no connection, is not
// translated by netfilter. It must not leave the cluster under the pod's address.

// Chains of our table.
const (
	oneSidedChain      = "one_sided"
	untranslatedChain  = "untranslated"
	afterTracking      = -199 // conntrack is at -200
	oneSidedVersion    = 1
	ctStateInvalid     = expr.CtStateBitINVALID
	kindToCluster      = "to the cluster"
	kindNotMasqueraded = "of pods that are not masqueraded"
	kindAll            = "all"
)

// invalidFrom matches a pod's packets of a family that netfilter takes for invalid.
func invalidFrom(v6 bool) []expr.Any {
	zero := make([]byte, 4)
	return append(ofFamily(v6),
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(EndpointPrefix)},
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(ctStateInvalid), Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	)
}

// addOneSided queues the chains; masqueraded has the families that are, with their sets.
func addOneSided(c *nftables.Conn, table *nftables.Table, masqueraded map[bool]masqSets) {
	accept := nftables.ChainPolicyAccept
	before := c.AddChain(&nftables.Chain{
		Name: oneSidedChain, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(afterTracking), Policy: &accept,
	})
	forward := c.AddChain(&nftables.Chain{
		Name: untranslatedChain, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityMangle, Policy: &accept,
	})
	for _, v6 := range []bool{false, true} {
		sets, ok := masqueraded[v6]
		untrack := func(kind string, match ...expr.Any) {
			exprs := append(invalidFrom(v6), match...)
			c.AddRule(&nftables.Rule{Table: table, Chain: before, Exprs: append(exprs, &expr.Notrack{}), UserData: oneSidedMark(v6, kind)})
		}
		if !ok {
			untrack(kindAll)
			continue
		}
		untrack(kindToCluster, sets.to(sets.cluster, true)...)
		untrack(kindNotMasqueraded, sets.from(sets.plain, true)...)
		exprs := append(invalidFrom(v6), sets.leaving()...)
		exprs = append(exprs, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: exprs, UserData: oneSidedMark(v6, untranslatedChain)})
	}
}

func oneSidedMark(v6 bool, kind string) []byte {
	return ruleComment(fmt.Sprintf("hawser one-sided %d %v %s", oneSidedVersion, v6, kind))
}

// oneSidedUnchanged reports whether the chains are as wanted; without wanted they must be absent.
func oneSidedUnchanged(c *nftables.Conn, table *nftables.Table, wanted bool, families []masqFamily) bool {
	if !wanted {
		for _, name := range []string{oneSidedChain, untranslatedChain} {
			if chain, err := c.ListChain(table, name); err == nil && chain != nil {
				return false
			}
		}
		return true
	}
	masqueraded := map[bool]bool{}
	for _, m := range families {
		masqueraded[m.v6] = true
	}
	var before, forward [][]byte
	for _, v6 := range []bool{false, true} {
		if !masqueraded[v6] {
			before = append(before, oneSidedMark(v6, kindAll))
			continue
		}
		before = append(before, oneSidedMark(v6, kindToCluster), oneSidedMark(v6, kindNotMasqueraded))
		forward = append(forward, oneSidedMark(v6, untranslatedChain))
	}
	return hasRules(c, table, oneSidedChain, before) && hasRules(c, table, untranslatedChain, forward)
}
