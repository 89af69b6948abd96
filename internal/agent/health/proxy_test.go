package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

func TestProxyHealthz(t *testing.T) {
	t.Parallel()
	well := false
	h := ProxyHandler(func() bool { return well })
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		var said struct {
			NodeEligible bool   `json:"nodeEligible"`
			LastUpdated  string `json:"lastUpdated"`
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &said); err != nil || rec.Code != want || said.NodeEligible != well || said.LastUpdated == "" {
			t.Errorf("well %v: %d %s, %v", well, rec.Code, rec.Body, err)
		}
		well = true
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/livez", nil))
	if rec.Code != http.StatusNotFound {
		t.Errorf("another path: %d", rec.Code)
	}
}

// TestBalancersAreBounded: who opens connections at the ports where balancers ask, and says
// nothing, gets no more than so many, and loses them soon; none is kept for another question.
func TestBalancersAreBounded(t *testing.T) {
	t.Parallel()
	ns := testenv.NewNetNS(t) // whose ports no other process has
	const port = 10256
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- ns.Do(func() error {
			return ServeProxy(ctx, fmt.Sprintf("127.0.0.1:%d", port), ProxyHandler(func() bool { return true }), slog.New(slog.DiscardHandler))
		})
	}()
	dial := func(port int) (conn net.Conn, err error) {
		err = ns.Do(func() (err error) { conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); return err })
		return conn, err
	}
	ask := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(port) },
	}}
	answered := func() string {
		resp, err := ask.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
		if err != nil {
			return err.Error()
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !resp.Close {
			return fmt.Sprintf("%s, connection closed: %v", resp.Status, resp.Close)
		}
		return ""
	}
	controllers.Eventually(t, time.Minute, answered)
	var conns []net.Conn
	for range maxBalancers + 20 {
		c, err := dial(port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("connection %d is kept", i)
		}
	}
	controllers.Eventually(t, time.Minute, answered)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}

	// The services' ports: those beyond are closed, though no process reads from the others.
	var l net.Listener
	ns.Must(t, func() (err error) { l, err = ListenForBalancers(30100); return err })
	defer l.Close()
	taken := make(chan net.Conn, maxBalancers+1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(taken)
				return
			}
			taken <- c
		}
	}()
	for i := range maxBalancers + 1 {
		c, err := dial(30100)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i < maxBalancers {
			defer (<-taken).Close()
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one more than %d connections: %v", maxBalancers, err)
		}
	}
}
