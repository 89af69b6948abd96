package cni

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestInstall(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "opt", "cni", "bin")
	source := filepath.Join(t.TempDir(), "program")
	dst := filepath.Join(dir, PluginName)
	if err := Install(source, dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
	for _, content := range []string{"first", "second, which is longer"} {
		if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Install(source, dir); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(dst)
		if err != nil || string(got) != content {
			t.Errorf("installed %q, %v", got, err)
		}
		if st, err := os.Stat(dst); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("mode %v, %v", st.Mode(), err)
		}
	}
	// What a crash left goes, what others have there stays.
	left, other := filepath.Join(dir, "."+PluginName+"-123"), filepath.Join(dir, "loopback")
	for _, path := range []string{left, other} {
		if err := os.WriteFile(path, []byte("half"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Install(source, dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 || entries[0].Name() != PluginName || entries[1].Name() != "loopback" {
		t.Errorf("left behind: %v", entries)
	}
}

// TestInstallIsNeverHalf opens the program again and again while it is replaced.
func TestInstallIsNeverHalf(t *testing.T) {
	t.Parallel()
	dir, sources := t.TempDir(), [2]string{}
	contents := [2][]byte{bytes.Repeat([]byte("a"), 1<<20), bytes.Repeat([]byte("b"), 2<<20)}
	for i := range sources {
		sources[i] = filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(sources[i], contents[i], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Install(sources[0], dir); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		var err error
		for i := range 40 {
			if err = Install(sources[i%2], dir); err != nil {
				break
			}
		}
		done <- err
	}()
	for {
		got, err := os.ReadFile(filepath.Join(dir, PluginName))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, contents[0]) && !bytes.Equal(got, contents[1]) {
			t.Errorf("read half a program of %d bytes", len(got))
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}
