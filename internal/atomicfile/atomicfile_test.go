package atomicfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-net/hawser/internal/atomicfile"
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
