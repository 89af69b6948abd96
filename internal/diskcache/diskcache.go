// Package diskcache keeps copies of things on disk as they were last in force, a file each, for a
// process that starts while what it has them from is away or faulty.
//
// A file has a line with the version of this format, a checksum and a label, and then the content.
package diskcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/atomicfile"
)

const (
	format = "hawser-policy-1"
	suffix = ".policy"
	// outdated ends the name of a copy of which a later version could not be stored.
	outdated = suffix + ".outdated"
	// maxFile is more than what an API server takes for an object.
	maxFile = 8 << 20
)

// Cache is a directory of copies. Without a path it holds nothing. It is for one goroutine at a
// time.
type Cache struct {
	path string
	// sums are those of what is on disk, so that only what changes is written.
	sums map[string]sum
}

type sum [8]byte

// New returns the copies in a directory, which need not exist.
func New(path string) *Cache { return &Cache{path: path, sums: map[string]sum{}} }

// file is where the copy of that name is. Names of objects are longer than those of files may be.
func (c *Cache) file(name string) string {
	h := sha256.Sum256([]byte(name))
	return filepath.Join(c.path, hex.EncodeToString(h[:16])+suffix)
}

func sumOf(label string, content []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(label+"\n"), content...))
}

// Put stores a copy, atomically, unless it is there already. The label is for Load and has no white
// space. If it fails, an existing copy is marked as outdated, which [Copy] shows when it is loaded;
// the error reports if not even that succeeded. Call Put again then.
func (c *Cache) Put(name, label string, content []byte) error {
	if c.path == "" {
		return nil
	}
	full := sumOf(label, content)
	short := sum(full[:8])
	if have, ok := c.sums[name]; ok && have == short {
		return nil
	}
	text := append(fmt.Appendf(nil, "%s %x %s\n", format, full, label), content...)
	err := os.MkdirAll(c.path, 0o700)
	if err == nil {
		err = atomicfile.Write(c.file(name), text, 0o600, atomicfile.Process)
	}
	if err != nil {
		return errors.Join(err, c.outdate(name))
	}
	c.sums[name] = short
	// A process that ends before finds both, and takes the other.
	return remove(c.mark(name))
}

// mark is where the outdated copy of that name is.
func (c *Cache) mark(name string) string { return strings.TrimSuffix(c.file(name), suffix) + outdated }

// outdate marks the copy of that name, if there is one. A file is renamed, and if need be removed,
// on a disk that has no room for another.
func (c *Cache) outdate(name string) error {
	delete(c.sums, name)
	err := os.Rename(c.file(name), c.mark(name))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if remove(c.file(name)) == nil {
		return nil
	}
	return fmt.Errorf("the copy of an earlier version stays and would count after a restart: %w", err)
}

// remove removes a file; one that is not there is fine.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Drop removes a copy; one that is not there is fine.
func (c *Cache) Drop(name string) error {
	if c.path == "" {
		return nil
	}
	delete(c.sums, name)
	return errors.Join(remove(c.file(name)), remove(c.mark(name)))
}

// Copy is what a file holds.
type Copy struct {
	Label   string
	Content []byte
	Written time.Time
	// Outdated means that there was a later version, which could not be stored.
	Outdated bool
}

// Load reads all copies; read returns for each its name and its decoded value. One that is damaged,
// has another name, or that read refuses, is logged and removed.
func Load[N ~string, T any](c *Cache, log *slog.Logger, read func(Copy) (N, T, error)) map[N]T {
	out := map[N]T{}
	if c.path == "" {
		return out
	}
	entries, err := os.ReadDir(c.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot read the stored copies", "directory", c.path, "error", err)
	}
	for _, e := range entries {
		path := filepath.Join(c.path, e.Name())
		old := strings.HasSuffix(e.Name(), outdated)
		if !old && !strings.HasSuffix(e.Name(), suffix) {
			_ = os.Remove(path) // half of a copy, of a process that was killed
			continue
		}
		var name N
		var it T
		copied, err := readFile(path)
		copied.Outdated = old
		if err == nil {
			name, it, err = read(copied)
		}
		if err == nil {
			err = c.belongs(string(name), path, old)
		}
		if err != nil {
			log.Warn("a stored copy cannot be used", "file", path, "error", err)
			_ = os.Remove(path)
			continue
		}
		out[name] = it
		if old {
			continue // what is stored next is written, whatever it is
		}
		full := sumOf(copied.Label, copied.Content)
		c.sums[string(name)] = sum(full[:8])
	}
	return out
}

// belongs reports why a file does not count as the copy of that name.
func (c *Cache) belongs(name, path string, old bool) error {
	want := c.file(name)
	if old {
		want = c.mark(name)
	}
	if path != want {
		return fmt.Errorf("is the copy of %s", name)
	}
	if _, err := os.Lstat(c.file(name)); old && err == nil {
		return errors.New("there is a later one")
	}
	return nil
}

func readFile(path string) (Copy, error) {
	f, err := os.Open(path)
	if err != nil {
		return Copy{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Copy{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errors.New("is too large")
	}
	if err != nil {
		return Copy{}, err
	}
	out, err := parse(text)
	out.Written = st.ModTime()
	return out, err
}

// parse reads the content of a file.
func parse(text []byte) (Copy, error) {
	head, content, ok := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(head))
	if !ok || len(fields) != 3 || fields[0] != format {
		return Copy{}, fmt.Errorf("is not of the format %s", format)
	}
	if want := sumOf(fields[2], content); fields[1] != hex.EncodeToString(want[:]) {
		return Copy{}, errors.New("is damaged: checksum mismatch")
	}
	return Copy{Label: fields[2], Content: content}, nil
}
