package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Messages of sock_diag(7), which is where their layouts are (struct inet_diag_req_v2,
// inet_diag_msg, inet_diag_sockid).
const (
	sockDiagByFamily = 20
	sockDestroy      = 21
	// established is the state of a socket for datagrams that has a peer (TCP_ESTABLISHED).
	established = 1

	diagRequestLen = 56
	diagIDAt       = 8  // of the socket's identity, in a request
	diagReplyIDAt  = 4  // and in an answer
	diagIDLen      = 48 // ports, addresses, interface, cookie
)

// diagRequest is struct inet_diag_req_v2.
type diagRequest [diagRequestLen]byte

// Len implements nl.NetlinkRequestData.
func (r *diagRequest) Len() int { return diagRequestLen }

// Serialize implements nl.NetlinkRequestData.
func (r *diagRequest) Serialize() []byte { return r[:] }

// udpSocket is a socket for datagrams that has a peer.
type udpSocket struct {
	family byte
	id     [diagIDLen]byte
}

func (s udpSocket) peer() netip.AddrPort {
	port := binary.BigEndian.Uint16(s.id[2:])
	if s.family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.id[20:24])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s.id[20:36])).Unmap(), port)
}

// cookie is the kernel's number of the socket, which no other ever has.
func (s udpSocket) cookie() uint64 { return binary.NativeEndian.Uint64(s.id[40:]) }

// EndUDP ends those of the connected sockets for datagrams of the node's own network namespace for
// which end returns true, given the kernel's number of the socket and its peer: its owner sees at
// once that it is closed (ECONNABORTED when waiting, EDESTADDRREQ when sending), and may reconnect.
// It returns how many were ended. The kernel needs CONFIG_INET_UDP_DIAG and
// CONFIG_INET_DIAG_DESTROY; without them there is an error that is unix.EOPNOTSUPP or unix.ENOENT.
func (l *Links) EndUDP(end func(cookie uint64, peer netip.AddrPort) bool) (ended int, err error) {
	err = l.inNS(func() error {
		var errs []error
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			if family == unix.AF_INET6 && !l.ipv6 {
				continue
			}
			all, err := connectedUDP(family)
			if err != nil {
				errs = append(errs, fmt.Errorf("list sockets for datagrams: %w", err))
				continue
			}
			for _, s := range all {
				if !end(s.cookie(), s.peer()) {
					continue
				}
				req := &diagRequest{s.family, unix.IPPROTO_UDP}
				copy(req[diagIDAt:], s.id[:])
				msg := nl.NewNetlinkRequest(sockDestroy, unix.NLM_F_ACK)
				msg.AddData(req)
				_, err := msg.Execute(unix.NETLINK_INET_DIAG, 0)
				switch {
				case err == nil:
					ended++
				case !errors.Is(err, unix.ENOENT): // or its owner was faster
					errs = append(errs, fmt.Errorf("end the socket for datagrams to %s: %w", s.peer(), err))
				}
			}
		}
		return errors.Join(errs...)
	})
	return ended, err
}

// connectedUDP lists the sockets of a family that have a peer, of the namespace of the calling
// thread.
func connectedUDP(family byte) ([]udpSocket, error) {
	req := &diagRequest{family, unix.IPPROTO_UDP}
	binary.NativeEndian.PutUint32(req[4:], 1<<established)
	msg := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
	msg.AddData(req)
	replies, err := msg.Execute(unix.NETLINK_INET_DIAG, sockDiagByFamily)
	if err != nil {
		return nil, err
	}
	var out []udpSocket
	for _, b := range replies {
		if len(b) < diagReplyIDAt+diagIDLen || b[1] != established {
			continue
		}
		out = append(out, udpSocket{family: b[0], id: [diagIDLen]byte(b[diagReplyIDAt:])})
	}
	return out, nil
}
