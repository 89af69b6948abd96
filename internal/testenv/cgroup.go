package testenv

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NewCgroup makes a cgroup below root, where cgroups of version 2 are mounted, and removes it when
// the test ends, by when all its processes must have ended.
func NewCgroup(t testing.TB, root string) string {
	t.Helper()
	dir, err := os.MkdirTemp(root, "hawser-test-")
	if err != nil {
		t.Fatalf("cgroup: %v", err)
	}
	t.Cleanup(func() {
		// The kernel keeps a cgroup for a moment after its last process.
		err := unix.Rmdir(dir)
		for range 50 {
			if err == nil || errors.Is(err, unix.ENOENT) {
				return
			}
			time.Sleep(20 * time.Millisecond)
			err = unix.Rmdir(dir)
		}
		t.Errorf("remove %s: %v", dir, err)
	})
	return dir
}
