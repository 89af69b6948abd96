package clusterhealth

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Types of messages: RFC 792 and RFC 4443, section 4.
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// echoBytes is the length of a message: type, code, checksum, identifier and sequence, and an
// unpredictable value.
const echoBytes = 16

// echoAttempts is how often a request is sent before its answer is given up: one lost packet is no
// outage.
const echoAttempts = 3

// Echoer sends ICMP echo requests and finds their replies. It needs CAP_NET_RAW.
type Echoer struct {
	conns map[bool]*net.IPConn // by whether it is IPv6
	wg    sync.WaitGroup

	mu      sync.Mutex
	waiting map[[8]byte]waiter // by the value
}

type waiter struct {
	from    netip.Addr
	replied chan time.Time
}

// NewEchoer opens the sockets in the network namespace of the process, and starts a goroutine for
// each, for which Close waits. An error names the families that cannot be probed, as on a kernel
// without IPv6; the Echoer works for the others.
func NewEchoer(ipv4, ipv6 bool) (*Echoer, error) {
	e := &Echoer{conns: map[bool]*net.IPConn{}, waiting: map[[8]byte]waiter{}}
	open := func(network string, v6 bool, filter func(fd int) error) error {
		c, err := net.ListenIP(network, nil)
		if err != nil {
			return fmt.Errorf("open a socket for ICMP: %w", err)
		}
		raw, err := c.SyscallConn()
		if err == nil {
			var ferr error
			err = errors.Join(raw.Control(func(fd uintptr) { ferr = filter(int(fd)) }), ferr)
		}
		if err != nil {
			c.Close()
			return fmt.Errorf("filter what a socket for ICMP receives: %w", err)
		}
		e.conns[v6] = c
		return nil
	}
	var errs []error
	if ipv4 {
		errs = append(errs, open("ip4:icmp", false, func(fd int) error {
			var block [4]byte
			binary.NativeEndian.PutUint32(block[:], ^uint32(1<<echoReply4))
			return unix.SetsockoptString(fd, unix.SOL_RAW, unix.ICMP_FILTER, string(block[:]))
		}))
	}
	if ipv6 {
		errs = append(errs, open("ip6:ipv6-icmp", true, func(fd int) error {
			var f unix.ICMPv6Filter
			for i := range f.Data {
				f.Data[i] = ^uint32(0)
			}
			f.Data[echoReply6/32] &^= 1 << (echoReply6 % 32)
			return unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &f)
		}))
	}
	for v6, c := range e.conns {
		e.wg.Go(func() { e.read(c, v6) })
	}
	return e, errors.Join(errs...)
}

// Close ends all requests under way.
func (e *Echoer) Close() {
	for _, c := range e.conns {
		c.Close()
	}
	e.wg.Wait()
}

// Echo sends requests to an address until it has answered one, and returns how long that took, or
// an error when ctx ends before. Three are sent until then.
func (e *Echoer) Echo(ctx context.Context, to netip.Addr) (time.Duration, error) {
	conn := e.conns[to.Is6()]
	if conn == nil {
		return 0, fmt.Errorf("addresses of the family of %s are not probed", to)
	}
	pause := time.Second
	if end, ok := ctx.Deadline(); ok {
		pause = max(time.Until(end)/echoAttempts, time.Millisecond)
	}
	again := time.NewTicker(pause)
	defer again.Stop()
	var value [8]byte
	if _, err := rand.Read(value[:]); err != nil {
		return 0, err
	}
	w := waiter{from: to, replied: make(chan time.Time, 1)}
	e.mu.Lock()
	e.waiting[value] = w
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.waiting, value)
		e.mu.Unlock()
	}()
	var sent time.Time
	var failed error
	for n := uint16(1); ; n++ {
		sent = time.Now()
		_, failed = conn.WriteToIP(message(to.Is6(), n, value), &net.IPAddr{IP: to.AsSlice()})
		select {
		case at := <-w.replied:
			return max(at.Sub(sent), 0), nil
		case <-again.C:
		case <-ctx.Done():
			if failed != nil {
				return 0, fmt.Errorf("send an echo request: %w", failed)
			}
			return 0, errors.New("no answer to echo requests")
		}
	}
}

// message is an echo request. The kernel computes the checksum of IPv6's.
func message(v6 bool, n uint16, value [8]byte) []byte {
	b := make([]byte, echoBytes)
	b[0] = echoRequest4
	if v6 {
		b[0] = echoRequest6
	}
	copy(b[4:6], value[:2]) // an identifier, for people who look at packets
	binary.BigEndian.PutUint16(b[6:8], n)
	copy(b[8:], value[:])
	if !v6 {
		binary.BigEndian.PutUint16(b[2:4], checksum(b))
	}
	return b
}

// checksum is that of RFC 1071, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// read gives replies to those who wait for them until the socket is closed.
func (e *Echoer) read(c *net.IPConn, v6 bool) {
	buf := make([]byte, 256)
	for {
		n, from, err := c.ReadFromIP(buf)
		at := time.Now()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of one packet
		}
		ip, ok := netip.AddrFromSlice(from.IP)
		if !ok {
			continue
		}
		e.receive(buf[:n], v6, ip.Unmap(), at)
	}
}

// receive handles an incoming message. Only a reply from the probed address, with the value of a
// request, counts.
func (e *Echoer) receive(b []byte, v6 bool, from netip.Addr, at time.Time) {
	reply := byte(echoReply4)
	if v6 {
		reply = echoReply6
	}
	if len(b) != echoBytes || b[0] != reply || b[1] != 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	w, ok := e.waiting[[8]byte(b[8:])]
	if !ok || w.from != from {
		return
	}
	select {
	case w.replied <- at:
	default: // it has one
	}
}
