//go:build race

package sandbox

// buildFlags make the programs of the cluster look for races, as this test does.
func buildFlags() []string { return []string{"-race"} }
