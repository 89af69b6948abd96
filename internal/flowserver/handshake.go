package flowserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

// Bounds of handshakes, which cost processor time before it is known who a client is.
const (
	// handshakeTimeout is how long a client may take until it can send requests.
	handshakeTimeout = 10 * time.Second
	// handshakeRate is how many handshakes a second clients at one address may begin, and
	// handshakeBurst how many at once; a client that is refused tries again.
	handshakeRate, handshakeBurst = 16, 64
	// maxHandshakeSources is for how many addresses that is counted.
	maxHandshakeSources = 4096
)

// pacer bounds what handshakes cost. It is safe for concurrent use.
type pacer struct {
	ctx context.Context // of the listener
	// turns has a token for each handshake that uses the processor. One that waits for its client
	// has none, so that silent clients delay no other.
	turns chan struct{}

	mu    sync.Mutex
	rates map[netip.Prefix]*rate.Limiter
}

// newPacer returns one whose handshakes fail when ctx ends. They use a quarter of the processors.
func newPacer(ctx context.Context) *pacer {
	return &pacer{ctx: ctx, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4)), rates: map[netip.Prefix]*rate.Limiter{}}
}

// allow reports whether clients at an address may begin a handshake now.
func (p *pacer) allow(from netip.Addr, now time.Time) bool {
	source := handshakeSource(from)
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.rates[source]
	if l == nil {
		if len(p.rates) >= maxHandshakeSources {
			for other := range p.rates { // any
				delete(p.rates, other)
				break
			}
		}
		l = rate.NewLimiter(handshakeRate, handshakeBurst)
		p.rates[source] = l
	}
	return l.AllowN(now, 1)
}

// handshakeSource is the network of a client that counts as one: a host may have all addresses of
// an IPv6 network of 64 bits.
func handshakeSource(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits)
	return p
}

// take waits for a turn.
func (p *pacer) take() error {
	select {
	case p.turns <- struct{}{}:
		return nil
	case <-p.ctx.Done():
		return net.ErrClosed
	}
}

func (p *pacer) give() { <-p.turns }

// pacedConn is a connection whose handshake has a turn except while it waits for its client.
type pacedConn struct {
	net.Conn
	pacer *pacer
	done  bool // the handshake has ended
	turn  bool // it has one; false after the listener was closed
}

// Read implements [net.Conn].
func (c *pacedConn) Read(b []byte) (int, error) {
	return c.wait(func() (int, error) { return c.Conn.Read(b) })
}

// Write implements [net.Conn].
func (c *pacedConn) Write(b []byte) (int, error) {
	return c.wait(func() (int, error) { return c.Conn.Write(b) })
}

func (c *pacedConn) wait(f func() (int, error)) (int, error) {
	if c.done || !c.turn {
		return f()
	}
	c.pacer.give()
	n, err := f()
	if e := c.pacer.take(); e != nil {
		c.turn = false
		return n, e
	}
	return n, err
}

// pacedCredentials are credentials of a server that bound handshakes, and tell the listener which
// clients have authenticated.
type pacedCredentials struct {
	credentials.TransportCredentials
	pacer *pacer
}

// ServerHandshake implements [credentials.TransportCredentials].
func (p pacedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if from := hostOf(raw.RemoteAddr()); !p.pacer.allow(from, time.Now()) {
		return nil, nil, fmt.Errorf("too many handshakes from %s", handshakeSource(from))
	}
	if err := p.pacer.take(); err != nil {
		return nil, nil, err
	}
	paced := &pacedConn{Conn: raw, pacer: p.pacer, turn: true}
	conn, info, err := p.TransportCredentials.ServerHandshake(paced)
	if paced.done = true; paced.turn {
		p.pacer.give()
	}
	if err != nil {
		return nil, nil, err
	}
	if c, ok := raw.(*clientConn); ok {
		if err := c.of.admit(c); err != nil {
			conn.Close()
			return nil, nil, err
		}
	}
	return conn, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (p pacedCredentials) Clone() credentials.TransportCredentials {
	return pacedCredentials{p.TransportCredentials.Clone(), p.pacer}
}

// startingListener closes, when it is closed, the connections of clients that cannot send requests
// yet: a gRPC server that stops waits for each until its handshake ends.
type startingListener struct {
	net.Listener
	ctx    context.Context // until it is closed
	cancel context.CancelFunc
}

func newStartingListener(l net.Listener) *startingListener {
	ctx, cancel := context.WithCancel(context.Background())
	return &startingListener{l, ctx, cancel}
}

// Accept implements [net.Listener].
func (s *startingListener) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &startingConn{c, context.AfterFunc(s.ctx, func() { c.Close() })}, nil
}

// Close implements [net.Listener].
func (s *startingListener) Close() error {
	s.cancel()
	return s.Listener.Close()
}

type startingConn struct {
	net.Conn
	started func() bool
}

// SetDeadline implements [net.Conn]. A gRPC server has a deadline for the start of a connection,
// and takes it away when the client can send requests.
func (c *startingConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.started()
	}
	return c.Conn.SetDeadline(t)
}

// Close implements [net.Conn].
func (c *startingConn) Close() error {
	c.started()
	return c.Conn.Close()
}
