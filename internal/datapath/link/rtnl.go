package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// conn is a rtnetlink socket that sends several requests as one datagram. The kernel handles the
// messages of a datagram one after the other and answers each (netlink(7)), so that bringing an
// endpoint up costs one send and one receive instead of six of each.
type conn struct {
	mu   sync.Mutex
	fd   int
	port uint32 // the socket's address, by which the kernel names who changed something
	seq  atomic.Uint32
	buf  []byte
}

// maxBatch bounds the messages of one datagram, so that their answers fit the receive buffer.
const maxBatch = 128

func newConn() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind rtnetlink socket: %w", err)
	}
	c := &conn{fd: fd, buf: make([]byte, 64<<10)}
	if name, err := unix.Getsockname(fd); err == nil {
		if nl, ok := name.(*unix.SockaddrNetlink); ok {
			c.port = nl.Pid
		}
	}
	// With extended answers an error carries the kernel's own explanation; with capped ones it does
	// not repeat the request. Kernels that know neither work too.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
	return c, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// request is one message of a batch.
type request struct {
	*nl.NetlinkRequest
	// what names the request in errors.
	what string
	// ignore lists errors that count as success.
	ignore []syscall.Errno
}

func newRequest(what string, typ, flags int, ignore ...syscall.Errno) *request {
	return &request{
		NetlinkRequest: nl.NewNetlinkRequest(typ, flags|unix.NLM_F_ACK),
		what:           what,
		ignore:         ignore,
	}
}

// attr adds a route attribute.
func (r *request) attr(typ int, data []byte) { r.AddData(nl.NewRtAttr(typ, data)) }

// run sends the requests and returns one error for each, nil where it succeeded. A failing request
// does not keep the following ones from being handled.
func (c *conn) run(reqs ...*request) []error {
	errs := make([]error, len(reqs))
	c.mu.Lock()
	defer c.mu.Unlock()
	for start := 0; start < len(reqs); start += maxBatch {
		end := min(start+maxBatch, len(reqs))
		c.runSome(reqs[start:end], errs[start:end])
	}
	return errs
}

func (c *conn) runSome(reqs []*request, errs []error) {
	var out []byte
	bySeq := make(map[uint32]int, len(reqs))
	for i, r := range reqs {
		r.Seq = c.seq.Add(1)
		bySeq[r.Seq] = i
		out = append(out, r.Serialize()...)
		if pad := nlAlign(len(out)) - len(out); pad > 0 {
			out = append(out, make([]byte, pad)...)
		}
	}
	fail := func(err error) {
		for _, i := range bySeq {
			errs[i] = fmt.Errorf("%s: %w", reqs[i].what, err)
		}
	}
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		fail(err)
		return
	}
	for len(bySeq) > 0 {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			fail(err)
			return
		}
		msgs, err := syscall.ParseNetlinkMessage(c.buf[:n])
		if err != nil {
			fail(err)
			return
		}
		for _, m := range msgs {
			i, ours := bySeq[m.Header.Seq]
			if !ours || m.Header.Type != unix.NLMSG_ERROR {
				continue
			}
			delete(bySeq, m.Header.Seq)
			errs[i] = reqs[i].outcome(m)
		}
	}
}

// outcome turns the kernel's answer (struct nlmsgerr and, if flagged, attributes) into an error.
func (r *request) outcome(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return fmt.Errorf("%s: short answer from the kernel", r.what)
	}
	code := int32(binary.NativeEndian.Uint32(m.Data[:4]))
	if code == 0 {
		return nil
	}
	errno := syscall.Errno(-code)
	for _, ok := range r.ignore {
		if errno == ok {
			return nil
		}
	}
	const hdr = 4 + unix.SizeofNlMsghdr
	if m.Header.Flags&unix.NLM_F_ACK_TLVS != 0 && len(m.Data) > hdr {
		if attrs, err := nl.ParseRouteAttr(m.Data[hdr:]); err == nil {
			for _, a := range attrs {
				if a.Attr.Type&nl.NLA_TYPE_MASK == 1 { // NLMSGERR_ATTR_MSG
					return fmt.Errorf("%s: %w (%s)", r.what, errno, nl.BytesToString(a.Value))
				}
			}
		}
	}
	return fmt.Errorf("%s: %w", r.what, errno)
}

func nlAlign(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// linkUp asks for an interface to be up.
func linkUp(ifIndex int) *request {
	r := newRequest(fmt.Sprintf("bring up interface %d", ifIndex), unix.RTM_NEWLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifIndex)
	msg.Flags = unix.IFF_UP
	msg.Change = unix.IFF_UP
	r.AddData(msg)
	return r
}

// linkDown asks for an interface to be down. One that is gone is.
func linkDown(ifIndex int) *request {
	r := newRequest(fmt.Sprintf("shut down interface %d", ifIndex), unix.RTM_NEWLINK, 0, unix.ENODEV)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifIndex)
	msg.Change = unix.IFF_UP
	r.AddData(msg)
	return r
}

// Indexes of struct ipv4_devconf as the kernel numbers them for IFLA_INET_CONF, from 1
// (include/uapi/linux/ip.h).
const (
	ipv4DevconfSendRedirects = 6
	ipv4DevconfRPFilter      = 8
)

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE (include/uapi/linux/if_link.h).
const addrGenModeNone = 1

// linkConf turns reverse-path filtering and ICMP redirects of an interface off, and keeps IPv6 from
// giving it a link-local address. It must come before the interface is up.
func linkConf(ifIndex int, ipv6 bool) *request {
	r := newRequest(fmt.Sprintf("configure interface %d", ifIndex), unix.RTM_NEWLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifIndex)
	r.AddData(msg)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
	conf.AddRtAttr(ipv4DevconfRPFilter, nl.Uint32Attr(0))
	conf.AddRtAttr(ipv4DevconfSendRedirects, nl.Uint32Attr(0))
	if ipv6 {
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(addrGenModeNone))
	}
	r.AddData(spec)
	return r
}

// linkGroup puts an interface into the group.
func linkGroup(ifIndex int, group uint32) *request {
	r := newRequest(fmt.Sprintf("mark interface %d for removal", ifIndex), unix.RTM_NEWLINK, 0, unix.ENODEV)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifIndex)
	r.AddData(msg)
	r.attr(unix.IFLA_GROUP, nl.Uint32Attr(group))
	return r
}

// delGroup removes all interfaces of the group. An empty group is not an error.
func delGroup(group uint32) *request {
	r := newRequest(fmt.Sprintf("remove interface group %#x", group), unix.RTM_DELLINK, 0, unix.ENODEV)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.attr(unix.IFLA_GROUP, nl.Uint32Attr(group))
	return r
}

// neighbour sets a permanent neighbour entry.
func neighbour(ifIndex int, ip netip.Addr, mac []byte) *request {
	r := newRequest(fmt.Sprintf("set neighbour %s on interface %d", ip, ifIndex),
		unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	r.AddData(&neighMsg{family: uint8(family(ip)), index: uint32(ifIndex), state: unix.NUD_PERMANENT})
	r.attr(unix.NDA_DST, ip.AsSlice())
	r.attr(unix.NDA_LLADDR, mac)
	return r
}

// neighMsg is struct ndmsg.
type neighMsg struct {
	family uint8
	index  uint32
	state  uint16
}

func (m *neighMsg) Len() int { return 12 }

func (m *neighMsg) Serialize() []byte {
	b := make([]byte, 12)
	b[0] = m.family
	binary.NativeEndian.PutUint32(b[4:], m.index)
	binary.NativeEndian.PutUint16(b[8:], m.state)
	return b
}
