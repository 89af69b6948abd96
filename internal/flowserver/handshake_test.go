package flowserver_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-net/hawser/api/observer"
)

// from is a dialer at an address of 127.0.0.0/24.
func from(host byte) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
}

// askFrom has a new client at an address ask once.
func askFrom(t *testing.T, host byte, address string, creds credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return from(host).DialContext(ctx, "tcp", address)
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

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHandshakesArePaced: of a flood of handshakes from one address few are answered, and a client
// of another address is served meanwhile. So it is with clients that begin one and send no more.
func TestHandshakesArePaced(t *testing.T) {
	serving, asking := certificates(t)
	s := newStand(t, 8, nil)
	l := listen(t)
	s.serve(l, serving)
	var all sync.WaitGroup
	var mu sync.Mutex
	var answered, refused int
	const flood, workers = 600, 8
	began := time.Now()
	for range workers {
		all.Go(func() {
			for range flood / workers {
				raw, err := from(9).Dial("tcp", l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
				err = c.HandshakeContext(t.Context()) // ends when the server has shown its certificate
				c.Close()
				mu.Lock()
				if err == nil {
					answered++
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	if err := askFrom(t, 5, l.Addr().String(), asking); err != nil {
		t.Errorf("a client of another address: %v", err)
	}
	all.Wait()
	if most := 64 + 16*(int(time.Since(began)/time.Second)+1); answered > most || answered < 64 || refused == 0 {
		t.Errorf("of %d handshakes %d were answered, %d refused; want at most %d answered", flood, answered, refused, most)
	}
	for range 50 {
		raw, err := from(10).Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		if _, err := raw.Write([]byte{22, 3, 1, 1}); err != nil { // a record that does not come
			t.Fatal(err)
		}
	}
	if err := askFrom(t, 5, l.Addr().String(), asking); err != nil {
		t.Errorf("while others are silent: %v", err)
	}
}

// TestLongChainsAreRefused: a client may present four certificates, and no more, though its own is
// valid.
func TestLongChainsAreRefused(t *testing.T) {
	serving, roots, pair := certificatePair(t)
	s := newStand(t, 8, nil)
	l := listen(t)
	s.serve(l, serving)
	leaf := pair.Certificate[0]
	for _, n := range []int{4, 5, 60} {
		pair.Certificate = nil
		for range n {
			pair.Certificate = append(pair.Certificate, leaf)
		}
		err := askFrom(t, 5, l.Addr().String(), credentials.NewTLS(&tls.Config{
			RootCAs: roots, ServerName: "server", MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		}))
		if served := err == nil; served != (n <= 4) {
			t.Errorf("a client with %d certificates: %v", n, err)
		}
	}
}

// TestSessionsAreNotResumed: each connection shows its certificate, which is verified by the
// authorities of that moment.
func TestSessionsAreNotResumed(t *testing.T) {
	serving, roots, pair := certificatePair(t)
	s := newStand(t, 8, nil)
	l := listen(t)
	s.serve(l, serving)
	cfg := &tls.Config{
		RootCAs: roots, ServerName: "server", MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		NextProtos: []string{"h2"}, ClientSessionCache: tls.NewLRUClientSessionCache(4),
	}
	for range 2 {
		c, err := tls.Dial("tcp", l.Addr().String(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		c.SetDeadline(time.Now().Add(testTimeout))
		if _, err := io.ReadFull(c, make([]byte, 9)); err != nil { // a ticket comes before the settings
			t.Fatal(err)
		}
	}
}

// TestSilentClientsDoNotHoldUpTheEnd: a server that ends does not wait until those give up that
// have said nothing, or only a part of what begins a connection.
func TestSilentClientsDoNotHoldUpTheEnd(t *testing.T) {
	serving, _ := certificates(t)
	for name, creds := range map[string]credentials.TransportCredentials{"with certificates": serving, "without": nil} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, 8, nil)
			l := listen(t)
			end := s.serve(l, creds)
			var conns []net.Conn
			for i := range 20 {
				c, err := from(9).Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if i%2 == 1 {
					if _, err := c.Write([]byte("PRI")); err != nil {
						t.Fatal(err)
					}
				}
				conns = append(conns, c)
			}
			time.Sleep(200 * time.Millisecond) // until they are accepted
			began := time.Now()
			end()
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("the end took %v", d)
			}
			conns[0].SetReadDeadline(time.Now().Add(testTimeout))
			if _, err := io.Copy(io.Discard, conns[0]); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a connection was left open")
			}
		})
	}
}
