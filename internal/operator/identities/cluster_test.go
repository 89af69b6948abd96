package identities

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

type clientObject = client.Object

// waitTimeout is how long a machine under load may take.
const waitTimeout = 90 * time.Second

// testCluster is a cluster in which tests play the kubelet, the agents and people with kubectl, and
// operators run.
type testCluster struct {
	*testing.T
	*controllers.Env
	rules   *Rules
	control Control
	gc      Config
	ctx     context.Context

	// etcd keeps the IDs, if it is not nil; keys is the test's own connection to it.
	etcd      *kvstoretest.Etcd
	keys      kvstore.Backend
	operators *atomic.Int64
	metrics   *prometheus.Registry // of the operator that was started last
	tune      func(*Controller)    // if not nil, changes what is started

	mu       sync.Mutex
	tampered map[string]bool // IDs that the test itself changed or deleted
	seen     []sighting
	planted  map[string]bool // IDs that the test made
	emptying bool
	// concurrentWriters means that several operators write at once, which an election's fence
	// keeps from happening. Then one may collect an identity that another one names at that moment:
	// it must come back. early are these.
	concurrentWriters bool
	early             []ending
	watching          sync.WaitGroup
}

// sighting is an event of an identity.
type sighting struct {
	kind watch.EventType
	name string
	uid  types.UID
	text string
}

// ending is that an identity ended though an endpoint named it.
type ending struct {
	sighting
	at int // how many events there had been
}

// newTestCluster gives a test an empty cluster: what others left on the server is deleted first.
func newTestCluster(t *testing.T, env *controllers.Env, change ...func(*testCluster)) *testCluster {
	t.Helper()
	tc := &testCluster{T: t, Env: env, rules: testRules(t, 256, 65535), control: ControlDefaults(), operators: &atomic.Int64{}, tampered: map[string]bool{}, planted: map[string]bool{}}
	tc.control.MaxBackoff = 500 * time.Millisecond
	// Collection never gets in the way of a test that does not ask for it.
	tc.gc = Config{Interval: 0, Quarantine: time.Hour, Limiter: rate.NewLimiter(rate.Inf, 1)}
	for _, f := range change {
		f(tc)
	}
	tc.gc.First, tc.gc.Last = uint32(tc.rules.First), uint32(tc.rules.Last)
	var cancel context.CancelFunc
	tc.ctx, cancel = context.WithCancel(context.Background())
	tc.empty()
	if tc.keys != nil {
		tc.follow()
	} else {
		tc.record()
	}
	t.Cleanup(func() {
		tc.mu.Lock()
		tc.emptying = true
		tc.mu.Unlock()
		tc.empty()
		cancel()
		tc.watching.Wait()
	})
	return tc
}

// empty deletes all pods, endpoints and identities, and the labels of namespaces.
func (tc *testCluster) empty() {
	tc.Helper()
	var pods corev1.PodList
	var eps v2.CiliumEndpointList
	var ids v2.CiliumIdentityList
	for _, list := range []client.ObjectList{&pods, &eps, &ids} {
		if err := tc.Client.List(tc.ctx, list); err != nil {
			tc.Fatal(err)
		}
	}
	var all []client.Object
	for i := range pods.Items {
		all = append(all, &pods.Items[i])
	}
	for i := range eps.Items {
		all = append(all, &eps.Items[i])
	}
	for i := range ids.Items {
		all = append(all, &ids.Items[i])
	}
	for _, o := range all {
		if err := tc.Client.Delete(tc.ctx, o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			tc.Fatal(err)
		}
	}
}

// record follows all identities, for the invariants that are about what happened.
func (tc *testCluster) record() {
	tc.Helper()
	scheme, err := kube.Scheme()
	if err != nil {
		tc.Fatal(err)
	}
	cfg := rest.CopyConfig(tc.Server.Config)
	kube.Apart(cfg)
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		tc.Fatal(err)
	}
	var ids v2.CiliumIdentityList
	if err := c.List(tc.ctx, &ids); err != nil {
		tc.Fatal(err)
	}
	w, err := c.Watch(tc.ctx, &v2.CiliumIdentityList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: ids.ResourceVersion}})
	if err != nil {
		tc.Fatal(err)
	}
	tc.watching.Go(func() {
		defer w.Stop()
		for {
			select {
			case <-tc.ctx.Done():
				return
			case ev, ok := <-w.ResultChan():
				if !ok {
					return // the server was restarted: what happens later is not recorded
				}
				if o, ok := ev.Object.(*v2.CiliumIdentity); ok {
					if ev.Type == watch.Deleted || textOf(o) == "" {
						tc.checkUnused(o)
					}
					tc.mu.Lock()
					tc.seen = append(tc.seen, sighting{ev.Type, o.Name, o.UID, textOf(o)})
					tc.mu.Unlock()
				}
			}
		}
	})
}

// checkUnused reports whether an identity ended while an endpoint named it that was not written
// since.
func (tc *testCluster) checkUnused(o *v2.CiliumIdentity) {
	var eps v2.CiliumEndpointList
	if err := tc.Client.List(tc.ctx, &eps); err != nil {
		return // the test ends, or the server is away
	}
	tc.mu.Lock()
	defer tc.mu.Unlock()
	for _, e := range eps.Items {
		id := e.Status.Identity
		if id == nil || fmt.Sprint(id.ID) != o.Name || version(e.ResourceVersion) > version(o.ResourceVersion) || tc.tampered[o.Name] || tc.emptying {
			continue
		}
		if !tc.concurrentWriters {
			tc.Errorf("identity %s ended while endpoint %s/%s named it", o.Name, e.Namespace, e.Name)
			continue
		}
		was, _, quarantined := k8sids.Quarantined(o)
		if !quarantined {
			was = textOf(o)
		}
		tc.Logf("identity %s ended while endpoint %s/%s named it", o.Name, e.Namespace, e.Name)
		tc.early = append(tc.early, ending{sighting{name: o.Name, text: was}, len(tc.seen)})
	}
}

// lost reports which identity ended too early, is named still, and has not come back; "" for none.
func (tc *testCluster) lost(s state) string {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	named := map[string]bool{}
	for _, e := range s.endpoints {
		if id := e.Status.Identity; id != nil {
			named[fmt.Sprint(id.ID)] = true
		}
	}
	for _, end := range tc.early {
		back := slices.ContainsFunc(tc.seen[end.at:], func(ev sighting) bool { return ev.name == end.name && ev.text == end.text })
		if named[end.name] && !back {
			return fmt.Sprintf("identity %s ended in use and has not come back: %s", end.name, end.text)
		}
	}
	return ""
}

// connection is how an operator reaches the API server and the store.
type connection struct {
	api   func(*rest.Config)
	store func(kvstore.Backend) kvstore.Backend
}

// operator starts an operator. change may break its connections.
func (tc *testCluster) operator(change ...connection) (stop func()) {
	tc.Helper()
	cfg := rest.CopyConfig(tc.Server.Config)
	cfg.QPS, cfg.Burst = 2000, 2000
	var store kvstore.Backend
	if tc.keys != nil {
		store = tc.open()
	}
	for _, f := range change {
		if f.api != nil {
			f.api(cfg)
		}
		if f.store != nil && store != nil {
			store = f.store(store)
		}
	}
	return controllers.Run(tc.T, cfg, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		setup := func(keys *Keys) (*Controller, error) {
			tc.metrics = prometheus.NewRegistry()
			return Setup(m, tc.control, tc.rules, keys, tc.metrics, log)
		}
		if store != nil {
			return tc.keySetup(m, setup, store)
		}
		c, err := setup(nil)
		if err != nil {
			return err
		}
		if tc.tune != nil {
			tc.tune(c)
		}
		gc := tc.gc
		gc.Pods = c
		return SetupGC(m, gc, func(Stats, time.Duration, error) {}, log)
	})
}

// namespace makes a namespace, or gives one that exists these labels.
func (tc *testCluster) namespace(name string, labels map[string]string) {
	tc.Helper()
	err := tc.Client.Create(tc.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	if err == nil {
		return
	}
	if !apierrors.IsAlreadyExists(err) {
		tc.Fatal(err)
	}
	tc.edit(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, func(o client.Object) {
		o.SetLabels(maps.Clone(labels))
	})
}

// edit reads an object, changes it and writes it, until there is no conflict.
func (tc *testCluster) edit(o client.Object, f func(client.Object)) {
	tc.Helper()
	for {
		err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(o), o)
		if err == nil {
			f(o)
			err = tc.Client.Update(tc.ctx, o)
		}
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			tc.Fatal(err)
		}
	}
}

// pod makes a pod that no node has yet.
func (tc *testCluster) pod(namespace, name string, labels map[string]string, change ...func(*corev1.Pod)) *corev1.Pod {
	tc.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	p.Spec = corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	for _, f := range change {
		f(p)
	}
	if err := tc.Client.Create(tc.ctx, p); err != nil {
		tc.Fatal(err)
	}
	return p
}

// onNode has a pod be one of a node.
func onNode(p *corev1.Pod) { p.Spec.NodeName = "node" }

// endpoint plays the agent: a pod has its endpoint, without an identity, or with one.
func (tc *testCluster) endpoint(p *corev1.Pod, id ...*v2.EndpointIdentity) *v2.CiliumEndpoint {
	tc.Helper()
	e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}}}}
	e.Status.Networking = &v2.EndpointNetworking{Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}, NodeIP: "192.0.2.1"}
	e.Status.State = v2.EndpointReady
	if len(id) > 0 {
		e.Status.Identity = id[0]
	}
	if err := tc.Client.Create(tc.ctx, e); err != nil {
		tc.Fatal(err)
	}
	return e
}

// plant makes an identity, as another client.
func (tc *testCluster) plant(number identity.ID, set map[string]string, change ...func(*v2.CiliumIdentity)) *v2.CiliumIdentity {
	tc.Helper()
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: decimal(number)}, SecurityLabels: set}
	k8sids.Seal(o)
	for _, f := range change {
		f(o)
	}
	if tc.keys != nil {
		tc.inspect(kvstore.Put(tc.ctx, tc.keys, masters+o.Name, []byte(textOf(o)), kvstore.Permanent))
	} else {
		tc.inspect(tc.Client.Create(tc.ctx, o))
	}
	tc.mu.Lock()
	tc.planted[o.Name] = true
	tc.mu.Unlock()
	return o
}

// identityOf returns the labels of a pod's identity as an object has them, and as an endpoint has
// them with an ID.
func (tc *testCluster) identityOf(p *corev1.Pod, number identity.ID) (map[string]string, *v2.EndpointIdentity) {
	tc.Helper()
	var ns corev1.Namespace
	if err := tc.Client.Get(tc.ctx, client.ObjectKey{Name: p.Namespace}, &ns); err != nil {
		tc.Fatal(err)
	}
	t, err := tc.rules.target(p, ns.Labels)
	if err != nil {
		tc.Fatal(err)
	}
	return k8sids.SecurityLabels(t.labels), &v2.EndpointIdentity{ID: int64(number), Labels: t.labels.Strings()}
}

// tamper remembers that the test itself touched an ID.
func (tc *testCluster) tamper(name string) {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	tc.tampered[name] = true
}

// state is everything that invariants are about, as the server has it.
type state struct {
	pods      map[key]*corev1.Pod
	targets   map[key]target
	endpoints []v2.CiliumEndpoint
	live      map[string][]string // IDs by labels
	objects   map[string]*v2.CiliumIdentity
}

func (tc *testCluster) state() state {
	tc.Helper()
	s, err := tc.look()
	tc.inspect(err)
	return s
}

func (tc *testCluster) look() (state, error) {
	var namespaces corev1.NamespaceList
	var pods corev1.PodList
	var eps v2.CiliumEndpointList
	for _, list := range []client.ObjectList{&namespaces, &pods, &eps} {
		if err := tc.Client.List(tc.ctx, list); err != nil {
			return state{}, err
		}
	}
	ids, err := tc.ids()
	if err != nil {
		return state{}, err
	}
	s := state{pods: map[key]*corev1.Pod{}, targets: map[key]target{}, endpoints: eps.Items, live: map[string][]string{}, objects: map[string]*v2.CiliumIdentity{}}
	labels := map[string]map[string]string{}
	for _, ns := range namespaces.Items {
		labels[ns.Name] = ns.Labels
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		k := client.ObjectKeyFromObject(p)
		s.pods[k] = p
		if !k8s.Networked(p) {
			continue
		}
		if t, err := tc.rules.target(p, labels[p.Namespace]); err == nil {
			s.targets[k] = t
		}
	}
	for i := range ids {
		o := &ids[i]
		s.objects[o.Name] = o
		if _, _, quarantined := k8sids.Quarantined(o); !quarantined {
			s.live[textOf(o)] = append(s.live[textOf(o)], o.Name)
		}
	}
	return s, nil
}

// wrong reports what is not as it should be once everything is done.
func (tc *testCluster) wrong(s state) string {
	// One identity for each set of labels, besides what the test planted.
	for k, t := range s.targets {
		ours := slices.DeleteFunc(slices.Clone(s.live[t.text]), func(name string) bool { return tc.planted[name] })
		switch {
		case t.fixedID != 0 && len(s.live[t.text]) > 0:
			return fmt.Sprintf("%s has an object %v, and the ID %d by rule", t.text, s.live[t.text], t.fixedID)
		case t.fixedID == 0 && len(s.live[t.text]) == 0:
			return fmt.Sprintf("pod %s has no identity: %s", k, t.text)
		case len(ours) > 1 || len(ours) == 1 && len(s.live[t.text]) > 1:
			return fmt.Sprintf("%s has the identities %v, of which the operator made %v", t.text, s.live[t.text], ours)
		}
	}
	// Every endpoint of a pod names it.
	for _, e := range s.endpoints {
		k := client.ObjectKeyFromObject(&e)
		t, ok := s.targets[k]
		if !ok || !owned(&e, s.pods[k]) {
			continue
		}
		if e.Status.Identity == nil {
			return fmt.Sprintf("endpoint %s has no identity", k)
		}
		name := fmt.Sprint(e.Status.Identity.ID)
		if t.fixedID != 0 && name != decimal(t.fixedID) || t.fixedID == 0 && !slices.Contains(s.live[t.text], name) {
			return fmt.Sprintf("endpoint %s names %s; %s has %v", k, name, t.text, s.live[t.text])
		}
		if e.Status.Networking == nil || e.Status.Networking.NodeIP != "192.0.2.1" {
			return fmt.Sprintf("endpoint %s lost what its agent wrote: %+v", k, e.Status)
		}
	}
	return ""
}

// always checks what must hold at any time.
func (tc *testCluster) always(s state) {
	tc.Helper()
	tc.mu.Lock()
	defer tc.mu.Unlock()
	for name := range s.objects {
		if _, ok := idOf(name, tc.rules.First, tc.rules.Last); !ok && !tc.planted[name] {
			tc.Errorf("identity %s is outside of %d to %d", name, tc.rules.First, tc.rules.Last)
		}
	}
	// An ID means one set of labels as long as its object exists; after its quarantine it may mean
	// another, if no other was free.
	last := map[types.UID]string{}
	for _, ev := range tc.seen {
		if tc.tampered[ev.name] || tc.planted[ev.name] {
			continue
		}
		if was := last[ev.uid]; was != "" && ev.text != "" && was != ev.text {
			tc.Errorf("identity %s was %s and became %s", ev.name, was, ev.text)
		}
		last[ev.uid] = ev.text
	}
}

// until asks until f returns "". It leaves the machine to others in between.
func (tc *testCluster) until(f func() string) {
	tc.Helper()
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(100 * time.Millisecond) {
		problem := f()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			tc.Fatalf("after %s: %s", waitTimeout, problem)
		}
	}
}

// eventually asks until ok.
func (tc *testCluster) eventually(what string, ok func() bool) {
	tc.Helper()
	tc.until(func() string {
		if ok() {
			return ""
		}
		return what + ": not yet"
	})
}

// waitSynced waits until everything is as it should be, and checks all invariants.
func (tc *testCluster) waitSynced() state {
	tc.Helper()
	var s state
	tc.until(func() string {
		s = tc.state()
		if problem := tc.wrong(s); problem != "" {
			return problem
		}
		return tc.lost(s)
	})
	tc.always(s)
	return s
}

// gauge returns a gauge of the operator that was started last, by the end of its name.
func (tc *testCluster) gauge(name string) float64 {
	tc.Helper()
	families, err := tc.metrics.Gather()
	if err != nil {
		tc.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "cilium_operator_cid_controller_"+name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	tc.Fatalf("there is no metric %s", name)
	return 0
}

// idOfPod returns the ID that a pod's endpoint names, "" for none.
func (s state) idOfPod(p *corev1.Pod) string {
	for _, e := range s.endpoints {
		if e.Namespace == p.Namespace && e.Name == p.Name && e.Status.Identity != nil {
			return fmt.Sprint(e.Status.Identity.ID)
		}
	}
	return ""
}
