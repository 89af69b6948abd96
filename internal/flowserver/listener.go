package flowserver

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// listener bounds the connections of a listener that a network reaches. Those of unauthenticated
// clients are counted apart, so that they take no room of authenticated ones. If they are too many,
// the address that has most of them loses its oldest: a client that opens many keeps no other out.
// Of an address from which clients have authenticated, some do not count. It is safe for concurrent
// use.
type listener struct {
	net.Listener
	most int // of unauthenticated clients, and of authenticated ones

	mu    sync.Mutex
	all   map[netip.Addr][]*clientConn // the oldest first
	count int

	authenticated int
	// trusted are addresses from which clients have authenticated.
	trusted map[netip.Addr]bool
}

// spared is how many connections from an address, from which clients have authenticated, do not
// count when room is needed: however many addresses a flood has, such clients can come back.
const spared = 16

// BoundConnections returns a listener for clients that do not authenticate by TLS, with the bound
// that servers of flows have for theirs: when there are too many connections, the address that has
// most of them loses its oldest. Of a socket, whose clients have no address, any client may.
func BoundConnections(l net.Listener) net.Listener { return newListener(l, maxConnections) }

func newListener(l net.Listener, most int) *listener {
	return &listener{Listener: l, most: most, all: map[netip.Addr][]*clientConn{}, trusted: map[netip.Addr]bool{}}
}

// clientConn is a connection. Its fields are guarded by listener.
type clientConn struct {
	net.Conn
	of    *listener
	from  netip.Addr
	state connState
}

type connState uint8

const (
	connUnauthenticated connState = iota
	connAuthenticated
	connClosed
)

// Accept implements [net.Listener].
func (s *listener) Accept() (net.Conn, error) {
	raw, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &clientConn{Conn: raw, of: s, from: hostOf(raw.RemoteAddr())}
	if one := s.add(c); one != nil {
		one.Close()
	}
	return c, nil
}

// hostOf is the address of a peer without its port; invalid for one of a unix socket.
func hostOf(a net.Addr) netip.Addr {
	at, _ := netip.ParseAddrPort(a.String())
	return at.Addr().Unmap()
}

// add adds a connection, and returns one that must be closed for it; nil if none must.
func (s *listener) add(c *clientConn) *clientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[c.from] = append(s.all[c.from], c)
	if s.count++; s.count <= s.most {
		return nil
	}
	var longest []*clientConn
	most := -spared
	for from, list := range s.all {
		n := len(list)
		if s.trusted[from] {
			n -= spared
		}
		if n > most {
			longest, most = list, n
		}
	}
	return longest[0]
}

// remove takes a connection from among the unauthenticated ones. It must be called with mu held.
func (s *listener) remove(c *clientConn) {
	list := slices.DeleteFunc(s.all[c.from], func(o *clientConn) bool { return o == c })
	if s.all[c.from] = list; len(list) == 0 {
		delete(s.all, c.from)
	}
	s.count--
}

// admit notes that the client of a connection has authenticated. It fails if there are too many.
func (s *listener) admit(c *clientConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.state != connUnauthenticated {
		return net.ErrClosed
	}
	if s.authenticated >= s.most {
		return fmt.Errorf("%d clients are connected, as many as may be at once", s.most)
	}
	s.remove(c)
	c.state = connAuthenticated
	s.authenticated++
	if s.trusted[c.from] {
		return nil
	}
	if len(s.trusted) >= s.most {
		for other := range s.trusted { // any
			delete(s.trusted, other)
			break
		}
	}
	s.trusted[c.from] = true
	return nil
}

// Close implements [net.Conn].
func (c *clientConn) Close() error {
	c.of.mu.Lock()
	switch c.state {
	case connUnauthenticated:
		c.of.remove(c)
	case connAuthenticated:
		c.of.authenticated--
	}
	c.state = connClosed
	c.of.mu.Unlock()
	return c.Conn.Close()
}
