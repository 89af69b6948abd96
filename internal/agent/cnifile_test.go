package agent

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// TestCNIConfigurationMissing: an agent that cannot write its CNI configuration goes on, says so,
// in its metrics too, and is not ready, for no pod would start on its node; it writes it when it
// can.
func TestCNIConfigurationMissing(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	dir := n.path("net.d")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the directory should be
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "05-hawser.conflist")
	n.flags = append(n.flags, "--write-cni-conf-when-ready", conf, "--prometheus-serve-addr", "127.0.0.1:9962")
	n.start()
	measured := func(when string, unhealthy, ready float64, readyz int) {
		t.Helper()
		code, _ := n.probe("/readyz")
		if u, r := n.metric("cilium_unhealthy_parts"), n.metric("cilium_agent_ready"); u != unhealthy || r != ready || code != readyz {
			t.Errorf("%s: %v parts fail and ready is %v, want %v and %v; /readyz answers %d, want %d", when, u, r, unhealthy, ready, code, readyz)
		}
	}
	st, err := n.client.Health(t.Context(), true)
	for end := time.Now().Add(10 * time.Second); err == nil && st.Cilium.State != rest.StateFailure && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		st, err = n.client.Health(t.Context(), true)
	}
	if err != nil || st.Cilium.State != rest.StateFailure || !strings.Contains(st.Cilium.Msg, "no pod can start") || !strings.Contains(st.Cilium.Msg, dir) {
		t.Errorf("the agent says %+v, %v", st.Cilium, err)
	}
	measured("without the configuration", 1, 0, http.StatusServiceUnavailable)
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
	measured("with the configuration", 0, 1, http.StatusOK)
	n.stop()
}
