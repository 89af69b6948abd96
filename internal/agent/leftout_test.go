package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// TestPolicyByLabelsThatAreLeftOut: a policy that selects by a label which makes no identities
// selects no pod, and its pods stay open. The status names it and the label.
func TestPolicyByLabelsThatAreLeftOut(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--labels", "k8s:app")
	n.start()
	until := func(what string, state rest.State, texts ...string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			st, err := n.client.Health(t.Context(), false)
			i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "policy-labels" })
			says := func(text string) bool { return strings.Contains(st.Parts[i].Msg, text) }
			if err == nil && i >= 0 && st.Parts[i].State == state && !slices.ContainsFunc(texts, func(s string) bool { return !says(s) }) && st.Cilium.State == state {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %+v of %+v, %v", what, st.Cilium, st.Parts, err)
			}
		}
	}
	by := func(key string) string {
		return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: db, namespace: default}\nspec: {endpointSelector: {matchLabels: {" + key + ": db}}, ingress: [{}]}\n"
	}
	n.policy("db.yaml", by("tier"))
	until("by a label that is left out", rest.StateWarning, "db.yaml/default/db", "tier", "--labels")
	if log := n.logText(); !strings.Contains(log, "labels=[tier]") {
		t.Error("the log does not name the label")
	}
	n.policy("db.yaml", by("app"))
	until("by one that counts", rest.StateOk)
	n.policy("db.yaml", by("role"))
	until("by another", rest.StateWarning, "role")
	n.policy("db.yaml", "")
	until("without the policy", rest.StateOk)
	n.stop()
}
