package kvstoretest_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.VerifyTestMain(m, goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile"))
}

func TestEtcdKeepsDataOverRestart(t *testing.T) {
	e := kvstoretest.StartEtcd(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := e.Client().Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	e.Stop()
	e.Start()
	r, err := e.Client().Get(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "v" {
		t.Fatalf("after the restart: %v", r.Kvs)
	}
}
