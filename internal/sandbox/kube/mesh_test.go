package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClaimID(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	with := func(name string, id int) *Cluster {
		cfg := Defaults()
		cfg.Root, cfg.Name, cfg.ID = root, name, id
		c, err := New(cfg, t.Output(), false)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, id := range map[string]int{"east": 1, "plain": 0} {
		c := with(name, id)
		if err := os.MkdirAll(c.dir(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := c.save(&state{Name: name, ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "half"), 0o700); err != nil { // one that is on its way up
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		id   int
		want string // of the error; empty for none
	}{{"west", 2, ""}, {"west", 0, ""}, {"east", 1, ""}, {"west", 1, `cluster "east" has the number 1`}} {
		err := with(tc.name, tc.id).claimID()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s with %d: %v, want %q", tc.name, tc.id, err, tc.want)
		}
	}
	cfg := Defaults()
	for _, id := range []int{-1, 256} {
		cfg.ID = id
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "want 1 to 255") {
			t.Errorf("number %d: %v", id, err)
		}
	}
}
