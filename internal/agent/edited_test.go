package agent

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
)

// TestEditedIdentityIsReported: an identity that is edited to have the labels of friends lets no
// pod in, and opens no pod of its own; status and metrics show it until it has its labels back.
func TestEditedIdentityIsReported(t *testing.T) {
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
	reported := func(when string, want rest.State, count float64) {
		t.Helper()
		c.eventually(when+": the status", func() bool {
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
	reported("at first", rest.StateOk, 0)
	c.edit("3002", "friend") // a peer that becomes a friend
	c.edit("3000", "open")   // a pod that no policy selects
	reported("edited", rest.StateWarning, 2)
	c.edit("3002", "enemy")
	c.edit("3000", "web")
	reported("as they were", rest.StateOk, 0)
}

// edit gives an identity another label app, as a client that may write all of them.
func (c *kubeCluster) edit(name, app string) {
	c.t.Helper()
	o, err := c.identities().Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	o.SecurityLabels = maps.Clone(o.SecurityLabels)
	o.SecurityLabels["k8s:app"] = app
	if _, err := c.identities().Update(c.t.Context(), o, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// TestEditIsUndone: an agent that starts while an edit stands, of an identity that says nowhere
// what it was given, has a pod with the labels of the edit. When the labels are put back it
// evaluates as the agent that knew the identity before, without a restart, and its pod is not taken
// for the identity's owner.
func TestEditIsUndone(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.readOnlyIdentities()
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid")
	}
	c.network("web", "web", fromApp("friend"))
	n1.start()
	web, enemy := c.pod(n1, "web", map[string]string{"app": "web"}), c.pod(n1, "enemy", map[string]string{"app": "enemy"})
	c.assign(web, 3000, true)
	c.assign(enemy, 3002, true)
	c.eventually("all have their identities", func() bool { return web.has(3000)() && enemy.has(3002)() })
	c.edit("3002", "friend")
	n2.start()
	web2, friend := c.pod(n2, "web2", map[string]string{"app": "web"}), c.pod(n2, "friend", map[string]string{"app": "friend"})
	c.eventually("the edit is in use", func() bool { return web2.has(3000)() && friend.has(3002)() })
	c.edit("3002", "enemy")
	c.assign(friend, 3001, true) // as the operator does
	c.eventually("the friend has an identity of its own", friend.has(3001))
	for _, p := range []*machinePod{web, web2} {
		for _, to := range p.both(80) {
			serveEcho(t, p.ns, to)
			c.passing("the friend of "+p.name, friend, to)
			c.blocked("the enemy of "+p.name, enemy, to)
		}
	}
}
