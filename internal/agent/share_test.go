package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// TestPrefixFlood: a tenant's policy with very many prefixes, which selects no pod, neither locks
// the pods of others, nor makes the agent unready; its own pods lose what they would allow. The
// status names it.
func TestPrefixFlood(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.flags = append(n.flags, "--policy-namespace-prefix-max", "16", "--bpf-policy-rule-set-max", "64", "--bpf-ipcache-prefix-max", "64")
	n.start()
	web := n.attached("web", map[string]string{"app": "web"})
	away := netip.AddrPortFrom(netip.MustParseAddr(outside4), 80)
	serveEcho(t, outside, away)
	reaches := func(what string, want bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; {
			err := ask(t, web.ns, away, 64, false, 250*time.Millisecond)
			if (err == nil) == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	part := func(state rest.State, text string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			st, err := n.client.Health(t.Context(), false)
			i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == partPolicyPrefixes })
			if err == nil && i >= 0 && st.Parts[i].State == state && strings.Contains(st.Parts[i].Msg, text) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v, %v", st.Parts, err)
			}
		}
	}
	of := func(name, namespace, spec string) string {
		return fmt.Sprintf("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", name, namespace, spec)
	}
	n.policy("web.yaml", of("web", "default", "{endpointSelector: {matchLabels: {app: web}}, egress: [{toEntities: [world]}]}"))
	var list strings.Builder
	for i := range 100 {
		fmt.Fprintf(&list, "198.51.100.%d/32, ", i)
	}
	n.policy("flood.yaml", of("flood", "evil", "{endpointSelector: {matchLabels: {app: none}}, egress: [{toCIDR: ["+list.String()+"]}]}"))
	part(rest.StateWarning, "flood.yaml/evil/flood")
	reaches("a policy of another namespace names many prefixes", true)
	resp, err := n.get("http://127.0.0.1:9879/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("readyz: %s", resp.Status)
	}
	// In the namespace itself it allows nothing by prefix; what else it allows stays.
	n.policy("web.yaml", of("web", "default", "{endpointSelector: {matchLabels: {app: web}}, egress: [{toCIDR: ["+list.String()+outside4+"/32]}]}"))
	part(rest.StateWarning, "2 policies")
	reaches("of its own namespace", false)
	n.policy("flood.yaml", "")
	n.policy("web.yaml", of("web", "default", "{endpointSelector: {matchLabels: {app: web}}, egress: [{toCIDR: ["+outside4+"/32]}]}"))
	part(rest.StateOk, "")
	reaches("with few", true)
	n.stop()
}
