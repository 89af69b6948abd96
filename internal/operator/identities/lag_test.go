package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// lagging is an operator whose watches a test can silence, with a slow collection.
type lagging struct {
	*testCluster
	*kubeapi.Muffler
	deleted atomic.Int64
	behind  atomic.Int64 // looks that were refused because the caches are behind
	refused atomic.Int64 // because agents make other labels count
	last    atomic.Pointer[error]
}

func newLagging(t *testing.T, env *controllers.Env, agents bool, limit rate.Limit) *lagging {
	l := &lagging{testCluster: newTestCluster(t, env), Muffler: &kubeapi.Muffler{Kinds: []string{"pods", "ciliumendpoints"}}}
	l.gc.Interval, l.gc.Agents, l.gc.Timeout, l.gc.Limiter = 200*time.Millisecond, agents, time.Millisecond, rate.NewLimiter(limit, 1)
	cfg := rest.CopyConfig(env.Server.Config)
	cfg.QPS, cfg.Burst = 2000, 2000
	l.Wrap(cfg)
	controllers.Run(t, cfg, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		gc := l.gc
		if !agents {
			var err error
			if gc.Pods, err = Setup(m, l.control, l.rules, nil, prometheus.NewRegistry(), log); err != nil {
				return err
			}
		}
		return SetupGC(m, gc, func(s Stats, _ time.Duration, err error) {
			l.deleted.Add(int64(s.Deleted))
			switch l.last.Store(&err); {
			case errors.Is(err, errBehind):
				l.behind.Add(1)
			case errors.Is(err, errDiffer):
				l.refused.Add(1)
			}
		}, log)
	})
	t.Cleanup(l.Off)
	return l
}

// plant makes an identity that no pod has yet.
func (l *lagging) plant(name string) {
	l.Helper()
	l.mine(name)
	if err := l.Client.Create(l.ctx, &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}, SecurityLabels: map[string]string{"k8s:app": name}}); err != nil {
		l.Fatal(err)
	}
}

// mine records that the test itself is to blame for what becomes of an ID.
func (l *lagging) mine(name string) {
	l.testCluster.mu.Lock()
	defer l.testCluster.mu.Unlock()
	l.tampered[name], l.planted[name] = true, true
}

func (l *lagging) quarantined(name string) bool {
	l.Helper()
	o := &v2.CiliumIdentity{}
	if err := l.Client.Get(l.ctx, key{Name: name}, o); err != nil {
		l.Fatal(err)
	}
	return len(o.SecurityLabels) == 0
}

// TestCachesAreBehind: an operator whose watches deliver nothing collects no identity, neither one
// that is taken into use meanwhile nor any other, and says so; when they deliver again, it does.
func TestCachesAreBehind(t *testing.T) {
	t.Parallel()
	for _, agents := range []bool{false, true} {
		name := map[bool]string{false: "operator", true: "agents"}[agents]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLagging(t, servers.Take(t), agents, rate.Inf)
			l.plant("1000")
			l.eventually("an operator with a working watch collects", func() bool { return l.quarantined("1000") })
			l.On()
			l.namespace("default", nil)
			used := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "unobserved"}}
			used.Status.Identity = &v2.EndpointIdentity{ID: 1001}
			if err := l.Client.Create(l.ctx, used); err != nil {
				t.Fatal(err)
			}
			l.plant("1001")
			l.plant("1002")
			before := l.behind.Load()
			l.eventually("the operator says that it is behind", func() bool { return l.behind.Load() >= before+2 })
			for _, name := range []string{"1001", "1002"} {
				if l.quarantined(name) {
					t.Errorf("identity %s was collected by an operator whose watch delivers nothing", name)
				}
			}
			l.Off()
			l.eventually("an operator whose watch works again collects", func() bool { return l.quarantined("1002") })
			if l.quarantined("1001") {
				t.Error("an identity in use was collected")
			}
			if err := l.Client.Delete(l.ctx, used); err != nil {
				t.Fatal(err)
			}
			l.eventually("the other one is collected after its use", func() bool { return l.quarantined("1001") })
		})
	}
}

// TestUsedDuringCollection: of two identities that a slow look is to end, the second is taken into
// use when the first has ended. The operator's watches deliver nothing of that; the server is asked
// again.
func TestUsedDuringCollection(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
	l := newLagging(t, env, false, rate.Every(15*time.Second))
	names := []string{"2000", "2001", "2002"}
	for _, name := range names {
		l.plant(name)
	}
	left := func() []string { return slices.DeleteFunc(slices.Clone(names), l.quarantined) }
	l.eventually("one has ended", func() bool { return len(left()) < len(names) })
	l.On()
	rest := left()
	if len(rest) == 0 {
		t.Fatal("all have ended before one could be taken into use")
	}
	for i, name := range rest {
		e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late-" + name}}
		e.Status.Identity = &v2.EndpointIdentity{ID: 2000 + int64(slices.Index(names, name))}
		if err := l.Client.Create(l.ctx, e); err != nil {
			t.Fatal(i, err)
		}
	}
	before := l.behind.Load()
	l.eventually("the operator says that it is behind", func() bool { return l.behind.Load() > before })
	for _, name := range rest {
		if l.quarantined(name) {
			t.Errorf("identity %s was collected after it was taken into use", name)
		}
	}
}

// TestIdentityNotObservedYet: an agent that makes identities names one that the operator's watch
// has not delivered yet, of labels that users have given the endpoint. The operator asks the server
// before it writes over it, else the two would alternate. An ID that the
// server does not know either is corrected.
func TestIdentityNotObservedYet(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, servers.Take(t), func(tc *testCluster) { tc.control.Agents = true })
	m := &kubeapi.Muffler{Kinds: []string{"ciliumidentities"}}
	tc.operator(connection{api: m.Wrap})
	t.Cleanup(m.Off)
	tc.namespace("default", nil)
	p := tc.pod("default", "web", map[string]string{"app": "web"}, onNode)
	ep := tc.endpoint(p)
	named := func() int64 {
		o := &v2.CiliumEndpoint{}
		if err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(ep), o); err != nil {
			t.Fatal(err)
		}
		if o.Status.Identity == nil {
			return 0
		}
		return o.Status.Identity.ID
	}
	name := func(id int64) {
		tc.edit(ep, func(client.Object) {
			ep.Status.Identity = &v2.EndpointIdentity{ID: id, Labels: []string{"k8s:app=web", "unspec:team=red"}}
		})
	}
	tc.eventually("the operator names an identity", func() bool { return named() != 0 })
	right := named()
	m.On()
	const made, gone = 4711, 4712
	tc.tamper(fmt.Sprint(made))
	tc.plant(made, map[string]string{"k8s:app": "web", "unspec:team": "red"})
	name(made)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if id := named(); id != made {
			t.Fatalf("the operator wrote %d over an identity that it had not observed yet", id)
		}
	}
	m.Off()
	name(gone) // of no identity
	tc.eventually("an ID of no identity is corrected", func() bool { return named() == right })
	name(made)
	time.Sleep(time.Second)
	if id := named(); id != made {
		t.Fatalf("the operator wrote %d over an identity that it has observed", id)
	}
}

// TestNamespaceNotObservedYet is "Two CEP writing sources" of CFP-27752 with an operator that is
// behind: the labels of a namespace change, and the operator's watch of namespaces delivers
// nothing, while that of pods does. An agent names the identity of the new labels: the operator
// asks the server before it writes that of the former ones over it.
func TestNamespaceNotObservedYet(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, servers.Take(t))
	m := &kubeapi.Muffler{Kinds: []string{"namespaces"}}
	tc.operator(connection{api: m.Wrap})
	t.Cleanup(m.Off)
	tc.namespace("moved", map[string]string{"team": "red"})
	p := tc.pod("moved", "web", map[string]string{"app": "web"}, onNode)
	ep := tc.endpoint(p)
	before := tc.waitSynced().idOfPod(p)
	m.On()
	tc.namespace("moved", map[string]string{"team": "blue"})
	const made = 4711
	set, now := tc.identityOf(p, made)
	tc.plant(made, set)
	tc.edit(ep, func(client.Object) { ep.Status.Identity = now })
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		tc.edit(p, func(client.Object) { p.Annotations = map[string]string{"at": time.Now().String()} }) // as a kubelet does
		if id := tc.state().idOfPod(p); id != fmt.Sprint(made) {
			t.Fatalf("the operator wrote %s over the identity of the namespace's new labels; before they changed it was %s", id, before)
		}
	}
	m.Off()
	if id := tc.waitSynced().idOfPod(p); id != fmt.Sprint(made) {
		t.Errorf("when it has observed the labels the pod has %s", id)
	}
}
