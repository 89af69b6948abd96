package datapath

import (
	"net/netip"
	"testing"
)

// TestMaxRuleSet: no rule set has a number with the bit that means audit mode, neither as it is
// written nor in an endpoint's row.
func TestMaxRuleSet(t *testing.T) {
	t.Parallel()
	ep := Endpoint{ID: 1, Incarnation: 1, IfIndex: 1, MAC: make([]byte, 6), HostMAC: make([]byte, 6), IPv4: netip.MustParseAddr("10.0.0.1")}
	for id, good := range map[RuleSetID]bool{1: true, MaxRuleSet: true, MaxRuleSet + 1: false, 1<<32 - 1: false} {
		ep.RuleSet = id
		if err := ep.Validate(); (err == nil) != good {
			t.Errorf("an endpoint with rule set %d: %v", id, err)
		}
		if err := (RuleSet{ID: id}).Validate(); (err == nil) != good {
			t.Errorf("rule set %d: %v", id, err)
		}
	}
}
