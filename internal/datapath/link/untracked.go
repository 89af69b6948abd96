package link

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Masquerading, like kube-proxy, turns the kernel's connection tracking on for the whole namespace,
// and with it for the outer packets of the tunnel: each inner flow has an outer source port of its
// own, so each new connection between pods of two nodes would make an entry on both. These are not
// needed; the programs track the pods' flows. Two chains exempt the tunnel.

// untrackedChain is one of them.
type untrackedChain struct {
	name string
	hook *nftables.ChainHook
	in   bool
}

func untrackedChains() []untrackedChain {
	return []untrackedChain{
		{"tunnel_in", nftables.ChainHookPrerouting, true},
		{"tunnel_out", nftables.ChainHookOutput, false},
	}
}

// untrackedPort is pure: the UDP port that is not to be tracked, 0 if there is none.
func untrackedPort(n datapath.Node) uint16 {
	if !n.Tunnel {
		return 0
	}
	return n.TunnelPort
}

// addUntracked queues the chains into our table.
func addUntracked(c *nftables.Conn, table *nftables.Table, port uint16) {
	accept := nftables.ChainPolicyAccept
	for _, d := range untrackedChains() {
		chain := c.AddChain(&nftables.Chain{
			Name: d.name, Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: d.hook, Priority: nftables.ChainPriorityRaw, Policy: &accept,
		})
		exprs := []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		}
		if d.in {
			// What is only forwarded is not the tunnel's: a pod may serve that port, too.
			exprs = append(exprs,
				&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)})
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(exprs, &expr.Notrack{}), UserData: untrackedMark(port)})
	}
}

// untrackedMark is stored with the rules, as a comment like that of the masquerading rules.
func untrackedMark(port uint16) []byte {
	return ruleComment(fmt.Sprintf("hawser untracked 1 %d", port))
}

// untrackedUnchanged reports whether the chains are as wanted; with port 0 they must be absent.
func untrackedUnchanged(c *nftables.Conn, table *nftables.Table, port uint16) bool {
	for _, d := range untrackedChains() {
		chain, err := c.ListChain(table, d.name)
		if port == 0 {
			if err == nil && chain != nil {
				return false
			}
			continue
		}
		if err != nil || chain.Hooknum == nil || *chain.Hooknum != *d.hook {
			return false
		}
		if !hasRules(c, table, d.name, [][]byte{untrackedMark(port)}) {
			return false
		}
	}
	return true
}
