package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// TestCNIConfigurationMissing: an agent that cannot write its CNI configuration goes on, says so
// and is not ready, for no pod would start on its node; it writes it when it can.
func TestCNIConfigurationMissing(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	dir := n.path("net.d")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the directory should be
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "05-hawser.conflist")
	n.flags = append(n.flags, "--write-cni-conf-when-ready", conf)
	n.start()
	st, err := n.client.Health(t.Context(), true)
	for end := time.Now().Add(10 * time.Second); err == nil && st.Cilium.State != rest.StateFailure && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		st, err = n.client.Health(t.Context(), true)
	}
	if err != nil || st.Cilium.State != rest.StateFailure || !strings.Contains(st.Cilium.Msg, "no pod can start") || !strings.Contains(st.Cilium.Msg, dir) {
		t.Errorf("the agent says %+v, %v", st.Cilium, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		st, err := n.client.Health(t.Context(), false)
		if err == nil && st.CNIFile == (rest.Status{State: rest.StateOk, Msg: conf}) && st.Cilium.State == rest.StateOk {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with a directory the agent says %+v, of the configuration %+v, of its parts %+v, %v", st.Cilium, st.CNIFile,
				slices.DeleteFunc(st.Parts, func(p rest.PartStatus) bool { return p.State == rest.StateOk }), err)
		}
	}
	n.stop()
}
