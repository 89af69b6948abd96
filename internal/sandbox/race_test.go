//go:build race

package sandbox

import "testing"

// buildFlags make the programs of the cluster look for races, as this test does. A program that
// finds one ends at once; one that does not ends without the second of sleep that is the default.
func buildFlags(t *testing.T) []string {
	t.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0")
	return []string{"-race"}
}
