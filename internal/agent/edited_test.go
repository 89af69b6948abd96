package agent

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
)

// TestEditedIdentityIsTold: an identity that somebody gives the labels of friends lets nobody in, and opens no pod of its own; status and metrics tell of it
// until it has its labels back.
func TestEditedIdentityIsTold(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.readOnlyIdentities()
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid", "--prometheus-serve-addr", "127.0.0.1:9962")
		n.start()
	}
	c.network("web", "web", fromApp("friend"))
	web := c.pod(n1, "web", map[string]string{"app": "web"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	c.assign(web, 3000, true)
	friend, enemy := c.pod(n2, "friend", map[string]string{"app": "friend"}), c.pod(n2, "enemy", map[string]string{"app": "enemy"})
	c.assign(friend, 3001, true)
	c.assign(enemy, 3002, true)
	c.eventually("all have their identities", func() bool { return web.has(3000)() && friend.has(3001)() && enemy.has(3002)() })
	told := func(when string, want rest.State, count float64) {
		t.Helper()
		c.eventually(when+": the status tells", func() bool {
			for _, n := range []*machineNode{n1, n2} {
				st, err := n.client.Health(t.Context(), false)
				if err != nil || !slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool {
					return p.Name == partEdited && p.State == want && (want == rest.StateOk || strings.Contains(p.Msg, "3000") && strings.Contains(p.Msg, "3002"))
				}) {
					return false
				}
			}
			return true
		})
		for _, n := range []*machineNode{n1, n2} {
			if is := n.metric("cilium_edited_identities"); is != count {
				t.Errorf("%s: cilium_edited_identities is %v, want %v", when, is, count)
			}
		}
		for _, to := range web.both(80) {
			c.passing(when+": the friend", friend, to)
			c.blocked(when+": the enemy", enemy, to)
		}
	}
	edit := func(name, app string) {
		t.Helper()
		o, err := c.identities().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.SecurityLabels = maps.Clone(o.SecurityLabels)
		o.SecurityLabels["k8s:app"] = app
		if _, err := c.identities().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	told("at first", rest.StateOk, 0)
	edit("3002", "friend") // a peer that becomes a friend
	edit("3000", "open")   // a pod that no policy selects
	told("edited", rest.StateWarning, 2)
	edit("3002", "enemy")
	edit("3000", "web")
	told("as they were", rest.StateOk, 0)
}
