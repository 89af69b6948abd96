package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/allocator"
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

// scriptedNumbers is a home of numbers that tells what a test has it tell.
type scriptedNumbers struct {
	allocator.Backend
	say chan allocator.Mapping
}

func (s *scriptedNumbers) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	handler.OnListDone(1)
	for {
		select {
		case m := <-s.say:
			handler.OnUpsert(m)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Check implements [allocator.Backend].
func (*scriptedNumbers) Check(context.Context, []allocator.Reference) ([]allocator.Reference, error) {
	return nil, nil
}

// A number that rested and came back with its labels is what a deny is about again, for the policy
// engine behind a real allocator; so it is known, which is what lets identities by the labels of
// policies settle.
func TestRevivedIdentityIsDenied(t *testing.T) {
	t.Parallel()
	parse := func(s string) labels.Set {
		set, err := labels.ParseKV("k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=default;" + s)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	numbers := &scriptedNumbers{say: make(chan allocator.Mapping)}
	ids := &identities{
		log: slog.New(slog.DiscardHandler), events: make(allocator.AllocatorEventChan, 64),
		known: map[identity.ID]labels.Set{}, first: 256, last: 65535, temps: identity.NewTemporaries(),
	}
	var err error
	if ids.alloc, err = allocator.NewAllocator(k8sids.Key{}, numbers, allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(ids.events)); err != nil {
		t.Fatal(err)
	}
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	cnp := &v2.CiliumNetworkPolicy{}
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"web","namespace":"default"},"spec":{"endpointSelector":{"matchLabels":{"app":"web"}},
		"ingress":[{"fromEntities":["all"]}],"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"app":"evil"}}]}]}}`), cnp); err != nil {
		t.Fatal(err)
	}
	parsed, err := policy.Parse(cnp)
	if err != nil {
		t.Fatal(err)
	}
	web := policy.Subject{Identity: 300}
	engine.SetIdentity(web.Identity, parse("k8s:app=web;"))
	engine.AddSubject(web)
	if err := engine.SetRules("web", parsed); err != nil {
		t.Fatal(err)
	}
	set := engine.Flush().Bind[web].RuleSet
	var mu sync.Mutex
	sink := sinkFunc(func(up map[identity.ID]labels.Set, del []identity.ID) error {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range del {
			engine.RemoveIdentity(id)
		}
		for id, set := range up {
			engine.SetIdentity(id, set)
		}
		engine.Flush()
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, run := range []func() error{
		func() error { return ids.alloc.Run(ctx) },
		func() error { return ids.run(ctx, sink, func() {}, func(labels.Set, identity.ID) {}) },
	} {
		wg.Go(func() {
			if err := run(); err != nil {
				t.Error(err)
			}
		})
	}
	evil := k8sids.Key{Set: parse("k8s:app=evil;")}
	// becomes waits until the engine knows the number, or does not, and says how it is judged then.
	becomes := func(what string, id identity.ID, known bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			knows, v := engine.Knows(id), engine.Lookup(set, datapath.Ingress, id, netip.Addr{}, datapath.ProtoTCP, 80)
			mu.Unlock()
			if knows == known && (!known || v == policy.Denied) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: number %d is known: %t, want %t; a packet of its is %s", what, id, knows, known, v)
			}
		}
	}
	tell := func(id allocator.ID, key allocator.AllocatorKey) {
		numbers.say <- allocator.Mapping{ID: id, Key: key, Created: 1}
	}
	tell(400, evil)
	becomes("made", 400, true)
	tell(400, nil)
	becomes("retired", 400, false)
	tell(400, evil)
	becomes("revived", 400, true)
	tell(401, nil)
	tell(401, evil)
	becomes("retired when first heard of, and revived", 401, true)
}

// TestRevivedPeerIsRefused is the same with packets: the number of a pod that a rule denies rests
// while no pod has it, and comes back with the pod. The other node, whose agent was there all the
// time, refuses it.
func TestRevivedPeerIsRefused(t *testing.T) {
	t.Parallel()
	c, n1, n2, _ := operatorManaged(t)
	n1.policy("web.yaml", denyEvil)
	c.eventually("the policy is heard", func() bool {
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
		k8sids.Retire(o, k8sids.Key{Set: parseAll(t, set)}.GetKey(), time.Now())
	})
	c.eventually("the number rests", func() bool { return !knows(n1, 3002) && !knows(n2, 3002) })
	change(3002, func(o *v2.CiliumIdentity) { k8sids.Revive(o, security) })
	back := c.pod(n2, "evil-again", map[string]string{"app": "evil"})
	c.eventually("evil has the number again", back.has(3002))
	c.eventually("the other node knows the number", func() bool { return knows(n1, 3002) })
	for _, to := range web.both(80) {
		c.passing("good, afterwards", good, to)
		c.blocked("evil, with a number that rested", back, to)
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

// TestRevivedKeyIsRefused is the same where numbers are keys of a store: the key of the number
// goes, and is made again.
func TestRevivedKeyIsRefused(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	store := testenv.StartEtcd(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := nodeIn(t, ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), nodeIn(t, ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+store.Endpoint())
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
				t.Fatalf("number %d is known is not %t on both nodes: %v, %v", number, want, err1, err2)
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
		t.Fatalf("evil has number %d, want %d again", is, number)
	}
	for _, to := range web.both(80) {
		eventuallyReaches(t, "good, afterwards", good, to, true)
		refused(t, "evil, with a number that came back", back.ns, to)
	}
}
