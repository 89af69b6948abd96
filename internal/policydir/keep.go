package policydir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hawser-net/hawser/internal/atomicfile"
)

// keeper holds a copy of the last good version of each file, for an agent that starts while a file
// is faulty: the version that was in force must then still be. Without a directory it holds
// nothing.
type keeper struct {
	dir string
}

// put stores a file's good content, atomically.
func (k keeper) put(name string, data []byte) error {
	if k.dir == "" {
		return nil
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(k.dir, name), data, 0o600, atomicfile.Process)
}

// get returns the copy of a file; ok is false if there is none.
func (k keeper) get(name string) (data []byte, ok bool) {
	if k.dir == "" {
		return nil, false
	}
	data, err := readFile(filepath.Join(k.dir, name))
	return data, err == nil
}

// drop removes the copies of files that are not present.
func (k keeper) drop(present map[string]bool) error {
	if k.dir == "" {
		return nil
	}
	names, err := list(k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if !present[name] {
			err = errors.Join(err, os.Remove(filepath.Join(k.dir, name)))
		}
	}
	return err
}
