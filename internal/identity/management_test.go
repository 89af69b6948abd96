package identity

import (
	"strings"
	"testing"
)

// TestManagement is the section "Enablement" of CFP-27752, with the mode that the field has today.
func TestManagement(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode, cid, want, err string
		operator, agent      bool
	}{
		{"", "", "agent", "", false, true},
		{"agent", "", "agent", "", false, true},
		{"operator", "", "operator", "", true, false},
		{"both", "", "both", "", true, true},
		{"", "true", "operator", "", true, false},
		{"", "false", "agent", "", false, true},
		{"operator", "true", "operator", "", true, false},
		{"agent", "false", "agent", "", false, true},
		{"agent", "true", "", "--operator-manage-cid=true is --identity-management-mode=operator, but agent is given", false, false},
		{"both", "true", "", "but both is given", false, false},
		{"both", "false", "", "but both is given", false, false},
		{"operator", "false", "", "but operator is given", false, false},
		{"unknown", "", "", `"unknown" is not known`, false, false},
		{"", "perhaps", "", "neither true nor false", false, false},
	} {
		got, err := ParseManagement(tt.mode, tt.cid)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q, %q: %v; want %q", tt.mode, tt.cid, err, tt.err)
			}
			continue
		}
		if err != nil || string(got) != tt.want || got.Operator() != tt.operator || got.Agent() != tt.agent {
			t.Errorf("%q, %q: %s, %v; want %s", tt.mode, tt.cid, got, err, tt.want)
		}
	}
}
