package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/identity"
)

func (c *kubeCluster) labelPod(name, key, value string) {
	c.t.Helper()
	body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := c.client.Kube.CoreV1().Pods("default").Patch(c.t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// TestTemporaryRelabel is "Label changes: Pod", "Label changes: Namespace", "Namespace watch", "Two
// CEP writing sources" and "Simultaneous CID management compatibility" of CFP-27752: rules of new
// labels hold for the endpoint at once; the others know it by its old identity, in packets as in
// its CiliumEndpoint, until there is a new one; nothing is lost meanwhile, over a restart of the
// agent too; and what the operator writes stands.
func TestTemporaryRelabel(t *testing.T) {
	t.Parallel()
	c, n1, n2, vnis := operatorManaged(t)
	// Both tiers of clients are let in by one label, one of them by another.
	c.network("web", "web", fromApp("client"))
	c.network("denied", "denied", func(s *networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		s.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}}}
	})
	app := func(n *machineNode, name string) *machinePod { return c.pod(n, name, map[string]string{"app": name}) }
	web, client := app(n1, "web"), app(n2, "client")
	near := c.pod(n1, "near", map[string]string{"app": "client"})
	for _, p := range []*machinePod{web, client, near} {
		for _, port := range []uint16{80, 81} {
			for _, at := range p.both(port) {
				serveEcho(t, p.ns, at)
			}
		}
	}
	c.assign(web, 2001, true)
	c.assign(client, 2002, true)
	for _, from := range []*machinePod{client, near} {
		for _, to := range web.both(80) {
			c.passing(from.name+" is let in", from, to)
		}
	}
	c.eventually("all objects name their identities", func() bool {
		return c.publishedID(web) == 2001 && c.publishedID(client) == 2002 && c.publishedID(near) == 2002
	})
	flows := []*flow{
		startFlow(t, "client to web", client.ns, web.both(80)[0]), startFlow(t, "client to web over IPv6", client.ns, web.both(81)[1]),
		startFlow(t, "near to web", near.ns, web.both(80)[0]), startFlow(t, "near to client", near.ns, client.both(80)[1]),
	}
	stream := startStream(t, client.ns, web.both(80)[1])
	connecting := startConnecting(t, near.ns, web.both(81)[0])

	// A pod's labels.
	c.labelPod("client", "tier", "gold")
	c.eventually("the client's new labels", func() bool { return slices.Contains(client.endpoint().Status.Identity.Labels, "k8s:tier=gold") })
	client.temporary("with another label", 2002)
	time.Sleep(200 * time.Millisecond)
	if id := c.publishedID(client); id != 2002 {
		t.Errorf("the client's object names %d before there is another identity", id)
	}
	// The agent dies, and its successor goes on.
	was := client.temporary("before a restart", 2002)
	n2.kill()
	n2.launch()
	n2.ready()
	if id := client.temporary("after a restart", 2002); id != was {
		t.Errorf("the restart has changed the temporary identity from %d to %d", was, id)
	}
	c.assign(client, 2003, false)
	c.eventually("the client's new identity", client.has(2003))
	c.eventually("its object names it", func() bool { return c.publishedID(client) == 2003 })

	// The namespace's labels: all pods at once.
	pods := []*machinePod{web, client, near}
	old := map[*machinePod]identity.ID{web: 2001, client: 2003, near: 2002}
	if _, err := c.client.Kube.CoreV1().Namespaces().Patch(t.Context(), "default", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"red"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		c.eventually("the namespace's labels on "+p.name, func() bool {
			return slices.ContainsFunc(p.endpoint().Status.Identity.Labels, func(l string) bool { return strings.HasSuffix(l, ".team=red") })
		})
		p.temporary("with other labels of the namespace", old[p])
		if id := c.publishedID(p); id != int(old[p]) {
			t.Errorf("the object of %s names %d before there is another identity than %d", p.name, id, old[p])
		}
	}
	n1.kill()
	n1.launch()
	n1.ready()
	for i, p := range []*machinePod{near, web, client} {
		c.assign(p, 2010+i, i == 1)
	}
	for i, p := range []*machinePod{near, web, client} {
		c.eventually(p.name+" has its new identity", p.has(2010+i))
		c.eventually("its object names it", func() bool { return c.publishedID(p) == 2010+i })
	}

	// The operator knows better, and the agent lets it.
	body := `[{"op":"replace","path":"/status/identity/id","value":2010}]`
	if _, err := c.endpoints().Patch(t.Context(), "client", types.JSONPatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if id := c.publishedID(client); id != 2010 {
		t.Errorf("the agent has put %d in the place of what the operator wrote", id)
	}
	body = `[{"op":"replace","path":"/status/identity/id","value":2012}]`
	if _, err := c.endpoints().Patch(t.Context(), "client", types.JSONPatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	time.Sleep(100 * time.Millisecond)
	for _, f := range flows {
		if sent, lost := f.finish(); len(lost) > 0 || sent == 0 {
			t.Errorf("%s: %d of %d lost, at %v", f.name, len(lost), sent, lost)
		}
	}
	if n, err := stream(); err != nil || n == 0 {
		t.Errorf("a TCP connection after %d questions: %v", n, err)
	}
	if n, errs := connecting(); len(errs) > 0 || n == 0 {
		t.Errorf("%d connections: %v", n, errors.Join(errs...))
	}

	// A label that takes a right away: gone when there is an ID for the new labels, and never
	// again.
	c.labelPod("near", "app", "denied")
	c.eventually("the denied labels are in force", func() bool {
		st := near.endpoint().Status
		return slices.Contains(st.Identity.Labels, "k8s:app=denied") && st.State == rest.EndpointStateReady
	})
	near.temporary("as a denied client", 2010)
	c.blocked("the rules of its new labels hold at once", near, client.both(80)[0])
	c.passing("the others have not observed the new labels", near, web.both(80)[0])
	c.assign(near, 2020, true)
	c.eventually("the denied client is kept out", func() bool { return ask(t, near.ns, web.both(80)[0], 64, false, impatient) != nil })
	c.blocked("as a denied client", near, web.both(81)[1])

	seen := vnis()
	noneTemporary(t, seen)
	for _, want := range []uint32{2002, 2003, 2012} {
		if seen[want] == 0 {
			t.Errorf("no packet carried the client's identity %d: %v", want, seen)
		}
	}
	if found := c.leaks(t.Context(), n1, n2); len(found) > 0 {
		t.Errorf("temporary identities: %q", found)
	}
	n1.stop()
	n2.stop()
}

// TestTemporaryRestart is the section "Temporary ID" of CFP-27752 over restarts: a pod that starts
// with a temporary identity keeps it, and its policy, when the agent dies, also without an API
// server, and has its own if that was made while no agent ran.
func TestTemporaryRestart(t *testing.T) {
	t.Parallel()
	c, n1, n2, vnis := operatorManaged(t)
	c.network("web", "web", fromApp("client"))
	c.eventually("the policy is observed", func() bool {
		files, err := n1.client.PolicyFiles(t.Context())
		return err == nil && slices.ContainsFunc(files, func(f rest.PolicyFile) bool { return f.InForce })
	})
	web, client := c.pod(n1, "web", map[string]string{"app": "web"}), c.pod(n2, "client", map[string]string{"app": "client"})
	for _, p := range []*machinePod{web, client} {
		for _, at := range p.both(80) {
			serveEcho(t, p.ns, at)
		}
	}
	was := web.temporary("at the start", identity.Init)
	// The nodes must know each other before the API server ends.
	c.passing("the nodes have observed each other", web, client.both(80)[0])
	out := startFlow(t, "web to client", web.ns, client.both(80)[0])
	in := startFlow(t, "client to web", client.ns, web.both(80)[1])
	before := n1.audit()
	for range 2 {
		n1.kill()
		n1.launch()
		n1.ready()
		if id := web.temporary("after a restart", identity.Init); id != was {
			t.Errorf("the restart has changed the temporary identity from %d to %d", was, id)
		}
	}
	n1.sameAudit(before, "after restarts")
	c.Stop()
	n1.kill()
	n1.launch()
	n1.serving(false)
	if id := web.temporary("after a restart without an API server", identity.Init); id != was {
		t.Errorf("the restart has changed the temporary identity from %d to %d", was, id)
	}
	n1.kill()
	c.Start()
	o := c.endpoints()
	c.eventually("the API server is back", func() bool { _, err := o.List(t.Context(), metav1.ListOptions{}); return err == nil })
	n1.launch()
	n1.ready()
	web.temporary("with the API server", identity.Init)
	if sent, lost := in.finish(); len(lost) != sent || sent == 0 {
		t.Errorf("%s: %d of %d got through", in.name, sent-len(lost), sent)
	}
	labelled := web.endpoint().Status.Identity.Labels
	n1.kill()
	c.assignLabels(labelled, web.name, 3001, true)
	n1.launch()
	n1.ready()
	c.eventually("web has its identity", web.has(3001))
	c.assign(client, 3002, false)
	c.passing("the client is let in", client, web.both(80)[1])
	if sent, lost := out.finish(); len(lost) > 0 || sent == 0 {
		t.Errorf("%s: %d of %d lost, at %v", out.name, len(lost), sent, lost)
	}
	noneTemporary(t, vnis())
	n1.stop()
	n2.stop()
}

// TestEndsDuringChange: an agent ends although a pod's labels are being changed, and the kernel
// takes no addresses any more.
func TestEndsDuringChange(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	web := c.pod(n, "web", map[string]string{"app": "web"})
	n.freeze("ipcache")
	c.labelPod("web", "app", "other")
	c.eventually("the change waits for the kernel", func() bool {
		return web.endpoint().Status.State == rest.EndpointStateWaitingToRegenerate
	})
	n.stop()
}
