package endpoint_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/hawser-net/hawser/internal/endpoint"
)

// TestRecordsElsewhere: an agent that finds the record of no pod beside a kernel that has pods does
// not begin, and changes nothing, unless it is to give them up. Where no pod is left it begins.
func TestRecordsElsewhere(t *testing.T) {
	t.Parallel()
	m, dir, empty := newMachine(), t.TempDir(), t.TempDir()
	p := started(t, m, dir)
	first := p.mustCreate(1)
	p.mustCreate(2)
	p = boot(t, m, empty)
	err := p.Load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--state-dir") || !strings.Contains(err.Error(), empty) || !strings.Contains(err.Error(), first.IfName) {
		t.Errorf("beside 2 pods without records: %v", err)
	}
	if n := len(m.endpoints()); n != 2 {
		t.Errorf("%d pods of 2 are left in the kernel", n)
	}
	p = started(t, m, dir)
	p.audit("with its directory again")
	// A record that is about none of them, as in a directory of long ago.
	other := boot(t, m, empty)
	old := RowOf(7)
	old.ID = 7
	if err := other.store.Put(old); err != nil {
		t.Fatal(err)
	}
	if err := other.Load(t.Context()); err == nil || len(m.endpoints()) != 2 || !other.store.Has(7) {
		t.Errorf("with the record of another pod: %v, and the kernel has %v", err, m.endpoints())
	}
	given := started(t, m, t.TempDir(), func(c *Config) { c.GiveUpUnrecorded = true })
	if n := len(m.endpoints()); n != 0 || given.registry.Len() != 0 {
		t.Errorf("of pods that are given up the kernel has %d", n)
	}

	m = newMachine()
	p = started(t, m, t.TempDir())
	deleted, gone := p.mustCreate(1), p.mustCreate(2)
	if _, err := p.Delete(deleted.ID); err != nil {
		t.Fatal(err)
	}
	m.kernel.Links.RemoveLink(gone.IfIndex) // with its namespace, while no agent runs
	p = started(t, m, t.TempDir())
	p.audit("no pod is left")
}

// TestRecordsRemoved: records that another program removes are written again.
func TestRecordsRemoved(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), filepath.Join(t.TempDir(), "state")
	p := started(t, m, dir)
	p.mustCreate(1)
	gone := p.mustCreate(2)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Delete(gone.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.Save(); err != nil {
		t.Error(err)
	}
	p.audit("saved again")
	p = started(t, m, dir)
	p.audit("restarted")
	// Where they cannot be written that is reported.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Save(); err == nil || !strings.Contains(err.Error(), "the records of 1 endpoints are outdated") {
		t.Errorf("what cannot be written is reported as %v", err)
	}
}

// TestStateOfOthers: what another network plugin has in directories that are named as those of
// records stays, whatever happens to endpoints of the same numbers.
func TestStateOfOthers(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	const number = 1234
	other := filepath.Join(dir, strconv.Itoa(number), "ep_config.h")
	for _, d := range []string{filepath.Dir(other), filepath.Join(dir, "1235")} { // the second is unfinished
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(other, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := started(t, m, dir)
	p.audit("started")
	req := p.plug(1)
	req.ID = number
	if _, err := p.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	p = started(t, m, dir)
	p.audit("restarted")
	if _, err := p.Delete(number); err != nil {
		t.Fatal(err)
	}
	p.audit("deleted")
	if text, err := os.ReadFile(other); err != nil || string(text) != "x" {
		t.Errorf("the other plugin's file: %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "1235")); !os.IsNotExist(err) {
		t.Errorf("the unfinished directory: %v", err)
	}
}
