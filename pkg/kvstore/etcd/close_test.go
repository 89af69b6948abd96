package etcd_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

// TestCloseWhileConnecting closes clients at the moment at which their connection comes about: it
// must not stay behind.
func TestCloseWhileConnecting(t *testing.T) {
	before := goleak.IgnoreCurrent()
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{"http://127.0.0.1:1"}
	for range 300 {
		c, err := etcd.New(context.Background(), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	leaktest.VerifyNone(t, before)
}

// writerFunc is a function as a writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// muffled stands between clients and a server. No answer comes through after mute was called.
func muffled(t *testing.T, server *kvstoretest.Etcd) (endpoint string, mute func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var muted atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", strings.TrimPrefix(server.Endpoint(), "unix://"))
			if err != nil {
				in.Close()
				continue
			}
			wg.Go(func() {
				defer out.Close()
				_, _ = io.Copy(out, in) // until the client goes
			})
			wg.Go(func() {
				defer in.Close()
				_, _ = io.Copy(writerFunc(func(p []byte) (int, error) {
					if muted.Load() {
						return len(p), nil
					}
					return in.Write(p)
				}), out)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return "unix://" + path, func() { muted.Store(true) }
}

// TestClosedUnderWay: a write that is under way when the client is closed may have been carried
// out, so its error is not the one that says that nothing was written.
func TestClosedUnderWay(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	endpoint, mute := muffled(t, server)
	cfg := config(server)
	cfg.Endpoints = []string{endpoint}
	c := etcd.NewUnchecked(cfg)
	defer c.Close()
	ctx := timeout(t, time.Minute)
	if err := kvstore.Put(ctx, c, "test/leased", nil, kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	mute()
	put, revoked, got, read := make(chan error, 1), make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { put <- kvstore.Put(ctx, c, "test/a", nil, kvstore.Permanent) }()
	go func() { revoked <- c.RevokeLeases(ctx) }()
	go func() {
		_, err := c.Get(ctx, "test/a")
		got <- err
	}()
	go func() {
		_, err := c.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{kvstore.GetOp("test/a")}})
		read <- err
	}()
	for {
		a, err := raw.Get(ctx, "test/a")
		b, berr := raw.Get(ctx, "test/leased")
		if err := errors.Join(err, berr); err != nil {
			t.Fatal(err)
		}
		if len(a.Kvs) == 1 && len(b.Kvs) == 0 {
			break // both were carried out
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for name, done := range map[string]chan error{"a write": put, "the end of the leases": revoked} {
		if err := <-done; err == nil || errors.Is(err, kvstore.ErrClosed) || !strings.Contains(err.Error(), "may have been carried out") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{"a get": <-got, "a transaction that reads": <-read, "a write afterwards": kvstore.Put(ctx, c, "test/b", nil, kvstore.Leased)} {
		if !errors.Is(err, kvstore.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
