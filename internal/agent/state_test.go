package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/agent/statedir"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestUnfinishedFiles: an agent that starts removes what one that was killed had begun to write,
// and keeps the state.
func TestUnfinishedFiles(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	a, b := n.attached("a", nil), n.attached("b", nil)
	n.kill()
	var begun []string
	for _, dir := range statedir.Subdirs(n.path("run")) {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		begun = append(begun, filepath.Join(dir, ".state.json.4711.tmp"))
	}
	if len(begun) == 0 {
		t.Fatal("the agent has no state")
	}
	for _, path := range begun {
		if err := os.WriteFile(path, []byte(`{"half`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	for _, path := range begun {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, ip := range []netip.Addr{b.ip4, b.ip6} {
		if err := ping(t, a.ns, ip, 5*time.Second); err != nil {
			t.Errorf("a to %s: %v", ip, err)
		}
	}
}

// TestStateOnReadOnlyDisk has an agent store what is stored already where nothing can be written.
func TestStateOnReadOnlyDisk(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	d := testenv.NewSmallDisk(t)
	path := filepath.Join(d.Path, "state", "router.json")
	if err := (*statedir.Dir)(nil).Write(path, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	d.ReadOnly()
	if err := (*statedir.Dir)(nil).Write(path, []byte("{}")); err != nil {
		t.Errorf("what the file has: %v", err)
	}
	if err := (*statedir.Dir)(nil).Write(path, []byte("[]")); err == nil {
		t.Error("something else is stored on a disk that is read-only")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "{}" {
		t.Errorf("the file has %q, %v", got, err)
	}
}
