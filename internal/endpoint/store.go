package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/atomicfile"
)

// Store keeps endpoint rows on disk, one directory a row, so that an agent that starts again
// knows what it was responsible for. Writes are atomic: a crash leaves the old row or the new
// one. Its methods may be called concurrently for different endpoints.
type Store struct {
	dir string
}

const recordName = "endpoint.json"

// NewStore returns a store under dir, which is created if need be with access for root only.
func NewStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create endpoint state directory: %w", err)
	}
	return &Store{dir: dir}, nil
}

// Put writes the row.
func (s *Store) Put(ep Endpoint) error {
	data, err := json.MarshalIndent(ep, "", "  ")
	if err != nil {
		return fmt.Errorf("encode endpoint %d: %w", ep.ID, err)
	}
	dir := s.path(ep.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("store endpoint %d: %w", ep.ID, err)
	}
	// The state directory is on a tmpfs in practice: it need survive the process, not the
	// machine, whose pods are gone after a reboot.
	if err := atomicfile.Write(filepath.Join(dir, recordName), data, 0o600, atomicfile.Process); err != nil {
		return fmt.Errorf("store endpoint %d: %w", ep.ID, err)
	}
	return nil
}

// Delete removes the row; it is not an error if there is none.
func (s *Store) Delete(id uint16) error { return RemoveRecord(s.dir, id) }

// RemoveRecord removes the row with an ID from the store in a directory; it is not an error if
// there is none. Files of other network plugins, which may have directories of the same names,
// stay.
func RemoveRecord(dir string, id uint16) error {
	of := filepath.Join(dir, strconv.Itoa(int(id)))
	err := os.Remove(filepath.Join(of, recordName))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(of)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return fmt.Errorf("remove stored endpoint %d: %w", id, err)
}

// Has reports whether there is a row with the ID. What it cannot find out it takes for one.
func (s *Store) Has(id uint16) bool {
	_, err := os.Lstat(filepath.Join(s.path(id), recordName))
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
}

// Load reads all rows. Invalid records are left in place and reported in damaged, in addition to
// the valid rows. It fails if the directory cannot be read: a missing record may be that of a pod
// that runs.
func (s *Store) Load() (rows []Endpoint, damaged, err error) {
	dirs, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read endpoint state directory: %w", err)
	}
	var errs, unread []error
	for _, d := range dirs {
		id, err := strconv.ParseUint(d.Name(), 10, 16)
		if err != nil || !d.IsDir() {
			continue // not ours
		}
		path := filepath.Join(s.dir, d.Name(), recordName)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			// The process died between making the directory and the first rename: nothing
			// was ever promised for this ID. An empty directory that stays does no harm, and
			// one that is not empty is another network plugin's.
			_ = s.Delete(uint16(id))
			continue
		}
		var info fs.FileInfo
		if err == nil {
			info, err = os.Stat(path)
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("restore endpoint %d: %w; mend the disk, or remove %s to give this pod up", id, err, filepath.Dir(path)))
			continue
		}
		var row Endpoint
		if err := json.Unmarshal(data, &row); err != nil {
			errs = append(errs, fmt.Errorf("restore endpoint %d from %s: %w", id, path, err))
			continue
		}
		if row.ID != uint16(id) || row.IfIndex <= 0 || len(row.Addresses()) == 0 {
			errs = append(errs, fmt.Errorf("restore endpoint %d from %s: the record is incomplete", id, path))
			continue
		}
		row.Stored = info.ModTime()
		rows = append(rows, row)
	}
	return rows, errors.Join(errs...), errors.Join(unread...)
}

func (s *Store) path(id uint16) string {
	return filepath.Join(s.dir, strconv.Itoa(int(id)))
}
