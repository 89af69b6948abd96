package link

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// By itself, masquerading leaves a flow the port that the pod chose if no other masqueraded flow
// has it, and else takes any from 1024 on. But some ports of the node are the programs', which the
// kernel does not know: by those of a range they forward clients outside to other nodes, and what
// comes to a frontend's they lead to its backends. Replies to a pod's flow by one of these would go
// to another host. So pods' flows get other ports.

// nftMasquerade is the chain that the rules which select pods' packets jump to. Its name is no
// keyword of nft.
const nftMasquerade = "masqueraded"

const (
	// firstPodPort is the first of the ports that are restricted: below it the kernel replaces a
	// port by one below it only, as servers may require.
	firstPodPort = 1024
	// aboveNodePorts is the first port above those that Kubernetes gives to services by default. It
	// is the first of those, too, that Linux gives to sockets which do not ask for one: most flows
	// keep theirs.
	aboveNodePorts = 32768
	// fewPodPorts would be too few for flows to one server.
	fewPodPorts = 8192
)

// podPorts is pure: the ports for pods' flows, those below or above snat, whichever are more, and
// above the node ports if these are not too few; ok is false if none are left.
func podPorts(snat datapath.PortRange) (r datapath.PortRange, ok bool) {
	if snat == (datapath.PortRange{}) {
		snat = datapath.DefaultMasqueradePorts()
	}
	larger := func(first int) (int, int) {
		above := max(first, int(snat.Last)+1)
		if int(snat.First)-first >= 65536-above {
			return first, int(snat.First) - 1
		}
		return above, 65535
	}
	first, last := larger(aboveNodePorts)
	if last-first+1 < fewPodPorts {
		first, last = larger(firstPodPort)
	}
	return datapath.PortRange{First: uint16(first), Last: uint16(last)}, first <= last
}

// portRule is one rule that masquerades packets of a protocol with ports of a range.
type portRule struct {
	proto byte
	ports datapath.PortRange
}

// portRules is pure: the rules for a range that SNAT has.
func portRules(snat datapath.PortRange) []portRule {
	ports, ok := podPorts(snat)
	if !ok {
		return nil
	}
	// SCTP keeps its ports: the programs do not change them either.
	return []portRule{{unix.IPPROTO_TCP, ports}, {unix.IPPROTO_UDP, ports}}
}

func (r portRule) userData() []byte {
	return ruleComment(fmt.Sprintf("hawser ports 1 %d %s", r.proto, r.ports))
}

// addMasquerade queues the chain with the rule for what has no ports, or a low one.
func addMasquerade(c *nftables.Conn, table *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{Name: nftMasquerade, Table: table})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}, UserData: masqueradeMark()})
}

func masqueradeMark() []byte { return ruleComment("hawser masquerade 1") }

// masqueradeMarks are the comments of the chain's rules, in their order.
func masqueradeMarks(rules []portRule) (marks [][]byte) {
	for _, r := range rules {
		marks = append(marks, r.userData())
	}
	return append(marks, masqueradeMark())
}

// message is the rule, to be inserted at the head of the chain. The library cannot write it: its
// expression for masquerading leaves the flag out without which the kernel ignores the ports.
func (r portRule) message() (netlink.Message, error) {
	const family = byte(nftables.TableFamilyINet)
	matches := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{r.proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: binaryutil.BigEndian.PutUint16(firstPodPort)},
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(r.ports.First)},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(r.ports.Last)},
	}
	attrs := netlink.NewAttributeEncoder()
	attrs.ByteOrder = binary.BigEndian
	attrs.String(unix.NFTA_RULE_TABLE, nftTable)
	attrs.String(unix.NFTA_RULE_CHAIN, nftMasquerade)
	attrs.Nested(unix.NFTA_RULE_EXPRESSIONS, func(list *netlink.AttributeEncoder) error {
		for _, m := range matches {
			b, err := expr.Marshal(family, m)
			if err != nil {
				return err
			}
			list.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, b)
		}
		list.Nested(unix.NFTA_LIST_ELEM, func(masq *netlink.AttributeEncoder) error {
			masq.String(unix.NFTA_EXPR_NAME, "masq")
			masq.Nested(unix.NFTA_EXPR_DATA, func(data *netlink.AttributeEncoder) error {
				data.Uint32(unix.NFTA_MASQ_FLAGS, unix.NF_NAT_RANGE_PROTO_SPECIFIED)
				data.Uint32(unix.NFTA_MASQ_REG_PROTO_MIN, 1)
				data.Uint32(unix.NFTA_MASQ_REG_PROTO_MAX, 2)
				return nil
			})
			return nil
		})
		return nil
	})
	attrs.Bytes(unix.NFTA_RULE_USERDATA, r.userData())
	data, err := attrs.Encode()
	if err != nil {
		return netlink.Message{}, err
	}
	return netlink.Message{
		Header: netlink.Header{
			Type:  unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE,
			Flags: netlink.Request | netlink.Acknowledge | netlink.Create,
		},
		Data: append(nfgenmsg(family, 0), data...),
	}, nil
}

// nfgenmsg is the header of all messages of netfilter (struct nfgenmsg).
func nfgenmsg(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// insertPortRules inserts the rules into the chain, all or none. Until then, as for an agent before
// this one, pods' flows may get any port.
func (l *Links) insertPortRules(rules []portRule) error {
	if len(rules) == 0 {
		return nil
	}
	limit := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   nfgenmsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	batch := []netlink.Message{limit(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, r := range slices.Backward(rules) { // each goes before those inserted so far
		m, err := r.message()
		if err != nil {
			return fmt.Errorf("write the rules for the ports of pods: %w", err)
		}
		batch = append(batch, m)
	}
	batch = append(batch, limit(unix.NFNL_MSG_BATCH_END))
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(l.ns.Fd())})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer c.Close()
	if _, err := c.SendMessages(batch); err != nil {
		return fmt.Errorf("keep pods off the ports of clients outside: %w", err)
	}
	for range rules {
		if _, err := c.Receive(); err != nil {
			return fmt.Errorf("keep pods off the ports of clients outside in nftables: %w", err)
		}
	}
	return nil
}
