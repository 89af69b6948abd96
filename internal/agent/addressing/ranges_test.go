package addressing

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
)

// TestChanged: what the operator assigns is compared as it is meant, not as it is spelled.
func TestChanged(t *testing.T) {
	t.Parallel()
	used := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/112")}
	for _, c := range []struct {
		cidrs []string
		says  bool
		fault string
	}{
		{nil, false, ""},
		{[]string{"fd00::/112", "10.0.0.0/24"}, true, ""},
		{[]string{"10.0.0.1/24", "fd00:0:0::1/112"}, true, ""},
		{[]string{"10.0.1.0/24", "fd00::/112"}, true, "use 10.0.0.0/24, but the operator has assigned 10.0.1.0/24, fd00::/112"},
		{[]string{"10.0.0.0/25", "nonsense"}, true, "use 10.0.0.0/24, fd00::/112"},
	} {
		o := &v2.CiliumNode{}
		o.Spec.IPAM.PodCIDRs = c.cidrs
		cfg := Config{Mode: ClusterPool, Families: ipam.Both}
		says, err := cfg.Changed(o, used)
		if says != c.says || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%v: %t, %v", c.cidrs, says, err)
		}
	}
}

// TestDamagedRecord: a damaged record of one endpoint keeps the agent of a node with others neither
// from starting nor from the addresses that these have, also while Kubernetes is away.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{ClusterPool, Kubernetes, MultiPool, CRD} {
		dir := t.TempDir()
		cfg := testConfig(dir)
		cfg.Mode = mode
		store, err := endpoint.NewStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Put(endpoint.Endpoint{ID: 1, Attachment: endpoint.Attachment{IfIndex: 7, IfName: "lxc1", IPv4: netip.MustParseAddr("10.0.0.1")}}); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "2"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "2", "endpoint.json"), nil, 0o600); err != nil { // as after a loss of power
			t.Fatal(err)
		}
		switch mode {
		case MultiPool:
			before, _ := nodePoolsAt(t, dir)
			before.Observe(ciliumNode(1, "10.0.0.0/28"))
		case CRD:
			before, _ := singlesAt(t, dir)
			before.Observe(shown(1, []string{"10.0.0.1"}))
		default:
			if err := cfg.Save(filepath.Join(dir, rangesFile), []byte(`{"ipv4": "10.0.0.0/24"}`)); err != nil {
				t.Fatal(err)
			}
		}
		unreachable, err := k8s.New(&rest.Config{Host: "http://127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		found, err := Await(ctx, cfg, unreachable)
		cancel()
		has := found.Ranges.V4 == "10.0.0.0/24" || found.Pools != nil && found.Pools.missing() == nil || found.Singles != nil && found.Singles.missing() == nil
		if err != nil || !has {
			t.Errorf("%s: %+v, %v", mode, found, err)
		}
	}
}
