package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// beyondShares names the endpoints that hold more of conntrack than their shares, so that they can
// lose flows to each other.
func beyondShares(shares []datapath.FlowShare) string {
	var over []string
	slices.SortFunc(shares, func(x, y datapath.FlowShare) int { return cmp.Compare(x.Endpoint, y.Endpoint) })
	for _, s := range shares {
		switch {
		case s.Share == 0 || s.Entries <= s.Share:
		case s.Endpoint == 0:
			over = append(over, "the node")
		default:
			over = append(over, fmt.Sprintf("endpoint %d", s.Endpoint))
		}
	}
	if len(over) == 0 {
		return ""
	}
	return "; beyond their shares: " + strings.Join(over, ", ")
}
