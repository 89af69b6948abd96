package identities

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// agent is what an agent does about identities: the real allocator and backend, and an endpoint for
// each pod.
type agent struct {
	*testCluster
	alloc *allocator.Allocator
}

// agent starts one, in a mode.
func (tc *testCluster) agent(mode identity.Management) (a *agent, stop func()) {
	tc.Helper()
	first, last := allocator.ID(tc.rules.First), allocator.ID(tc.rules.Last)
	backend, err := tc.agentBackend(first, last)
	if err != nil {
		tc.Fatal(err)
	}
	if !mode.Agent() {
		backend = allocator.ReadOnly(backend)
	}
	alloc, err := allocator.NewAllocator(k8sids.Key{}, backend, allocator.WithMin(first), allocator.WithMax(last), allocator.WithMasterKeyProtection(),
		allocator.WithSyncInterval(time.Second))
	if err != nil {
		tc.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- alloc.Run(ctx) }()
	return &agent{tc, alloc}, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tc.Error(err)
		}
	})
}

// agentBackend is what an agent opens.
func (tc *testCluster) agentBackend(first, last allocator.ID) (allocator.Backend, error) {
	if tc.keys != nil {
		return allocator.NewKVStoreBackend(allocator.KVStoreConfig{
			Store: tc.open(), BasePath: storekeys.IdentitiesPrefix, Suffix: fmt.Sprint("192.0.2.", tc.operators.Add(1)), KeyType: k8sids.Key{},
		})
	}
	c, err := k8s.New(tc.Server.Config)
	if err != nil {
		return nil, err
	}
	return k8sids.New(k8sids.Config{Client: c, First: first, Last: last, KeyType: k8sids.Key{}})
}

// attach is a pod's CNI ADD: it never waits for the operator.
func (a *agent) attach(p *corev1.Pod) {
	a.Helper()
	var ns corev1.Namespace
	if err := a.Client.Get(a.ctx, client.ObjectKey{Name: p.Namespace}, &ns); err != nil {
		a.Fatal(err)
	}
	t, err := a.rules.target(p, ns.Labels)
	if err != nil {
		a.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(a.ctx, waitTimeout)
	defer cancel()
	id, _, err := a.alloc.Allocate(ctx, k8sids.Key{Set: t.labels})
	switch {
	case errors.Is(err, allocator.ErrUnassigned): // a temporary identity, which no endpoint shows
		a.endpoint(p)
	case err != nil:
		a.Errorf("pod %s: %v", p.Name, err)
	default:
		a.endpoint(p, &v2.EndpointIdentity{ID: int64(id), Labels: t.labels.Strings()})
	}
}

// TestBoth is "Simultaneous CID management compatibility" and "Label changes: Namespace" of
// CFP-27752: agents and two operators make identities for the same pods at the same time, and again
// when the namespace's labels change. Where the proposal expects duplicates there are none.
func TestBoth(t *testing.T) {
	inEachStore(t, playBoth)
}

func playBoth(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, in)
	tc.operator()
	tc.operator()
	var agents []*agent
	for range 4 {
		a, stop := tc.agent(identity.ManagedByBoth)
		t.Cleanup(stop)
		agents = append(agents, a)
	}
	tc.namespace("a", map[string]string{"team": "x"})
	var pods []*corev1.Pod
	var wg sync.WaitGroup
	for i := range 24 {
		p := tc.pod("a", fmt.Sprint("p", i), map[string]string{"app": fmt.Sprint(i % 6)}, onNode)
		pods = append(pods, p)
		wg.Go(func() { agents[i%len(agents)].attach(p) })
	}
	wg.Wait()
	if n := len(tc.waitSynced().objects); n != 6 {
		t.Errorf("%d identities for 6 sets of labels", n)
	}
	tc.namespace("a", map[string]string{"team": "y"})
	for i, p := range pods { // every agent wants the new IDs at once
		wg.Go(func() {
			_, id := tc.identityOf(p, 0)
			set, err := labels.ParseSet(id.Labels)
			if err == nil {
				_, _, err = agents[i%len(agents)].alloc.Allocate(t.Context(), k8sids.Key{Set: set})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(tc.waitSynced().objects); n != 12 {
		t.Errorf("%d identities for 6 sets of labels before and 6 after", n)
	}
}

// TestMigration is "Migration: Upgrade", "Migration: Downgrade" and "Release Operator first" of
// CFP-27752: agent, both, operator, and back, while pods come and go. No ID in use changes,
// none is made twice, and every pod has one.
func TestMigration(t *testing.T) {
	inEachStore(t, playMigration)
}

func playMigration(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, quickGC, in)
	tc.namespace("a", nil)
	ids := map[string]string{}
	var old []*corev1.Pod
	stopAgent, stopOperator := func() {}, func() {}
	for i, modes := range [][2]identity.Management{ // of the operator, of the agents
		{"agent", "agent"}, {"both", "agent"}, {"both", "both"}, {"both", "operator"}, {"operator", "operator"},
		{"both", "operator"}, {"both", "both"}, {"agent", "both"}, {"agent", "agent"},
	} {
		stopOperator()
		stopAgent()
		stopOperator = func() {}
		tc.gc.Agents = modes[0].Agent()
		if modes[0].Operator() {
			stopOperator = tc.operator()
		}
		var a *agent
		a, stopAgent = tc.agent(modes[1])
		for j := range 4 {
			p := tc.pod("a", fmt.Sprintf("p%d-%d", i, j), map[string]string{"app": fmt.Sprint((i + j) % 6)}, onNode)
			a.attach(p)
			old = append(old, p)
		}
		if i > 1 { // the oldest go
			tc.remove(old[:4])
			old = old[4:]
		}
		s := tc.waitSynced()
		now := map[string]string{}
		for _, p := range old {
			n := s.idOfPod(p)
			app := p.Labels["app"]
			if now[app] != "" && now[app] != n {
				t.Errorf("%v: pods of app %s have %s and %s", modes, app, now[app], n)
			}
			now[app] = n
			if was := ids[app]; was != "" && was != n {
				t.Errorf("%v: pods of app %s had %s and have %s", modes, app, was, n)
			}
		}
		ids = now // what no pod had in between may have another ID
	}
	stopOperator()
	stopAgent()
}
