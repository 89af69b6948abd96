package identities

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestController plays one thing after another on a real API server. Names of sections are those of
// CFP-27752.
func TestController(t *testing.T) {
	none := func(*testCluster) {}
	inEachStore(t, func(t *testing.T, env *controllers.Env, in func(*testCluster)) {
		for _, row := range []struct {
			name   string
			test   func(*testCluster)
			change func(*testCluster)
		}{
			// "Pod creation process", regular path; "Operator acts on Pod instead of CEP changes":
			// there is an ID before the pod has a node.
			{"pods", controllerPods, none},
			// "Pod creation process", missing global ID path; "Operator changes 2", "Operator
			// changes 6", "Review discussion 2": an endpoint without an identity is given one.
			{"endpoints", controllerEndpoints, none},
			// "Two CEP writing sources": what the agent writes is validated and not written again;
			// what is wrong is corrected.
			{"two writers", controllerTwoWriters, none},
			// "Label changes: Pod".
			{"pod labels", controllerPodLabels, none},
			// "Label changes: Namespace": every endpoint of the namespace gets the right identity,
			// and there is one for each set of labels.
			{"namespace labels", controllerNamespaceLabels, none},
			// "Operator changes 1": unplanned changes of identities by others.
			{"deleted and edited", controllerDeletedAndEdited, none},
			// The same while no operator runs, "Operator changes 4": what the endpoints say brings
			// back an ID that has no owner, and one whose digest says that it was given these
			// labels. In a store references say it.
			{"deleted and edited behind its back", controllerDeletedAndEditedAway, none},
			// An endpoint of a pod that is gone, or of another of the same name, is not this
			// pod's: it is left alone.
			{"foreign endpoints", controllerForeignEndpoints, none},
			// "Review discussion 3": redundant identities of pods that are stuck in scheduling
			// stay within a budget.
			{"budget", controllerBudget, func(tc *testCluster) { tc.control.Budget = 3 }},
			// A pod whose labels make no identity shows why.
			{"faulty labels", controllerFaultyLabels, none},
			// "Background & Motivation": the range is full. It is reported where an operator
			// looks, and heals by itself.
			{"exhausted", controllerExhausted, func(tc *testCluster) { tc.rules = testRules(tc.T, 300, 303) }},
		} {
			t.Run(row.name, func(t *testing.T) { row.test(newTestCluster(t, env, row.change, in)) })
		}
	})
}

// appLabels are the labels of the pods of one application.
func appLabels(name string) map[string]string { return map[string]string{"app": name} }

func controllerPods(tc *testCluster) {
	tc.operator()
	tc.namespace("a", map[string]string{"team": "x"})
	tc.pod("a", "one", appLabels("web"))
	tc.pod("a", "two", appLabels("web"))
	tc.pod("a", "other", appLabels("db"))
	tc.pod("a", "host", appLabels("host"), func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	s := tc.waitSynced()
	if len(s.objects) != 2 {
		tc.Errorf("there are %d identities for two sets of labels", len(s.objects))
	}
	for _, o := range s.objects {
		if o.SecurityLabels["k8s:io.cilium.k8s.namespace.labels.team"] != "x" || tc.keys == nil && o.Labels[labels.KeyNamespace] != "a" {
			tc.Errorf("identity %s: %v, %v", o.Name, o.SecurityLabels, o.Labels)
		}
	}
}

func controllerEndpoints(tc *testCluster) {
	tc.operator()
	tc.namespace("a", nil)
	p := tc.pod("a", "one", appLabels("web"), onNode)
	tc.endpoint(p)
	dns := tc.pod("kube-system", "dns", map[string]string{"k8s-app": "kube-dns"}, onNode, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "coredns" })
	tc.endpoint(dns) // a well-known identity needs no object
	fixed := tc.pod("a", "fixed", map[string]string{labels.KeyFixedIdentity: "store"}, onNode)
	tc.endpoint(fixed)
	s := tc.waitSynced()
	if got := s.idOfPod(dns) + " " + s.idOfPod(fixed); got != "112 130" || len(s.objects) != 1 {
		tc.Errorf("by rule: %s; %d objects", got, len(s.objects))
	}
}

func controllerTwoWriters(tc *testCluster) {
	tc.namespace("a", nil)
	p := tc.pod("a", "one", appLabels("web"), onNode)
	q := tc.pod("a", "two", appLabels("web"), onNode)
	set, _ := tc.identityOf(p, 0)
	tc.plant(5000, set) // the oldest
	tc.plant(4000, set) // a duplicate that an agent names: it is tolerated
	_, at4000 := tc.identityOf(p, 4000)
	e := tc.endpoint(p, at4000)
	tc.endpoint(q, &v2.EndpointIdentity{ID: 777, Labels: []string{"k8s:app=db"}})
	tc.operator()
	s := tc.waitSynced()
	if s.idOfPod(p) != "4000" {
		tc.Errorf("the agent's choice became %s", s.idOfPod(p))
	}
	var now v2.CiliumEndpoint
	if err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(e), &now); err != nil || now.ResourceVersion != e.ResourceVersion {
		tc.Errorf("a right endpoint was written: %v", err)
	}
}

func controllerPodLabels(tc *testCluster) {
	tc.operator()
	tc.namespace("a", nil)
	p := tc.pod("a", "one", appLabels("web"), onNode)
	tc.endpoint(p)
	before := tc.waitSynced().idOfPod(p)
	tc.edit(p, func(o client.Object) { o.SetLabels(appLabels("db")) })
	after := tc.waitSynced().idOfPod(p)
	if before == after {
		tc.Errorf("%s before and after", before)
	}
	tc.edit(p, func(o client.Object) { o.SetLabels(appLabels("web")) })
	if again := tc.waitSynced().idOfPod(p); again != before {
		tc.Errorf("labels that come back have %s, not %s", again, before)
	}
	tc.edit(p, func(o client.Object) { o.SetLabels(map[string]string{"app": "web", "pod-template-hash": "x"}) })
	if again := tc.waitSynced().idOfPod(p); again != before {
		tc.Errorf("a label that makes no identity changed it to %s", again)
	}
}

func controllerNamespaceLabels(tc *testCluster) {
	tc.operator()
	tc.namespace("a", map[string]string{"team": "x"})
	for i := range 30 {
		tc.endpoint(tc.pod("a", fmt.Sprint("p", i), appLabels(fmt.Sprint("app", i%3)), onNode))
	}
	if n := len(tc.waitSynced().objects); n != 3 {
		tc.Errorf("%d identities for 3 sets of labels", n)
	}
	tc.namespace("a", map[string]string{"team": "y"})
	s := tc.waitSynced()
	if n := len(s.objects); n != 6 {
		tc.Errorf("%d identities for 3 sets of labels before and 3 after", n)
	}
}

func controllerDeletedAndEdited(tc *testCluster) {
	tc.operator()
	tc.namespace("a", nil)
	p := tc.pod("a", "one", appLabels("web"), onNode)
	tc.endpoint(p)
	name := tc.waitSynced().idOfPod(p)
	tc.tamper(name)
	tc.destroy(name)
	if again := tc.waitSynced().idOfPod(p); again != name {
		tc.Errorf("an identity in use was deleted: the pod has %s, not %s", again, name)
	}
	tc.rename(name, "db")
	if again := tc.waitSynced().idOfPod(p); again != name || len(tc.state().objects) != 1 {
		tc.Errorf("an identity in use was edited: the pod has %s, not %s; %d identities", again, name, len(tc.state().objects))
	}
}

func controllerDeletedAndEditedAway(tc *testCluster) {
	stop := tc.operator()
	tc.namespace("a", nil)
	p, q := tc.pod("a", "one", appLabels("web"), onNode), tc.pod("a", "two", appLabels("db"), onNode)
	tc.endpoint(p)
	tc.endpoint(q)
	s := tc.waitSynced()
	stop()
	for _, x := range []*corev1.Pod{p, q} {
		tc.tamper(s.idOfPod(x))
	}
	tc.destroy(s.idOfPod(p))
	tc.rename(s.idOfPod(q), "cache")
	tc.operator()
	tc.until(func() string { return tc.wrong(tc.state()) })
	now := tc.waitSynced()
	if now.idOfPod(p) != s.idOfPod(p) || now.idOfPod(q) != s.idOfPod(q) || len(now.objects) != 2 {
		tc.Errorf("IDs were %s and %s and are %s and %s; %d identities", s.idOfPod(p), s.idOfPod(q), now.idOfPod(p), now.idOfPod(q), len(now.objects))
	}
}

func controllerForeignEndpoints(tc *testCluster) {
	tc.namespace("a", nil)
	p := tc.pod("a", "one", appLabels("web"), onNode)
	before := p.DeepCopy()
	before.UID = "of-the-pod-before"
	e := tc.endpoint(before, &v2.EndpointIdentity{ID: 777})
	gone := p.DeepCopy()
	gone.Name = "gone"
	f := tc.endpoint(gone)
	tc.operator()
	q := tc.pod("a", "two", appLabels("web"), onNode)
	tc.endpoint(q)
	tc.waitSynced()
	for _, x := range []*v2.CiliumEndpoint{e, f} {
		var now v2.CiliumEndpoint
		if err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(x), &now); err != nil || now.ResourceVersion != x.ResourceVersion {
			tc.Errorf("endpoint %s was written: %v", x.Name, err)
		}
	}
	// Its agent replaces it.
	if err := tc.Client.Delete(tc.ctx, e); err != nil {
		tc.Fatal(err)
	}
	tc.endpoint(p)
	if s := tc.waitSynced(); s.idOfPod(p) != s.idOfPod(q) {
		tc.Errorf("pods of the same labels have %s and %s", s.idOfPod(p), s.idOfPod(q))
	}
}

func controllerBudget(tc *testCluster) {
	tc.operator()
	tc.namespace("a", nil)
	var pods []*corev1.Pod
	for i := range 8 {
		pods = append(pods, tc.pod("a", fmt.Sprint("p", i), appLabels(fmt.Sprint("app", i))))
	}
	count := func() int { return len(tc.state().objects) }
	tc.until(func() string {
		if n := count(); n != 3 {
			return fmt.Sprintf("%d identities, want 3", n)
		}
		return ""
	})
	tc.endpoint(tc.pod("a", "on-node", appLabels("running"), onNode)) // not counted
	tc.until(func() string {
		if n := count(); n != 4 {
			return fmt.Sprintf("%d identities, want 4", n)
		}
		return ""
	})
	// One that gets a node has its identity, whatever the budget; its place goes to
	// another.
	bind := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
	for _, p := range pods {
		if err := tc.Client.SubResource("binding").Create(tc.ctx, p, bind.DeepCopy()); err != nil {
			tc.Fatal(err)
		}
	}
	tc.waitSynced()
}

func controllerFaultyLabels(tc *testCluster) {
	tc.operator()
	tc.namespace("faulty", nil)
	p := tc.pod("faulty", "one", map[string]string{labels.KeyFixedIdentity: "nothing"}, onNode)
	tc.endpoint(p)
	notMade := func() (out []string) {
		var list corev1.EventList
		tc.inspect(tc.Client.List(tc.ctx, &list, client.InNamespace("faulty")))
		for _, ev := range list.Items {
			if ev.Reason == "IdentityNotMade" && ev.InvolvedObject.UID == p.UID {
				out = append(out, ev.Message)
			}
		}
		return out
	}
	tc.eventually("an Event at the pod", func() bool { return len(notMade()) > 0 })
	if n := tc.gauge("faulty_pods"); n != 1 {
		tc.Errorf("%v faulty pods are counted", n)
	}
	tc.edit(p, func(o client.Object) {
		o.SetLabels(map[string]string{labels.KeyFixedIdentity: "nothing", "app": "web"})
	})
	q := tc.pod("faulty", "two", appLabels("web"), onNode)
	tc.endpoint(q)
	tc.waitSynced() // it has observed the edit, too
	if all := notMade(); len(all) != 1 || !strings.Contains(all[0], `no fixed identity is named "nothing"`) {
		tc.Errorf("the Events are %q", all)
	}
	tc.edit(p, func(o client.Object) { o.SetLabels(appLabels("web")) })
	if s := tc.waitSynced(); s.idOfPod(p) != s.idOfPod(q) {
		tc.Errorf("pods of the same labels have %q and %q", s.idOfPod(p), s.idOfPod(q))
	}
	if n := tc.gauge("faulty_pods"); n != 0 {
		tc.Errorf("%v faulty pods are counted", n)
	}
}

func controllerExhausted(tc *testCluster) {
	tc.operator()
	tc.namespace("a", nil)
	for i := range 5 {
		tc.pod("a", fmt.Sprint("p", i), appLabels(fmt.Sprint("app", i)), onNode)
	}
	var reason string
	tc.until(func() string {
		var list corev1.EventList
		if err := tc.Client.List(tc.ctx, &list, client.InNamespace("a")); err != nil {
			return err.Error()
		}
		for _, ev := range list.Items {
			if ev.Reason == "IdentityNotMade" && ev.InvolvedObject.Kind == "Pod" && ev.InvolvedObject.UID != types.UID("") {
				reason = ev.Message
				return ""
			}
		}
		return fmt.Sprintf("no event in %d", len(list.Items))
	})
	if !strings.Contains(reason, "all of 300 to 303 are taken") {
		tc.Errorf("the event says %q", reason)
	}
	if n := len(tc.state().objects); n != 4 {
		tc.Errorf("%d identities in a range of 4", n)
	}
	if err := tc.Client.Delete(tc.ctx, &corev1.Pod{ObjectMeta: tc.state().pods[key{Namespace: "a", Name: "p0"}].ObjectMeta}, client.GracePeriodSeconds(0)); err != nil {
		tc.Fatal(err)
	}
	var one *v2.CiliumIdentity
	for _, o := range tc.state().objects {
		if o.SecurityLabels["k8s:app"] == "app0" {
			one = o
		}
	}
	if one == nil { // p0 was the one without
		return
	}
	tc.released(one)
	tc.destroy(one.Name)
	tc.waitSynced()
}
