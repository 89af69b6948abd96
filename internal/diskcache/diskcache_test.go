package diskcache

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
)

// loaded is what a new process finds: labels and contents by name, which is the part of the content
// before a colon.
func loaded(t *testing.T, c *Cache) map[string]string {
	t.Helper()
	return Load(c, slog.New(slog.NewTextHandler(t.Output(), nil)), func(f Copy) (string, string, error) {
		name, _, ok := strings.Cut(string(f.Content), ":")
		if !ok || time.Since(f.Written) > time.Minute {
			return "", "", errors.New("is not accepted")
		}
		return name, f.Label + " " + string(f.Content), nil
	})
}

func put(t *testing.T, c *Cache, name, label, content string) {
	t.Helper()
	if err := c.Put(name, label, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

func TestCopiesOutliveProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there")
	c := New(dir)
	if got := loaded(t, c); len(got) > 0 {
		t.Errorf("a directory that is not there holds %v", got)
	}
	long := strings.Repeat("n", 300)
	for _, name := range []string{"a/b", "gone", long} {
		put(t, c, name, "kind", name+":1")
	}
	put(t, c, "a/b", "other", "a/b:2")
	for range 2 {
		if err := c.Drop("gone"); err != nil {
			t.Fatal(err)
		}
	}
	again := New(dir)
	if got, want := loaded(t, again), map[string]string{"a/b": "other a/b:2", long: "kind " + long + ":1"}; !maps.Equal(got, want) {
		t.Errorf("loaded %v, want %v", got, want)
	}
	// What is there already is not written again, and knows so after a restart.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	put(t, again, "a/b", "other", "a/b:2")
	if _, err := os.Stat(dir); err == nil {
		t.Error("a copy was written that was there already")
	}
	none := New("")
	put(t, none, "a", "kind", "a:")
	if got := loaded(t, none); len(got) > 0 {
		t.Errorf("without a directory %v are kept", got)
	}
}

// TestDiskFull: a copy that cannot be replaced does not pass for the latest after a restart, and is
// replaced as soon as there is room.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := testenv.NewSmallDisk(t)
	dir := filepath.Join(disk.Path, "copies")
	c := New(dir)
	put(t, c, "a", "kind", "a:1")
	put(t, c, "b", "kind", "b:1")
	disk.Fill()
	for range 2 {
		if err := c.Put("a", "kind", []byte("a:2")); err == nil {
			t.Fatal("a copy was stored on a full disk")
		}
	}
	if err := c.Put("new", "kind", []byte("new:1")); err == nil {
		t.Error("a first copy was stored on a full disk")
	}
	// Whoever is asked after a restart says which of them are the latest.
	wants := func(when string, want map[string]bool) {
		t.Helper()
		got := Load(New(dir), slog.New(slog.DiscardHandler), func(f Copy) (string, bool, error) {
			name, _, _ := strings.Cut(string(f.Content), ":")
			return name, f.Outdated, nil
		})
		if !maps.Equal(got, want) {
			t.Errorf("%s: outdated are %v, want %v", when, got, want)
		}
	}
	wants("full", map[string]bool{"a": true, "b": false})
	wants("full, again", map[string]bool{"a": true, "b": false})
	disk.Free()
	// Also the same content as before: the disk has it as outdated.
	put(t, c, "a", "kind", "a:1")
	wants("there is room", map[string]bool{"a": false, "b": false})
	disk.Fill()
	if err := c.Put("b", "kind", []byte("b:2")); err == nil {
		t.Fatal("a copy was stored on a full disk")
	}
	if err := c.Drop("b"); err != nil {
		t.Fatal(err)
	}
	wants("dropped", map[string]bool{"a": false})
	disk.Free()
	// A process that ended between two steps left both.
	put(t, c, "a", "kind", "a:3")
	if err := os.WriteFile(c.mark("a"), []byte("whatever"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants("both are there", map[string]bool{"a": false})
	if _, err := os.Stat(c.mark("a")); err == nil {
		t.Error("the outdated one stays beside the latest")
	}
}

// FuzzParse: whatever is on disk, reading it ends well, and only what Put has written is accepted.
func FuzzParse(f *testing.F) {
	dir := f.TempDir()
	c := New(dir)
	for _, content := range []string{"", "a", "a\nb\n"} {
		if err := c.Put("name", "label", []byte(content)); err != nil {
			f.Fatal(err)
		}
		text, err := os.ReadFile(c.file("name"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:len(text)-1])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parse(text)
		if err != nil {
			return
		}
		head, content, _ := strings.Cut(string(text), "\n")
		if content != string(got.Content) || !strings.HasSuffix(strings.TrimSpace(head), got.Label) || strings.ContainsAny(got.Label, " \n") {
			t.Errorf("%q became %+v", text, got)
		}
	})
}
