package kvstore_test

import (
	"testing"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

func TestMemoryConformance(t *testing.T) {
	store := kvstore.NewMemory()
	conformance.Run(t, conformance.Harness{
		Open:         func(*testing.T) kvstore.Backend { return store.Client() },
		ExpireLeases: func(_ *testing.T, b kvstore.Backend) { b.(*kvstore.MemoryClient).ExpireLeases() },
		Compact:      func(*testing.T) { store.Compact() },
		BreakWatches: func(_ *testing.T, b kvstore.Backend) { b.(*kvstore.MemoryClient).BreakWatches() },
	})
}
