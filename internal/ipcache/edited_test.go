package ipcache

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestAddressDeletedByOthers: an address that another process deletes from the kernel's map, or
// changes there, is right again after the interval, one that it adds is gone, and each is reported.
func TestAddressDeletedByOthers(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	c := maps.Defaults()
	c.Dir, c.CTEntries = "", 4096
	kernel, err := maps.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	cache := New()
	p, claim := remote(1)
	if _, err := cache.Upsert(p, claim); err != nil {
		t.Fatal(err)
	}
	var edited atomic.Int32
	target := NewMaps(kernel, true)
	target.Edited = func(n int, _ netip.Prefix) { edited.Add(int32(n)) }
	rec, err := table.NewReconciler(table.ReconcilerConfig{PruneInterval: 20 * time.Millisecond}, cache.Table(), target)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { _ = rec.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	if err := rec.WaitPruned(ctx); err != nil {
		t.Fatal(err)
	}
	want, err := kernel.IPCache()
	if err != nil || len(want) == 0 {
		t.Fatalf("the kernel has %v, %v", want, err)
	}
	right := func() bool {
		have, err := kernel.IPCache()
		return err == nil && len(have) == len(want) && !slices.ContainsFunc(have, func(e datapath.IPCacheEntry) bool { return !slices.Contains(want, e) })
	}
	other := want[0]
	other.Identity += 7
	for i, damage := range []func() error{
		func() error { return kernel.DeleteIPCache([]netip.Prefix{want[0].Prefix}) },
		func() error { return kernel.UpsertIPCache([]datapath.IPCacheEntry{other}) },
		func() error {
			return kernel.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.MustParsePrefix("10.255.0.1/32"), Identity: 7}})
		},
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() string {
			if right() && edited.Load() == int32(i+1) {
				return ""
			}
			return "waiting for the map to be restored"
		})
	}
}
