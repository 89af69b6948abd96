package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCleanUpElsewhere: what an agent that was killed, with its state and socket in places of its
// own, leaves is removed: deletions that wait for it, and the BPF filesystem that it has mounted,
// included.
func TestCleanUpElsewhere(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	before := n.ns.LinkNames(t)
	n.flags = append(n.flags, "--cni-log-file", n.path("run/cni.log"), "--enable-health-checking=true")
	n.start()
	p := n.attached("p", nil)
	if _, err := n.attached("stays", nil).run("STATUS"); err != nil { // it notes when the agent was there
		t.Fatal(err)
	}
	n.kill()
	if err := p.del(); err != nil { // it waits for an agent
		t.Fatal(err)
	}
	for _, log := range []string{"run/cni.log", "run/cni.log.1"} { // the plugin keeps a full one
		if err := os.WriteFile(n.path(log), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clean := exec.Command(filepath.Join(n.bin, "hawser-agent"), "cleanup", "--state-dir", n.path("run"), "--socket-path", n.path("run/a.sock"),
		"--cni-log-file", n.path("run/cni.log"), "--hubble-socket-path", n.path("run/hubble.sock"), "--bpf-root", n.path("bpf"))
	var out []byte
	err := n.ns.Do(func() (err error) {
		out, err = clean.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(n.path("bpf")); err != nil || len(left) > 0 {
		t.Errorf("left of what was pinned: %v, %v", left, err)
	}
	if left, err := os.ReadDir(n.path("run")); !os.IsNotExist(err) {
		t.Errorf("left in the state directory: %v, %v\n%s", left, err, out)
	}
	if diff := cmp.Diff(before, n.ns.LinkNames(t)); diff != "" {
		t.Errorf("interfaces (-before +after):\n%s", diff)
	}
}
