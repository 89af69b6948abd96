package identities_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/gentype"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// key is a set of labels as a key.
type key struct{ set labels.Set }

func (k key) String() string { return k.set.String() }
func (k key) GetKey() string { return k.set.KVString() }

func (k key) PutKey(s string) (allocator.AllocatorKey, error) {
	set, err := labels.ParseKV(s)
	return key{set}, err
}

func (k key) GetAsMap() map[string]string {
	out := map[string]string{}
	for _, l := range k.set {
		out[l.Source+":"+l.Key] = l.Value
	}
	return out
}

func (k key) PutKeyFromMap(m map[string]string) (allocator.AllocatorKey, error) {
	var ls []labels.Label
	for name, value := range m {
		source, rest, _ := strings.Cut(name, ":")
		ls = append(ls, labels.New(source, rest, value))
	}
	set := labels.NewSet(ls...)
	return key{set}, set.Validate()
}

func app(name string) key {
	return key{labels.NewSet(labels.New("k8s", "app", name), labels.New("k8s", labels.KeyNamespace, "default"))}
}

type objects = gentype.ClientWithList[*v2.CiliumIdentity, *v2.CiliumIdentityList]

func objectsOf(c *k8s.Client) *objects {
	return gentype.NewClientWithList("ciliumidentities", c.UrgentV2, metav1.ParameterCodec, "",
		func() *v2.CiliumIdentity { return &v2.CiliumIdentity{} }, func() *v2.CiliumIdentityList { return &v2.CiliumIdentityList{} })
}

func start(t *testing.T) (*kubeapi.Server, *objects) {
	t.Helper()
	server := kubeapi.Start(t)
	server.DefineResources()
	c, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return server, objectsOf(c)
}

// saltOf returns the salt of a cluster.
func saltOf(t *testing.T, server *kubeapi.Server) string {
	t.Helper()
	c, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		ns, err := c.Urgent.CoreV1().Namespaces().Get(t.Context(), identities.SaltNamespace, metav1.GetOptions{})
		if err == nil {
			return string(ns.UID)
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// agent is an allocator as one node runs it, with its own connection.
func agent(t *testing.T, server *kubeapi.Server, first, last allocator.ID, events allocator.AllocatorEventChan) *allocator.Allocator {
	t.Helper()
	return running(t, backend(t, server, first, last), first, last, events)
}

func backend(t *testing.T, server *kubeapi.Server, first, last allocator.ID) *identities.Backend {
	t.Helper()
	c, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	backend, err := identities.New(identities.Config{Client: c, First: first, Last: last, KeyType: key{}})
	if err != nil {
		t.Fatal(err)
	}
	return backend
}

func running(t *testing.T, backend *identities.Backend, first, last allocator.ID, events allocator.AllocatorEventChan) *allocator.Allocator {
	t.Helper()
	opts := []allocator.AllocatorOption{
		allocator.WithMin(first), allocator.WithMax(last), allocator.WithMasterKeyProtection(), allocator.WithSyncInterval(2 * time.Second), allocator.WithQuarantine(0),
	}
	if events != nil {
		opts = append(opts, allocator.WithEvents(events))
	}
	alloc, err := allocator.NewAllocator(key{}, backend, opts...)
	if err != nil {
		t.Fatal(err)
	}
	run(t, alloc)
	return alloc
}

// run runs an allocator until the test ends.
func run(t *testing.T, alloc *allocator.Allocator) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- alloc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// list returns the IDs of each label set, by its canonical string.
func list(t *testing.T, c *objects) map[string][]string {
	t.Helper()
	all, err := c.List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, o := range all.Items {
		k, err := key{}.PutKeyFromMap(o.SecurityLabels)
		if err != nil {
			t.Error(err)
			continue
		}
		out[k.GetKey()] = append(out[k.GetKey()], o.Name)
	}
	return out
}

// allocate has each of the agents allocate all sets at once, in its own order, and returns the
// IDs by agent and set.
func allocate(t *testing.T, agents []*allocator.Allocator, sets []key, meanwhile func()) []map[string]allocator.ID {
	t.Helper()
	got := make([]map[string]allocator.ID, len(agents))
	var wg sync.WaitGroup
	for i, a := range agents {
		got[i] = map[string]allocator.ID{}
		var mu sync.Mutex
		for _, n := range rand.Perm(len(sets)) {
			wg.Go(func() {
				id, _, err := a.Allocate(t.Context(), sets[n])
				if err != nil {
					t.Errorf("agent %d: %v", i, err)
				}
				mu.Lock()
				got[i][sets[n].GetKey()] = id
				mu.Unlock()
			})
		}
	}
	if meanwhile != nil {
		meanwhile()
	}
	wg.Wait()
	return got
}

// disagreement reports which agents have other IDs than the first, "" for none.
func disagreement(got []map[string]allocator.ID) (out string) {
	for i := range got {
		if diff := cmp.Diff(got[0], got[i]); diff != "" {
			out += fmt.Sprintf("agents 0 and %d do not agree:\n%s", i, diff)
		}
	}
	return out
}

// race has the agents allocate, and checks that they agree and that the server has one object for
// each set.
func race(t *testing.T, c *objects, agents []*allocator.Allocator, sets []key, meanwhile func()) {
	t.Helper()
	got := allocate(t, agents, sets, meanwhile)
	if d := disagreement(got); d != "" {
		t.Error(d)
	}
	wrong := func() (out []string) {
		have := list(t, c)
		for _, s := range sets {
			if ids := have[s.GetKey()]; len(ids) != 1 || ids[0] != got[0][s.GetKey()].String() {
				out = append(out, fmt.Sprintf("%s has the objects %v, the agents say %v", s, ids, got[0][s.GetKey()]))
			}
		}
		return out
	}
	// A server that has just been restarted may answer a list from a cache that is behind.
	for end := time.Now().Add(10 * time.Second); len(wrong()) > 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	for _, w := range wrong() {
		t.Error(w)
	}
}

func apps(n int) []key {
	var sets []key
	for i := range n {
		sets = append(sets, app(fmt.Sprintf("app-%d", i)))
	}
	return sets
}

// TestOneIDForEach has ten agents allocate the same sets at once, then again over a restart of
// the server.
func TestOneIDForEach(t *testing.T) {
	testenv.CheckLeaks(t)
	server, c := start(t)
	var agents []*allocator.Allocator
	for range 10 {
		agents = append(agents, agent(t, server, 256, 65535, nil))
	}
	race(t, c, agents, apps(60), nil)

	all, err := c.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := all.Items[0]
	if want := map[string]string{labels.KeyNamespace: "default"}; !maps.Equal(o.Labels, want) {
		t.Errorf("labels in the metadata are %v, want %v", o.Labels, want)
	}
	if len(o.SecurityLabels) != 2 || o.SecurityLabels["k8s:"+labels.KeyNamespace] != "default" {
		t.Errorf("security-labels are %v", o.SecurityLabels)
	}

	race(t, c, agents, apps(90), func() {
		time.Sleep(20 * time.Millisecond)
		server.Stop()
		time.Sleep(500 * time.Millisecond)
		server.Start()
	})
}

// TestNarrow makes agents meet: the range has hardly more IDs than there are sets, and a
// foreign client makes and deletes objects in it. So an agent may find an ID taken that is free for
// the next one, and both make an object within one second, which is all that the server says of
// their age: then the lower ID counts, and who has the other one follows at the next
// comparison.
func TestNarrow(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	var agents []*allocator.Allocator
	for range 6 {
		agents = append(agents, agent(t, server, 1, 60, nil))
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			id := fmt.Sprint(1 + rand.IntN(60))
			o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id}, SecurityLabels: app(fmt.Sprintf("foreign-%d", n)).GetAsMap()}
			if made, err := c.Create(ctx, o, metav1.CreateOptions{}); err == nil {
				time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				_ = c.Delete(context.WithoutCancel(ctx), id, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID}})
			}
		}
	})
	sets := apps(40)
	got := allocate(t, agents, sets, nil)
	stop()
	wg.Wait()
	for end := time.Now().Add(30 * time.Second); disagreement(got) != "" && time.Now().Before(end); {
		time.Sleep(500 * time.Millisecond)
		got = allocate(t, agents, sets, nil)
	}
	if d := disagreement(got); d != "" {
		t.Error(d)
	}
	have, owner := list(t, c), map[allocator.ID]string{}
	for text, id := range got[0] {
		if !slices.Contains(have[text], id.String()) {
			t.Errorf("%s has the objects %v, the agents say %v", text, have[text], id)
		}
		if other, taken := owner[id]; taken {
			t.Errorf("%s and %s have the same ID %v", text, other, id)
		}
		owner[id] = text
	}
}

// TestExhausted fills the range.
func TestExhausted(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	a := agent(t, server, 100, 109, nil)
	seen := map[allocator.ID]bool{}
	for _, s := range apps(10) {
		id, isNew, err := a.Allocate(t.Context(), s)
		if err != nil || !isNew || id < 100 || id > 109 {
			t.Fatalf("%s has %s, %t, %v", s, id, isNew, err)
		}
		seen[id] = true
	}
	if len(seen) != 10 {
		t.Errorf("ten sets have the IDs %v", seen)
	}
	if _, _, err := a.Allocate(t.Context(), app("one too many")); !errors.Is(err, allocator.ErrExhausted) || !strings.Contains(err.Error(), "100 to 109") {
		t.Errorf("a full range: %v", err)
	}
	if id, isNew, err := a.Allocate(t.Context(), app("app-3")); err != nil || isNew || !seen[id] {
		t.Errorf("a known set in a full range: %s, %t, %v", id, isNew, err)
	}
}

// TestForeignDuplicates has other clients make duplicates: the oldest counts, and who used another
// one follows.
func TestForeignDuplicates(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	make := func(id string, k key) {
		t.Helper()
		if _, err := c.Create(t.Context(), &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id}, SecurityLabels: k.GetAsMap()}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	make("5000", app("x"))
	time.Sleep(1100 * time.Millisecond) // times of creation have seconds
	make("300", app("x"))
	make("9000", app("tie")) // most likely in one second
	make("8000", app("tie"))
	make("70000", app("outside"))
	make("not-a-number", app("named"))
	make("400", key{labels.NewSet(labels.New("k8s", "bad;key", "x"))})
	events := (allocator.AllocatorEventChan)(nil)
	a := agent(t, server, 256, 65535, events)
	for _, tc := range []struct {
		set  key
		want []allocator.ID // nil: a new one
	}{{app("x"), []allocator.ID{5000}}, {app("tie"), []allocator.ID{8000, 9000}}, {app("outside"), nil}, {app("named"), nil}} {
		id, isNew, err := a.Allocate(t.Context(), tc.set)
		if err != nil || isNew != (tc.want == nil) || (tc.want != nil && !slices.Contains(tc.want, id)) || id > 65535 {
			t.Errorf("%s has %s, new %t, %v; want %v", tc.set, id, isNew, err, tc.want)
		}
	}
	other := agent(t, server, 256, 65535, nil)
	id, _, err := a.Allocate(t.Context(), app("tie"))
	again, _, err2 := other.Allocate(t.Context(), app("tie"))
	if id != again || err != nil || err2 != nil {
		t.Errorf("two agents take %s and %s of two duplicates (%v, %v)", id, again, err, err2)
	}
}

// TestMarked takes an object into use that the operator is about to delete.
func TestMarked(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	k := app("marked")
	o, err := c.Create(t.Context(), &v2.CiliumIdentity{
		ObjectMeta:     metav1.ObjectMeta{Name: "777", Annotations: map[string]string{identities.HeartbeatAnnotation: "2026-01-01T00:00:00Z", "other": "stays"}},
		SecurityLabels: k.GetAsMap(),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := agent(t, server, 256, 65535, nil)
	if id, isNew, err := a.Allocate(t.Context(), k); err != nil || isNew || id != 777 {
		t.Fatalf("allocated %s, %t, %v", id, isNew, err)
	}
	now, err := c.Get(t.Context(), "777", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"other": "stays", identities.DigestAnnotation: identities.Digest(k.GetAsMap())}; !maps.Equal(now.Annotations, want) {
		t.Errorf("annotations %v, want %v", now.Annotations, want)
	}
	// What the collector would do now must fail.
	if err := c.Delete(t.Context(), "777", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}}); err == nil {
		t.Error("the object could be deleted in the version that was marked")
	}
	// Marked again while in use: the next comparison takes the mark off.
	now.Annotations[identities.HeartbeatAnnotation] = "2026-01-01T00:00:00Z"
	if _, err := c.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if now, err = c.Get(t.Context(), "777", metav1.GetOptions{}); err == nil && now.Annotations[identities.HeartbeatAnnotation] == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the mark stays on an ID in use: %v", err)
		}
	}
}

// TestQuarantined: labels that come back get their ID out of quarantine, whichever others are free;
// others go on to the next, and take one in quarantine only if there is no other.
func TestQuarantined(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	quarantine := func(id allocator.ID, k key) {
		t.Helper()
		o, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			o, err = c.Create(t.Context(), &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}, SecurityLabels: k.GetAsMap()}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		identities.Quarantine(o, k.GetKey(), time.Now())
		if _, err := c.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	salt := saltOf(t, server)
	first := func(k key) allocator.ID {
		for id := range identities.Sequence(salt, k.GetKey(), 300, 302) {
			return id
		}
		return allocator.NoID
	}
	same, other := app("same"), app("other")
	quarantine(first(same), same)
	a := agent(t, server, 300, 302, nil)
	if _, err := a.GetByID(t.Context(), first(same)); !errors.Is(err, allocator.ErrIdentityNonExistent) {
		t.Errorf("an ID in quarantine has labels: %v", err)
	}
	id, isNew, err := a.Allocate(t.Context(), same)
	if id != first(same) || isNew || err != nil {
		t.Errorf("labels that came back have %s, new %t, %v; want %s", id, isNew, err, first(same))
	}
	o, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
	delete(o.Annotations, identities.DigestAnnotation)
	if err != nil || len(o.SecurityLabels) != 2 || len(o.Annotations) != 0 || o.Labels[labels.KeyNamespace] != "default" {
		t.Errorf("taken back: %+v, %v", o, err)
	}
	// In use, and collected by mistake: it comes back.
	quarantine(id, same)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if o, err := c.Get(t.Context(), id.String(), metav1.GetOptions{}); err == nil && len(o.SecurityLabels) == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("an identity in use was put in quarantine and did not come back")
		}
	}
	// Two IDs are left, one of them in quarantine: others take the free one first.
	var quarantined allocator.ID
	for n := range identities.Sequence(salt, other.GetKey(), 300, 302) {
		if n != id {
			quarantined = n
			break
		}
	}
	quarantine(quarantined, app("gone"))
	fresh := agent(t, server, 300, 302, nil)
	got, _, err := fresh.Allocate(t.Context(), other)
	if err != nil || got == quarantined || got == id {
		t.Errorf("others have %s, %v; %s is in quarantine", got, err, quarantined)
	}
	last, _, err := fresh.Allocate(t.Context(), app("last"))
	if err != nil || last != quarantined {
		t.Errorf("when none is free: %s, %v; want %s, which is in quarantine", last, err, quarantined)
	}
	if _, _, err := fresh.Allocate(t.Context(), app("one too many")); !errors.Is(err, allocator.ErrExhausted) {
		t.Errorf("when none is left: %v", err)
	}
	// The ID of labels that come back is the last one that they try, and all others are free.
	far := app("far")
	var former allocator.ID
	for n := range identities.Sequence(salt, far.GetKey(), 400, 409) {
		former = n
	}
	quarantine(former, far)
	if got, isNew, err := agent(t, server, 400, 409, nil).Allocate(t.Context(), far); got != former || isNew || err != nil {
		t.Errorf("labels that came back have %s, new %t, %v; want %s", got, isNew, err, former)
	}
}

// TestEdited: other labels than those that it was made with change nothing of what an ID means,
// however it gets them; reported until they are taken back.
func TestEdited(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	b := backend(t, server, 300, 400)
	a := running(t, b, 300, 400, nil)
	web, evil := app("web"), app("evil")
	id, _, err := a.Allocate(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(set map[string]string) {
		t.Helper()
		o, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.SecurityLabels = set
		if _, err := c.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wantEdited := func(when string, want bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); slices.Contains(b.Edited(), id) != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: edited %v", when, b.Edited())
			}
		}
		if k, err := a.GetByID(t.Context(), id); err != nil || k == nil || k.GetKey() != web.GetKey() {
			t.Errorf("%s: %s means %v, %v", when, id, k, err)
		}
	}
	edit(evil.GetAsMap())
	wantEdited("given other labels", true)
	edit(map[string]string{})
	wantEdited("emptied", true)
	edit(evil.GetAsMap())
	wantEdited("given other labels after it was emptied", true)
	if got, err := a.Get(t.Context(), evil); err != nil || got == id {
		t.Errorf("the other labels have %s, %v", got, err)
	}
	edit(web.GetAsMap())
	wantEdited("given its labels back", false)
}

// TestEditedBeforeObserved: an agent that starts while edits stand sees that they are edits, and
// goes by none of them. An ID means nothing to it until it has its labels back: as soon as
// a node takes these into use.
func TestEditedBeforeObserved(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	before := agent(t, server, 300, 400, nil)
	web, db, evil := app("web"), app("db"), app("evil")
	ids := map[string]allocator.ID{}
	for _, k := range []key{web, db} {
		id, _, err := before.Allocate(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		ids[k.GetKey()] = id
	}
	edit := func(id allocator.ID, set map[string]string) {
		t.Helper()
		o, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.SecurityLabels = set
		if _, err := c.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// One that was edited and has its labels back is as good as new.
	edit(ids[db.GetKey()], evil.GetAsMap())
	edit(ids[db.GetKey()], db.GetAsMap())
	edit(ids[web.GetKey()], evil.GetAsMap())
	b := backend(t, server, 300, 400)
	after := running(t, b, 300, 400, nil)
	if id, isNew, err := after.Allocate(t.Context(), evil); err != nil || id == ids[web.GetKey()] || !isNew {
		t.Errorf("the labels of an edit have %s, new %t, %v", id, isNew, err)
	}
	for end := time.Now().Add(time.Minute); !slices.Equal(b.Edited(), []allocator.ID{ids[web.GetKey()]}); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("edited: %v", b.Edited())
		}
	}
	if k, err := after.GetByID(t.Context(), ids[web.GetKey()]); !errors.Is(err, allocator.ErrIdentityNonExistent) {
		t.Errorf("an edited ID means %v, %v", k, err)
	}
	if k, err := after.GetByID(t.Context(), ids[db.GetKey()]); err != nil || k.GetKey() != db.GetKey() {
		t.Errorf("one that was put back means %v, %v", k, err)
	}
	edit(ids[db.GetKey()], evil.GetAsMap()) // it is certain what that is
	means := func(what string, k key) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			got, err := after.GetByID(t.Context(), ids[k.GetKey()])
			if err == nil && got.GetKey() == k.GetKey() {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s means %v, %v", what, got, err)
			}
		}
	}
	means("what was put back and is edited again", db)
	if id, isNew, err := after.Allocate(t.Context(), web); err != nil || id != ids[web.GetKey()] || isNew {
		t.Errorf("the labels that it was made for have %s, new %t, %v; want %s", id, isNew, err, ids[web.GetKey()])
	}
	means("what has its labels back", web)
	o, err := c.Get(t.Context(), ids[web.GetKey()].String(), metav1.GetOptions{})
	if err != nil || !maps.Equal(o.SecurityLabels, web.GetAsMap()) {
		t.Errorf("the object has %v, %v", o.SecurityLabels, err)
	}
	for end := time.Now().Add(time.Minute); slices.Contains(b.Edited(), ids[web.GetKey()]); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("edited: %v", b.Edited())
		}
	}
}

// TestEditedWhileAway: an agent that was away while a client edited an identity that another
// program made. What its own pods have of before is not edited; of other IDs nothing better is
// known than what they say, until they are put back.
func TestEditedWhileAway(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	before := agent(t, server, 300, 400, nil)
	own, remote, other, remade := app("own"), app("remote"), app("other"), app("remade")
	ids := map[string]allocator.ID{}
	for _, k := range []allocator.MapKey{own, remote, other, remade} {
		id, _, err := before.Allocate(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		ids[k.GetKey()] = id
	}
	before.Close()                         // else it gives identities in use their labels back at its next sync
	stopped := time.Now().Add(time.Second) // an object shows when it was made to the second
	label := func(key, as allocator.MapKey) {
		t.Helper()
		o, err := c.Get(t.Context(), ids[key.GetKey()].String(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o.SecurityLabels = as.GetAsMap()
		delete(o.Annotations, identities.DigestAnnotation) // which other programs do not know
		if _, err := c.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b := backend(t, server, 300, 400)
	label(own, app("evil"))
	label(remote, app("worse"))
	label(other, app("worst"))
	for _, k := range []allocator.AllocatorKey{own, app("unmade")} {
		id, ok := ids[k.GetKey()]
		if !ok {
			id = 399
		}
		b.Expect(id, k.GetKey(), stopped)
	}
	b.Expect(ids[remade.GetKey()], app("of old").GetKey(), stopped.Add(-time.Hour)) // the ID had another owner then
	after := running(t, b, 300, 400, nil)
	means := func(when string, key, want allocator.AllocatorKey, edited bool) {
		t.Helper()
		id := ids[key.GetKey()]
		var got allocator.AllocatorKey
		var err error
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if got, err = after.GetByID(t.Context(), id); err == nil && got.GetKey() == want.GetKey() && slices.Contains(b.Edited(), id) == edited {
				return
			}
		}
		t.Errorf("%s: %s means %v (%v), edited %v; want %s, edited %v", when, id, got, err, b.Edited(), want, edited)
	}
	means("a pod's own", own, own, true)
	means("a remote pod's", remote, app("worse"), false)
	means("another remote pod's", other, app("worst"), false)
	label(other, other)
	means("a remote pod's, put back", other, other, false)
	means("another object", remade, remade, false)
	if got, err := after.Get(t.Context(), app("unmade")); err != nil || got != allocator.NoID {
		t.Errorf("labels whose object is gone have %s, %v", got, err)
	}
	// Who begins with an edit does not hold on to it when it is undone.
	if id, _, err := after.Allocate(t.Context(), app("worse")); err != nil || id != ids[remote.GetKey()] {
		t.Fatalf("labels that an edit has given to %s have %s, %v", ids[remote.GetKey()], id, err)
	}
	label(remote, remote)
	means("an ID in use, put back", remote, remote, false)
	label(own, own)
	means("a pod's own, put back", own, own, false)
}

// TestLongestQuarantinedIsTakenFirst: when no ID is free, labels take the one longest
// longest, wherever their sequence begins.
func TestLongestQuarantinedIsTakenFirst(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	ago := map[allocator.ID]time.Duration{300: time.Minute, 301: 3 * time.Hour, 302: time.Hour, 303: 2 * time.Hour}
	for id, d := range ago {
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}}
		identities.Quarantine(o, app("gone"+id.String()).GetKey(), time.Now().Add(-d))
		if _, err := c.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	a := agent(t, server, 300, 303, nil)
	for _, want := range []allocator.ID{301, 303, 302, 300} {
		if got, _, err := a.Allocate(t.Context(), app("new"+want.String())); got != want || err != nil {
			t.Errorf("labels have %s, %v, want %s", got, err, want)
		}
		// An agent that missed the quarantine must not take the new labels for an edit of the old
		// ones.
		o, err := c.Get(t.Context(), want.String(), metav1.GetOptions{})
		if err != nil || identities.Incarnation(o) == o.UID {
			t.Errorf("%s was given to others, and is as before to those who did not observe that, %v", want, err)
		}
	}
}

// TestProtected deletes an object in use: it comes back with its ID.
func TestProtected(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	a := agent(t, server, 256, 65535, nil)
	k := app("deleted")
	id, _, err := a.Allocate(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	old, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), id.String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if now, err := c.Get(t.Context(), id.String(), metav1.GetOptions{}); err == nil && now.UID != old.UID {
			break
		}
		if time.Now().After(end) {
			t.Fatal("an identity in use was deleted and did not come back")
		}
	}
	if again, _, err := a.Allocate(t.Context(), k); err != nil || again != id {
		t.Errorf("allocated again: %s, %v, want %s", again, err, id)
	}
	if got, err := a.GetByID(t.Context(), id); err != nil || got.GetKey() != k.GetKey() {
		t.Errorf("GetByID: %v, %v", got, err)
	}
	if err := a.DeleteAllKeys(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSequence pins the order, which is part of the format, and checks that it holds each ID
// once.
func TestSequence(t *testing.T) {
	t.Parallel()
	var head []allocator.ID
	for id := range identities.Sequence("4b1d", "k8s:app=a;k8s:io.kubernetes.pod.namespace=default;", 256, 65535) {
		if head = append(head, id); len(head) == 4 {
			break
		}
	}
	if diff := cmp.Diff([]allocator.ID{46179, 20138, 59377, 33336}, head); diff != "" {
		t.Errorf("the sequence has changed (-want +got):\n%s", diff)
	}
	if err := quick.Check(func(salt, text string, first uint16, size uint8) bool {
		from := allocator.ID(first) + 1
		to := from + allocator.ID(size)
		seen := map[allocator.ID]bool{}
		n := 0
		for id := range identities.Sequence(salt, text, from, to) {
			seen[id] = id >= from && id <= to
			n++
		}
		return n == int(size)+1 && len(seen) == n && !slices.Contains(slices.Collect(maps.Values(seen)), false)
	}, nil); err != nil {
		t.Error(err)
	}
}

// TestIDsCannotBeAimedAt: who knows how IDs are chosen, but not the cluster's salt, cannot
// choose labels for an ID; writers of the cluster agree.
func TestIDsCannotBeAimedAt(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	const target = 4711
	aim := func(first func(canonical string) allocator.ID) key {
		for i := range 1 << 22 {
			if k := app(fmt.Sprint("aimed-", i)); first(k.GetKey()) == target {
				return k
			}
		}
		t.Fatal("no labels are tried there first")
		return key{}
	}
	plain := func(canonical string) allocator.ID {
		sum := sha256.Sum256([]byte(canonical))
		return 256 + allocator.ID(binary.BigEndian.Uint64(sum[:8])%(65535-256+1))
	}
	salted := func(salt string) func(string) allocator.ID {
		return func(canonical string) allocator.ID {
			for id := range identities.Sequence(salt, canonical, 256, 65535) {
				return id
			}
			return allocator.NoID
		}
	}
	one, two := agent(t, server, 256, 65535, nil), agent(t, server, 256, 65535, nil)
	for what, first := range map[string]func(string) allocator.ID{"without a salt": plain, "with none": salted(""), "with another's": salted("4b1d")} {
		k := aim(first)
		id, _, err := one.Allocate(t.Context(), k)
		if err != nil || id == target {
			t.Errorf("aimed at %d %s: %s, %v", target, what, id, err)
		}
		if again, _, err := two.Allocate(t.Context(), k); again != id || err != nil {
			t.Errorf("another writer has %s, %v; want %s", again, err, id)
		}
	}
	// Who knows the salt can: the test aims well.
	if id, _, err := one.Allocate(t.Context(), aim(salted(saltOf(t, server)))); err != nil || id != target {
		t.Errorf("with the cluster's salt: %s, %v; want %d", id, err, target)
	}
}

// TestSameSecond: two writers make an object each for a set of labels in one second, which is all
// that objects say of their age. Who uses the larger ID follows to the smaller at once, and not
// with the next comparison: both are reported before.
func TestSameSecond(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	events := make(allocator.AllocatorEventChan, 256)
	b := backend(t, server, 256, 65535)
	a, err := allocator.NewAllocator(key{}, b, allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(events), allocator.WithSyncInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	t.Cleanup(func() {
		a.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for i := range 100 {
		k := app(fmt.Sprint("twice-", i))
		id, _, err := a.Allocate(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		first, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		smaller := allocator.ID(256 + i)
		if id <= smaller {
			continue
		}
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: smaller.String()}, SecurityLabels: k.GetAsMap()}
		second, err := c.Create(t.Context(), o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !second.CreationTimestamp.Equal(&first.CreationTimestamp) {
			continue // a second began between them: the first counts
		}
		for {
			select {
			case ev := <-events:
				if ev.Kind != allocator.EventRenumbered {
					continue
				}
				if ev.OldID != id || ev.ID != smaller {
					t.Errorf("got event %+v, want from %s to %s", ev, id, smaller)
				}
				return
			case <-time.After(time.Minute):
				t.Fatalf("the node goes on with %s beside %s", id, smaller)
			}
		}
	}
	t.Fatal("no two objects were made in one second")
}
