package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUnusable: an agent that finds, half-way, that it cannot be what it is to be ends with an
// error that names the cause.
func TestUnusable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*machineNode)
		flags   []string
		want    string
	}{
		"no place for maps": {
			prepare: func(n *machineNode) {
				if err := os.WriteFile(n.path("bpf/hawser"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			want: "bpf/hawser",
		},
		"too large a range": {flags: []string{"--ipv4-range", "10.0.0.0/7"}, want: "10.0.0.0/7 is too large for one node"},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newNode(t)
			if test.prepare != nil {
				test.prepare(n)
			}
			n.flags = append(n.flags, test.flags...)
			n.launch()
			select {
			case <-n.exited:
			case <-time.After(time.Minute):
				t.Fatal("the agent runs")
			}
			if code := n.cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("the agent ends with code %d", code)
			}
			lines := strings.Split(strings.TrimSpace(n.logText()), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, "hawser-agent: ") || !strings.Contains(last, test.want) {
				t.Errorf("the agent says %q, and not what is wrong with %q", last, test.want)
			}
			n.cmd = nil
		})
	}
}

// TestWithoutRights: an agent that may not do what it has to says which rights it needs.
func TestWithoutRights(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	cmd := exec.Command("setpriv", append([]string{"--bounding-set=-all", "--inh-caps=-all", filepath.Join(n.bin, "hawser-agent")}, n.flags...)...)
	var out []byte
	err := n.ns.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if text := string(out); err == nil || cmd.ProcessState.ExitCode() != 1 ||
		!strings.Contains(text, "mount a BPF file system on "+n.path("bpf/hawser")) || !strings.Contains(text, "run it as root") {
		t.Errorf("the agent ends with %v and says:\n%s", err, text)
	}
}
