package agent

import (
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// denyEvil lets everybody in but pods app=evil.
const denyEvil = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress: [{fromEntities: [all]}]
  ingressDeny: [{fromEndpoints: [{matchLabels: {app: evil}}]}]
`

// TestRestoredPeerIsRefused: the ID of a pod that a rule denies is in quarantine
// while no pod has it, and comes back with the pod. The other node, whose agent was there all the
// time, refuses it.
func TestRestoredPeerIsRefused(t *testing.T) {
	t.Parallel()
	c, n1, n2, _ := operatorManaged(t)
	n1.policy("web.yaml", denyEvil)
	c.eventually("the policy is observed", func() bool {
		files, err := n1.client.PolicyFiles(t.Context())
		return err == nil && slices.ContainsFunc(files, func(f rest.PolicyFile) bool { return f.InForce })
	})
	web := c.pod(n1, "web", map[string]string{"app": "web"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	c.assign(web, 3000, true)
	good, evil := c.pod(n2, "good", map[string]string{"app": "good"}), c.pod(n2, "evil", map[string]string{"app": "evil"})
	set := evil.endpoint().Status.Identity.Labels
	c.assign(good, 3001, true)
	c.assign(evil, 3002, true)
	c.eventually("evil has its identity", evil.has(3002))
	for _, to := range web.both(80) {
		c.passing("good, at first", good, to)
		c.blocked("evil, at first", evil, to)
	}
	if err := evil.del(); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Kube.CoreV1().Pods("default").Delete(t.Context(), "evil", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	change := func(number int, f func(*v2.CiliumIdentity)) {
		t.Helper()
		o, err := c.identities().Get(t.Context(), strconv.Itoa(number), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f(o)
		if _, err := c.identities().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	knows := func(n *machineNode, number int) bool {
		_, err := n.client.Identity(t.Context(), strconv.Itoa(number))
		return err == nil
	}
	var security map[string]string
	change(3002, func(o *v2.CiliumIdentity) {
		security = o.SecurityLabels
		k8sids.Quarantine(o, k8sids.Key{Set: parseAll(t, set)}.GetKey(), time.Now())
	})
	c.eventually("the ID is in quarantine", func() bool { return !knows(n1, 3002) && !knows(n2, 3002) })
	change(3002, func(o *v2.CiliumIdentity) { k8sids.Restore(o, security) })
	back := c.pod(n2, "evil-again", map[string]string{"app": "evil"})
	c.eventually("evil has the ID again", back.has(3002))
	c.eventually("the other node knows the ID", func() bool { return knows(n1, 3002) })
	for _, to := range web.both(80) {
		c.passing("good, afterwards", good, to)
		c.blocked("evil, with an ID that was in quarantine", back, to)
	}
}

// parseAll reads labels as the agent shows them.
func parseAll(t *testing.T, texts []string) labels.Set {
	t.Helper()
	var list []labels.Label
	for _, text := range texts {
		l, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, l)
	}
	return labels.NewSet(list...)
}

// TestRestoredKeyIsRefused is the same where IDs are keys of a store: the key of the ID
// goes, and is made again.
func TestRestoredKeyIsRefused(t *testing.T) {
	t.Parallel()
	store, n1, n2 := nodesWithStore(t)
	for _, n := range []*machineNode{n1, n2} {
		n.policy("web.yaml", denyEvil)
		n.start()
	}
	web := n1.attached("web", map[string]string{"app": "web"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	good, evil := n2.attached("good", map[string]string{"app": "good"}), n2.attached("evil", map[string]string{"app": "evil"})
	number := evil.endpoint().Status.Identity.ID
	for _, to := range web.both(80) {
		eventuallyReaches(t, "good, at first", good, to, true)
		refused(t, "evil, at first", evil.ns, to)
	}
	if err := evil.del(); err != nil {
		t.Fatal(err)
	}
	key := kvstore.JoinKey(storekeys.IdentitiesPrefix, "id", strconv.Itoa(number))
	got, err := store.Client().Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("key %s: %v, %v", key, got, err)
	}
	knows := func(want bool) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			_, err1 := n1.client.Identity(t.Context(), strconv.Itoa(number))
			_, err2 := n2.client.Identity(t.Context(), strconv.Itoa(number))
			if (err1 == nil) == want && (err2 == nil) == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("ID %d is known is not %t on both nodes: %v, %v", number, want, err1, err2)
			}
		}
	}
	if _, err := store.Client().Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	knows(false)
	if _, err := store.Client().Put(t.Context(), key, string(got.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	knows(true)
	back := n2.attached("evil-again", map[string]string{"app": "evil"})
	if is := back.endpoint().Status.Identity.ID; is != number {
		t.Fatalf("evil has ID %d, want %d again", is, number)
	}
	for _, to := range web.both(80) {
		eventuallyReaches(t, "good, afterwards", good, to, true)
		refused(t, "evil, with an ID that came back", back.ns, to)
	}
}
