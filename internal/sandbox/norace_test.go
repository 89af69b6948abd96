//go:build !race

package sandbox

import "testing"

func buildFlags(*testing.T) []string { return nil }
