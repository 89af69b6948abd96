package agent

import (
	"slices"
	"testing"
)

func TestCompareAddresses(t *testing.T) {
	t.Parallel()
	sorted := []string{"0.0.0.0/0", "9.0.0.1", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.2/32", "10.0.0.10", "::/0", "fd00::2", "fd00::10", "", "nonsense"}
	got := slices.Clone(sorted)
	slices.Reverse(got)
	slices.SortFunc(got, compareAddresses)
	if !slices.Equal(got, sorted) {
		t.Errorf("got %q", got)
	}
}
