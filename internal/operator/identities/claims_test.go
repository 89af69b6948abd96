package identities

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// claims has the pod's endpoint name an ID for the pod's own labels, as its agent would.
func (w *worldly) claims(b *index, p *corev1.Pod, id identity.ID) key {
	k := key{Namespace: p.Namespace, Name: p.Name}
	t, _ := w.target(k)
	e := &v2.CiliumEndpoint{ObjectMeta: w.meta(p.Namespace, p.Name)}
	e.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID}}
	e.Status.Identity = &v2.EndpointIdentity{ID: int64(id), Labels: t.labels.Strings()}
	b.setEndpoint(e)
	return k
}

// TestClaimsCreateNothing: labels that have an ID get no other one, whatever endpoints name.
func TestClaimsCreateNothing(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	p, web := w.addPod(b, "one", "web", "n")
	w.addID(b, 310, web)
	for id := identity.ID(320); id < 390; id++ {
		k := w.claims(b, p, id)
		if st := b.decideSet(web.text); st.action != nothing {
			t.Fatalf("claim of %d: %+v", id, st)
		}
		if c, ok := b.decideEndpoint(k); !ok || c.id != 310 || c.refused != hasID {
			t.Fatalf("claim of %d: %+v", id, c)
		}
	}
}

// TestClaimsChangeNoMeaning: an ID that is, or was, that of other labels does not become a
// claimant's.
func TestClaimsChangeNoMeaning(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	idle, app := w.addPod(b, "idle", "idle", "n")
	o := w.addID(b, 310, app)
	b.dropPod(key{Namespace: "a", Name: idle.Name}) // scaled down: the ID waits to be collected
	p, web := w.addPod(b, "one", "web", "n")
	refused := func(what string, id identity.ID, want refusal) {
		t.Helper()
		w.claims(b, p, id)
		if st := b.decideSet(web.text); st.action != create {
			t.Errorf("%s: %+v", what, st)
		}
		if why := b.refusal(b.sets[web.text], id); why != want {
			t.Errorf("%s: %q", what, why)
		}
	}
	refused("of other labels that no pod has", 310, otherLabels)
	w.update(b, o, func(o *v2.CiliumIdentity) { k8sids.Quarantine(o, app.text, time.Unix(0, 0)) })
	refused("in quarantine after other labels", 310, otherLabels)

	q, db := w.addPod(b, "two", "db", "m")
	w.claims(b, q, 330)
	refused("that endpoints of other labels claim", 330, contested)
	if st := b.decideSet(db.text); st.action != create {
		t.Errorf("the other claim of the same ID: %+v", st)
	}
	b.dropEndpoint(key{Namespace: "a", Name: "two"})
	if st := b.decideSet(web.text); st.action != restore || st.id != 330 {
		t.Errorf("the only claim: %+v", st)
	}
}

// TestClaimsOfNodes: of several IDs the one comes back that most nodes name; one node is one
// claim, has none before the pod is its own, and restores no more than so many.
func TestClaimsOfNodes(t *testing.T) {
	t.Parallel()
	w, b := play(t, -1)
	var web target
	for i := range 3 {
		p, _ := w.addPod(b, fmt.Sprint("evil", i), "web", "evil")
		w.claims(b, p, 301)
	}
	for i := range 2 {
		var p *corev1.Pod
		p, web = w.addPod(b, fmt.Sprint("good", i), "web", fmt.Sprint("good", i))
		w.claims(b, p, 302)
	}
	if st := b.decideSet(web.text); st.action != restore || st.id != 302 {
		t.Errorf("two nodes against one: %+v", st)
	}
	p, none := w.addPod(b, "pending", "pending", "")
	w.claims(b, p, 303)
	if st := b.decideSet(none.text); st.action != create {
		t.Errorf("a pod of no node: %+v", st)
	}
	q, db := w.addPod(b, "db", "db", "evil")
	w.claims(b, q, 304)
	for range maxSpent {
		if st := b.decideSet(db.text); st.action != restore {
			t.Fatalf("within the bound: %+v", st)
		}
		b.noteRestored(db.text, 304)
	}
	if st := b.decideSet(db.text); st.action != create {
		t.Errorf("beyond the bound: %+v", st)
	}
	if st := b.decideSet(web.text); st.action != restore {
		t.Errorf("other nodes: %+v", st)
	}
	b.all()
	if st := b.decideSet(db.text); st.action != restore {
		t.Errorf("after a look at everything: %+v", st)
	}
}

// TestDisputes: corrections of one endpoint that follow each other wait longer and longer.
func TestDisputes(t *testing.T) {
	t.Parallel()
	d, k, now := disputes{of: map[key]dispute{}}, key{Name: "one"}, time.Unix(1000, 0)
	began, corrections := now, 0
	for now.Sub(began) < time.Hour {
		if wait := d.pause(k, now, time.Minute); wait > 0 {
			now = now.Add(wait)
			continue
		}
		corrections++
		d.note(k, now, time.Minute)
	}
	if corrections < 60 || corrections > 60+freeCorrections+12 {
		t.Errorf("%d corrections in an hour", corrections)
	}
	if wait := d.pause(key{Name: "other"}, now, time.Minute); wait != 0 {
		t.Errorf("another endpoint waits %s", wait)
	}
	d.tidy(now.Add(3*time.Minute), time.Minute)
	if len(d.of) != 0 {
		t.Error("nothing is forgotten")
	}
}

// agentClient returns a client with the rights of an agent where the operator makes identities, and
// checks that it can make none.
func (tc *testCluster) agentClient() client.Client {
	tc.Helper()
	auth := tc.Server.AuthInfo(kubeapi.Agent)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: kubeapi.Agent}}
	tc.edit(role, func(client.Object) {
		role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Equal(r.Resources, []string{"ciliumidentities"}) && slices.Contains(r.Verbs, "create")
		})
	})
	cfg := rest.CopyConfig(tc.Server.Config)
	kube.Apart(cfg)
	cfg.QPS, cfg.Burst = 2000, 2000
	cfg.Impersonate = rest.ImpersonationConfig{UserName: auth.Impersonate, Groups: auth.ImpersonateGroups}
	scheme, err := kube.Scheme()
	tc.inspect(err)
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	tc.inspect(err)
	tc.until(func() string {
		err := c.Create(tc.ctx, &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "9999"}, SecurityLabels: map[string]string{"k8s:a": "b"}}, client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			return fmt.Sprintf("an agent may make identities: %v", err)
		}
		return ""
	})
	return c
}

// corrections counts what an operator writes into endpoints.
type corrections struct{ n atomic.Int64 }

func (c *corrections) connection() connection {
	return connection{api: func(cfg *rest.Config) {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return wrapped(next, func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/ciliumendpoints/") {
					c.n.Add(1)
				}
				return next.RoundTrip(r)
			})
		})
	}}
}

// TestHostileAgent plays an agent that may write CiliumEndpoints and no CiliumIdentity, and claims
// what it likes: no identity is made that pods do not need, no ID changes what it means, no
// other node's pods lose theirs, and it costs the operator no more than a write now and then.
func TestHostileAgent(t *testing.T) {
	inEachStore(t, playHostileAgent)
}

func playHostileAgent(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, in)
	evil := tc.agentClient()
	onEvil := func(p *corev1.Pod) { p.Spec.NodeName = "evil" }
	app := func(name string) map[string]string { return map[string]string{"app": name} }
	var wrote corrections
	tc.operator(wrote.connection())
	tc.namespace("a", nil)
	mine, theirs := tc.pod("a", "mine", app("web"), onEvil), tc.pod("a", "theirs", app("web"), onNode)
	e := tc.endpoint(mine)
	tc.endpoint(theirs)
	idle := tc.pod("a", "idle", app("idle"), onNode)
	_, want := tc.identityOf(idle, 0)
	idleText := strings.Join(slices.Sorted(slices.Values(want.Labels)), ",")
	web := tc.waitSynced().idOfPod(mine)
	idleID := tc.idOfLabels(idle)
	tc.remove([]*corev1.Pod{idle}) // its ID waits to be collected

	write := func(pod *corev1.Pod, f func(*v2.CiliumEndpoint)) {
		t.Helper()
		for {
			e := &v2.CiliumEndpoint{}
			tc.inspect(evil.Get(tc.ctx, client.ObjectKeyFromObject(pod), e))
			before := e.DeepCopy()
			f(e)
			err := evil.Patch(tc.ctx, e, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
			if err == nil {
				return
			}
			if !apierrors.IsConflict(err) {
				t.Fatal(err)
			}
		}
	}
	claim := func(pod *corev1.Pod, number identity.ID) {
		_, id := tc.identityOf(pod, number)
		write(pod, func(e *v2.CiliumEndpoint) { e.Status.Identity = id })
	}
	unmoved := func(what string) {
		t.Helper()
		s := tc.waitSynced()
		if s.idOfPod(mine) != web || s.idOfPod(theirs) != web {
			t.Errorf("%s: the pods of %s have %s and %s", what, web, s.idOfPod(mine), s.idOfPod(theirs))
		}
	}

	// One ID after the other, for labels that have one.
	began := time.Now()
	for id := identity.ID(20000); id < 20200; id++ {
		claim(mine, id)
	}
	unmoved("200 claims")
	if n, most := wrote.n.Load(), 30+4*int64(time.Since(began)/tc.control.MaxBackoff); n > most {
		t.Errorf("200 claims in %s: the operator wrote %d times, more than %d", time.Since(began), n, most)
	}
	if n := len(tc.state().objects); n != 2 {
		t.Errorf("%d identities, not 2", n)
	}
	if tc.refusals() == 0 {
		t.Error("no refused claim is counted")
	}

	// Labels and endpoints that no pod has.
	write(mine, func(e *v2.CiliumEndpoint) {
		e.Status.Identity = &v2.EndpointIdentity{ID: 21000, Labels: []string{"k8s:app=foreign"}}
	})
	for i := range 20 {
		ghost := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("ghost", i), UID: "u"}}
		g := e.DeepCopy()
		g.ObjectMeta = metav1.ObjectMeta{Namespace: "a", Name: ghost.Name}
		g.Status.Identity = &v2.EndpointIdentity{ID: int64(22000 + i), Labels: []string{fmt.Sprintf("k8s:app=ghost%d", i)}}
		tc.inspect(evil.Create(tc.ctx, g))
	}
	unmoved("foreign labels")

	// An ID of others, for a pod whose labels have none yet.
	fresh := tc.prepared("fresh", app("fresh"), onEvil, idleID, evil)
	// One ID, for many labels at once, while none of them has any.
	var many []*corev1.Pod
	for i := range 5 {
		many = append(many, tc.prepared(fmt.Sprint("many", i), app(fmt.Sprint("many", i)), onEvil, 23000, evil))
	}
	unmoved("others' IDs")
	s := tc.waitSynced()
	if s.idOfPod(fresh) == decimal(idleID) {
		t.Errorf("a pod has the number of labels that it does not have")
	}
	if o := s.objects[decimal(idleID)]; o == nil || strings.Join(slices.Sorted(slices.Values(labelsOf(o))), ",") != idleText {
		t.Errorf("ID %d meant %s and is %+v", idleID, idleText, o)
	}
	ids := map[string]bool{}
	for _, p := range many {
		ids[s.idOfPod(p)] = true
	}
	if len(ids) != len(many) {
		t.Errorf("%d sets of labels have %d IDs", len(many), len(ids))
	}
	if n := len(s.objects); n != 2+1+len(many) {
		t.Errorf("%d identities for %d sets of labels", n, 2+1+len(many))
	}
}

// prepared makes a pod whose endpoint is there first, and claims an ID for the labels that the
// pod will have.
func (tc *testCluster) prepared(name string, labels map[string]string, on func(*corev1.Pod), number identity.ID, as client.Client) *corev1.Pod {
	tc.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: labels}, Spec: corev1.PodSpec{ServiceAccountName: "default"}}
	_, id := tc.identityOf(p, number)
	e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}} // of no owner, which fits any
	e.Status.Networking = &v2.EndpointNetworking{Addressing: []*v2.AddressPair{{IPv4: "10.0.0.9"}}, NodeIP: "192.0.2.1"}
	e.Status.Identity = id
	if err := as.Create(tc.ctx, e); err != nil {
		tc.Fatal(err)
	}
	return tc.pod("a", name, labels, on)
}

// idOfLabels waits until a pod's labels have an ID, and returns it.
func (tc *testCluster) idOfLabels(p *corev1.Pod) (id identity.ID) {
	tc.Helper()
	var ns corev1.Namespace
	tc.inspect(tc.Client.Get(tc.ctx, client.ObjectKey{Name: p.Namespace}, &ns))
	t, err := tc.rules.target(p, ns.Labels)
	tc.inspect(err)
	tc.until(func() string {
		names := tc.state().live[t.text]
		if len(names) != 1 {
			return fmt.Sprintf("%s has the IDs %v", t.text, names)
		}
		id, _ = idOf(names[0], tc.rules.First, tc.rules.Last)
		return ""
	})
	return id
}

func labelsOf(o *v2.CiliumIdentity) (out []string) {
	for k, v := range o.SecurityLabels {
		out = append(out, k+"="+v)
	}
	return out
}

// refusals returns how many claims the operators refused.
func (tc *testCluster) refusals() (n float64) {
	tc.Helper()
	families, err := tc.metrics.Gather()
	tc.inspect(err)
	for _, f := range families {
		if f.GetName() == "cilium_operator_cid_controller_refused_claims_total" {
			for _, m := range f.Metric {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
