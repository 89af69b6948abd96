// Package deletequeue keeps the deletions that the CNI plugin could not hand to the agent because
// the agent was down. The plugin writes one small file for each; the agent replays them when it
// starts. The directory, the file names and their content are those of Cilium's plugin, so that a
// node that changes from one to the other loses no deletion.
//
// A file lock orders the two. Plugins hold it shared, so they don't hinder each other; the agent
// holds it exclusively from the first file it replays until its API serves. A plugin that got the
// lock therefore knows: either the agent has not begun, and will find the file, or it serves, and
// the plugin need only try it once more. Call [Hold] before [Writer.Add].
//
// If an agent serves and does not answer in time there is a file, too, and it may do afterwards
// what it was asked for. The agent calls [Drop] then, and when the runtime attaches the same
// container again: else the file would wait for its next start.
//
// The package starts no goroutine and owns no table.
package deletequeue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/pkg/retry"
)

// DefaultDir is the queue's directory unless the agent's socket is elsewhere; see Dir.
const DefaultDir = "/var/run/cilium/deleteQueue"

// MaxFiles bounds the queue. More than that on one node means that the queue is not being
// processed.
const MaxFiles = 256

const (
	lockName = "lockfile"
	suffix   = ".delete"
	tmpInfix = ".tmp-"
	// maxEntryBytes bounds an entry: a container id and an interface name are far below.
	maxEntryBytes = 4096
	lockPoll      = 5 * time.Millisecond
)

// ErrFull means that MaxFiles deletions wait already.
var ErrFull = errors.New("the queue of deletions is full")

// Dir returns the queue's directory for an agent that serves on the given socket.
func Dir(socket string) string { return filepath.Join(filepath.Dir(socket), "deleteQueue") }

// Unreleased returns the sibling of the queue's directory in which the CNI plugin records
// attachments whose addresses must still be released by its IPAM plugin.
func Unreleased(queue string) string { return filepath.Join(filepath.Dir(queue), "unreleased") }

// AttachmentLock returns the file, next to the queue's directory, by which the CNI plugin locks
// attachments.
func AttachmentLock(queue string) string {
	return filepath.Join(filepath.Dir(queue), "attachments.lock")
}

// Answered returns the file, next to the queue's directory, that is there once the CNI plugin's
// STATUS has found the agent ready.
func Answered(queue string) string { return filepath.Join(filepath.Dir(queue), "answered") }

// Entry is one deletion. Exactly one field is set.
type Entry struct {
	// EndpointID is an endpoint's id with its prefix, such as
	// "cni-attachment-id:<container>:<ifname>".
	EndpointID string
	// ContainerID stands for all endpoints of a container.
	ContainerID string
}

// batch is the file content for a whole container.
type batch struct {
	ContainerID string `json:"container-id"`
}

func (e Entry) encode() ([]byte, error) {
	if (e.EndpointID == "") == (e.ContainerID == "") {
		return nil, errors.New("a queued deletion names either an endpoint or a container")
	}
	content := []byte(e.EndpointID)
	if e.ContainerID != "" {
		var err error
		if content, err = json.Marshal(batch{e.ContainerID}); err != nil {
			return nil, err
		}
	}
	if back, err := parse(content); err != nil {
		return nil, err
	} else if back != e {
		return nil, fmt.Errorf("%q can't be queued as an endpoint id", e.EndpointID)
	}
	return content, nil
}

// parse reads the content of a file, which may be anything.
func parse(content []byte) (Entry, error) {
	if len(content) > maxEntryBytes {
		return Entry{}, fmt.Errorf("queued deletion is longer than %d bytes", maxEntryBytes)
	}
	text := strings.TrimSpace(string(content))
	var e Entry
	if strings.HasPrefix(text, "{") {
		var b batch
		if err := json.Unmarshal([]byte(text), &b); err != nil {
			return Entry{}, fmt.Errorf("queued deletion: %w", err)
		}
		e.ContainerID = b.ContainerID
	} else {
		e.EndpointID = text
	}
	id := e.EndpointID + e.ContainerID
	if id == "" {
		return Entry{}, errors.New("queued deletion names nothing")
	}
	if strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return Entry{}, fmt.Errorf("queued deletion %q holds unprintable characters", id)
	}
	return e, nil
}

// Writer holds the queue's lock shared.
type Writer struct {
	dir  string
	lock *os.File
}

// Hold takes the lock shared, waiting for a replay to end until ctx does. The directory is made if
// it is missing.
func Hold(ctx context.Context, dir string) (*Writer, error) {
	lock, err := takeLock(ctx, dir, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return &Writer{dir: dir, lock: lock}, nil
}

// Add queues e. Queueing the same twice is queueing it once. It fails with ErrFull when MaxFiles
// wait.
func (w *Writer) Add(e Entry) error {
	content, err := e.encode()
	if err != nil {
		return err
	}
	name := fileOf(w.dir, content)
	if _, err := os.Lstat(name); err == nil {
		return nil
	}
	files, err := pending(w.dir)
	if err != nil {
		return err
	}
	if len(files) >= MaxFiles {
		return fmt.Errorf("%w: %d files in %s; start the agent to empty it", ErrFull, len(files), w.dir)
	}
	// Renaming keeps a half-written file from being replayed.
	tmp, err := os.CreateTemp(w.dir, filepath.Base(name)+tmpInfix)
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("queue deletion: %w", err)
	}
	return nil
}

// fileOf is where the deletion of that content is.
func fileOf(dir string, content []byte) string {
	sum := sha256.Sum256(content)
	return filepath.Join(dir, hex.EncodeToString(sum[:])+suffix)
}

// Drop removes queued deletions. Those that do not wait are fine. It takes no lock: who replays
// at the same time may be about to do them.
func Drop(dir string, entries ...Entry) error {
	var errs []error
	for _, e := range entries {
		content, err := e.encode()
		if err != nil {
			continue // it can't have been queued
		}
		if err := os.Remove(fileOf(dir, content)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("drop a queued deletion: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Close releases the lock.
func (w *Writer) Close() error { return w.lock.Close() }

// Replay takes the lock exclusively and calls fn for each queued deletion, in no order. A file goes
// when fn returned nil for it; files that fail, or are invalid, are reported together in err, the
// latter being removed. Finally, and still under the lock, it calls ready, which must make the
// agent's API serve deletions; nil if it does already. replayed counts the files done.
func Replay(ctx context.Context, dir string, fn func(context.Context, Entry) error, ready func()) (replayed int, err error) {
	lock, err := takeLock(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	if ready != nil {
		defer ready()
	}
	files, err := pending(dir)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, name := range files {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		path := filepath.Join(dir, name)
		e, err := readEntry(path)
		if err == nil {
			if err = fn(ctx, e); err != nil {
				errs = append(errs, fmt.Errorf("replay deletion of %s: %w", e.EndpointID+e.ContainerID, err))
				continue
			}
			replayed++
		} else {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	// A plugin killed between writing and renaming leaves its temporary file; there are no writers
	// now.
	if left, err := filepath.Glob(filepath.Join(dir, "*"+suffix+tmpInfix+"*")); err == nil {
		for _, path := range left {
			os.Remove(path)
		}
	}
	return replayed, errors.Join(errs...)
}

func readEntry(path string) (Entry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Entry{}, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxEntryBytes+1))
	if err != nil {
		return Entry{}, err
	}
	return parse(content)
}

func pending(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the queue of deletions: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), suffix) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// takeLock polls, since a blocking flock can't be given up when ctx ends.
func takeLock(ctx context.Context, dir string, how int) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the queue of deletions: %w", err)
	}
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the queue's lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !retry.Sleep(ctx, lockPoll) {
			f.Close()
			return nil, fmt.Errorf("lock %s, held by another process: %w", path, ctx.Err())
		}
	}
}
