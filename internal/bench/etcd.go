package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd/member"
)

// ServeEtcd serves one etcd member with its data and its socket in dir until ctx ends. It syncs to
// disk as a cluster's does. The program that calls Run must do this, in a process of its own, when
// started with Config.Self and dir as its arguments.
func ServeEtcd(ctx context.Context, dir string) error {
	server, err := member.Member{
		Name: "bench", Dir: filepath.Join(dir, "data"), PeerSocket: filepath.Join(dir, "peer.sock"),
		Listen: []url.URL{{Scheme: "unix", Path: filepath.Join(dir, "client.sock")}}, LogLevel: "error", Durable: true, Quota: 4 << 30,
	}.Start(ctx)
	if err != nil {
		return err
	}
	return member.Wait(ctx, server)
}

// etcdServer is a running member.
type etcdServer struct {
	proc   *child.Process
	dir    string
	client *clientv3.Client
}

func (e *etcdServer) address() string { return "unix://" + filepath.Join(e.dir, "client.sock") }

func (b *bencher) startEtcd(ctx context.Context) (*etcdServer, error) {
	dir, err := os.MkdirTemp(b.dir, "etcd-")
	if err != nil {
		return nil, err
	}
	e := &etcdServer{dir: dir}
	if e.proc, err = child.Start("etcd", filepath.Join(dir, "log"), nil, append(append([]string(nil), b.cfg.Self...), dir)...); err != nil {
		return nil, err
	}
	e.client, err = newEtcdClient(e.address())
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	err = child.Poll(ctx, 30*time.Second, 20*time.Millisecond, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := e.client.Get(ctx, "ready")
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcd does not answer: %w", err), e.stop())
	}
	return e, nil
}

func newEtcdClient(address string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

func (e *etcdServer) stop() error {
	if e.client != nil {
		_ = e.client.Close()
	}
	return e.proc.Stop(5 * time.Second)
}

// put writes many keys, 100 a transaction.
func (e *etcdServer) put(ctx context.Context, n int, kv func(i int) (key, value string)) error {
	for i := 0; i < n; {
		var ops []clientv3.Op
		for ; i < n && len(ops) < 100; i++ {
			k, v := kv(i)
			ops = append(ops, clientv3.OpPut(k, v))
		}
		if _, err := e.client.Txn(ctx).Then(ops...).Commit(); err != nil {
			return err
		}
	}
	return nil
}
