package fabric

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// IPv6Gateway is where each interface finds the router, in AWS's words: the VPC router has this
// address in every subnet (Amazon VPC User Guide, "Subnet route tables").
func IPv6Gateway() netip.Addr { return netip.MustParseAddr("fe80:ec2::1") }

// ipv6Hop is how the router calls the other end of each port, to lead delegated prefixes there: an
// IPv6 prefix has too many addresses for a neighbour each.
var ipv6Hop = netip.MustParseAddr("fe80:ec2::2")

// linkLocal matches what is for the router or a neighbour alone, under whichever address: questions
// for hardware addresses and their answers, which are packets in IPv6. Nothing of it is forwarded.
var linkLocal = [][]expr.Any{
	destination(0xff, 0xc0, 0xfe, 0x80), // fe80::/10
	destination(0xff, 0xff, 0xff, 0x02), // ff02::/16
}

// destination matches packets by the first two bytes of the destination, of which mask counts.
func destination(mask1, mask2, want1, want2 byte) []expr.Any {
	const offset, length = 24, 2
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: []byte{mask1, mask2}, Xor: []byte{0, 0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{want1, want2}},
	}
}

// plugIPv6 has the router be found at its address by what is behind a port, which is up.
func (f *Fabric) plugIPv6(h *netlink.Handle, p port) error {
	link, err := h.LinkByName(p.link)
	if err != nil {
		return err
	}
	err = machine.InNamespace(f.Router, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+p.link+"/disable_ipv6", []byte("0"), 0o644)
	})
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: machine.IPNet(netip.PrefixFrom(IPv6Gateway(), 64)), Scope: int(netlink.SCOPE_LINK), Flags: unix.IFA_F_NODAD}
	if err := h.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("IPv6 gateway: %w", err)
	}
	return nil
}
