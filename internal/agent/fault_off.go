//go:build !faultpoints

package agent

// faultStep returns nil: only test builds can be stopped at a step.
func faultStep() func(string) { return nil }
