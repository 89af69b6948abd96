package allocator_test

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// proxy stands between one client and the server, on unix sockets, and spoils the connections.
type proxy struct {
	path, target string
	listener     net.Listener
	wg           sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]*hold
	closed bool
	delay  time.Duration
	paused chan struct{} // nil: not paused; closed when it goes on
}

// hold is what both directions of one connection have in common.
type hold struct {
	client net.Conn
	until  chan struct{} // nil: not held
}

// newProxy listens on a socket of its own and passes everything on to the target's.
func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-px-")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{path: filepath.Join(dir, "p"), target: target, conns: make(map[net.Conn]*hold)}
	if p.listener, err = net.Listen("unix", p.path); err != nil {
		t.Fatal(err)
	}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.heal()
		_ = p.listener.Close()
		p.cut()
		p.wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return p
}

func (p *proxy) endpoint() string { return "unix://" + p.path }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			_, _ = in.Close(), out.Close()
		} else {
			h := &hold{client: in}
			p.conns[in], p.conns[out] = h, h
			p.wg.Go(func() { p.pump(in, out, h) })
			p.wg.Go(func() { p.pump(out, in, h) })
		}
		p.mu.Unlock()
	}
}

// pump copies one direction, as fast as the faults allow.
func (p *proxy) pump(from, to net.Conn, h *hold) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for {
			p.mu.Lock()
			delay, paused, held := p.delay, p.paused, h.until
			p.mu.Unlock()
			if paused != nil {
				<-paused
				continue
			}
			if held != nil {
				<-held
			}
			time.Sleep(delay)
			break
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut closes every connection. New ones may be made at once. What was on its way may or may not
// arrive.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// late makes the client's requests of the next while arrive late: the present connections are held,
// after d the client learns that they have ended, and what it had sent reaches the server when
// deliver is called. By then it has made new connections, given those requests up and done
// something else.
func (p *proxy) late(d time.Duration) (deliver func()) {
	until := make(chan struct{})
	var held []*hold
	p.mu.Lock()
	for _, h := range p.conns {
		if h.until == nil {
			h.until = until
			held = append(held, h)
		}
	}
	p.mu.Unlock()
	time.Sleep(d)
	for _, h := range held {
		_ = h.client.(*net.UnixConn).CloseWrite()
	}
	return sync.OnceFunc(func() { close(until) })
}

// pause holds everything back until heal.
func (p *proxy) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil && !p.closed {
		p.paused = make(chan struct{})
	}
}

// slow delays each piece by d.
func (p *proxy) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// heal ends pauses and delays.
func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = 0
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}
