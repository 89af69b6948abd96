package addressing

import (
	"net/netip"
	"strings"
	"testing"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
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
