package allocator_test

import (
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/allocator/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// idRange is the range of the suite, with a mask as clusters that are connected have one.
var idRange = allocator.Range{Min: 256, Max: 65535, Mask: 3 << 16}

func keysOn(t *testing.T, store kvstore.Backend, node string) allocator.Backend {
	t.Helper()
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: base, Suffix: node, KeyType: allocator.StringKey("")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestConformance runs the suite on the store in memory, which stands in for the others in tests,
// in each layout.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]kvstore.Layout{"etcd": kvstore.LayoutEtcd, "Consul": kvstore.LayoutConsul, "ConsulPlain": kvstore.LayoutConsulPlain} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := kvstore.NewMemory()
			var clients []*kvstore.MemoryClient
			conformance.Run(t, conformance.Harness{
				IDs: idRange,
				Open: func(t *testing.T, node string) allocator.Backend {
					c := mem.ClientAs(layout)
					clients = append(clients, c)
					return keysOn(t, c, node)
				},
				LoseReferences: func(*testing.T) {
					for _, c := range clients {
						c.ExpireLeases()
					}
				},
			})
		})
	}
}

// TestEtcdConformance runs it on a real etcd.
func TestEtcdConformance(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	conformance.Run(t, conformance.Harness{
		IDs: idRange,
		Open: func(t *testing.T, node string) allocator.Backend {
			t.Helper()
			cfg := etcd.Defaults()
			cfg.Endpoints, cfg.QPS, cfg.CheckInterval = []string{server.Endpoint()}, 0, time.Second
			cfg.LeaseTTL = 25 * time.Second // it asks for its leases every third of that
			c, err := etcd.New(t.Context(), cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			return keysOn(t, c, node)
		},
		LoseReferences: func(t *testing.T) { server.ExpireLeases(t) },
	})
}
