package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/pkg/retry"
)

// lockWait is how long the state directory's last owner may take to be gone: a process that was
// killed holds its locks until the kernel has taken it apart.
const lockWait = 5 * time.Second

// lockName is the file in the state directory that its agent holds.
const lockName = "agent.lock"

// lockState keeps a second agent from working on the same state.
func lockState(ctx context.Context, dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	for deadline := time.Now().Add(lockWait); ; {
		f, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("--state-dir: %w", err)
		}
		if f != nil {
			return func() { f.Close() }, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, fmt.Errorf("another agent works on %s (it holds %s); stop it first or choose another --state-dir", dir, path)
		}
		retry.Sleep(ctx, 20*time.Millisecond)
	}
}

// tryLock returns the locked file, nil if another process holds it or has just removed it.
func tryLock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EROFS) { // what the last agent left is enough to keep its pods
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		mine, mineErr := f.Stat()
		there, thereErr := os.Stat(path)
		if mineErr == nil && thereErr == nil && os.SameFile(mine, there) {
			return f, nil
		}
	}
	return nil, f.Close()
}

// stateDirs are the directories below the state directory in which the agent alone writes.
func stateDirs(dir string) []string {
	return []string{filepath.Join(dir, "state"), filepath.Join(dir, "policies"), filepath.Join(dir, "policies-k8s")}
}

// removeUnfinished removes the files that an agent which was killed had begun to write. The state
// directory is locked.
func removeUnfinished(dir string) error {
	var errs []error
	for _, d := range stateDirs(dir) {
		errs = append(errs, atomicfile.RemoveUnfinished(d))
	}
	return errors.Join(errs...)
}

// writeState writes a file of the state directory, atomically. A file that is as it should be is
// not written: an agent must be able to restart when the disk is full or read-only.
func writeState(path string, data []byte) error {
	if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600, atomicfile.Process)
}
