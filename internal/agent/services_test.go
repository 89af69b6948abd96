package agent

import (
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// TestForgetServices: a node that leaves its cluster no longer leads its pods to the cluster's
// services.
func TestForgetServices(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	n.kill()
	cfg := maps.Defaults()
	cfg.Dir = n.path("bpf/hawser")
	kernel, err := maps.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	old := datapath.Service{
		ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Proto: 6},
		Backends:        []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443")},
	}
	if err := kernel.UpsertService(old); err != nil {
		t.Fatal(err)
	}
	n.start()
	if left, err := kernel.Services(); err != nil || len(left) != 0 {
		t.Errorf("services of the former cluster are left: %v, %v", left, err)
	}
}
