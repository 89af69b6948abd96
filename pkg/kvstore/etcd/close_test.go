package etcd_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
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
	goleak.VerifyNone(t, before)
}
