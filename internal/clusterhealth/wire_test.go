package clusterhealth

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
)

// TestEcho asks real addresses of this machine, and one that no host has.
func TestEcho(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	ns, silent := testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, silent, "eth0", []string{"192.0.2.2/24", "2001:db8::2/64"})
	var e *Echoer
	ns.Must(t, func() (err error) { e, err = NewEchoer(true, true); return err })
	defer e.Close()
	for _, to := range []string{"192.0.2.1", "2001:db8::1", "192.0.2.2", "2001:db8::2"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if latency, err := e.Echo(ctx, netip.MustParseAddr(to)); err != nil || latency > 20*time.Second {
			t.Errorf("%s: %v, %v", to, latency, err)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := e.Echo(ctx, netip.MustParseAddr("192.0.2.99")); err == nil {
		t.Error("an address that no host has answers")
	}
	if len(e.waiting) != 0 {
		t.Errorf("%d requests are remembered", len(e.waiting))
	}
	var only4 *Echoer
	ns.Must(t, func() (err error) { only4, err = NewEchoer(true, false); return err })
	defer only4.Close()
	if _, err := only4.Echo(t.Context(), netip.MustParseAddr("2001:db8::1")); err == nil {
		t.Error("a family that is off is probed")
	}
}

// TestForgedReplies: a reply counts only from the address that was asked, and with the value that
// was sent there.
func TestForgedReplies(t *testing.T) {
	t.Parallel()
	e := &Echoer{waiting: map[[8]byte]waiter{}}
	asked, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.66")
	w := waiter{from: asked, replied: make(chan time.Time, 1)}
	value := [8]byte{1, 2, 3}
	e.waiting[value] = w
	reply := func(change func([]byte)) []byte {
		b := message(false, 1, value)
		b[0] = echoReply4
		change(b)
		return b
	}
	now := time.Now()
	for name, f := range map[string]func(){
		"another address":     func() { e.receive(reply(func([]byte) {}), false, other, now) },
		"another value":       func() { e.receive(reply(func(b []byte) { b[15]++ }), false, asked, now) },
		"a request":           func() { e.receive(reply(func(b []byte) { b[0] = echoRequest4 }), false, asked, now) },
		"a code":              func() { e.receive(reply(func(b []byte) { b[1] = 1 }), false, asked, now) },
		"short":               func() { e.receive(reply(func([]byte) {})[:9], false, asked, now) },
		"of the other family": func() { e.receive(reply(func([]byte) {}), true, asked, now) },
	} {
		f()
		if len(w.replied) != 0 {
			t.Fatalf("%s is taken for a reply", name)
		}
	}
	e.receive(reply(func([]byte) {}), false, asked, now)
	e.receive(reply(func([]byte) {}), false, asked, now) // a duplicate does no harm
	if len(w.replied) != 1 {
		t.Error("the reply does not count")
	}
}

// FuzzReply: whatever arrives, nothing counts that is no reply to what was asked.
func FuzzReply(f *testing.F) {
	f.Add([]byte{}, true)
	f.Add(message(true, 1, [8]byte{9}), false)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		e := &Echoer{waiting: map[[8]byte]waiter{}}
		from := netip.MustParseAddr("192.0.2.1")
		value := [8]byte{7, 7, 7, 7, 7, 7, 7, 7}
		w := waiter{from: from, replied: make(chan time.Time, 1)}
		e.waiting[value] = w
		e.receive(b, v6, from, time.Now())
		if len(w.replied) == 1 && [8]byte(b[8:16]) != value {
			t.Errorf("% x counts as a reply", b)
		}
	})
}

func TestChecksum(t *testing.T) {
	t.Parallel()
	b := message(false, 3, [8]byte{0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10})
	if checksum(b) != 0 { // with the checksum in it the sum is all ones
		t.Errorf("checksum %x of % x", binary.BigEndian.Uint16(b[2:4]), b)
	}
}

// served is a Responder at an address of loopback.
func served(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := NewResponder()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		r.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestGet(t *testing.T) {
	t.Parallel()
	at := served(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if latency, err := NewGetter(at.Port()).Get(ctx, at.Addr()); err != nil || latency <= 0 {
		t.Errorf("%v, %v", latency, err)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := closed.Addr().(*net.TCPAddr).AddrPort().Port()
	closed.Close()
	if _, err := NewGetter(port).Get(ctx, at.Addr()); err == nil || err.Error() != "connection refused" {
		t.Errorf("a closed port: %v", err)
	}
	// Another program has the port, and redirects.
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := http.Server{Handler: http.RedirectHandler("http://"+at.String()+helloPath, http.StatusFound)}
	go srv.Serve(other)
	defer srv.Close()
	if _, err := NewGetter(other.Addr().(*net.TCPAddr).AddrPort().Port()).Get(ctx, at.Addr()); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("another service: %v", err)
	}
	brief, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewGetter(at.Port()).Get(brief, at.Addr()); err == nil || err.Error() != "no answer" {
		t.Errorf("without time: %v", err)
	}
}

// TestResponderIsBounded: who opens all connections and says nothing gets no more than are allowed,
// and loses them soon.
func TestResponderIsBounded(t *testing.T) {
	t.Parallel()
	at := served(t)
	var conns []net.Conn
	for range maxConns + 50 {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	// Each is closed: those beyond at once, the others when they have said nothing for a while.
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := bufio.NewReader(c).ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("connection %d is kept: %v", i, err)
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Fatalf("connection %d is kept", i)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := NewGetter(at.Port()).Get(ctx, at.Addr()); err != nil {
		t.Errorf("after them: %v", err)
	}
	// Everything else than the one question is refused.
	for _, path := range []string{"/", "/v1/config", "/hello/x", "/debug/pprof"} {
		resp, err := http.Get(fmt.Sprintf("http://%s%s", at, path))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}
