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
// space.
func (c *Cache) Put(name, label string, content []byte) error {
	if c.path == "" {
		return nil
	}
	full := sumOf(label, content)
	short := sum(full[:8])
	if have, ok := c.sums[name]; ok && have == short {
		return nil
	}
	if err := os.MkdirAll(c.path, 0o700); err != nil {
		return err
	}
	text := append(fmt.Appendf(nil, "%s %x %s\n", format, full, label), content...)
	if err := atomicfile.Write(c.file(name), text, 0o600, atomicfile.Process); err != nil {
		return err
	}
	c.sums[name] = short
	return nil
}

// Drop removes a copy; one that is not there is fine.
func (c *Cache) Drop(name string) error {
	if c.path == "" {
		return nil
	}
	delete(c.sums, name)
	if err := os.Remove(c.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Copy is what a file holds.
type Copy struct {
	Label   string
	Content []byte
	Written time.Time
}

// Load reads all copies; read says of each what its name is and what is made of it. One that is
// damaged, has another name, or that read refuses, is logged and removed.
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
		if !strings.HasSuffix(e.Name(), suffix) {
			_ = os.Remove(path) // half of a copy, of a process that was killed
			continue
		}
		var name N
		var it T
		copied, err := readFile(path)
		if err == nil {
			name, it, err = read(copied)
		}
		if err == nil && c.file(string(name)) != path {
			err = fmt.Errorf("is the copy of %s", name)
		}
		if err != nil {
			log.Warn("a stored copy cannot be used", "file", path, "error", err)
			_ = os.Remove(path)
			continue
		}
		full := sumOf(copied.Label, copied.Content)
		c.sums[string(name)] = sum(full[:8])
		out[name] = it
	}
	return out
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
		return Copy{}, errors.New("is damaged: its checksum is another")
	}
	return Copy{Label: fields[2], Content: content}, nil
}
