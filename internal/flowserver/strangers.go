package flowserver

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"
)

// strangers bounds the connections of a listener on the network. Connections of clients that are
// not authenticated yet have a limit of their own, so that they take no room from authenticated
// ones. Beyond it the address with most connections loses its oldest, so that one address cannot
// keep others out. It is safe for concurrent use.
type strangers struct {
	net.Listener
	most int // of strangers, and of those that are known

	mu    sync.Mutex
	all   map[netip.Addr][]*strangerConn // the oldest first
	count int
	known int
}

func newStrangers(l net.Listener, most int) *strangers {
	return &strangers{Listener: l, most: most, all: map[netip.Addr][]*strangerConn{}}
}

// strangerConn is a connection. Its fields are guarded by strangers.
type strangerConn struct {
	net.Conn
	of    *strangers
	from  netip.Addr
	state connState
}

type connState uint8

const (
	connStrange connState = iota
	connKnown
	connClosed
)

// Accept implements [net.Listener].
func (s *strangers) Accept() (net.Conn, error) {
	raw, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &strangerConn{Conn: raw, of: s}
	if at, err := netip.ParseAddrPort(raw.RemoteAddr().String()); err == nil {
		c.from = at.Addr().Unmap()
	}
	if one := s.add(c); one != nil {
		one.Close()
	}
	return c, nil
}

// add adds a connection, and returns one that must be closed for it; nil if none must.
func (s *strangers) add(c *strangerConn) *strangerConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[c.from] = append(s.all[c.from], c)
	if s.count++; s.count <= s.most {
		return nil
	}
	var longest []*strangerConn
	for _, list := range s.all {
		if len(list) > len(longest) {
			longest = list
		}
	}
	return longest[0]
}

// remove takes a connection from among the strangers. It must be called with mu held.
func (s *strangers) remove(c *strangerConn) {
	list := slices.DeleteFunc(s.all[c.from], func(o *strangerConn) bool { return o == c })
	if s.all[c.from] = list; len(list) == 0 {
		delete(s.all, c.from)
	}
	s.count--
}

// admit notes that the client of a connection has proven who it is. It fails if there are too many.
func (s *strangers) admit(c *strangerConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.state != connStrange {
		return net.ErrClosed
	}
	if s.known >= s.most {
		return fmt.Errorf("%d clients are connected, as many as may be at once", s.most)
	}
	s.remove(c)
	c.state = connKnown
	s.known++
	return nil
}

// Close implements [net.Conn].
func (c *strangerConn) Close() error {
	c.of.mu.Lock()
	switch c.state {
	case connStrange:
		c.of.remove(c)
	case connKnown:
		c.of.known--
	}
	c.state = connClosed
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// proof are credentials of a server that notes whose clients have proven who they are.
type proof struct {
	credentials.TransportCredentials
}

// ServerHandshake implements [credentials.TransportCredentials].
func (p proof) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if c, ok := raw.(*strangerConn); ok {
		if err := c.of.admit(c); err != nil {
			conn.Close()
			return nil, nil, err
		}
	}
	return conn, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (p proof) Clone() credentials.TransportCredentials { return proof{p.TransportCredentials.Clone()} }
