// Package atomicfile replaces files atomically: a reader sees the old or the new content as a
// whole, also if the writer crashes. It also reads saved state from such files.
package atomicfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Durability is what a file survives.
type Durability bool

const (
	// Process is for what is of use only as long as the machine runs: it survives the writer.
	Process Durability = false
	// PowerLoss is for what a machine must find when it starts again. It costs a wait for the disk.
	PowerLoss Durability = true
)

// tempSuffix ends the names of files that are being written, which begin with a dot: readers of a
// directory must ignore them.
const tempSuffix = ".tmp"

// Write replaces the file at path, or makes it, with exactly that mode. The directory must exist.
// An error names the path, and is the same each time.
// Several may write the same file at once; one of them wins. A writer that crashes leaves at most a
// file in the same directory whose name begins with a dot and ends in ".tmp", which
// RemoveUnfinished removes.
func Write(path string, data []byte, mode os.FileMode, d Durability) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*"+tempSuffix)
	if err != nil {
		return named(err, path)
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil && d == PowerLoss {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return named(err, path)
	}
	return nil
}

// named has an error about a temporary file, which has another name each time, name the file
// itself.
func named(err error, path string) error {
	var at *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &at):
		return &fs.PathError{Op: at.Op, Path: path, Err: at.Err}
	case errors.As(err, &link):
		return &fs.PathError{Op: link.Op, Path: path, Err: link.Err}
	}
	return err
}

// RemoveUnfinished removes the temporary files of crashed writers below a directory. The caller
// must exclude concurrent writers. A missing directory is no error.
func RemoveUnfinished(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.Type().IsRegular() && strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), tempSuffix):
			return os.Remove(path)
		}
		return nil
	})
}

// ReadJSON reads a file of JSON into a value. If there is no file the value stays as it is.
func ReadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}
