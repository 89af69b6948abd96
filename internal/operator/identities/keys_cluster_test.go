package identities

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// This file is the half of a test cluster that keeps its IDs in an etcd.

const (
	masters    = storekeys.IdentitiesPrefix + "/id/"
	references = storekeys.IdentitiesPrefix + "/value/"
)

// inEachStore runs a scenario where IDs are objects, and where they are keys, each with an API
// server for itself.
func inEachStore(t *testing.T, f func(t *testing.T, env *controllers.Env, in func(*testCluster))) {
	t.Parallel()
	t.Run("objects", func(t *testing.T) {
		t.Parallel()
		f(t, servers.Take(t), func(*testCluster) {})
	})
	t.Run("keys", func(t *testing.T) {
		t.Parallel()
		f(t, servers.Take(t), inEtcd(kvstoretest.StartEtcd(t)))
	})
}

// inEtcd has a test cluster keep its IDs in an etcd, where none are left from before.
func inEtcd(etcd *kvstoretest.Etcd) func(*testCluster) {
	return func(tc *testCluster) {
		tc.etcd = etcd
		tc.keys = tc.open()
		tc.inspect(kvstore.DeletePrefix(context.Background(), tc.keys, storekeys.StatePrefix+"/"))
	}
}

// open connects to the cluster's etcd until the test ends.
func (tc *testCluster) open() kvstore.Backend {
	tc.Helper()
	cfg := storedial.Defaults()
	cfg.Kind, cfg.Options = "etcd", map[string]string{"etcd.address": tc.etcd.Endpoint(), "etcd.qps": "2000", "etcd.bootstrapQps": "2000"}
	b, err := storedial.Open(context.Background(), cfg, nil)
	if err != nil {
		tc.Fatal(err)
	}
	tc.Cleanup(func() { b.Close() })
	return b
}

// inspect fails the test at an error of its own look into the store.
func (tc *testCluster) inspect(err error) {
	tc.Helper()
	if err != nil {
		tc.Fatal(err)
	}
}

// objectOf shows a key as the object that it would be.
func objectOf(kv kvstore.KeyValue) *v2.CiliumIdentity {
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: strings.TrimPrefix(kv.Key, masters)}}
	o.UID, o.ResourceVersion = types.UID(fmt.Sprint(kv.CreateRevision)), fmt.Sprint(kv.ModRevision)
	if k, err := parseKey(string(kv.Value)); err == nil {
		o.SecurityLabels = k.GetAsMap()
	}
	return o
}

// ids returns all identities, wherever they are kept.
func (tc *testCluster) ids() ([]v2.CiliumIdentity, error) {
	if tc.keys == nil {
		var all v2.CiliumIdentityList
		err := tc.Client.List(tc.ctx, &all)
		return all.Items, err
	}
	l, err := tc.keys.List(tc.ctx, masters)
	var out []v2.CiliumIdentity
	for _, kv := range l.Pairs {
		out = append(out, *objectOf(kv))
	}
	return out, err
}

// destroy deletes an identity, as another client.
func (tc *testCluster) destroy(name string) {
	tc.Helper()
	if tc.keys != nil {
		tc.inspect(kvstore.Delete(tc.ctx, tc.keys, masters+name))
		return
	}
	o := &v2.CiliumIdentity{}
	o.Name = name
	tc.inspect(tc.Client.Delete(tc.ctx, o))
}

// rename gives an identity another value of the label app, as another client.
func (tc *testCluster) rename(name, app string) {
	tc.Helper()
	if tc.keys == nil {
		o := &v2.CiliumIdentity{}
		o.Name = name
		tc.edit(o, func(o clientObject) { o.(*v2.CiliumIdentity).SecurityLabels["k8s:app"] = app })
		return
	}
	kv, err := tc.keys.Get(tc.ctx, masters+name)
	tc.inspect(err)
	o := objectOf(kv)
	o.SecurityLabels["k8s:app"] = app
	tc.inspect(kvstore.Put(tc.ctx, tc.keys, kv.Key, []byte(textOf(o)), kvstore.Permanent))
}

// released waits until no reference to the labels of an identity is left, where there are
// references.
func (tc *testCluster) released(o *v2.CiliumIdentity) {
	tc.Helper()
	if tc.keys == nil {
		return
	}
	tc.until(func() string {
		l, err := tc.keys.List(tc.ctx, references+textOf(o)+"/")
		tc.inspect(err)
		if len(l.Pairs) > 0 {
			return fmt.Sprintf("%s is still referenced: %v", o.Name, l.Pairs)
		}
		return ""
	})
}

// follow is record for keys.
func (tc *testCluster) follow() {
	events := tc.keys.Watch(tc.ctx, masters)
	tc.watching.Go(func() {
		last := map[string]*v2.CiliumIdentity{}
		for ev := range events {
			name := strings.TrimPrefix(ev.Key, masters)
			s := sighting{kind: watch.Modified, name: name}
			switch ev.Kind {
			case kvstore.EventListDone:
				continue
			case kvstore.EventDelete:
				s.kind = watch.Deleted
				if last[name] != nil {
					tc.checkKeyUnused(last[name])
					s.uid = last[name].UID
				}
			case kvstore.EventCreate, kvstore.EventModify:
				o := objectOf(ev.KeyValue)
				s.uid, s.text = o.UID, textOf(o)
				last[name] = o
			}
			tc.mu.Lock()
			tc.seen = append(tc.seen, s)
			tc.mu.Unlock()
		}
	})
}

// checkKeyUnused reports whether an ID was deleted while an endpoint named it for its pod's
// labels. No endpoint names an ID that is gone.
func (tc *testCluster) checkKeyUnused(o *v2.CiliumIdentity) {
	s, err := tc.look()
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if err != nil || tc.tampered[o.Name] || tc.emptying {
		return // the test ends, or the server is away
	}
	for _, e := range s.endpoints {
		k := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
		if id := e.Status.Identity; id != nil && decimal(identity.ID(id.ID)) == o.Name && s.targets[k].text == textOf(o) {
			tc.Errorf("identity %s ended while endpoint %s named it", o.Name, k)
		}
	}
}

// keySetup adds the controller and the collection of keys to a manager, on a connection of their
// own.
func (tc *testCluster) keySetup(m manager.Manager, setup func(*Keys) (*Controller, error), store kvstore.Backend) error {
	keys := &Keys{Store: store, Suffix: fmt.Sprint("operator-", tc.operators.Add(1)), SyncInterval: time.Second}
	pods, err := setup(keys)
	if err != nil || tc.gc.Interval == 0 {
		return err
	}
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: storekeys.IdentitiesPrefix, KeyType: k8sids.Key{}})
	if err != nil {
		return err
	}
	ids, err := allocator.NewAllocatorForGC(b, allocator.WithMin(allocator.ID(tc.rules.First)), allocator.WithMax(allocator.ID(tc.rules.Last)))
	if err != nil {
		return err
	}
	seen := map[allocator.ID]int64{}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return rounds.Every(ctx, tc.gc.Interval, nil, func(ctx context.Context) error {
			var candidates []identity.ID
			for id := range seen {
				candidates = append(candidates, identity.ID(id))
			}
			used, err := pods.Users(ctx, candidates)
			if err != nil {
				return err
			}
			maps.DeleteFunc(seen, func(id allocator.ID, _ int64) bool { return used(identity.ID(id)) })
			next, _, err := ids.RunGC(ctx, nil, seen)
			seen = next
			return err
		})
	}))
}

// storeKiller ends an operator's connection with the store at the killer's count.
type storeKiller struct {
	kvstore.Backend
	k *killer
}

// Txn implements [kvstore.Backend].
func (s storeKiller) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	select {
	case <-s.k.dead:
		return kvstore.TxnResult{}, errDead
	default:
	}
	writes := slices.ContainsFunc(txn.Then, func(op kvstore.Op) bool { return op.Kind != kvstore.OpGet && op.Kind != kvstore.OpList })
	if !writes || s.k.n.Add(1) < s.k.at {
		return s.Backend.Txn(ctx, txn)
	}
	if s.k.after && s.k.n.Load() == s.k.at {
		_, _ = s.Backend.Txn(ctx, txn)
	}
	s.k.once.Do(func() { close(s.k.dead) })
	return kvstore.TxnResult{}, errDead
}

// stormy fails requests to the store, and loses answers, as long as the weather is on.
type stormy struct {
	kvstore.Backend
	w *weather
}

// Txn implements [kvstore.Backend].
func (s stormy) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	switch s.w.roll(8) {
	case 1:
		return kvstore.TxnResult{}, errors.New("the connection was refused")
	case 2:
		_, _ = s.Backend.Txn(ctx, txn)
		return kvstore.TxnResult{}, errors.New("the connection was reset")
	case 3:
		select {
		case <-time.After(time.Duration(s.w.roll(200)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return s.Backend.Txn(ctx, txn)
}

// connection is one that the killer breaks.
func (k *killer) connection() connection {
	return connection{k.wrap, func(b kvstore.Backend) kvstore.Backend { return storeKiller{b, k} }}
}

// connection is one that the weather is about.
func (w *weather) connection() connection {
	return connection{w.wrap, func(b kvstore.Backend) kvstore.Backend { return stormy{b, w} }}
}
