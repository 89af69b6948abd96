package atomicfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestReadersSeeWholeFiles has several write a file while others read it.
func TestReadersSeeWholeFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 1<<16) }
	if err := atomicfile.Write(path, content(0), 0o600, atomicfile.PowerLoss); err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	ended := make(chan struct{})
	for i := range 4 {
		writers.Go(func() {
			for range 50 {
				if err := atomicfile.Write(path, content(i), 0o640, atomicfile.Process); err != nil {
					t.Error(err)
				}
			}
		})
	}
	readers.Go(func() {
		for {
			got, err := os.ReadFile(path)
			if err != nil || len(got) != 1<<16 || !bytes.Equal(got, content(int(got[0]-'a'))) {
				t.Errorf("%d bytes, %v", len(got), err)
				return
			}
			select {
			case <-ended:
				return
			default:
			}
		}
	})
	writers.Wait()
	close(ended)
	readers.Wait()
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestFailedWriteKeepsWhatWas fails at the last step, and at the first.
func TestFailedWriteKeepsWhatWas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(path, []byte("x"), 0o600, atomicfile.Process); err == nil {
		t.Error("a directory was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "f"), nil, 0o600, atomicfile.Process); err == nil {
		t.Error("a file in no directory was written")
	}
}

// TestRemoveUnfinished: what dead writers left goes, everything else stays.
func TestRemoveUnfinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	below := filepath.Join(dir, "7")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		filepath.Join(dir, ".state.json.123.tmp"), filepath.Join(below, ".record.json.4.tmp"),
		filepath.Join(dir, "state.json"), filepath.Join(dir, ".hidden"), filepath.Join(below, "notes.tmp"),
	} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := atomicfile.RemoveUnfinished(dir); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	for _, pattern := range []string{"*", "7/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			left = append(left, strings.TrimPrefix(f, dir+"/"))
		}
	}
	slices.Sort(left)
	if want := []string{".hidden", "7", "7/notes.tmp", "state.json"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
	if err := atomicfile.RemoveUnfinished(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

// TestReadJSON: a file that is not there says nothing, one that is damaged is named.
func TestReadJSON(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.json")
	for _, row := range []struct{ content, fault, want string }{
		{"", "", "default"}, {`{"a": "kept"}`, "", "kept"}, {`{"a": "ke`, path + " is damaged", "default"},
	} {
		if row.content != "" {
			if err := atomicfile.Write(path, []byte(row.content), 0o600, atomicfile.Process); err != nil {
				t.Fatal(err)
			}
		}
		got := struct{ A string }{"default"}
		err := atomicfile.ReadJSON(path, &got)
		if got.A != row.want || (err == nil) != (row.fault == "") || err != nil && !strings.Contains(err.Error(), row.fault) {
			t.Errorf("%q: %v, %v; want %q, %q", row.content, got, err, row.want, row.fault)
		}
	}
	if err := atomicfile.ReadJSON(t.TempDir(), new(int)); err == nil {
		t.Error("a directory was read")
	}
}

// TestDiskFull: on a disk that is full or read-only the file stays as it was, the error names it,
// and it is replaced as soon as that is possible.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		spoil, mend func(*testenv.SmallDisk)
		want        error
	}{
		{"full", (*testenv.SmallDisk).Fill, (*testenv.SmallDisk).Free, unix.ENOSPC},
		{"read-only", (*testenv.SmallDisk).ReadOnly, (*testenv.SmallDisk).Writable, unix.EROFS},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			disk := testenv.NewSmallDisk(t)
			path := filepath.Join(disk.Path, "state.json")
			old, next := bytes.Repeat([]byte("o"), 9000), bytes.Repeat([]byte("n"), 10000)
			if err := atomicfile.Write(path, old, 0o600, atomicfile.Process); err != nil {
				t.Fatal(err)
			}
			tt.spoil(disk)
			var said []string
			for range 2 {
				err := atomicfile.Write(path, next, 0o600, atomicfile.Process)
				if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), path+":") {
					t.Errorf("error %v", err)
				}
				said = append(said, fmt.Sprint(err))
			}
			if said[0] != said[1] {
				t.Errorf("the error is another each time: %q", said)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, old) {
				t.Errorf("the file has %d bytes, %v", len(got), err)
			}
			tt.mend(disk)
			if left, err := os.ReadDir(disk.Path); err != nil || len(left) != 1 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if err := atomicfile.Write(path, next, 0o600, atomicfile.Process); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, next) {
				t.Errorf("afterwards the file has %d bytes, %v", len(got), err)
			}
		})
	}
}
