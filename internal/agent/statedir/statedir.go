// Package statedir is the directory in which an agent keeps what it must find when it starts again.
// Other network plugins may have files in the same directory, which are left alone.
package statedir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/pkg/retry"
)

// lockWait is how long the directory's last owner may take to be gone: a process that was killed
// holds its locks until the kernel has taken it apart.
const lockWait = 5 * time.Second

// lockName is the file in the directory that its agent holds.
const lockName = "agent.lock"

// files are those that agents write into state/, besides the records of endpoints.
var files = []string{
	"addresses.json", "health.json", "instance.json", "local_allocator_state.json", "peers.json", "podcidrs.json", "pools.json", "router.json",
}

// Dir is a directory that this process has locked. Its methods are safe for concurrent use.
type Dir struct {
	path string

	mu   sync.Mutex
	lock *os.File
	// written are the files of Write: the content of one that is removed can be read from it still.
	written map[string]*os.File
}

// Lock keeps a second agent from working on the same state. The directory is made if it is missing.
func Lock(ctx context.Context, path string) (*Dir, error) {
	d := &Dir{path: path, written: map[string]*os.File{}}
	for deadline := time.Now().Add(lockWait); ; {
		f, err := tryLock(d.lockPath())
		if err != nil {
			return nil, fmt.Errorf("--state-dir: %w", err)
		}
		if f != nil {
			d.lock = f
			return d, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, d.taken()
		}
		retry.Sleep(ctx, 20*time.Millisecond)
	}
}

func (d *Dir) lockPath() string { return filepath.Join(d.path, lockName) }

func (d *Dir) taken() error {
	return fmt.Errorf("another agent works on %s (it holds %s); stop it first or choose another --state-dir", d.path, d.lockPath())
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
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && isAt(f, path) {
		return f, nil
	}
	return nil, f.Close()
}

// isAt reports whether an open file is the one at a path.
func isAt(f *os.File, path string) bool {
	mine, mineErr := f.Stat()
	there, thereErr := os.Stat(path)
	return mineErr == nil && thereErr == nil && os.SameFile(mine, there)
}

// Close gives the directory up.
func (d *Dir) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lock.Close()
	for _, f := range d.written {
		f.Close()
	}
}

// Subdirs are the directories below a state directory in which agents write.
func Subdirs(path string) []string {
	return []string{filepath.Join(path, "state"), filepath.Join(path, "policies"), filepath.Join(path, "policies-k8s")}
}

// RemoveUnfinished removes the files that an agent which was killed had begun to write.
func (d *Dir) RemoveUnfinished() error {
	var errs []error
	for _, sub := range Subdirs(d.path) {
		errs = append(errs, atomicfile.RemoveUnfinished(sub))
	}
	return errors.Join(errs...)
}

// Write writes a file of the directory, atomically. A file that is as it should be is not written:
// an agent must be able to restart when the disk is full or read-only. A nil Dir writes, too, and
// keeps nothing.
func (d *Dir) Write(path string, data []byte) error {
	if d == nil {
		return write(path, data)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.write(path, data)
}

// write is called with mu held.
func (d *Dir) write(path string, data []byte) error {
	if err := write(path, data); err != nil {
		return err
	}
	if before := d.written[path]; before != nil {
		before.Close()
		delete(d.written, path)
	}
	if f, err := os.Open(path); err == nil { // else it is written, and not kept
		d.written[path] = f
	}
	return nil
}

func write(path string, data []byte) error {
	if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600, atomicfile.Process)
}

// Keep puts back what another program has removed: the lock, and the files of Write. Call it
// periodically. The records of endpoints are their owner's to keep.
func (d *Dir) Keep() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !isAt(d.lock, d.lockPath()) {
		f, err := tryLock(d.lockPath())
		if err == nil && f == nil {
			err = d.taken()
		}
		if err != nil {
			return fmt.Errorf("the state directory was removed, and cannot be made again: %w", err)
		}
		d.lock.Close()
		d.lock = f
	}
	var errs []error
	for path, f := range d.written {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		data, err := io.ReadAll(io.NewSectionReader(f, 0, math.MaxInt64))
		if err == nil {
			err = d.write(path, data)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s was removed, and cannot be written again: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// Remove removes what agents have written into the directory, the lock last, and the directories
// that are empty then. It returns what is not theirs and stays.
func (d *Dir) Remove() (left []string, err error) {
	errs := []error{d.RemoveUnfinished()}
	for _, sub := range Subdirs(d.path)[1:] {
		errs = append(errs, os.RemoveAll(sub))
	}
	state := Subdirs(d.path)[0]
	entries, err := os.ReadDir(state)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		path := filepath.Join(state, e.Name())
		id, err := strconv.ParseUint(e.Name(), 10, 16)
		switch {
		case e.IsDir() && err == nil:
			errs = append(errs, endpoint.RemoveRecord(state, uint16(id)))
		case !e.IsDir() && slices.Contains(files, e.Name()):
			errs = append(errs, os.Remove(path))
		}
		if _, err := os.Lstat(path); err == nil {
			left = append(left, path)
		}
	}
	if len(left) == 0 {
		_ = os.Remove(state)
	}
	if err := os.Remove(d.lockPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	_ = os.Remove(d.path) // if it is not empty, the rest belongs to another program
	return left, errors.Join(errs...)
}
