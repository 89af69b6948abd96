package identities

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
)

// play is an index of a cluster with one namespace.
func play(t *testing.T, budget int) (*worldly, *index) {
	t.Helper()
	w := newWorldly(testRules(t, 300, 399))
	b := newIndex(w.rules, budget)
	ns := &corev1.Namespace{ObjectMeta: w.meta("", "a")}
	w.namespaces["a"] = ns
	b.setNamespace(ns)
	return w, b
}

// addPod adds a pod; node may be "".
func (w *worldly) addPod(b *index, name, app, node string) (*corev1.Pod, target) {
	p := &corev1.Pod{ObjectMeta: w.meta("a", name), Spec: corev1.PodSpec{NodeName: node}}
	p.Labels = map[string]string{"app": app}
	k := key{Namespace: "a", Name: name}
	w.pods[k] = p
	b.setPod(p)
	t, _ := w.target(k)
	return p, t
}

// addID adds an identity.
func (w *worldly) addID(b *index, id identity.ID, t target) *v2.CiliumIdentity {
	o := &v2.CiliumIdentity{ObjectMeta: w.meta("", decimal(id)), SecurityLabels: k8sids.SecurityLabels(t.labels)}
	k8sids.Seal(o)
	setObject(b, o)
	return o
}

func (w *worldly) update(b *index, o *v2.CiliumIdentity, f func(*v2.CiliumIdentity)) *v2.CiliumIdentity {
	o = o.DeepCopy()
	w.version++
	o.ResourceVersion = strconv.Itoa(w.version)
	f(o)
	setObject(b, o)
	return o
}

// TestEdited is "Operator changes 1" of CFP-27752: a client changes the labels of an identity. It
// has them back as long as pods need them.
func TestEdited(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	_, web := w.addPod(b, "one", "web", "n")
	o := w.addID(b, 300, web)
	now := w.update(b, o, func(o *v2.CiliumIdentity) { o.SecurityLabels["k8s:app"] = "db" })
	want := step{action: revert, text: web.text, labels: web.labels, id: 300, uid: o.UID, rv: now.ResourceVersion}
	if diff := gocmp.Diff(want, b.decideSet(web.text), gocmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("edited (-want +got):\n%s", diff)
	}
	// A pod with the labels that it says now must not get the ID, nor may the prober take it
	// for theirs.
	_, db := w.addPod(b, "two", "db", "n")
	if st := b.decideSet(db.text); st.action != create {
		t.Errorf("the other labels: %+v", st)
	}
	if !b.used(300) {
		t.Error("the ID could be collected")
	}
	w.update(b, now, func(o *v2.CiliumIdentity) { o.SecurityLabels = map[string]string{"no=label;": ""} })
	if st := b.decideSet(web.text); st.action != revert {
		t.Errorf("unreadable: %+v", st)
	}
	w.update(b, now, func(o *v2.CiliumIdentity) { o.SecurityLabels = k8sids.SecurityLabels(web.labels) })
	if st := b.decideSet(web.text); st.action != nothing {
		t.Errorf("put right: %+v", st)
	}
	// No pod needs the labels any more; nodes still evaluate rules by them.
	now = w.update(b, now, func(o *v2.CiliumIdentity) { o.SecurityLabels = k8sids.SecurityLabels(db.labels) })
	b.dropPod(key{Namespace: "a", Name: "one"})
	if st := b.decideSet(db.text); st.action != create {
		t.Errorf("the other labels, with the pods of the labels that it had gone: %+v", st)
	}
	want.rv = now.ResourceVersion
	if diff := gocmp.Diff(want, b.decideSet(web.text), gocmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("edited, and no pod has the labels (-want +got):\n%s", diff)
	}
	if n := b.summary().edited; n != 1 {
		t.Errorf("%d edited", n)
	}
	// One that no pod ever needed goes by what its labels were first, too.
	o = w.addID(b, 301, target{labels: web.labels, text: web.text})
	w.update(b, o, func(o *v2.CiliumIdentity) { o.SecurityLabels = map[string]string{} })
	if n := b.ids[301]; n.text != web.text || b.summary().edited != 2 {
		t.Errorf("emptied: it stands for %q", n.text)
	}
}

// TestWithdraw is "CID deduplication" of CFP-27752: what this process made is taken back if there
// is an older one and no endpoint names it.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	p, web := w.addPod(b, "one", "web", "n")
	w.addID(b, 310, web)
	o := w.addID(b, 320, web)
	if st := b.decideSet(web.text); st.action != nothing {
		t.Errorf("another operator's duplicate: %+v", st)
	}
	b.take()
	b.noteMade(320, o.UID)
	if sets, _ := b.take(); len(sets) != 1 {
		t.Error("it is not queued")
	}
	if st := b.decideSet(web.text); st.action != withdraw || st.id != 320 || st.uid != o.UID {
		t.Errorf("a duplicate of ours: %+v", st)
	}
	e := &v2.CiliumEndpoint{ObjectMeta: w.meta("a", "one")}
	e.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "one", UID: p.UID}}
	e.Status.Identity = &v2.EndpointIdentity{ID: 320, Labels: web.labels.Strings()}
	b.setEndpoint(e)
	if st := b.decideSet(web.text); st.action != nothing {
		t.Errorf("a duplicate of ours that an agent uses: %+v", st)
	}
}

// TestHeld: an ID that is being collected is not named.
func TestHeld(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	_, web := w.addPod(b, "one", "web", "n")
	w.addID(b, 310, web)
	if b.hold(310) {
		t.Error("an ID that a pod needs is collected")
	}
	b.dropPod(key{Namespace: "a", Name: "one"})
	if !b.hold(310) {
		t.Error("an unused ID is not collected")
	}
	p, _ := w.addPod(b, "one", "web", "n")
	e := &v2.CiliumEndpoint{ObjectMeta: w.meta("a", "one")}
	e.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "one", UID: p.UID}}
	b.setEndpoint(e)
	k := key{Namespace: "a", Name: "one"}
	if c, ok := b.decideEndpoint(k); ok {
		t.Errorf("while it is collected it is named: %+v", c)
	}
	b.take()
	b.release(310)
	if _, endpoints := b.take(); len(endpoints) != 1 {
		t.Error("no key is queued for the endpoint")
	}
	if c, ok := b.decideEndpoint(k); !ok || c.id != 310 {
		t.Errorf("afterwards: %+v", c)
	}
}

// TestDoubt is "Two CEP writing sources" of CFP-27752: an endpoint that was written after all that
// is known of pods, or of namespaces, is not contradicted unasked: the watch of either may stand
// still, however far the other is.
func TestDoubt(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	p, web := w.addPod(b, "one", "web", "n")
	w.addID(b, 310, web)
	k := key{Namespace: "a", Name: "one"}
	name := func(id int64) {
		e := &v2.CiliumEndpoint{ObjectMeta: w.meta("a", "one")}
		e.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "one", UID: p.UID}}
		if id != 0 {
			e.Status.Identity = &v2.EndpointIdentity{ID: id}
		}
		b.setEndpoint(e)
	}
	name(0)
	if c, ok := b.decideEndpoint(k); !ok || c.doubt {
		t.Errorf("no identity: %+v, %t", c, ok)
	}
	pod, ns := &corev1.Pod{}, &corev1.Namespace{}
	observe := map[string]func(){
		kindPods:       func() { pod.ObjectMeta = w.meta("b", "other"); b.have.note(kindPods, pod) },
		kindNamespaces: func() { ns.ObjectMeta = w.meta("", "other"); b.have.note(kindNamespaces, ns) },
	}
	for _, order := range [][2]string{{kindPods, kindNamespaces}, {kindNamespaces, kindPods}} {
		name(333)
		if c, ok := b.decideEndpoint(k); !ok || !c.doubt {
			t.Errorf("another one, written after all that is known: %+v, %t", c, ok)
		}
		observe[order[0]]()
		if c, ok := b.decideEndpoint(k); !ok || !c.doubt {
			t.Errorf("another one, written after all that is known of %s: %+v, %t", order[1], c, ok)
		}
		observe[order[1]]()
		if c, ok := b.decideEndpoint(k); !ok || c.doubt {
			t.Errorf("another one, written before what is known: %+v, %t", c, ok)
		}
	}
}

// TestAgentsOfTheirOwn: where agents may make identities, an endpoint that names an identity, of
// whatever labels, is left alone if its agent says that it makes identities itself, or its node is
// not known; one that names none, or an ID of no identity, is not. As soon as the agent says
// otherwise the endpoint is looked at.
func TestAgentsOfTheirOwn(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	b.agents = true
	p, web := w.addPod(b, "one", "web", "n")
	_, db := w.addPod(b, "two", "db", "n")
	w.addID(b, 310, web)
	o := w.addID(b, 320, db)
	if c, ok := b.decideEndpoint(w.claims(b, p, 320)); ok {
		t.Errorf("a node that is not known yet: %+v", c)
	}
	setMode := func(mode identity.Management) {
		n := &v2.CiliumNode{ObjectMeta: w.meta("", "n")}
		n.Annotations = map[string]string{nodes.ManagementAnnotation: string(mode)}
		b.setNode(n)
	}
	setMode(identity.ManagedByAgent)
	k := w.claims(b, p, 320)
	if c, ok := b.decideEndpoint(k); ok {
		t.Errorf("an identity that the agent named: %+v", c)
	}
	w.claims(b, p, 330)
	if c, ok := b.decideEndpoint(k); !ok || c.id != 310 || !c.unseen {
		t.Errorf("an ID of no identity: %+v", c)
	}
	w.claims(b, p, 320)
	quarantined := w.update(b, o, func(o *v2.CiliumIdentity) { k8sids.Quarantine(o, db.text, time.Unix(0, 0)) })
	if c, ok := b.decideEndpoint(k); !ok || c.id != 310 || !c.unseen {
		t.Errorf("an ID in quarantine: %+v", c)
	}
	w.update(b, quarantined, func(o *v2.CiliumIdentity) { k8sids.Restore(o, k8sids.SecurityLabels(db.labels)) })
	b.take()
	setMode(identity.ManagedByBoth)
	if _, endpoints := b.take(); len(endpoints) == 0 {
		t.Error("no key is queued for the endpoints of an agent that lets others write identities now")
	}
	if c, ok := b.decideEndpoint(k); !ok || c.id != 310 || c.unseen {
		t.Errorf("an agent that lets others write identities: %+v", c)
	}
	b.dropNode(key{Name: "n"})
	if c, ok := b.decideEndpoint(k); ok || len(b.alone) != 0 {
		t.Errorf("a node that is gone: %+v", c)
	}
	b.take()
	setMode("")
	if _, endpoints := b.take(); len(endpoints) == 0 {
		t.Error("no key is queued for the endpoints of a node that has become known")
	}
	if c, ok := b.decideEndpoint(k); !ok || c.id != 310 {
		t.Errorf("an agent that does not say who makes identities: %+v", c)
	}
	setMode(identity.ManagedByAgent)
	b.agents = false
	if c, ok := b.decideEndpoint(k); !ok || c.id != 310 {
		t.Errorf("where only the operator makes identities: %+v", c)
	}
}

// TestBudget is "Review discussion 3" of CFP-27752: whatever happens, no more identities are made
// for pods without a node than the budget says; and when pods have nodes, or others go, none is
// left waiting without cause.
func TestBudget(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 4))
		budget := 1 + r.IntN(4)
		w, b := play(t, budget)
		next := identity.ID(300)
		has := map[string]identity.ID{}
		work := func() { // everything that is queued
			for {
				sets, _ := b.take()
				if len(sets) == 0 {
					return
				}
				for _, text := range sets {
					st := b.decideSet(text)
					switch {
					case st.action == create && r.IntN(5) == 0: // it fails, and is tried again
						b.gaveUp(text)
						b.dirtySets[text] = struct{}{}
					case st.action == create:
						o := w.addID(b, next, target{labels: st.labels})
						w.ids[o.Name] = o
						has[text] = next
						next++
					}
				}
			}
		}
		for range 60 {
			name := fmt.Sprint("p", r.IntN(12))
			switch r.IntN(4) {
			case 0, 1:
				w.addPod(b, name, fmt.Sprint(r.IntN(8)), "")
			case 2:
				if p := w.pods[key{Namespace: "a", Name: name}]; p != nil {
					q := p.DeepCopy()
					q.Spec.NodeName = "n"
					w.pods[key{Namespace: "a", Name: name}] = q
					b.setPod(q)
				}
			case 3:
				delete(w.pods, key{Namespace: "a", Name: name})
				b.dropPod(key{Namespace: "a", Name: name})
			}
			work()
			pending, missing := 0, 0
			for text := range w.texts() {
				pods := w.podsOf(text)
				scheduled := false
				for _, k := range pods {
					scheduled = scheduled || w.pods[k].Spec.NodeName != ""
				}
				switch {
				case len(pods) == 0:
				case scheduled && has[text] == 0:
					t.Fatalf("seed %d: a pod of a node has no identity: %s", seed, text)
				case !scheduled && has[text] == 0:
					missing++
				case !scheduled:
					pending++
				}
			}
			if pending != b.unscheduled {
				t.Fatalf("seed %d: %d identities of unscheduled pods, counted %d", seed, pending, b.unscheduled)
			}
			if missing > 0 && pending < budget {
				t.Fatalf("seed %d: %d wait, with %d of %d used", seed, missing, pending, budget)
			}
			if c := b.summary(); c.waiting != missing || c.missing != missing {
				t.Fatalf("seed %d: %d wait, notified are %+v", seed, missing, c)
			}
		}
		if next-300 > 60 {
			t.Fatalf("seed %d: %d identities", seed, next-300)
		}
	}
}
