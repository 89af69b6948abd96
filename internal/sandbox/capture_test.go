package sandbox

import (
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// opening distinguishes a connection from others: who asked whom.
type opening struct {
	proto    Protocol
	from, to netip.AddrPort
}

// capture is what packets at the interfaces of pods, and of the world, say: which connections left
// whom, and which arrived.
type capture struct {
	mu   sync.Mutex
	left map[opening]int // packets
	came map[opening]bool
}

// startCapture listens in the namespaces of these parties until the test ends. A datagram to one of
// ports opens a connection, one from them answers.
func startCapture(t *testing.T, parties []party, ports []uint16) *capture {
	t.Helper()
	c := &capture{left: map[opening]int{}, came: map[opening]bool{}}
	for _, p := range parties {
		var fd int
		err := machine.InNamespace(p.netns, func() (err error) {
			const everything = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, everything)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			t.Fatal(err)
		}
		stop, done := make(chan struct{}), make(chan struct{})
		t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
		go func() {
			defer close(done)
			buf := make([]byte, 128) // the headers are enough
			for {
				select {
				case <-stop:
					return
				default:
				}
				n, from, err := unix.Recvfrom(fd, buf, 0)
				if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil {
					t.Errorf("capture at %s: %v", p.name, err)
					return
				}
				if link, ok := from.(*unix.SockaddrLinklayer); ok {
					c.add(p, buf[:n], link.Pkttype == unix.PACKET_OUTGOING, ports)
				}
			}
		}()
	}
	return c
}

// add notes a packet, if it opens a connection from or to this party.
func (c *capture) add(p party, packet []byte, outgoing bool, ports []uint16) {
	o, ok := parseOpening(packet)
	if !ok || o.proto == UDP && (!slices.Contains(ports, o.to.Port()) || slices.Contains(ports, o.from.Port())) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case outgoing && slices.Contains(p.addrs, o.from.Addr()):
		c.left[o]++
	case !outgoing && slices.Contains(p.addrs, o.to.Addr()):
		c.came[o] = true
	}
}

// parseOpening reads a packet of IPv4 or IPv6: a TCP segment with SYN alone, or a datagram.
func parseOpening(b []byte) (o opening, ok bool) {
	var src, dst netip.Addr
	var proto byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		header := int(b[0]&15) * 4
		proto, src, dst = b[9], netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		if header < 20 || len(b) < header || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 { // a later fragment
			return o, false
		}
		b = b[header:]
	case len(b) >= 40 && b[0]>>4 == 6:
		proto, src, dst = b[6], netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		b = b[40:]
	default:
		return o, false
	}
	const syn, ack = 1 << 1, 1 << 4
	switch {
	case proto == unix.IPPROTO_TCP && len(b) >= 14 && b[13]&(syn|ack) == syn:
		o.proto = TCP
	case proto == unix.IPPROTO_UDP && len(b) >= 8:
		o.proto = UDP
	default:
		return o, false
	}
	o.from = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	o.to = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	return o, true
}

// openings are those that left and those that came so far.
func (c *capture) openings() (left, came map[opening]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, came = map[opening]bool{}, map[opening]bool{}
	for o := range c.left {
		left[o] = true
	}
	for o := range c.came {
		came[o] = true
	}
	return left, came
}

// packets is how many opened each connection so far. Connections of which there are more later had
// their ports used twice.
func (c *capture) packets() map[opening]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.left)
}
