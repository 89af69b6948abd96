package observe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
)

// TestPageConnectionsAreBounded: a client that opens connections and says nothing gets no more than
// so many, and keeps no client at another address from the page.
func TestPageConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := listenPage("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the page") })
	ended := make(chan error, 1)
	go func() { ended <- serveUntil(ctx, l, page, func(ctx context.Context) { <-ctx.Done() }) }()

	const flood = 400
	var open []net.Conn
	for range flood {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: other.DialContext, DisableKeepAlives: true}}
	resp, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "the page" {
		t.Errorf("another client gets %q, %v", body, err)
	}
	// Those that the server still has do not end when they are read from.
	left := 0
	testenv.Eventually(t, 9*time.Second, func() string { // before the server ends them for want of headers
		left = 0
		for _, c := range open {
			_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
			var timeout net.Error
			if _, err := c.Read(make([]byte, 1)); errors.As(err, &timeout) && timeout.Timeout() {
				left++
			}
		}
		if left > 256 {
			return "too many connections are open"
		}
		return ""
	})
	if left == 0 {
		t.Error("no connection is open: the server ended them for another reason")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
