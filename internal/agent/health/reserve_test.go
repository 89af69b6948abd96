package health

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/ipam"
)

// TestReserveLeavesCIDR: the health endpoint has its address of before again unless that is in a
// CIDR which gives out nothing any more: that would be the node's for good.
func TestReserveLeavesCIDR(t *testing.T) {
	t.Parallel()
	pool, err := ipam.New(ipam.Config{Assigned: ipam.Both})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Assign(map[string][]ipam.Block{ipam.DefaultPool: {
		{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Drained: true}, {Prefix: netip.MustParsePrefix("fd00::/120")},
	}}); err != nil {
		t.Fatal(err)
	}
	before := []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")}
	h := &Health{cfg: Config{Endpoint: true, Pool: pool, Before: before}, log: slog.New(slog.DiscardHandler)}
	h.Reserve()
	if got := fmt.Sprint(h.Addresses()); got != "[fd00::5]" {
		t.Errorf("it keeps %s, want fd00::5", got)
	}
	if left := pool.Dump(); len(left) != 1 {
		t.Errorf("the pool has given out %+v", left)
	}
}
