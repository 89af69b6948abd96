package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// handshake connects as the client does, with a settings file, to a server that asks for
// certificates, and returns the client's name as the server saw it.
func handshake(t *testing.T, path, name string, serverCert tls.Certificate, clients *x509.CertPool) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{serverCert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, NextProtos: []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			seen <- ""
			return
		}
		defer conn.Close()
		srv := conn.(*tls.Conn)
		if err := srv.HandshakeContext(ctx); err != nil {
			seen <- ""
			return
		}
		seen <- srv.ConnectionState().PeerCertificates[0].Subject.CommonName
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_, _, err = freshTLS{path, func(error) {}}.ClientHandshake(ctx, name, raw)
	raw.Close()
	return <-seen, err
}

func TestTLSReadsCertificatesAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := kvstoretest.NewAuthority(t), kvstoretest.NewAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(first.Cert)
	server := func(a kvstoretest.Authority) tls.Certificate {
		cert, key := a.Issue(t, "etcd.test", x509.ExtKeyUsageServerAuth)
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	cert, key := first.Issue(t, "agent-1", x509.ExtKeyUsageClientAuth)
	file := write("etcd.yaml", fmt.Appendf(nil, "cert-file: %q\nkey-file: %q\ntrusted-ca-file: %q\n",
		write("c.pem", cert), write("k.pem", key), write("ca.pem", first.PEM())))
	if who, err := handshake(t, file, "etcd.test", server(first), pool); err != nil || who != "agent-1" {
		t.Fatalf("handshake: %q, %v", who, err)
	}
	if who, err := handshake(t, file, "127.0.0.1:2379", server(first), pool); err != nil || who != "agent-1" {
		t.Fatalf("handshake by address: %q, %v", who, err)
	}
	if _, err := handshake(t, file, "127.0.0.2:2379", server(first), pool); err == nil {
		t.Error("a server of another address was believed")
	}
	if _, err := handshake(t, file, "other.test", server(first), pool); err == nil {
		t.Error("a server of another name was believed")
	}
	if _, err := handshake(t, file, "etcd.test", server(second), pool); err == nil {
		t.Error("a server of an unknown authority was believed")
	}
	clientCert, clientKey := first.Issue(t, "etcd.test", x509.ExtKeyUsageClientAuth)
	wrongUse, err := tls.X509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, file, "etcd.test", wrongUse, pool); err == nil {
		t.Error("a client's certificate was believed from a server")
	}
	// Renewed on disk: used at the next handshake.
	cert, key = first.Issue(t, "agent-2", x509.ExtKeyUsageClientAuth)
	write("c.pem", cert)
	write("k.pem", key)
	write("ca.pem", second.PEM())
	if who, err := handshake(t, file, "etcd.test", server(second), pool); err != nil || who != "agent-2" {
		t.Errorf("handshake after the renewal: %q, %v", who, err)
	}
	if _, err := handshake(t, file, "etcd.test", server(first), pool); err == nil {
		t.Error("the authority that was taken away is still believed")
	}
	write("etcd.yaml", nil)
	if _, err := handshake(t, file, "etcd.test", server(second), pool); err == nil || !strings.Contains(err.Error(), "etcd.yaml") {
		t.Errorf("without certificates: %v", err)
	}
}

func TestTLSSettings(t *testing.T) {
	t.Parallel()
	if cfg, err := (File{}).tlsConfig(); cfg != nil || err != nil {
		t.Errorf("no settings: %v, %v", cfg, err)
	}
	if cfg, err := (File{InsecureTransport: true, TrustedCAFile: "/none"}).tlsConfig(); cfg != nil || err != nil {
		t.Errorf("insecure transport: %v, %v", cfg, err)
	}
	if cfg, err := (File{InsecureSkipTLSVerify: true}).tlsConfig(); err != nil || cfg == nil || !cfg.InsecureSkipVerify {
		t.Errorf("unverified: %+v, %v", cfg, err)
	}
	for name, f := range map[string]File{
		"no authority file": {TrustedCAFile: "/none"}, "no key pair": {CertFile: "/none", KeyFile: "/none"}, "not PEM": {TrustedCAFile: "/proc/self/cmdline"},
	} {
		if _, err := f.tlsConfig(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
