package testenv

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is an etcd server of one member inside the test process, with a directory of its own. It
// listens on unix sockets only, so no port is taken and no two tests can meet.
type Etcd struct {
	t      testing.TB
	dir    string
	server *embed.Etcd
}

// StartEtcd starts a server and stops it when the test ends. It returns when the server answers.
func StartEtcd(t testing.TB) *Etcd {
	t.Helper()
	// A short path: a unix socket's name has at most 107 bytes, and t.TempDir() is long.
	dir, err := os.MkdirTemp("", "hawser-etcd-")
	if err != nil {
		t.Fatalf("etcd directory: %v", err)
	}
	e := &Etcd{t: t, dir: dir}
	t.Cleanup(func() {
		e.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	e.Start()
	return e
}

// Endpoint returns the address to give to a client: unix:///path.
func (e *Etcd) Endpoint() string { return "unix://" + e.socket("client") }

func (e *Etcd) socket(kind string) string { return filepath.Join(e.dir, kind+".sock") }

// Start starts the server again after Stop, with the same data and address.
func (e *Etcd) Start() {
	e.t.Helper()
	if e.server != nil {
		return
	}
	cfg := embed.NewConfig()
	cfg.Name = "test"
	cfg.Dir = filepath.Join(e.dir, "data")
	client := url.URL{Scheme: "unix", Path: e.socket("client")}
	peer := url.URL{Scheme: "unix", Path: e.socket("peer")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	// Nothing of a test has to survive a power cut.
	cfg.UnsafeNoFsync = true
	// One member elects itself: no reason to wait a second for votes that do not come.
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		e.t.Fatalf("start etcd: %v", err)
	}
	e.server = server
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		e.t.Fatalf("etcd ended: %v", err)
	case <-time.After(30 * time.Second):
		e.t.Fatal("etcd is not ready after 30 s")
	}
}

// Stop stops the server and keeps its data. Stopping twice is fine.
func (e *Etcd) Stop() {
	if e.server == nil {
		return
	}
	e.server.Close()
	e.server = nil
}

// Client returns a new client of the server, closed when the test ends.
func (e *Etcd) Client() *clientv3.Client {
	e.t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{e.Endpoint()},
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		e.t.Fatalf("etcd client: %v", err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}
