package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	making "github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// makers runs what of the operator makes identities, as in mode both, until the test ends.
func (c *kubeCluster) makers() {
	c.t.Helper()
	controllers.Run(c.t, c.Config, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		control := making.ControlDefaults()
		control.Agents = true
		rules, err := control.Rules("default", identity.MinGlobal, 65535)
		if err != nil {
			return err
		}
		_, err = making.Setup(m, control, rules, nil, prometheus.NewRegistry(), log)
		return err
	})
}

// history follows which identities a pod's CiliumEndpoint names, one after the other. What it
// returns gives those so far.
func (c *kubeCluster) history(pod string) func() []int64 {
	c.t.Helper()
	w, err := c.endpoints().Watch(c.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	if err != nil {
		c.t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []int64
	var wg sync.WaitGroup
	c.t.Cleanup(func() { w.Stop(); wg.Wait() })
	wg.Go(func() {
		for ev := range w.ResultChan() {
			o, ok := ev.Object.(*v2.CiliumEndpoint)
			if !ok || o.Status.Identity == nil {
				continue
			}
			mu.Lock()
			if n := len(seen); n == 0 || seen[n-1] != o.Status.Identity.ID {
				seen = append(seen, o.Status.Identity.ID)
			}
			mu.Unlock()
		}
	})
	return func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// back returns the first ID that a history comes back to, 0 if to none.
func back(history []int64) int64 {
	seen := map[int64]bool{}
	for _, id := range history {
		if seen[id] {
			return id
		}
		seen[id] = true
	}
	return 0
}

// TestMixedModes is "Two CEP writing sources" of CFP-27752 while a cluster changes from one to two.
// It has an operator make identities beside an agent that does so itself, and knows a pod by a
// label that users set on its socket: what the pod's CiliumEndpoint names does not go to and fro,
// neither by itself, also while the operator does not know yet that the node's agent makes
// identities, nor when the pod's labels change. When the agent lets the operator write identities,
// no more such labels can be set; those that are there can be deleted, and then all mean the same.
func TestMixedModes(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	web := c.pod(n, "web", map[string]string{"app": "web"})
	id := func() int64 { return int64(web.endpoint().Status.Identity.ID) }
	own := id()
	labels := fmt.Sprintf("/endpoint/%d/labels", web.endpoint().ID)
	user := func(want int, list ...string) string {
		t.Helper()
		body := `{"user": []}`
		if len(list) > 0 {
			body = `{"user": ["` + strings.Join(list, `","`) + `"]}`
		}
		code, text := n.call(http.MethodPatch, labels, body)
		if code != want {
			t.Fatalf("user labels %v: %d %s, not %d", list, code, text, want)
		}
		return text
	}
	user(http.StatusOK, "team=red")
	c.eventually("the others observe the label", func() bool { return id() != own && int64(c.publishedID(web)) == id() })
	history := c.history("web")
	c.eventually("the history begins", func() bool { return len(history()) > 0 })

	c.makers()
	// The operator has looked at the pod once another one of the same labels, whose object comes
	// later, has its identity.
	later := c.object(n, "later", map[string]string{"app": "later"})
	c.eventually("the operator makes identities", func() bool {
		list, err := c.identities().List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(o v2.CiliumIdentity) bool { return o.SecurityLabels["k8s:app"] == later.Labels["app"] })
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if h := history(); len(h) != 1 {
			t.Fatalf("agent and operator take turns: %v", h)
		}
	}
	for _, app := range []string{"db", "cache", "queue"} {
		before := id()
		c.labelPod("web", "app", app)
		c.eventually("the others observe the pod's new labels", func() bool { return id() != before && int64(c.publishedID(web)) == id() })
	}
	c.eventually("the history has them", func() bool { return len(history()) >= 4 })
	if h := history(); back(h) != 0 || len(h) != 4 {
		t.Errorf("three changes of labels: %v", h)
	}

	n.stop()
	n.flags = append(n.flags, "--"+identity.ManagementFlag, string(identity.ManagedByBoth))
	n.start()
	if log := n.logText(); !strings.Contains(log, "users have set labels of an endpoint") {
		t.Error("the log does not name the label that no other node knows")
	}
	user(http.StatusOK, "team=red") // it is there
	text := user(http.StatusBadRequest, "team=red", "tier=front")
	for _, want := range []string{"tier=front", identity.ManagementFlag, "label the pod"} {
		if !strings.Contains(text, want) {
			t.Errorf("the refusal does not say %q: %s", want, text)
		}
	}
	for path, body := range map[string]string{
		strings.TrimSuffix(labels, "/labels"):           `{"labels": ["tier=front"]}`,
		strings.TrimSuffix(labels, "labels") + "config": `{"label-configuration": {"user": ["tier=front"]}}`,
	} {
		if code, text := n.call(http.MethodPatch, path, body); code != http.StatusBadRequest || !strings.Contains(text, "tier=front") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	user(http.StatusOK)
	c.eventually("all mean the same", func() bool {
		e := web.endpoint().Status.Identity
		return int64(c.publishedID(web)) == int64(e.ID) && !slices.ContainsFunc(e.Labels, func(l string) bool { return strings.Contains(l, "team") })
	})
	n.stop()
}

// TestMixedFleet is "Simultaneous CID management compatibility" and "Migration: Upgrade" of
// CFP-27752 with real agents beside the real operator's controller: one node's agent makes
// identities, the other's leaves them to the operator, then the other way round. Pods of the same
// labels have the same ID on both, whoever was first, and after a change of their namespace's
// labels, too; nothing is made twice, and rules by labels hold between the nodes.
func TestMixedFleet(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	plain := map[*machineNode][]string{}
	nodes := []*machineNode{n1, n2}
	for _, n := range nodes {
		n.flags = append(n.flags, "--ipam", "kubernetes")
		plain[n] = slices.Clone(n.flags)
	}
	modes := func(one, two identity.Management) {
		for n, mode := range map[*machineNode]identity.Management{n1: one, n2: two} {
			n.flags = append(slices.Clone(plain[n]), "--"+identity.ManagementFlag, string(mode))
		}
	}
	modes(identity.ManagedByAgent, identity.ManagedByOperator)
	n1.start()
	n2.start()
	c.makers()
	c.watchLeaks(n1, n2)

	same := func(when string, pods ...*machinePod) int {
		t.Helper()
		number := 0
		c.eventually(when+": the pods have one identity", func() bool {
			for i, p := range pods {
				id := p.endpoint().Status.Identity
				if id.Temporary || i > 0 && id.ID != number || c.publishedID(p) != id.ID {
					return false
				}
				number = id.ID
			}
			return number >= int(identity.MinGlobal)
		})
		return number
	}
	single := func(when string) {
		t.Helper()
		list, err := c.identities().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{}
		for _, o := range list.Items {
			text := fmt.Sprint(o.SecurityLabels)
			if other, twice := seen[text]; twice && len(o.SecurityLabels) > 0 {
				t.Errorf("%s: %s and %s are both %s", when, other, o.Name, text)
			}
			seen[text] = o.Name
		}
	}
	// Labels that no pod has had, on both nodes at the same moment.
	round := func(when, app string) []*machinePod {
		t.Helper()
		pods := make([]*machinePod, 2)
		var wg sync.WaitGroup
		for i, n := range nodes {
			name := fmt.Sprintf("%s-%s", app, n.name)
			c.object(n, name, map[string]string{"app": app})
			pods[i] = n.newPod(name, nil)
		}
		for i, p := range pods {
			wg.Go(func() {
				if err := p.add(); err != nil {
					t.Errorf("%s: ADD %d: %v", when, i, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
		same(when, pods...)
		single(when)
		return pods
	}
	web := round("at first", "web")
	client := round("at first", "client")
	for i, p := range web {
		serveEcho(t, p.ns, p.both(80)[0])
		c.passing("across", client[1-i], p.both(80)[0])
	}
	before := same("before the namespace changes", web...)
	relabel := func(value string) {
		t.Helper()
		body := fmt.Sprintf(`{"metadata":{"labels":{"team":%q}}}`, value)
		if _, err := c.client.Kube.CoreV1().Namespaces().Patch(t.Context(), "default", types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	relabel("red")
	c.eventually("the pods have another identity", func() bool {
		return web[0].endpoint().Status.Identity.ID != before && web[1].endpoint().Status.Identity.ID != before
	})
	same("after the namespace's labels changed", web...)

	// One agent after the other changes its way, and both at a time are of different ones.
	n1.stop()
	modes(identity.ManagedByOperator, identity.ManagedByOperator)
	n1.start()
	same("after one was upgraded", web...)
	round("after one was upgraded", "db")
	n2.stop()
	modes(identity.ManagedByOperator, identity.ManagedByAgent)
	n2.start()
	same("after the other was put back", web...)
	round("after the other was put back", "cache")
	relabel("blue")
	c.eventually("what was red is gone from the pods", func() bool {
		for _, p := range append(slices.Clone(web), client...) {
			if slices.ContainsFunc(p.endpoint().Status.Identity.Labels, func(l string) bool { return strings.HasSuffix(l, "=red") }) {
				return false
			}
		}
		return true
	})
	same("after the namespace's labels changed again", web...)
	same("after the namespace's labels changed again", client...)
	for i, p := range web {
		c.passing("across at the end", client[1-i], p.both(80)[0])
	}
	n1.stop()
	n2.stop()
}
