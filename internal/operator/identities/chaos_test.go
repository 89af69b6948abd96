package identities

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// quickGC makes collection and the quarantine of IDs as short as can be.
func quickGC(tc *testCluster) {
	tc.gc.Interval, tc.gc.Quarantine = 300*time.Millisecond, 400*time.Millisecond
}

// TestKilledAtEveryWrite kills an operator at its first write, at its second, and so on, once
// before the server has it and once after; another one takes over. "Simultaneous CID management
// compatibility", "CID deduplication", "Operator changes 3" and "Operator changes 4" of CFP-27752:
// nothing is made twice, nothing in use is lost.
func TestKilledAtEveryWrite(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("after ", after), func(t *testing.T) {
			inEachStore(t, func(t *testing.T, env *controllers.Env, in func(*testCluster)) {
				playKilledAtEveryWrite(t, env, in, after)
			})
		})
	}
}

func playKilledAtEveryWrite(t *testing.T, env *controllers.Env, in func(*testCluster), after bool) {
	for n := 1; ; n++ {
		survived := false
		t.Run(fmt.Sprint("write ", n), func(t *testing.T) {
			tc := newTestCluster(t, env, quickGC, in)
			tc.namespace("a", map[string]string{"team": "x"})
			for i := range 3 {
				tc.endpoint(tc.pod("a", fmt.Sprint("p", i), map[string]string{"app": fmt.Sprint(i % 2)}, onNode))
			}
			dead := tc.plant(9000, map[string]string{"k8s:app": "dead"}) // collected, and its ID freed
			edited := tc.pod("a", "edited", map[string]string{"app": "edited"}, onNode)
			set, id := tc.identityOf(edited, 9001)
			set["k8s:app"] = "changed"
			tc.plant(9001, set)
			tc.tamper("9001")
			tc.endpoint(edited, id)
			lost := tc.pod("a", "lost", map[string]string{"app": "lost"}, onNode)
			_, id = tc.identityOf(lost, 9002)
			tc.endpoint(lost, id)

			k := newKiller(n, after)
			stop := tc.operator(k.connection())
			done := func() string {
				s := tc.state()
				if s.objects[dead.Name] != nil {
					return "a dead identity is still there"
				}
				return tc.wrong(s)
			}
			for killed := false; !killed && !survived; {
				began := time.Now()
				select {
				case <-k.dead:
					killed = true
				default:
					if survived = done() == ""; !survived {
						time.Sleep(testenv.Breath(began))
					}
				}
			}
			stop()
			tc.operator()
			tc.until(done)
			s := tc.waitSynced()
			// What endpoints say brings back an ID that has no owner, and takes none from the
			// labels that it has now.
			if s.idOfPod(edited) == "9001" || s.idOfPod(lost) != "9002" {
				t.Errorf("pods whose identity was edited, and lost, have %s and %s", s.idOfPod(edited), s.idOfPod(lost))
			}
		})
		if t.Failed() || survived {
			t.Logf("%d writes, after %t", n, after)
			break
		}
	}
}

// somewhere is a pod's place in churn.
func somewhere(r *rand.Rand) (namespace, name string) {
	return fmt.Sprint("ns", r.IntN(2)), fmt.Sprint("p", r.IntN(12))
}

// churn has pods come, go and change for a while, as users do, and agents follow.
func (tc *testCluster) churn(r *rand.Rand, steps int) {
	tc.Helper()
	tolerate := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
			tc.Fatal(err)
		}
	}
	for range steps {
		ns, name := somewhere(r)
		meta := metav1.ObjectMeta{Namespace: ns, Name: name}
		switch r.IntN(8) {
		case 0, 1, 2:
			p := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
			p.Labels = map[string]string{"app": fmt.Sprint(r.IntN(5))}
			if err := tc.Client.Create(tc.ctx, p); err != nil {
				tolerate(err)
				break
			}
			e := &v2.CiliumEndpoint{ObjectMeta: *meta.DeepCopy()}
			e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID}}
			e.Status.Networking = &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}}
			if r.IntN(4) == 0 { // of a name that was used before: the agent replaces what is there
				tolerate(tc.Client.Delete(tc.ctx, &v2.CiliumEndpoint{ObjectMeta: meta}))
			}
			tolerate(tc.Client.Create(tc.ctx, e))
		case 3, 4:
			tolerate(tc.Client.Delete(tc.ctx, &corev1.Pod{ObjectMeta: meta}, client.GracePeriodSeconds(0)))
			if r.IntN(4) > 0 { // else its endpoint stays behind
				tolerate(tc.Client.Delete(tc.ctx, &v2.CiliumEndpoint{ObjectMeta: meta}))
			}
		case 5, 6:
			patch := fmt.Sprintf(`{"metadata":{"labels":{"app":"%d"}}}`, r.IntN(5))
			tolerate(tc.Client.Patch(tc.ctx, &corev1.Pod{ObjectMeta: meta}, client.RawPatch("application/merge-patch+json", []byte(patch))))
		case 7:
			tc.namespace(ns, map[string]string{"team": fmt.Sprint(r.IntN(2))})
		}
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	}
}

// concurrentWriters has a cluster whose operators all write, though there should be one.
func concurrentWriters(tc *testCluster) { tc.concurrentWriters = true }

// TestBadWeather has two operators lead at once, both collecting, while requests fail in every way,
// answers are lost, watches break or stand still, and pods come and go. When the weather clears,
// everything is as it should be, and what one collected while the other named it has come back.
// "CID deduplication", "Operator changes 1", "Operator changes 2", "Operator changes 3" and
// "Operator changes 5" of CFP-27752.
func TestBadWeather(t *testing.T) {
	t.Parallel()
	for seed, stuck := range []string{"", "ciliumidentities", "pods", "ciliumendpoints", "namespaces"} {
		t.Run(fmt.Sprintf("%d %s", seed, stuck), func(t *testing.T) {
			inEachStore(t, func(t *testing.T, env *controllers.Env, in func(*testCluster)) {
				playBadWeather(t, env, in, uint64(seed), stuck)
			})
		})
	}
}

func playBadWeather(t *testing.T, env *controllers.Env, in func(*testCluster), seed uint64, stuck string) {
	tc := newTestCluster(t, env, quickGC, in, concurrentWriters)
	r := rand.New(rand.NewPCG(seed, 3))
	tc.namespace("ns0", nil)
	tc.namespace("ns1", nil)
	one, two := newWeather(seed), newWeather(seed+100)
	tc.operator(one.connection())
	tc.operator(two.connection())
	steps := 15
	switch {
	case os.Getenv("HAWSER_LONG") != "":
		steps = 60
	case os.Getenv("CI") == "true":
		steps = 30
	}
	tc.churn(r, steps)
	one.start(stuck) // the other one goes on with what it sees
	tc.churn(r, 2*steps)
	two.start("")
	tc.churn(r, 2*steps)
	one.stop()
	two.stop()
	tc.waitSynced()
}

// TestLateCollection has a leader stand still after the last look before it collects an identity,
// so long that another one leads and names the identity: it ends, and comes back at once with its
// ID. Nothing else can be done about a request that is already sent.
func TestLateCollection(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, servers.Take(t), quickGC, concurrentWriters)
	tc.namespace("a", nil)
	p := tc.pod("a", "one", map[string]string{"app": "web"}, onNode)
	set, _ := tc.identityOf(p, 9000)
	tc.remove([]*corev1.Pod{p})
	tc.plant(9000, set)

	f := newFreezer("/ciliumidentities/9000")
	stop := tc.operator(connection{api: f.wrap})
	<-f.frozen
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()

	tc.gc.Interval = 0 // it is about the one that is late
	tc.operator()
	p = tc.pod("a", "one", map[string]string{"app": "web"}, onNode)
	e := tc.endpoint(p)
	if number := tc.waitSynced().idOfPod(p); number != "9000" {
		t.Fatalf("the pod has %s", number)
	}
	f.thaw()
	<-stopped
	began := time.Now()
	tc.until(func() string {
		tc.mu.Lock()
		defer tc.mu.Unlock()
		if len(tc.early) == 0 {
			return "the late request had no effect"
		}
		return ""
	})
	s := tc.waitSynced()
	t.Logf("it was back within %s", time.Since(began).Round(time.Millisecond))
	if number := s.idOfPod(p); number != "9000" || len(s.live) != 1 {
		t.Errorf("the pod has %s of %v", number, s.live)
	}
	var after v2.CiliumEndpoint
	if err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(e), &after); err != nil || after.UID != e.UID {
		t.Errorf("the endpoint is another one: %v", err)
	}
}

// TestServerRestarts has the API server be away for a while in which pods change.
func TestServerRestarts(t *testing.T) {
	inEachStore(t, playServerRestarts)
}

func playServerRestarts(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, quickGC, in)
	tc.namespace("a", nil)
	tc.operator()
	p := tc.pod("a", "one", map[string]string{"app": "web"}, onNode)
	tc.endpoint(p)
	number := tc.waitSynced().idOfPod(p)
	env.Server.Stop()
	time.Sleep(time.Second)
	env.Server.Start()
	q := tc.pod("a", "two", map[string]string{"app": "db"}, onNode)
	tc.endpoint(q)
	tc.namespace("a", map[string]string{"team": "x"})
	if now := tc.waitSynced().idOfPod(p); now == number {
		t.Errorf("the namespace has other labels, and the pod still has %s", now)
	}
}

// TestDuplicates plants duplicates: "CID deduplication" of CFP-27752. They are tolerated as long as
// they are used, and then go; their IDs are free after the quarantine, though pods have the labels.
func TestDuplicates(t *testing.T) {
	inEachStore(t, playDuplicates)
}

func playDuplicates(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, quickGC, in)
	tc.namespace("a", nil)
	p := tc.pod("a", "one", map[string]string{"app": "web"}, onNode)
	q := tc.pod("a", "two", map[string]string{"app": "web"}, onNode)
	set, used := tc.identityOf(p, 9001)
	tc.plant(9000, set)
	time.Sleep(1100 * time.Millisecond) // times of creation have seconds
	tc.plant(9001, set)
	tc.plant(9002, set)
	tc.operator()
	e := tc.endpoint(p, used)
	tc.endpoint(q)
	tc.until(func() string {
		s := tc.state()
		if s.idOfPod(p) != "9001" || s.idOfPod(q) != "9000" {
			return fmt.Sprintf("pods have %s and %s", s.idOfPod(p), s.idOfPod(q))
		}
		if got := s.live[textOfSet(set)]; len(got) != 2 {
			return fmt.Sprintf("there are %v", got)
		}
		return ""
	})
	// Its agent moves to the oldest.
	tc.edit(e, func(o client.Object) { o.(*v2.CiliumEndpoint).Status.Identity.ID = 9000 })
	tc.until(func() string {
		s := tc.state()
		if got := s.live[textOfSet(set)]; len(got) != 1 || got[0] != "9000" {
			return fmt.Sprintf("there are %v", got)
		}
		for _, name := range []string{"9001", "9002"} {
			if o := s.objects[name]; o != nil {
				return fmt.Sprintf("ID %s is not free: %v", name, o.Annotations)
			}
		}
		return ""
	})
}

func textOfSet(set map[string]string) string { return textOf(&v2.CiliumIdentity{SecurityLabels: set}) }

// TestNamespaceGoes deletes a namespace while its pods still end, and makes pods of the same labels
// elsewhere.
func TestNamespaceGoes(t *testing.T) {
	inEachStore(t, playNamespaceGoes)
}

func playNamespaceGoes(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, quickGC, in)
	tc.operator()
	tc.namespace("going", nil)
	var pods []*corev1.Pod
	for i := range 4 {
		pods = append(pods, tc.pod("going", fmt.Sprint("p", i), map[string]string{"app": fmt.Sprint(i % 2)}, onNode))
	}
	for _, p := range pods[:2] {
		tc.endpoint(p)
	}
	tc.waitSynced()
	going := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}}
	if err := tc.Client.Delete(tc.ctx, going); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // nothing else here ends it
		ctx := context.Background()
		tc.inspect(tc.Client.Get(ctx, client.ObjectKeyFromObject(going), going))
		going.Spec.Finalizers = nil
		tc.inspect(tc.Client.SubResource("finalize").Update(ctx, going))
	})
	tc.waitSynced() // pods that still run have what they had
	tc.remove(pods)
	tc.until(func() string {
		for _, o := range tc.state().objects {
			return "identity " + o.Name + " is still there: " + textOf(o)
		}
		return ""
	})
}

// remove deletes pods and their endpoints.
func (tc *testCluster) remove(pods []*corev1.Pod) {
	tc.Helper()
	for _, p := range pods {
		if err := tc.Client.Delete(tc.ctx, p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			tc.Fatal(err)
		}
		e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
		if err := tc.Client.Delete(tc.ctx, e); client.IgnoreNotFound(err) != nil {
			tc.Fatal(err)
		}
	}
}

// TestCollectionWithoutHeartbeat is "Operator changes 3" of CFP-27752: the collection without a
// heartbeat, where the operator makes identities.
func TestCollectionWithoutHeartbeat(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
	tc := newTestCluster(t, env, func(tc *testCluster) {
		tc.gc.Interval, tc.gc.Quarantine = 400*time.Millisecond, time.Hour
	})
	tc.operator()
	tc.namespace("a", nil)
	waiting := tc.pod("a", "waiting", map[string]string{"app": "waiting"}) // has no node, and keeps its identity
	p := tc.pod("a", "one", map[string]string{"app": "web"}, onNode)
	tc.endpoint(p)
	s := tc.waitSynced()
	number := s.idOfPod(p)
	tc.remove([]*corev1.Pod{p})
	tc.until(func() string {
		o := tc.state().objects[number]
		if o == nil {
			return "the ID is not in quarantine: its object is gone"
		}
		if was, since, quarantined := k8sids.Quarantined(o); !quarantined || !strings.Contains(was, "k8s:app=web;") || time.Since(since) > time.Minute {
			return fmt.Sprintf("identity %s: %v, %v", number, o.Annotations, o.SecurityLabels)
		}
		return ""
	})
	// The labels come back and get their ID; no others do.
	q := tc.pod("a", "again", map[string]string{"app": "web"}, onNode)
	tc.endpoint(q)
	if now := tc.waitSynced().idOfPod(q); now != number {
		t.Errorf("labels that came back have %s, not %s", now, number)
	}
	// So do labels for which another one is tried before.
	set, _ := tc.identityOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Labels: appLabels("late")}, Spec: corev1.PodSpec{ServiceAccountName: "default"}}, 0)
	tc.plant(9003, set, func(o *v2.CiliumIdentity) { k8sids.Quarantine(o, textOf(o), time.Now()) })
	tc.eventually("the operator knows that it is in quarantine", func() bool { return tc.gauge("quarantined_identities") == 1 })
	late := tc.pod("a", "late", appLabels("late"), onNode)
	tc.endpoint(late)
	if now := tc.waitSynced().idOfPod(late); now != "9003" {
		t.Errorf("labels that came back have %s, not 9003", now)
	}
	set, _ = tc.identityOf(waiting, 0)
	if len(tc.state().live[textOfSet(set)]) != 1 {
		t.Error("the identity of a pod without a node was collected")
	}
	for _, o := range tc.state().objects {
		if o.Annotations[HeartbeatAnnotation] != "" {
			t.Errorf("identity %s has a mark", o.Name)
		}
	}
}
