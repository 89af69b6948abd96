//go:build faultpoints

package endpoint

import (
	"os"
	"syscall"
	"time"
)

// MinOrphanGrace lets tests see interfaces go that a plugin left when it was killed.
const MinOrphanGrace = time.Second

// FaultStep kills the process, as a crash would, at the step named by HAWSER_AGENT_CRASH_AT. If the
// file named by HAWSER_AGENT_CRASH_FILE exists its content is the step, so that a test can choose
// while the agent runs.
func FaultStep() func(string) {
	step, file := os.Getenv("HAWSER_AGENT_CRASH_AT"), os.Getenv("HAWSER_AGENT_CRASH_FILE")
	return func(at string) {
		want := step
		if file != "" {
			if data, err := os.ReadFile(file); err == nil {
				want = string(data)
			}
		}
		if want == at {
			if file != "" {
				os.Remove(file) // once
			}
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	}
}
