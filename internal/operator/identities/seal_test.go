package identities

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestSeal: an object in use without a digest gets one if it is certain that its labels are no
// edit. If it is not, they stand for what they are now, as it is unknown whether that is the edit
// or its end.
func TestSeal(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	_, web := w.addPod(b, "web", "web", "n")
	_, db := w.addPod(b, "db", "db", "n")
	bare := func(id identity.ID, of target, generation int64) *v2.CiliumIdentity {
		o := &v2.CiliumIdentity{ObjectMeta: w.meta("", decimal(id)), SecurityLabels: k8sids.SecurityLabels(of.labels)}
		o.Generation = generation
		setObject(b, o)
		return o
	}
	label := func(o *v2.CiliumIdentity, as target) *v2.CiliumIdentity {
		return w.update(b, o, func(o *v2.CiliumIdentity) {
			o.Generation++
			o.SecurityLabels = k8sids.SecurityLabels(as.labels)
		})
	}
	want := func(when string, of target, v action, id identity.ID) {
		t.Helper()
		if st := b.decideSet(of.text); st.action != v || id != 0 && (st.id != id || st.rv != b.ids[id].rv || st.uid != b.ids[id].uid) {
			t.Errorf("%s: %+v, want %d of %d", when, st, v, id)
		}
	}
	drop := func(id identity.ID) { dropObject(b, decimal(id)) }

	o := bare(300, web, 1)
	want("made before there were digests", web, seal, 300)
	second := bare(301, web, 1)
	want("the first of two", web, seal, 300)
	w.claims(b, w.pods[key{Namespace: "a", Name: "web"}], 301)
	b.take()
	o = w.update(b, o, k8sids.Seal)
	want("the second, which an endpoint names", web, seal, 301)
	if sets, _ := b.take(); len(sets) != 1 {
		t.Errorf("the second is not queued: %v", sets)
	}
	w.update(b, second, k8sids.Seal)
	want("both sealed", web, nothing, 0)
	b.dropEndpoint(key{Namespace: "a", Name: "web"})
	label(o, db)
	want("edited after it was sealed", web, revert, 300)
	drop(300)
	drop(301)

	o = label(bare(300, web, 1), db)
	want("edited before it was sealed", web, revert, 300)
	want("the labels of the edit", db, create, 0)
	w.update(b, o, k8sids.Seal)
	want("sealed by another client with the edit", web, revert, 300)
	drop(300)

	o = bare(300, web, 2)
	want("it may have been edited before it was observed", web, nothing, 0)
	o = label(o, db)
	want("edited, or undone", db, nothing, 0)
	want("the labels that it had", web, create, 0)
	o = label(o, web)
	want("the other way round", web, nothing, 0)
	if n := b.summary().edited; n != 0 {
		t.Errorf("%d edited", n)
	}
	o = w.update(b, o, func(o *v2.CiliumIdentity) { // sealed and edited, and observed only then
		k8sids.Seal(o)
		o.SecurityLabels = k8sids.SecurityLabels(db.labels)
	})
	want("edited after another client has sealed it", web, revert, 300)
	label(o, web)
	want("put right", web, nothing, 0)
	if n := b.ids[300]; !n.certain || n.bare {
		t.Errorf("put right: %+v", n)
	}
	drop(300)

	b.dropPod(key{Namespace: "a", Name: "web"})
	bare(300, web, 1)
	want("unused", web, nothing, 0)
	w.addPod(b, "web", "web", "n")
	want("in use", web, seal, 300)
}

// TestSealed: identities from before the digest, where only the operator writes them. An
// adversary edits some by hand: before they are sealed, while the operator looks and while none
// does, and afterwards.
func TestSealed(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
	var c *Controller
	tc := newTestCluster(t, env, func(tc *testCluster) { tc.tune = func(started *Controller) { c = started } })
	tc.namespace("a", nil)
	sets := map[string]map[string]string{}
	old := func(app string, number identity.ID) *corev1.Pod {
		t.Helper()
		p := tc.pod("a", app, map[string]string{"app": app}, onNode)
		set, id := tc.identityOf(p, number)
		sets[decimal(number)] = set
		tc.plant(number, maps.Clone(set), func(o *v2.CiliumIdentity) { delete(o.Annotations, k8sids.DigestAnnotation) })
		tc.tamper(decimal(number))
		tc.endpoint(p, id)
		return p
	}
	get := func(number string) *v2.CiliumIdentity {
		t.Helper()
		var o v2.CiliumIdentity
		if err := tc.Client.Get(tc.ctx, client.ObjectKey{Name: number}, &o); err != nil {
			t.Fatal(err)
		}
		return &o
	}
	relabel := func(number, app string) {
		t.Helper()
		tc.edit(&v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: number}}, func(o client.Object) {
			o.(*v2.CiliumIdentity).SecurityLabels["k8s:app"] = app
		})
	}
	sealed := func(number string) {
		t.Helper()
		controllers.Eventually(t, waitTimeout, func() string {
			o := get(number)
			if !maps.Equal(o.SecurityLabels, sets[number]) || !k8sids.WasGiven(o, sets[number]) {
				return fmt.Sprintf("%s: labels %v, annotations %v", number, o.SecurityLabels, o.Annotations)
			}
			return ""
		})
	}

	old("web", 4000)
	edited := old("before", 4001)
	relabel("4001", "evil")
	stop := tc.operator()
	sealed("4000")
	s := tc.waitSynced() // which waits until the edited one's pod has another ID
	if got := get("4001"); k8sids.Given(got) != "" || got.SecurityLabels["k8s:app"] != "evil" {
		t.Errorf("edited while no operator ran: %v, %v", got.SecurityLabels, got.Annotations)
	}
	if s.idOfPod(edited) == "4001" {
		t.Error("the pod of the labels from before the edit has the ID still")
	}
	relabel("4000", "evil")
	sealed("4000")

	// Who undoes the edit is not fought.
	relabel("4001", "before")
	old("barrier", 4002)
	sealed("4002")
	if got := get("4001"); got.SecurityLabels["k8s:app"] != "before" {
		t.Errorf("a client put the labels back, and now they are %v", got.SecurityLabels)
	}
	stop()

	// As long as objects wait for their digests, edits are seen, and pods get identities.
	tc.tune = func(started *Controller) {
		c = started
		c.writes.SetBurst(0)
	}
	old("waiting", 4003)
	stop = tc.operator()
	p := tc.pod("a", "new", map[string]string{"app": "new"}, onNode)
	tc.endpoint(p)
	tc.until(func() string {
		if tc.state().idOfPod(p) == "" {
			return "a new pod has no identity"
		}
		return ""
	})
	if got := get("4003"); k8sids.Given(got) != "" {
		t.Errorf("it did not wait: %v", got.Annotations)
	}
	relabel("4003", "evil")
	sealed("4003")
	old("last", 4004)
	c.writes.SetBurst(leastPerSecond)
	sealed("4004")
	stop()
}
