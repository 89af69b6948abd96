package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
)

// tlsConfig reads the certificates of the settings file, as they are now, and returns the client
// side of TLS, or nil for plain text.
func (f File) tlsConfig() (*tls.Config, error) {
	if f.InsecureTransport || (f.CertFile == "" && f.TrustedCAFile == "" && !f.InsecureSkipTLSVerify) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.InsecureSkipTLSVerify}
	if f.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate for etcd: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	if f.TrustedCAFile != "" {
		pem, err := os.ReadFile(f.TrustedCAFile)
		if err != nil {
			return nil, fmt.Errorf("authorities for etcd: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authorities for etcd: %s holds no PEM certificate", f.TrustedCAFile)
		}
	}
	return c, nil
}

// wantsTLS reports whether any endpoint may be spoken to in TLS: those with http are in plain text
// whatever certificates there are.
func wantsTLS(endpoints []string) bool {
	return slices.ContainsFunc(endpoints, func(e string) bool { return !strings.HasPrefix(e, "http://") })
}

// freshTLS reads the settings file, and the certificates that it names, again at every handshake:
// renewed files, and others that it names since, are used from the next connection on. The change
// between TLS and plain text takes effect with a restart only. report is called with the outcome of
// each handshake: callers of the client see no more of it than that their time is up.
type freshTLS struct {
	path   string
	report func(error)
}

// ClientHandshake implements credentials.TransportCredentials.
func (f freshTLS) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := f.handshake(ctx, authority, conn)
	if err != nil {
		err = fmt.Errorf("TLS with etcd at %s: %w", conn.RemoteAddr(), err)
	}
	f.report(err)
	return secure, info, err
}

func (f freshTLS) handshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	file, err := ReadFile(f.path)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := file.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	if cfg == nil {
		return nil, nil, fmt.Errorf("%s names no certificates for etcd any more: add them, or restart this program if etcd is to be used without", f.path)
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials.
func (f freshTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("this is the client's side only")
}

// Info implements credentials.TransportCredentials.
func (f freshTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (f freshTLS) Clone() credentials.TransportCredentials { return f }

// OverrideServerName implements credentials.TransportCredentials.
func (f freshTLS) OverrideServerName(string) error {
	return errors.New("the server's name is that of its address")
}
