package agent

import (
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestBeyondShares: the status names who holds more of conntrack than its share, and no other.
func TestBeyondShares(t *testing.T) {
	t.Parallel()
	within := datapath.FlowShare{Endpoint: 3, Entries: 512, Share: 512, Excess: 9}
	for _, row := range []struct {
		shares []datapath.FlowShare
		want   string
	}{
		{nil, ""},
		{[]datapath.FlowShare{within, {Endpoint: 9, Entries: 9000}}, ""},
		{[]datapath.FlowShare{{Endpoint: 12, Entries: 513, Share: 512}, within, {Entries: 2000, Share: 1024}}, "; beyond their shares: the node, endpoint 12"},
	} {
		if got := beyondShares(row.shares); got != row.want {
			t.Errorf("%v: %q, want %q", row.shares, got, row.want)
		}
	}
}
