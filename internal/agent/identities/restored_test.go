package identities

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// scriptedIDs is a store of IDs that reports what a test has it report.
type scriptedIDs struct {
	allocator.Backend
	mappings chan allocator.Mapping
}

func (s *scriptedIDs) ListAndWatch(ctx context.Context, handler allocator.CacheMutations) error {
	handler.OnListDone(1)
	for {
		select {
		case m := <-s.mappings:
			handler.OnUpsert(m)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Check implements [allocator.Backend].
func (*scriptedIDs) Check(context.Context, []allocator.Reference) ([]allocator.Reference, error) {
	return nil, nil
}

// An ID that was in quarantine and came back with its labels is what a deny is about again, for the
// policy engine behind a real allocator; so it is known, which is what lets identities by the
// labels of the policies are in force.
func TestRestoredIdentityIsDenied(t *testing.T) {
	t.Parallel()
	parse := func(s string) labels.Set {
		set, err := labels.ParseKV("k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=default;" + s)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	store := &scriptedIDs{mappings: make(chan allocator.Mapping)}
	ids, err := New(Config{Log: slog.New(slog.DiscardHandler), Store: store, First: 256, Last: 65535, Timeout: time.Minute, SyncInterval: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ids.Close)
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
		func() error { return ids.Run(ctx, sink, func() {}, func(labels.Set, identity.ID) {}) },
	} {
		wg.Go(func() {
			if err := run(); err != nil {
				t.Error(err)
			}
		})
	}
	evil := k8sids.Key{Set: parse("k8s:app=evil;")}
	// becomes waits until the engine knows the ID, or does not, and says how it is evaluated then.
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
				t.Fatalf("%s: ID %d is known: %t, want %t; a packet of its is %s", what, id, knows, known, v)
			}
		}
	}
	emit := func(id allocator.ID, key allocator.AllocatorKey) {
		store.mappings <- allocator.Mapping{ID: id, Key: key, Created: 1}
	}
	emit(400, evil)
	becomes("made", 400, true)
	emit(400, nil)
	becomes("in quarantine", 400, false)
	emit(400, evil)
	becomes("restored", 400, true)
	emit(401, nil)
	emit(401, evil)
	becomes("in quarantine when first observed, and restored", 401, true)
}
