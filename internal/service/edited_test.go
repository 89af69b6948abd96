package service

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestFrontendDeletedByOthers: a frontend that another process deletes from the kernel's map is
// there again after the interval, one that it adds is not, and each is reported once.
func TestFrontendDeletedByOthers(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	c := maps.Defaults()
	c.Dir, c.CTEntries, c.Services, c.ServiceBackends = "", 4096, 64, 64
	kernel, err := maps.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	frontends := table.New[datapath.ServiceFrontend](Frontend.Equal)
	row := Frontend{Owner: Name{"ns", "web"}, Service: datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Proto: 6}, ID: 1,
		Backends: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443")},
	}}
	frontends.Upsert(row.ServiceFrontend, row)
	var edited atomic.Int32
	target := NewMaps(kernel, func() {})
	target.Edited = func(list []datapath.ServiceFrontend) { edited.Add(int32(len(list))) }
	rec, err := table.NewReconciler(table.ReconcilerConfig{PruneInterval: 20 * time.Millisecond}, frontends, target)
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
	m := kernel.Replacements()["lb_services"]
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	if !m.Iterate().Next(&key, &value) {
		t.Fatal("the kernel's map is empty")
	}
	foreign := append([]byte(nil), key...)
	foreign[15]++
	there := func(k []byte) bool {
		v := make([]byte, m.ValueSize())
		return m.Lookup(k, &v) == nil
	}
	if err := m.Delete(key); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() string {
		if there(key) {
			return ""
		}
		return "waiting for the frontend to be restored"
	})
	if err := m.Update(foreign, value, ebpf.UpdateNoExist); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() string {
		if !there(foreign) {
			return ""
		}
		return "waiting for the foreign frontend to be removed"
	})
	if !there(key) {
		t.Error("the frontend is gone")
	}
	if n := edited.Load(); n != 2 {
		t.Errorf("%d edited frontends were reported, want 2", n)
	}
}
