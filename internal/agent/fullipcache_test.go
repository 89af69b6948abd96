package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestFullPrefixMapDropsStale: a policy with more prefixes than the kernel has room for does not
// keep the identity of a pod that went while no agent ran at its address.
func TestFullPrefixMapDropsStale(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--bpf-ipcache-prefix-max", "4")
	var fill strings.Builder
	fill.WriteString("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: fill, namespace: default}\nspec:\n  endpointSelector: {matchLabels: {app: none}}\n  egress:\n  - toCIDR: [203.0.113.0/24")
	for i := range 8 {
		fmt.Fprintf(&fill, ", 198.51.100.%d/28", 16*i)
	}
	fill.WriteString("]\n")
	n.policy("fill.yaml", fill.String())
	n.start()
	p := n.attached("web", map[string]string{"app": "web"})
	known := func() bool {
		m, err := n.client.Map(t.Context(), "ipcache")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(m.Cache, func(e rest.BPFMapEntry) bool { return e.IPCache.Prefix == p.ip4.String()+"/32" })
	}
	if !known() {
		t.Fatal("the kernel does not know the pod's address")
	}
	n.kill()
	if err := p.del(); err != nil {
		t.Fatal(err)
	}
	n.start()
	testenv.Eventually(t, propagationDelay*20, func() string {
		if known() {
			return "the address of a pod that is gone has its identity"
		}
		return ""
	})
	n.stop()
}
