package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/test/cluster/lab"
)

// token marks the packets of one attempt. It differs from all others wherever it stands in a
// packet.
type token [12]byte

func newToken() (t token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// tally counts sightings of tokens. Safe for concurrent use.
type tally struct {
	mu   sync.Mutex
	seen map[token]*sighting
}

// sighting is how often a token was seen, and in what first.
type sighting struct {
	count int
	first []byte
}

func (t *tally) watch(k token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = map[token]*sighting{}
	}
	t.seen[k] = &sighting{}
}

func (t *tally) forget(k token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.seen, k)
}

func (t *tally) of(k token) (s sighting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.seen[k]; p != nil {
		s = *p
	}
	return s
}

func (t *tally) look(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, s := range t.seen {
		if bytes.Contains(b, k[:]) {
			if s.count == 0 {
				s.first = bytes.Clone(b)
			}
			s.count++
		}
	}
}

// witness sees tokens arrive somewhere: at a device, or at a socket.
type witness interface {
	watch(token)
	forget(token)
	of(token) sighting
}

// port is a device, seen from below: frames are sent and received by it, past the namespace's own
// stack and filters.
type port struct {
	tally
	name  string
	index int
	mac   mac
	out   int
	in    *os.File
	done  chan struct{}
}

// protoAll is ETH_P_ALL in network byte order, as packet sockets want it.
const protoAll = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00

// openPort opens a device of a namespace and listens to what arrives.
func openPort(ns *lab.Namespace, name string, index int, hardware mac) (*port, error) {
	p := &port{name: name, index: index, mac: hardware, done: make(chan struct{})}
	out, err := ns.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	p.out = out
	// A hostile machine has no filter of ours on what it sends.
	if err := unix.SetsockoptInt(out, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("send past filters: %w", err), unix.Close(out))
	}
	in, err := ns.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket: %w", err), unix.Close(out))
	}
	_ = unix.SetsockoptInt(in, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	if err := unix.Bind(in, &unix.SockaddrLinklayer{Protocol: protoAll, Ifindex: index}); err != nil {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", name, err), unix.Close(in), unix.Close(out))
	}
	p.in = os.NewFile(uintptr(in), name)
	go p.listen()
	return p, nil
}

// listen looks at everything that arrives until close.
func (p *port) listen() {
	defer close(p.done)
	raw, err := p.in.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	for {
		var n int
		var from unix.Sockaddr
		var received error
		err := raw.Read(func(fd uintptr) bool {
			n, from, received = unix.Recvfrom(int(fd), buf, 0)
			return received != unix.EAGAIN
		})
		if err != nil {
			return // closed
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); received == nil && ok && ll.Pkttype != unix.PACKET_OUTGOING {
			p.look(buf[:n])
		}
	}
}

// lost returns how many frames found no room since the last call.
func (p *port) lost() (n uint32) {
	raw, err := p.in.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = st.Drops
		}
	})
	return n
}

// send puts frames on the device.
func (p *port) send(frames ...[]byte) error {
	for _, f := range frames {
		to := &unix.SockaddrLinklayer{Ifindex: p.index, Halen: 6}
		for {
			err := unix.Sendto(p.out, f, 0, to)
			if err == unix.ENOBUFS || err == unix.EAGAIN {
				continue
			}
			if err != nil {
				return fmt.Errorf("send from %s: %w", p.name, err)
			}
			break
		}
	}
	return nil
}

func (p *port) close() {
	_ = p.in.Close()
	<-p.done
	_ = unix.Close(p.out)
}

// socket is a server of UDP that looks at what it gets.
type socket struct {
	tally
	c    *net.UDPConn
	done chan struct{}
}

func openSocket(ns *lab.Namespace, at netip.AddrPort) (*socket, error) {
	c, err := ns.ListenPacket(at)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", at, err)
	}
	s := &socket{c: c, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		buf := make([]byte, 1<<16)
		for {
			n, err := c.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.look(buf[:n])
			}
		}
	}()
	return s, nil
}

func (s *socket) close() {
	_ = s.c.Close()
	<-s.done
}

// describe says of a frame what a person wants to know first.
func describe(f []byte) string {
	if len(f) < 14 {
		return fmt.Sprintf("%d bytes", len(f))
	}
	var src, dst netip.Addr
	var proto byte
	var l4 []byte
	switch typ := binary.BigEndian.Uint16(f[12:]); {
	case typ == typeIPv4 && len(f) >= 34:
		src, dst, proto = netip.AddrFrom4([4]byte(f[26:30])), netip.AddrFrom4([4]byte(f[30:34])), f[23]
		if n := 14 + int(f[14]&15)*4; n <= len(f) {
			l4 = f[n:]
		}
	case typ == typeIPv6 && len(f) >= 54:
		src, dst, proto, l4 = netip.AddrFrom16([16]byte(f[22:38])), netip.AddrFrom16([16]byte(f[38:54])), f[20], f[54:]
	default:
		return fmt.Sprintf("frame of type %#04x, %d bytes", typ, len(f))
	}
	if (proto == protoUDP || proto == protoTCP) && len(l4) >= 4 {
		return fmt.Sprintf("%s > %s proto %d", netip.AddrPortFrom(src, binary.BigEndian.Uint16(l4)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(l4[2:])), proto)
	}
	return fmt.Sprintf("%s > %s proto %d", src, dst, proto)
}
