package clusterhealth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Port is the TCP port at which nodes and health endpoints answer, by default.
const Port = 4240

// helloPath is what is asked for.
const helloPath = "/hello"

// maxConns bounds the concurrent connections of a [Responder], which any host can open.
const maxConns = 256

// Getter asks addresses by HTTP. Each request has a connection of its own: what is to be found out
// is whether one can be made.
type Getter struct {
	port   uint16
	client http.Client
}

// NewGetter returns a Getter for a port.
func NewGetter(port uint16) *Getter {
	return &Getter{port: port, client: http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext, MaxResponseHeaderBytes: 4 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Get asks an address, and returns how long the answer took.
func (g *Getter) Get(ctx context.Context, to netip.Addr) (time.Duration, error) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(to, g.port).String()+helloPath, nil)
	if err != nil {
		return 0, err
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return 0, plain(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("another server answers at port %d, with %s", g.port, resp.Status)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<10)
	return time.Since(began), nil
}

// plain is an error for people, without the address that is shown with it.
func plain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("no answer")
	}
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// Responder answers health probes of untrusted clients: one request for each connection, and a
// bounded number of connections.
type Responder struct {
	server http.Server
}

// NewResponder returns a Responder for other nodes' probes. It answers none until Serve.
func NewResponder() *Responder {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+helloPath, func(http.ResponseWriter, *http.Request) {})
	return NewResponderWith(mux)
}

// NewResponderWith returns a Responder that gives the answers of h, which must be quick. It answers
// none until Serve.
func NewResponderWith(h http.Handler) *Responder {
	r := &Responder{server: http.Server{Handler: h, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second, MaxHeaderBytes: 4 << 10}}
	r.server.SetKeepAlivesEnabled(false) // a client that asks repeatedly would keep a connection
	return r
}

// Serve answers at a listener until ctx ends, and returns nil then, or the error that ends it. It
// closes the listener.
func (r *Responder) Serve(ctx context.Context, l net.Listener) error {
	l = Limit(l, maxConns)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	err := r.server.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Close ends all connections.
func (r *Responder) Close() { r.server.Close() }

// Limit returns a listener that has at most n connections of l at once, and closes those beyond:
// who waits would take the network for one that does not answer.
func Limit(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, free: make(chan struct{}, n)}
}

type limited struct {
	net.Listener
	free chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &counted{Conn: c, free: l.free}, nil
		default:
			c.Close()
		}
	}
}

type counted struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

// Close gives the place back.
func (c *counted) Close() error {
	c.once.Do(func() { <-c.free })
	return c.Conn.Close()
}

// Address returns where to listen for probes of an address.
func Address(ip netip.Addr, port uint16) string {
	return net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))
}
