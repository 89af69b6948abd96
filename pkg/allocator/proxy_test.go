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
	conns  map[net.Conn]struct{}
	closed bool
	delay  time.Duration
	paused chan struct{} // nil: not paused; closed when it goes on
}

// newProxy listens on a socket of its own and passes everything on to the target's.
func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-px-")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{path: filepath.Join(dir, "p"), target: target, conns: make(map[net.Conn]struct{})}
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
			p.conns[in], p.conns[out] = struct{}{}, struct{}{}
			p.wg.Go(func() { p.pump(in, out) })
			p.wg.Go(func() { p.pump(out, in) })
		}
		p.mu.Unlock()
	}
}

// pump copies one direction, as fast as the faults allow.
func (p *proxy) pump(from, to net.Conn) {
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
			delay, paused := p.delay, p.paused
			p.mu.Unlock()
			if paused != nil {
				<-paused
				continue
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

// cut closes every connection. New ones may be made at once. What was on its way may or may not arrive.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
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
