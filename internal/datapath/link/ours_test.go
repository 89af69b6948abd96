package link

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// TestEndpointLinksOfOthers: the interface of a pod is Hawser's if its plugin has made it, or if
// the programs of pods are on it. Other plugins give theirs the same names.
func TestEndpointLinksOfOthers(t *testing.T) {
	n := newNode(t)
	n.cfg.PodPrograms = []string{"to_test", "from_test"}
	prog := loadProgram(t)
	ns := newNS(t)
	want := map[string]bool{}
	for i, pod := range []struct {
		alias, program string
		ours           bool
	}{
		{"", "", false},
		{PluginAlias + "cilium", "", true},
		{"something else", "", false},
		{"", "from_test", true},
		{"", "another", false},
	} {
		ep := n.podIn(t, i+2, ns)
		if pod.alias != "" {
			must(t, n.h.LinkSetAlias(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ep.IfIndex}}, pod.alias))
		}
		if pod.program != "" {
			must(t, n.ReplaceFilter(ep.IfIndex, true, prog, pod.program))
		}
		want[ep.IfName] = pod.ours
	}
	list, err := n.EndpointLinks()
	must(t, err)
	if len(list) != len(want) {
		t.Errorf("%d interfaces, want %d", len(list), len(want))
	}
	for _, l := range list {
		if l.Ours != want[l.Name] {
			t.Errorf("%s is ours: %t", l.Name, l.Ours)
		}
	}
}
