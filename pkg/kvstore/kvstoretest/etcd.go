package kvstoretest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is an etcd server of one member with a directory of its own. It listens on unix sockets
// only, so no port is taken and no two tests can meet; but see [StartSecureEtcd]. It runs inside
// the test process, or as the program that HAWSER_ETCD names, if that is there; `make bin/etcd` of
// Hawser builds one. In a test process with the race detector the server has it as well, and most
// of what such a test takes is then the server's.
type Etcd struct {
	t       testing.TB
	dir     string
	server  *embed.Etcd // one of the two, while it runs
	process *process
	// secure is nil but for a server that speaks TLS at addr.
	secure *Authority
	addr   string
}

// StartEtcd starts a server and stops it when the test ends. It returns when the server answers.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	return startEtcd(t, nil)
}

// StartSecureEtcd starts a server that speaks TLS at a port of 127.0.0.1, and lets only clients in
// that have a certificate of the authority's.
func StartSecureEtcd(t testing.TB, a Authority) *Etcd {
	t.Helper()
	return startEtcd(t, &a)
}

func startEtcd(t testing.TB, secure *Authority) *Etcd {
	t.Helper()
	// A short path: a unix socket's name has at most 107 bytes, and t.TempDir() is long.
	dir, err := os.MkdirTemp("", "hawser-etcd-")
	if err != nil {
		t.Fatalf("etcd directory: %v", err)
	}
	e := &Etcd{t: t, dir: dir, secure: secure}
	t.Cleanup(func() {
		e.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	e.Start()
	return e
}

// Endpoint returns the address to give to a client: unix:///path, or https://address:port.
func (e *Etcd) Endpoint() string {
	if e.secure != nil {
		return "https://" + e.addr
	}
	return "unix://" + e.socket("client")
}

func (e *Etcd) socket(kind string) string { return filepath.Join(e.dir, kind+".sock") }

// Start starts the server again after Stop, with the same data and address.
func (e *Etcd) Start() {
	e.t.Helper()
	if e.server != nil || e.process != nil {
		return
	}
	c := config{Dir: filepath.Join(e.dir, "data"), Client: url.URL{Scheme: "unix", Path: e.socket("client")}, Peer: e.socket("peer")}
	if e.secure != nil {
		c.Client = url.URL{Scheme: "https", Host: e.listenAt()}
		c.Cert, c.Key, c.CA = e.identity()
	}
	var err error
	if program := os.Getenv("HAWSER_ETCD"); program != "" && exists(program) {
		e.process, err = c.run(program, filepath.Join(e.dir, "etcd.log"))
	} else {
		e.server, err = c.member().Start(context.Background()) // also in a cleanup, when the test's context has ended
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// listenAt returns the address of a server that speaks TLS: one that was free a moment ago, the
// same for the server's life.
func (e *Etcd) listenAt() string {
	e.t.Helper()
	if e.addr == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			e.t.Fatalf("etcd address: %v", err)
		}
		e.addr = l.Addr().String()
		l.Close()
	}
	return e.addr
}

// identity writes the server's certificate, and what it knows clients by.
func (e *Etcd) identity() (certFile, keyFile, caFile string) {
	e.t.Helper()
	cert, key := e.secure.Issue(e.t, "etcd", x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	certFile, keyFile, caFile = filepath.Join(e.dir, "server.crt"), filepath.Join(e.dir, "server.key"), filepath.Join(e.dir, "ca.crt")
	for path, data := range map[string][]byte{certFile: cert, keyFile: key, caFile: e.secure.PEM()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			e.t.Fatalf("etcd certificate: %v", err)
		}
	}
	return certFile, keyFile, caFile
}

// clientTLS is what a client of the server needs, nil for nothing.
func (e *Etcd) clientTLS() *tls.Config {
	e.t.Helper()
	if e.secure == nil {
		return nil
	}
	pair, err := tls.X509KeyPair(e.secure.Issue(e.t, "test", x509.ExtKeyUsageClientAuth))
	if err != nil {
		e.t.Fatalf("etcd client: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(e.secure.Cert)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}
}

// Stop stops the server and keeps its data. Stopping twice is fine.
func (e *Etcd) Stop() {
	if e.server != nil {
		e.server.Close()
	}
	if e.process != nil {
		e.process.stop()
	}
	e.server, e.process = nil, nil
}

// Empty starts the server anew, with the same address and no data.
func (e *Etcd) Empty() {
	e.t.Helper()
	e.Stop()
	if err := os.RemoveAll(filepath.Join(e.dir, "data")); err != nil {
		e.t.Fatalf("remove etcd's data: %v", err)
	}
	e.Start()
}

// Snapshot stops the server for a copy of its data, and starts it again. The function returned puts
// the data back to the copy, as from a backup.
func (e *Etcd) Snapshot() (restore func()) {
	e.t.Helper()
	data, kept := filepath.Join(e.dir, "data"), e.t.TempDir()
	e.Stop()
	if err := os.CopyFS(kept, os.DirFS(data)); err != nil {
		e.t.Fatalf("snapshot of etcd's data: %v", err)
	}
	e.Start()
	return func() {
		e.t.Helper()
		e.Stop()
		err := os.RemoveAll(data)
		if err == nil {
			err = os.CopyFS(data, os.DirFS(kept))
		}
		if err != nil {
			e.t.Fatalf("restore etcd's data: %v", err)
		}
		e.Start()
	}
}

// Client returns a new client of the server, closed when the test ends.
func (e *Etcd) Client() *clientv3.Client {
	e.t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{e.Endpoint()},
		DialTimeout: 5 * time.Second,
		TLS:         e.clientTLS(),
		Logger:      zap.NewNop(),
	})
	if err != nil {
		e.t.Fatalf("etcd client: %v", err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// ExpireLeases ends all leases of the server, with their keys, as their time would. It fails the
// test if the server does not answer.
func (e *Etcd) ExpireLeases(t testing.TB) {
	t.Helper()
	c := e.Client()
	all, err := c.Leases(t.Context())
	if err != nil {
		t.Fatalf("leases of etcd: %v", err)
	}
	for _, l := range all.Leases {
		if _, err := c.Revoke(t.Context(), l.ID); err != nil {
			t.Fatalf("end a lease of etcd: %v", err)
		}
	}
}

// UseUpSpace raises the alarm that etcd raises when its database has reached its quota: it refuses
// writes and new leases until makeRoom is called.
func (e *Etcd) UseUpSpace() (makeRoom func()) {
	e.t.Helper()
	c := e.Client()
	set := func(action pb.AlarmRequest_AlarmAction) {
		e.t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		st, err := c.Status(ctx, e.Endpoint())
		if err == nil {
			_, err = pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: action, MemberID: st.Header.MemberId, Alarm: pb.AlarmType_NOSPACE})
		}
		if err != nil {
			e.t.Fatalf("alarm of etcd: %v", err)
		}
	}
	set(pb.AlarmRequest_ACTIVATE)
	return func() {
		e.t.Helper()
		set(pb.AlarmRequest_DEACTIVATE)
	}
}
