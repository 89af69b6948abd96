package flowserver_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestUnauthenticatedClients: a host that opens connections and sends nothing keeps no client of
// another address out, with certificates or without, nor ends an established connection.
func TestUnauthenticatedClients(t *testing.T) {
	serving, asking := certificates(t)
	t.Run("with certificates", func(t *testing.T) { unauthenticatedClients(t, serving, asking) })
	t.Run("without", func(t *testing.T) { unauthenticatedClients(t, nil, insecure.NewCredentials()) })
}

// certificates returns the credentials of a server, and of a client that it serves.
func certificates(t *testing.T) (serving, asking credentials.TransportCredentials) {
	t.Helper()
	serving, roots, pair := certificatePair(t)
	return serving, credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: "server", MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
	})
}

// certificatePair returns the credentials of a server, by what a client knows it, and the
// certificate of a client that it serves.
func certificatePair(t *testing.T) (serving credentials.TransportCredentials, roots *x509.CertPool, pair tls.Certificate) {
	t.Helper()
	authority := kvstoretest.NewAuthority(t)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := authority.Issue(t, "server")
	cfg, err := flowserver.TLSFiles{Cert: write("crt", cert), Key: write("key", key), ClientCAs: []string{write("ca", authority.PEM())}}.Config()
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	cert, key = authority.Issue(t, "relay", x509.ExtKeyUsageClientAuth)
	pair, err = tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return credentials.NewTLS(cfg), roots, pair
}

// TestFloodFromManyAddresses: a client that has proven who it is comes back, from the same address,
// while thousands of others open a connection each, and though it is slow.
func TestFloodFromManyAddresses(t *testing.T) {
	serving, asking := certificates(t)
	s := newStand(t, 8, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.serve(l, serving)
	// A connection is made, then others come, then the client says who it is.
	come := func(others func()) error {
		dialed := false
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(asking),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				if dialed {
					return nil, errors.New("it has lost its connection")
				}
				dialed = true
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5)}}).DialContext(ctx, "tcp", address)
				if err == nil {
					others()
				}
				return c, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		_, err = observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
		return err
	}
	if err := come(func() {}); err != nil {
		t.Fatal(err)
	}
	if err := come(func() {
		for i := range 2000 {
			c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 9, byte(i>>8), byte(i))}}).Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
		}
	}); err != nil {
		t.Errorf("a client that was there before: %v", err)
	}
	// The same address with many has no advantage of it.
	if err := come(func() {
		for range 2000 {
			c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}).Dial("tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
		}
	}); err != nil {
		t.Errorf("while one address opens many: %v", err)
	}
}

func unauthenticatedClients(t *testing.T, serving, asking credentials.TransportCredentials) {
	s := newStand(t, 8, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.serve(l, serving)
	dial := func() *grpc.ClientConn {
		t.Helper()
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(asking))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	// The server gives up on unauthenticated clients after 10 s: a client is answered before.
	ask := func(conn *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		_, err := observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
		return err
	}
	before := dial()
	if err := ask(before); err != nil {
		t.Fatal(err)
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	for range 600 {
		c, err := other.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if err := ask(dial()); err != nil {
		t.Errorf("a client that comes meanwhile: %v", err)
	}
	if err := ask(before); err != nil {
		t.Errorf("a client that was there: %v", err)
	}
}

// TestOneClientLeavesStreams: a client that takes all streams that it gets leaves some to clients
// of other addresses, for flows and for nodes.
func TestOneClientLeavesStreams(t *testing.T) {
	s := newStand(t, 8, func(c *flowserver.Config) { c.Streams = 16 })
	s.add(1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, asking := certificates(t)
	s.serve(l, serving)
	dial := func(from byte) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(asking),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}}).DialContext(ctx, "tcp", address)
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	follow := func(conn *grpc.ClientConn) error {
		stream, err := observer.NewObserverClient(conn).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Number: 1})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	served := func(from byte) (n int) {
		conns := []*grpc.ClientConn{dial(from), dial(from)} // it has no more of several connections
		for i := range 20 {
			switch err := follow(conns[i%2]); {
			case err == nil:
				n++
			case status.Code(err) != codes.ResourceExhausted:
				t.Fatal(err)
			}
		}
		return n
	}
	for _, row := range []struct {
		from byte
		want int
	}{{9, 8}, {10, 4}, {11, 2}, {12, 1}, {13, 1}, {14, 0}} {
		if n := served(row.from); n != row.want {
			t.Errorf("the client at 127.0.0.%d has %d streams, want %d", row.from, n, row.want)
		}
	}
	peers := func(from byte) (n int) {
		conn := dial(from)
		for range 80 {
			stream, err := peer.NewPeerClient(conn).Notify(ctx, &peer.NotifyRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if err == nil {
				n++
			}
		}
		return n
	}
	s.nodes.Upsert(node.Key{Cluster: "prod", Name: "n1.example"}, node.Node{Cluster: "prod", Name: "n1.example",
		Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr("192.0.2.1")}}})
	if a, b := peers(9), peers(10); a != 32 || b != 16 {
		t.Errorf("the first client follows the nodes %d times, the second %d times", a, b)
	}
}
