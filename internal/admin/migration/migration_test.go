package migration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	id := func(n allocator.ID, labels string, age int64) Identity { return Identity{n, labels, age} }
	from := []Identity{id(300, "a", 5), id(301, "b", 4), id(302, "c", 3), id(303, "d", 2), id(304, "e", 1), id(305, "e", 0), id(306, "f", 0), id(307, "f", 1)}
	to := []Identity{id(300, "a", 0), id(301, "x", 0), id(400, "d", 0), id(306, "f", 0)}
	want := Difference{
		Same:      2,
		Missing:   []Identity{id(305, "e", 0), id(304, "e", 1), id(307, "f", 1), id(302, "c", 3)},
		Conflicts: []Conflict{{Identity: id(301, "b", 4), Owner: "x"}, {Identity: id(303, "d", 2), Number: 400}},
		Extra:     []Identity{id(301, "x", 0), id(400, "d", 0)},
	}
	if diff := cmp.Diff(want, Compare(from, to), cmp.AllowUnexported(Identity{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// canon is the canonical form of an identity of tests.
func canon(name string) string {
	return canonical(map[string]string{"k8s:app": name, "k8s:io.kubernetes.pod.namespace": "team"})
}

func TestLabels(t *testing.T) {
	t.Parallel()
	for _, set := range []map[string]string{
		{"k8s:app": "web"}, {"k8s:a/b.c": "", "reserved:x": ""}, {"k8s:app": "x", "k8s:io.kubernetes.pod.namespace": "team", "gen:p": "web.TCP.80"},
	} {
		back, err := security(canonical(set))
		if diff := cmp.Diff(set, back); diff != "" || err != nil {
			t.Errorf("%v: %s, %v", set, diff, err)
		}
	}
	for _, set := range []map[string]string{nil, {"app": "web"}, {"k8s:a;b": "c"}, {"k8s:app": "web", "any:app": "db"}} {
		if text := canonical(set); text != "" {
			t.Errorf("%v is %q", set, text)
		}
	}
}

// TestMigrateToConsul: in a Consul, in which references stand in either form of their labels, those
// of both count: what is in use under another ID is in the way, and what is in use under the
// same is not.
func TestMigrateToConsul(t *testing.T) {
	t.Parallel()
	cfg := consul.Defaults()
	cfg.Address = kvstoretest.StartConsul(t)
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprint("plain ", plain), func(t *testing.T) {
			cfg.PlainKeys = plain
			store, err := consul.New(t.Context(), cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if err := kvstore.DeletePrefix(t.Context(), store, storekeys.IdentitiesPrefix+"/"); err != nil {
				t.Fatal(err)
			}
			refer := func(layout kvstore.Layout, name, node string, id allocator.ID) {
				t.Helper()
				key := storekeys.IdentitiesPrefix + "/value/" + layout.Encode(canon(name)) + "/" + node
				if err := kvstore.Put(t.Context(), store, key, []byte(id.String()), kvstore.Permanent); err != nil {
					t.Fatal(err)
				}
			}
			keys := Keys{Store: store, First: 256, Last: 65535}
			for i, forms := range [][]kvstore.Layout{
				{}, {kvstore.LayoutConsul}, {kvstore.LayoutConsulPlain}, {kvstore.LayoutConsul, kvstore.LayoutConsulPlain},
			} {
				used, other := fmt.Sprint("used-", i), fmt.Sprint("other-", i)
				here := Identity{ID: allocator.ID(1000 + i), Labels: canon(used)}
				there := Identity{ID: allocator.ID(2000 + i), Labels: canon(other)}
				for n, form := range forms {
					refer(form, used, fmt.Sprint("192.0.2.", n), here.ID)
					refer(form, other, fmt.Sprint("192.0.2.", n), 3000)
				}
				if c, err := keys.write(t.Context(), here); err != nil || c != nil {
					t.Errorf("in use under its ID in %d: conflict %+v, %v", forms, c, err)
				}
				c, err := keys.write(t.Context(), there)
				if err != nil || (c != nil) != (len(forms) > 0) || c != nil && c.Number != 3000 {
					t.Errorf("in use under another ID in %d: conflict %+v, %v", forms, c, err)
				}
				if c, err := keys.write(t.Context(), here); err != nil || c != nil {
					t.Errorf("once more: conflict %+v, %v", c, err)
				}
				if c, err := keys.write(t.Context(), Identity{ID: here.ID, Labels: canon("other")}); err != nil || c == nil || c.Owner != here.Labels {
					t.Errorf("an ID of others: conflict %+v, %v", c, err)
				}
			}
		})
	}
}

// putBack is a store that is put back to an older copy after its first transaction.
type putBack struct {
	kvstore.Backend
	copy kvstore.Backend
	used bool
}

func (b *putBack) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	if b.used {
		return b.copy.Txn(ctx, txn)
	}
	b.used = true
	return b.Backend.Txn(ctx, txn)
}

// TestMigrateWhilePutBack has a store be put back between the look and the write: in the copy
// others refer to another ID, which is in the way.
func TestMigrateWhilePutBack(t *testing.T) {
	t.Parallel()
	here := Identity{ID: 1000, Labels: canon("web")}
	open := func(number string, writes int) kvstore.Backend {
		store := startStore(t)
		for range writes {
			if err := kvstore.Put(t.Context(), store, storekeys.IdentitiesPrefix+"/value/"+here.Labels+"/192.0.2.1", []byte(number), kvstore.Permanent); err != nil {
				t.Fatal(err)
			}
		}
		return store
	}
	keys := Keys{Store: &putBack{Backend: open("1000", 9), copy: open("2000", 1)}, First: 256, Last: 65535}
	if c, err := keys.write(t.Context(), here); err != nil || c == nil || c.Number != 2000 {
		t.Errorf("conflict %+v, %v", c, err)
	}
}

// startStore starts a real etcd, and returns a connection to it.
func startStore(t *testing.T) kvstore.Backend {
	t.Helper()
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{kvstoretest.StartEtcd(t).Endpoint()}, 0
	store, err := etcd.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// places are a real etcd and a real API server, and what migrates between them.
func places(t *testing.T) (kvstore.Backend, *k8s.Client, Keys, Objects) {
	t.Helper()
	testenv.CheckLeaks(t)
	server := kubeapi.Start(t)
	server.DefineResources()
	store := startStore(t)
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return store, client, Keys{Store: store, First: 256, Last: 65535}, Objects{Client: client.UrgentV2, First: 256, Last: 65535}
}

// TestMigrate copies from a real etcd to a real API server, is broken off, goes on, and copies
// back.
func TestMigrate(t *testing.T) {
	store, client, keys, objects := places(t)
	put := func(key, value string) {
		t.Helper()
		if err := kvstore.Put(t.Context(), store, storekeys.IdentitiesPrefix+key, []byte(value), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	const many = 150
	for n := range many {
		put(fmt.Sprint("/id/", 1000+7*n), canon(fmt.Sprint("app-", n)))
	}
	put("/id/60000", canon("twice")) // the older one has the larger ID
	put("/id/50000", canon("twice"))
	put("/id/70000", canon("of-another-cluster"))
	put("/id/foo", canon("no-number"))
	put("/id/2", "no labels")
	put("/id/40000", canon("quarantined-there"))
	put("/id/40001", canon("taken-there"))
	quarantined := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "40000", Annotations: map[string]string{identities.QuarantinedAnnotation: "2026-01-01T00:00:00Z"}}, SecurityLabels: map[string]string{}}
	taken := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "40001"}, SecurityLabels: map[string]string{"k8s:app": "other"}}
	for _, o := range []*v2.CiliumIdentity{quarantined, taken} {
		if err := client.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(o).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	const total = many + 4
	check := func(what string, r Report, err error, want Report) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(Report{}, "Conflicts", "Faulty"), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	dry, err := ToObjects(t.Context(), keys, objects, Options{})
	check("dry run", dry, err, Report{Total: total, Missing: total - 1, Extra: 1, Foreign: 1})
	if len(dry.Faulty) != 2 || len(dry.Conflicts) != 1 || dry.Conflicts[0].ID != 40001 {
		t.Errorf("faulty %v, conflicts %+v", dry.Faulty, dry.Conflicts)
	}
	if p, err := objects.read(t.Context()); err != nil || len(p.Identities) != 1 {
		t.Fatalf("a dry run wrote: %d objects, %v", len(p.Identities), err)
	}
	// Broken off.
	ctx, cancel := context.WithCancel(t.Context())
	_, err = ToObjects(ctx, keys, objects, Options{Write: true, Progress: func(done, of int) {
		if done == 60 && of == total {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "goes on") {
		t.Errorf("broken off: %v", err)
	}
	last := 0
	r, err := ToObjects(t.Context(), keys, objects, Options{Write: true, Progress: func(done, _ int) { last = done }})
	check("the rest", r, err, Report{Total: total, Same: 60, Copied: total - 62, Missing: 1, Extra: 1, Foreign: 1})
	if last != total-2 {
		t.Errorf("progress ended at %d", last)
	}
	if len(r.Conflicts) != 2 || r.Conflicts[0].ID == r.Conflicts[1].ID {
		t.Errorf("conflicts %+v", r.Conflicts)
	}
	// What is in the way goes; then it is complete, and so in the other direction.
	for _, name := range []string{"40000", "40001"} {
		if err := client.UrgentV2.Delete().Resource(v2.ResourceIdentities).Name(name).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	r, err = ToObjects(t.Context(), keys, objects, Options{Write: true})
	check("without what was in the way", r, err, Report{Total: total, Same: total - 2, Copied: 2, Foreign: 1, Complete: true})
	r, err = ToKeys(t.Context(), objects, keys, Options{})
	check("compared backwards", r, err, Report{Total: total, Same: total, Complete: true})
	// The older of two IDs counts for objects, too.
	made := map[string]*v2.CiliumIdentity{}
	for _, name := range []string{"60000", "50000"} {
		o := &v2.CiliumIdentity{}
		if err := client.UrgentV2.Get().Resource(v2.ResourceIdentities).Name(name).Do(t.Context()).Into(o); err != nil {
			t.Fatal(err)
		}
		made[name] = o
	}
	if !made["60000"].CreationTimestamp.Time.Before(made["50000"].CreationTimestamp.Time) || made["60000"].Labels["io.kubernetes.pod.namespace"] != "team" {
		t.Errorf("of two IDs of the same labels the older one is %v, the younger one %v", made["60000"].ObjectMeta, made["50000"].ObjectMeta)
	}
	before, err := keys.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := kvstore.DeletePrefix(t.Context(), store, storekeys.IdentitiesPrefix+"/"); err != nil {
		t.Fatal(err)
	}
	put("/value/"+canon("app-3")+"/192.0.2.1", "5000") // in use under another ID
	r, err = ToKeys(t.Context(), objects, keys, Options{Write: true})
	check("back", r, err, Report{Total: total, Copied: total - 1, Missing: 1})
	if len(r.Conflicts) != 1 || r.Conflicts[0].Number != 5000 {
		t.Errorf("conflicts %+v", r.Conflicts)
	}
	if err := kvstore.DeletePrefix(t.Context(), store, storekeys.IdentitiesPrefix+"/value/"); err != nil {
		t.Fatal(err)
	}
	r, err = ToKeys(t.Context(), objects, keys, Options{Write: true})
	check("back in full", r, err, Report{Total: total, Same: total - 1, Copied: 1, Complete: true})
	after, err := keys.read(t.Context())
	if d := Compare(before.Identities, after.Identities); err != nil || d.Same != total || len(d.Extra) > 0 {
		t.Errorf("there and back again: %+v, %v", d, err)
	}
}

// TestMigrateQuarantine: an ID that is in quarantine in one place is in quarantine in the other one
// afterwards, in both directions; its own labels take it back there, and no others get it.
func TestMigrateQuarantine(t *testing.T) {
	store, _, keys, objects := places(t)
	since := time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	quarantine := func(id, name string) {
		t.Helper()
		if err := kvstore.Put(t.Context(), store, quarantines+id, allocator.EncodeQuarantine(canon(name), since), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	create := func(id allocator.ID, name string) {
		t.Helper()
		if c, err := objects.write(t.Context(), Identity{ID: id, Labels: canon(name)}); err != nil || c != nil {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	quarantine("300", "a")
	quarantine("301", "b")
	create(301, "b") // not collected there yet
	quarantine("302", "c")
	create(302, "other")
	quarantine("303", "d")
	if err := objects.quarantine(t.Context(), Quarantined{303, canon("d"), since}); err != nil {
		t.Fatal(err)
	}
	quarantine("70000", "of-another-cluster")
	// Another program wrote the labels in another order.
	odd := "k8s:io.kubernetes.pod.namespace=team;k8s:app=e;"
	if err := kvstore.Put(t.Context(), store, storekeys.IdentitiesPrefix+"/id/304", []byte(odd), kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{false, true} {
		r, err := ToObjects(t.Context(), keys, objects, Options{Write: write})
		want := Report{Total: 1, Quarantined: 4, Free: 1, Missing: 1, Extra: 2}
		if write {
			want.Free, want.Missing, want.Copied = 0, 0, 1
		}
		if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(Report{}, "Conflicts", "Faulty")); err != nil || diff != "" {
			t.Errorf("write %t: %v (-want +got):\n%s", write, err, diff)
		}
		if len(r.Conflicts) != 1 || r.Conflicts[0].ID != 302 || r.Conflicts[0].Owner != canon("other") || len(r.Faulty) > 0 {
			t.Errorf("conflicts %+v, faulty %v", r.Conflicts, r.Faulty)
		}
	}
	quarantined := func(from place) (ids []allocator.ID) {
		t.Helper()
		p, err := from.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range p.Quarantined {
			ids = append(ids, q.ID)
			if !q.Since.Equal(since) || q.Labels == "" {
				t.Errorf("in quarantine: %+v", q)
			}
		}
		return ids
	}
	if diff := cmp.Diff([]allocator.ID{300, 303}, quarantined(objects)); diff != "" {
		t.Errorf("in quarantine as objects (-want +got): %s", diff)
	}
	for _, other := range []string{"a", "other"} {
		c, err := objects.write(t.Context(), Identity{ID: 300, Labels: canon(other)})
		if err != nil || (c == nil) != (other == "a") {
			t.Errorf("300 for %s: %+v, %v", other, c, err)
		}
	}
	// Back: the store knows nothing.
	if err := kvstore.DeletePrefix(t.Context(), store, storekeys.IdentitiesPrefix+"/"); err != nil {
		t.Fatal(err)
	}
	r, err := ToKeys(t.Context(), objects, keys, Options{Write: true})
	if diff := cmp.Diff(Report{Total: 4, Copied: 4, Quarantined: 1, Complete: true}, r, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("back: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]allocator.ID{303}, quarantined(keys)); diff != "" {
		t.Errorf("in quarantine in the store (-want +got): %s", diff)
	}
	for _, other := range []string{"other", "d"} {
		c, err := keys.write(t.Context(), Identity{ID: 303, Labels: canon(other)})
		if err != nil || (c == nil) != (other == "d") {
			t.Errorf("303 for %s: %+v, %v", other, c, err)
		}
	}
	if ids := quarantined(keys); len(ids) > 0 {
		t.Errorf("in quarantine and in use: %v", ids)
	}
}
