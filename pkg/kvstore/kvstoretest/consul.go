package kvstoretest

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// StartConsul starts a Consul of one member on a port of 127.0.0.1, and stops it when the test
// ends. It returns its address when it can be written to.
func StartConsul(t testing.TB) (address string) {
	t.Helper()
	port := FreePort(t)
	RunConsul(t, "-http-port", port)
	address = net.JoinHostPort("127.0.0.1", port)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if writable(t, address) {
			return address
		}
		if time.Now().After(end) {
			t.Fatal("Consul does not come up")
		}
	}
}

// writable reports whether a session can be made: Consul writes keys a moment before it knows the
// node that a session belongs to.
func writable(t testing.TB, address string) bool {
	var session struct{ ID string }
	return put(t, address, "session/create", &session) && put(t, address, "session/destroy/"+session.ID, nil)
}

// put sends a request without a body, decodes the answer into v unless that is nil, and reports
// whether it went through.
func put(t testing.TB, address, path string, v any) bool {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+address+"/v1/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && (v == nil || json.NewDecoder(resp.Body).Decode(v) == nil)
}

// SnapshotConsul takes a snapshot of the Consul at an address. The function returned restores it.
func SnapshotConsul(t testing.TB, address string) (restore func()) {
	t.Helper()
	request := func(method string, body []byte) []byte {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+"/v1/snapshot", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("snapshot of Consul: %v", err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("snapshot of Consul: %s %.200q %v", resp.Status, got, err)
		}
		return got
	}
	kept := request(http.MethodGet, nil)
	return func() {
		t.Helper()
		request(http.MethodPut, kept)
	}
}

// RunConsul starts a Consul of one member that keeps everything in memory, with more arguments. end
// stops it before the test does. The program is the one that HAWSER_CONSUL names, or that of the
// PATH; `make bin/consul` of Hawser builds one, and without it the test is skipped.
func RunConsul(t testing.TB, args ...string) (end func()) {
	t.Helper()
	program := os.Getenv("HAWSER_CONSUL")
	if program == "" {
		var err error
		if program, err = exec.LookPath("consul"); err != nil {
			t.Skip("needs a Consul server: put `consul` into the PATH, or its path into HAWSER_CONSUL; `make bin/consul` builds one")
		}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "consul.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"agent", "-dev", "-bind", "127.0.0.1", "-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1",
		"-server-port", FreePort(t), "-serf-lan-port", FreePort(t), "-serf-wan-port", "-1", "-log-level", "warn"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	})
	t.Cleanup(func() {
		end()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("output of Consul:\n%s", text)
		}
	})
	return end
}

// FreePort returns a TCP port of 127.0.0.1 that was free a moment ago.
func FreePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strings.TrimPrefix(l.Addr().String(), "127.0.0.1:")
}
