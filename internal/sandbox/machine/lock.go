package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock takes the lock of a sandbox, waiting for another command that holds it. Down removes the
// file, and perhaps its directory, while it holds the lock; a waiter for a removed file retries
// with a new one.
func Lock(file string) (unlock func(remove bool), err error) {
	for {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // the directory went in between
		}
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", filepath.Base(file), err)
		}
		mine, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		if there, err := os.Stat(file); err != nil || !os.SameFile(mine, there) {
			_ = f.Close()
			continue
		}
		return func(remove bool) {
			if remove {
				_ = os.Remove(file)
			}
			_ = f.Close()
		}, nil
	}
}
