// Package flows keeps traffic going between pods and counts what becomes of every message: those
// that must arrive and those that must not.
//
// Servers and clients are goroutines of one process with sockets in the pods' namespaces, so an
// arrival is known even if its answer is lost.
package flows

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/hawser-net/hawser/test/cluster/lab"
)

// A message is a magic number, the number of the flow and one that counts; an answer is the message
// with the number of the server.
const (
	magic     = 0x68617773
	messageLn = 16
	answerLn  = 20
)

type message struct {
	flow uint32
	seq  uint64
}

func (m message) bytes() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, answerLn), magic)
	b = binary.BigEndian.AppendUint32(b, m.flow)
	return binary.BigEndian.AppendUint64(b, m.seq)
}

// parse reads a message; ok is false for what is none.
func parse(b []byte) (m message, ok bool) {
	if len(b) < messageLn || binary.BigEndian.Uint32(b) != magic {
		return m, false
	}
	return message{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])}, true
}

// Servers answer in pods until Close.
type Servers struct {
	arrived  sync.Map // flow -> *atomic.Int64, of messages
	wg       sync.WaitGroup
	mu       sync.Mutex
	closed   bool
	sockets  []io.Closer
	accepted map[net.Conn]bool
}

// NewServers returns none yet.
func NewServers() *Servers { return &Servers{accepted: map[net.Conn]bool{}} }

// Serve answers on each port of a namespace, by TCP, and by UDP at each of its addresses. number
// tells the servers apart in answers.
func (s *Servers) Serve(ns *lab.Namespace, number uint32, addrs []netip.Addr, ports ...uint16) error {
	for _, port := range ports {
		l, err := ns.Listen(port)
		if err != nil {
			return err
		}
		s.keep(l)
		s.wg.Go(func() { s.accept(l, number) })
		for _, a := range addrs {
			c, err := ns.ListenPacket(netip.AddrPortFrom(a, port))
			if err != nil {
				return err
			}
			s.keep(c)
			s.wg.Go(func() { s.datagrams(c, number) })
		}
	}
	return nil
}

func (s *Servers) keep(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets = append(s.sockets, c)
}

// Close ends all servers and waits for them.
func (s *Servers) Close() {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.sockets {
		_ = c.Close()
	}
	for c := range s.accepted {
		lab.Reset(c)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Arrived returns how many messages of a flow reached a server.
func (s *Servers) Arrived(flow uint32) int {
	if n, ok := s.arrived.Load(flow); ok {
		return int(n.(*atomic.Int64).Load())
	}
	return 0
}

func (s *Servers) count(flow uint32) {
	n, ok := s.arrived.Load(flow)
	if !ok {
		n, _ = s.arrived.LoadOrStore(flow, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

func (s *Servers) datagrams(c *net.UDPConn, number uint32) {
	buf := make([]byte, 256)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an answer of ours could not be delivered
		}
		if m, ok := parse(buf[:n]); ok {
			s.count(m.flow)
			_, _ = c.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(m.bytes(), number), from)
		}
	}
}

func (s *Servers) accept(l net.Listener, number uint32) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			lab.Reset(c)
			return
		}
		s.accepted[c] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			s.stream(c, number)
			s.mu.Lock()
			delete(s.accepted, c)
			s.mu.Unlock()
			_ = c.Close()
		})
	}
}

func (s *Servers) stream(c net.Conn, number uint32) {
	buf := make([]byte, messageLn)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		m, ok := parse(buf)
		if !ok {
			return
		}
		s.count(m.flow)
		if _, err := c.Write(binary.BigEndian.AppendUint32(m.bytes(), number)); err != nil {
			return
		}
	}
}
