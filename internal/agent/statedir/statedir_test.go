package statedir

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/endpoint"
)

func locked(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tree lists the files and empty directories below a directory.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return out
}

// TestKeep: the lock and the files that another program removes are there again, as they were
// written last; a second agent cannot take the directory meanwhile, or is found.
func TestKeep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run")
	d := locked(t, path)
	router, peers := filepath.Join(path, "state", "router.json"), filepath.Join(path, "state", "peers.json")
	for _, content := range []string{"1", "2", "2"} {
		for _, file := range []string{router, peers} {
			if err := d.Write(file, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := d.Keep(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := d.Write(peers, []byte("3")); err != nil {
			t.Fatal(err)
		}
		if err := d.Keep(); err != nil {
			t.Error(err)
		}
		for file, want := range map[string]string{router: "2", peers: "3"} {
			if got, err := os.ReadFile(file); err != nil || string(got) != want {
				t.Errorf("%s has %q, %v; want %q", file, got, err, want)
			}
		}
		if f, err := tryLock(d.lockPath()); f != nil || err != nil {
			t.Errorf("another agent can have the directory: %v", err)
		}
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	other := locked(t, path)
	if err := d.Keep(); err == nil || !strings.Contains(err.Error(), "another agent works on "+path) {
		t.Errorf("that another agent has the directory is reported as %v", err)
	}
	other.Close()
	if err := d.Keep(); err != nil {
		t.Error(err)
	}
}

// TestRemove: what agents have written goes, and what other programs have stays and is returned.
func TestRemove(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string][]string{
		"alone":  nil,
		"shared": {"state/1234/ep_config.h", "state/7/lxc_config.h", "state/globals/node_config.h", "state/.hidden", "other.sock"},
	} {
		path := filepath.Join(t.TempDir(), "run")
		d := locked(t, path)
		store, err := endpoint.NewStore(filepath.Join(path, "state"))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []uint16{7, 8} {
			if err := store.Put(endpoint.Endpoint{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range files {
			if err := d.Write(filepath.Join(path, "state", file), []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		put(t, filepath.Join(path, "policies", "x.policy"), "x")
		put(t, filepath.Join(path, "policies-k8s", "y.policy"), "y")
		put(t, filepath.Join(path, "state", ".router.json.123.tmp"), "half")
		var want []string
		for _, file := range foreign {
			put(t, filepath.Join(path, file), "of another")
			if below, ok := strings.CutPrefix(file, "state/"); ok {
				first, _, _ := strings.Cut(below, "/")
				want = append(want, filepath.Join(path, "state", first))
			}
		}
		left, err := d.Remove()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		slices.Sort(want)
		slices.Sort(left)
		slices.Sort(foreign)
		if diff := cmp.Diff(want, left); diff != "" {
			t.Errorf("%s: reported as left (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(foreign, tree(t, path)); diff != "" {
			t.Errorf("%s: left (-want +got):\n%s", name, diff)
		}
		if _, err := os.Stat(path); foreign == nil && !os.IsNotExist(err) {
			t.Errorf("%s: the directory is still there: %v", name, err)
		}
	}
}

// TestFilesAreKnown: each file of state that the agent's packages name is one that Remove knows.
func TestFilesAreKnown(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`"([a-z_]+\.json)"`)
	found := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "statedir.go" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
			if !slices.Contains(files, m[1]) {
				t.Errorf("%s names %s, which Remove would leave", path, m[1])
			}
		}
		return err
	})
	if err != nil || len(found) != len(files) {
		t.Errorf("%d files are named, want %d: %v", len(found), len(files), err)
	}
}
