//go:build faultpoints

package main

import (
	"os"
	"syscall"
)

// step kills the process at the step that the environment names, for tests of what a crash leaves
// behind. Only builds with the tag faultpoints have it.
func step(name string) {
	if name == os.Getenv("HAWSER_CNI_CRASH_AT") {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal arrives
	}
}
