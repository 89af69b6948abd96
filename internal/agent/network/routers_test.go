package network

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
)

// TestRouterLeavesCIDR: without pods, the node's own address of before is not taken again if it is
// in a CIDR that gives out nothing any more: that would be the node's for good.
func TestRouterLeavesCIDR(t *testing.T) {
	t.Parallel()
	before := netip.MustParseAddr("10.0.0.5")
	for name, c := range map[string]struct {
		drained bool
		want    string
	}{
		"as it was": {false, "10.0.0.5"},
		"it drains": {true, "10.0.1.1"},
	} {
		pool, err := ipam.New(ipam.Config{Assigned: ipam.IPv4})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Assign(map[string][]ipam.Block{ipam.DefaultPool: {
			{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Drained: c.drained}, {Prefix: netip.MustParsePrefix("10.0.1.0/24")},
		}}); err != nil {
			t.Fatal(err)
		}
		n := New(Config{
			Dir: t.TempDir(), Pool: pool, Registry: endpoint.NewRegistry(), Log: slog.New(slog.DiscardHandler),
			Write: func(path string, data []byte) error {
				return atomicfile.Write(path, data, 0o600, atomicfile.Process)
			},
		})
		n.routersBefore = []netip.Addr{before}
		if err := n.TakeRouters(); err != nil {
			t.Fatal(err)
		}
		if got, _ := n.Routers(); got.String() != c.want {
			t.Errorf("%s: the router's address is %s, want %s", name, got, c.want)
		}
	}
}
