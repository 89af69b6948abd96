//go:build !race

package sandbox

func buildFlags() []string { return nil }
