package observe

import (
	"bytes"
	"context"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestRenewedAuthority: a connection that is kept goes on when the authority of server and clients
// is replaced, as that of the page does, which lives longer than certificates.
func TestRenewedAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := func() {
		t.Helper()
		authority := kvstoretest.NewAuthority(t)
		write("ca", authority.PEM())
		for name, usage := range map[string]x509.ExtKeyUsage{"server": x509.ExtKeyUsageServerAuth, "client": x509.ExtKeyUsageClientAuth} {
			cert, key := authority.Issue(t, name, usage)
			write(name+".crt", cert)
			write(name+".key", key)
		}
	}
	serve := func(address string) (at string, end func()) {
		t.Helper()
		var l net.Listener
		controllers.Eventually(t, time.Minute, func() string {
			var err error
			if l, err = net.Listen("tcp", address); err != nil {
				return err.Error()
			}
			return ""
		})
		// Made anew, so that the server knows the authority of now only.
		cfg, err := flowserver.TLSFiles{Cert: path("server.crt"), Key: path("server.key"), ClientCAs: []string{path("ca")}}.Config()
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
		observer.RegisterObserverServer(srv, relayAnswers{status: &observer.ServerStatusResponse{}})
		done := make(chan error, 1)
		go func() { done <- srv.Serve(l) }()
		return l.Addr().String(), func() { srv.Stop(); <-done }
	}

	replace()
	address, end := serve("127.0.0.1:0")
	server := Server{address: "tls://" + address, cas: []string{path("ca")}, cert: path("client.crt"), key: path("client.key"), tlsName: "server"}
	conn, err := server.Dial(&command.App{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{}); err != nil {
			return err.Error()
		}
		return ""
	}
	if problem := ask(); problem != "" {
		t.Fatal(problem)
	}
	end()
	replace()
	_, end = serve(address)
	defer end()
	controllers.Eventually(t, time.Minute, ask)
}

// TestNoServer: who is not answered is told why and what to do, not how gRPC says it.
func TestNoServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write([]byte("220 mail.example ESMTP\r\n"))
				_, _ = io.Copy(io.Discard, c) // to close what was not read resets the connection
				c.Close()
			}()
		}
	}()
	for address, want := range map[string]string{
		filepath.Join(dir, "none"):       "the socket does not exist",
		dead:                             "nothing listens there",
		"127.0.0.1:1":                    "nothing listens there",
		"tls://" + other.Addr().String(): "authentication handshake failed: tls: first record does not look like a TLS handshake",
	} {
		for _, args := range [][]string{{"status"}, {}} {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), &stdout, &stderr, address, args...)
			if want := "no server of flows answers at " + address + ": " + want + "\nIs the agent running, with --enable-hubble? " +
				"Another server is named with --server or HUBBLE_SERVER.\n"; code != exitcode.Unreachable || !strings.HasSuffix(stderr.String(), want) {
				t.Errorf("%v: exit code %d\n%swant\n%s", args, code, &stderr, want)
			}
		}
	}
}

// TestServerAddresses: addresses are of the forms that clients of the field know. One with tls://
// is never asked without TLS, and no other address is asked with it unless a flag says so.
func TestServerAddresses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// A TLS client begins with a handshake record (RFC 8446, 5.1), HTTP/2 with its preface.
	first := make(chan byte)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(first)
				return
			}
			b := make([]byte, 1)
			if _, err := c.Read(b); err == nil {
				select {
				case first <- b[0]:
				case <-t.Context().Done():
				}
			}
			c.Close()
		}
	}()
	const handshake, preface = 22, 'P'
	at := l.Addr().String()
	for address, want := range map[string]byte{"tls://" + at: handshake, at: preface, "tcp://" + at: preface} {
		for _, from := range []string{"--server", envFlowServer} {
			server, env := Server{address: address}, ""
			if from == envFlowServer {
				server.address, env = "", address
			}
			conn, err := server.Dial(&command.App{Getenv: func(string) string { return env }})
			if err != nil {
				t.Fatalf("%s %s: %v", from, address, err)
			}
			conn.Connect()
			if got := <-first; got != want {
				t.Errorf("%s %s: the client begins with %d, want %d", from, address, got, want)
			}
			conn.Close()
		}
	}
	for _, address := range []string{"tls://", "tls://host", "tls:///var/run/s", "tls://unix:///var/run/s", "https://host:1", "host"} {
		server := Server{address: address}
		if conn, err := server.Dial(&command.App{Getenv: func(string) string { return "" }}); err == nil {
			conn.Close()
			t.Errorf("%s is taken", address)
		} else if !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
