package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestOnConsul lets an operator look after a real Consul: the one that HAWSER_CONSUL names.
func TestOnConsul(t *testing.T) {
	t.Parallel()
	address := kvstoretest.StartConsul(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := &cluster{t, ctx, nil}
	cfg := Defaults()
	cfg.Store.Kind, cfg.Store.Options = "consul", map[string]string{"consul.address": address}
	cfg.GCInterval, cfg.HeartbeatTimeout, cfg.GCRateLimit, cfg.APIAddr = time.Second, 0, 1000000, ""
	cfg.HeartbeatInterval, cfg.LockGCInterval = 100*time.Millisecond, 100*time.Millisecond
	b, err := storedial.Open(ctx, cfg.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	c.eventually(func() string {
		if err := kvstore.Put(ctx, b, storekeys.IdentitiesPrefix+"/id/256", []byte("k8s:app=used;"), kvstore.Permanent); err != nil {
			return err.Error()
		}
		return ""
	})
	c.must(kvstore.Put(ctx, b, storekeys.IdentitiesPrefix+"/value/k8s:app=used;/10.0.0.1", []byte("256"), kvstore.Leased))
	for i := range 100 {
		c.must(kvstore.Put(ctx, b, fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, 1000+i), []byte(fmt.Sprintf("k8s:app=%d;", i)), kvstore.Permanent))
	}
	c.run(cfg)
	c.eventually(func() string {
		l, err := b.List(ctx, storekeys.IdentitiesPrefix+"/id/")
		if err != nil || len(l.Pairs) != 1 || string(l.Pairs[0].Value) != "k8s:app=used;" {
			return fmt.Sprintf("%d identities are left (%v)", len(l.Pairs), err)
		}
		return ""
	})
	if kv, err := b.Get(ctx, storekeys.HeartbeatKey); err != nil || kv.Lease == "" {
		t.Errorf("heartbeat %+v: %v", kv, err)
	}
}
