package identities_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// unsealed makes an object as versions did that knew no digest.
func unsealed(t *testing.T, c *objects, id allocator.ID, k key) *v2.CiliumIdentity {
	t.Helper()
	o, err := c.Create(t.Context(), &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}, SecurityLabels: k.GetAsMap()}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// edit gives an object other labels and takes its digest away, so that it is as an edited one of
// these versions.
func edit(t *testing.T, c *objects, id allocator.ID, k key, annotations map[string]string) {
	t.Helper()
	o, err := c.Get(t.Context(), id.String(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.SecurityLabels, o.Annotations = k.GetAsMap(), annotations
	if _, err := c.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// wrong reports what is wrong with an object that is to be that of these labels, intact and sealed;
// "" if nothing is.
func wrong(t *testing.T, c *objects, id allocator.ID, k key) string {
	o, err := c.Get(context.WithoutCancel(t.Context()), id.String(), metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if _, marked := o.Annotations[identities.HeartbeatAnnotation]; marked || !maps.Equal(o.SecurityLabels, k.GetAsMap()) || !identities.WasGiven(o, k.GetAsMap()) {
		return fmt.Sprintf("%s has the labels %v and the annotations %v", id, o.SecurityLabels, o.Annotations)
	}
	return ""
}

// TestSealed: objects without a digest get one of who uses them, each from one of them, and an edit
// that no node saw does not.
func TestSealed(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	web, db, other := app("web"), app("db"), app("other")
	unsealed(t, c, 310, web)
	unsealed(t, c, 311, db)
	unsealed(t, c, 312, other)
	edit(t, c, 311, app("edited"), nil)
	edit(t, c, 312, app("edited too"), nil)
	edit(t, c, 312, other, nil) // and back, which only who used it before can know
	var versions []string
	for n := range 3 {
		b := backend(t, server, 300, 400)
		if n == 2 {
			b.Expect(312, other.GetKey(), time.Now().Add(time.Second))
		}
		a := running(t, b, 300, 400, nil)
		for id, k := range map[allocator.ID]key{310: web, 311: app("edited"), 312: other} {
			if got, _, err := a.Allocate(t.Context(), k); got != id || err != nil {
				t.Errorf("%s has %s, %v; want %s", k, got, err, id)
			}
		}
		controllers.Eventually(t, time.Minute, func() string { return wrong(t, c, 310, web) })
		o, err := c.Get(t.Context(), "310", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, o.ResourceVersion)
	}
	controllers.Eventually(t, time.Minute, func() string { return wrong(t, c, 312, other) })
	// By now the agents have compared all that they use with the server.
	o, err := c.Get(t.Context(), "311", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if identities.Given(o) != "" {
		t.Errorf("what may be an edit was sealed: %v", o.Annotations)
	}
	if o, err = c.Get(t.Context(), "310", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	versions = append(versions, o.ResourceVersion)
	if len(slices.Compact(slices.Clone(versions))) != 1 {
		t.Errorf("it was written again: its versions are %v", versions)
	}
}

// TestSealedAtAPace: a node that uses many objects without a digest does not write them all at
// once.
func TestSealedAtAPace(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	const many = 30
	for i, k := range apps(many) {
		unsealed(t, c, allocator.ID(300+i), k)
	}
	a := agent(t, server, 300, 400, nil)
	for i, k := range apps(many) {
		if got, _, err := a.Allocate(t.Context(), k); got != allocator.ID(300+i) || err != nil {
			t.Fatalf("%s has %s, %v", k, got, err)
		}
	}
	began := time.Now()
	sealed := func() (n int) {
		all, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			if identities.Given(&all.Items[i]) != "" {
				n++
			}
		}
		return n
	}
	controllers.Eventually(t, time.Minute, func() string {
		if sealed() == 0 {
			return "none is sealed"
		}
		return ""
	})
	if n := sealed(); n > many/2 && time.Since(began) < 5*time.Minute {
		t.Errorf("%d of %d objects were sealed within %v", n, many, time.Since(began))
	}
}

// TestEditedWithoutDigest: those who use an ID know what it stands for, whether or not its
// object says so: they keep the ID, and give it its labels back.
func TestEditedWithoutDigest(t *testing.T) {
	t.Parallel()
	web, evil := app("web"), app("evil")
	kept := func(t *testing.T, c *objects, id allocator.ID, agents ...*allocator.Allocator) {
		t.Helper()
		for i, a := range agents {
			if got, isNew, err := a.Allocate(t.Context(), web); got != id || isNew || err != nil {
				t.Errorf("agent %d has %s, new %t, %v; want %s", i, got, isNew, err, id)
			}
		}
		controllers.Eventually(t, time.Minute, func() string { return wrong(t, c, id, web) })
		for i, a := range agents {
			if got, _, err := a.Allocate(t.Context(), web); got != id || err != nil {
				t.Errorf("agent %d has %s in the end, %v; want %s", i, got, err, id)
			}
		}
		if all := list(t, c); len(all) != 1 || len(all[web.GetKey()]) != 1 {
			t.Errorf("there are %v", all)
		}
	}
	t.Run("repair", func(t *testing.T) {
		t.Parallel()
		server, c := start(t)
		unsealed(t, c, 333, web)
		agents := []*allocator.Allocator{agent(t, server, 300, 400, nil), agent(t, server, 300, 400, nil)}
		for _, a := range agents {
			if got, _, err := a.Allocate(t.Context(), web); got != 333 || err != nil {
				t.Fatalf("allocated %s, %v", got, err)
			}
		}
		// The mark has them look at it.
		edit(t, c, 333, evil, map[string]string{identities.HeartbeatAnnotation: "2026-01-01T00:00:00Z"})
		kept(t, c, 333, agents...)
	})
	t.Run("comparison", func(t *testing.T) {
		t.Parallel()
		server, c := start(t)
		unsealed(t, c, 333, web)
		agents := []*allocator.Allocator{agent(t, server, 300, 400, nil), agent(t, server, 300, 400, nil)}
		for _, a := range agents {
			if got, _, err := a.Allocate(t.Context(), web); got != 333 || err != nil {
				t.Fatalf("allocated %s, %v", got, err)
			}
		}
		edit(t, c, 333, evil, nil)
		kept(t, c, 333, agents...)
	})
	t.Run("new pod", func(t *testing.T) {
		t.Parallel()
		server, c := start(t)
		unsealed(t, c, 333, web)
		a := agent(t, server, 300, 400, nil)
		if err := a.WaitForInitialSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		edit(t, c, 333, evil, map[string]string{identities.HeartbeatAnnotation: "2026-01-01T00:00:00Z"})
		kept(t, c, 333, a)
	})
	t.Run("restart", func(t *testing.T) {
		t.Parallel()
		server, c := start(t)
		unsealed(t, c, 333, web)
		edit(t, c, 333, evil, nil)
		var agents []*allocator.Allocator
		for range 2 {
			b := backend(t, server, 300, 400)
			b.Expect(333, web.GetKey(), time.Now().Add(2*time.Second))
			a := running(t, b, 300, 400, nil)
			if err := a.Assume(web, 333); err != nil {
				t.Fatal(err)
			}
			agents = append(agents, a)
		}
		kept(t, c, 333, agents...)
	})
}

// TestEditTakenIntoUse: an agent that observes an object without a digest only when it is edited
// cannot know that, and takes its ID into use for the labels of the edit. When the edit is
// undone, by hand or by who knew better, it means the same to that agent as to one that has known
// the object all the time.
func TestEditTakenIntoUse(t *testing.T) {
	t.Parallel()
	web, evil := app("web"), app("evil")
	readOnly := func(t *testing.T, b *identities.Backend) *allocator.Allocator {
		t.Helper()
		a, err := allocator.NewAllocator(key{}, allocator.ReadOnly(b), allocator.WithMin(300), allocator.WithMax(400), allocator.WithMasterKeyProtection(),
			allocator.WithSyncInterval(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		run(t, a)
		return a
	}
	writing := func(t *testing.T, b *identities.Backend) *allocator.Allocator {
		t.Helper()
		return running(t, b, 300, 400, nil)
	}
	for _, mode := range []struct {
		name  string
		agent func(*testing.T, *identities.Backend) *allocator.Allocator
	}{{"agents make identities", writing}, {"the operator makes identities", readOnly}} {
		for _, how := range []string{"by hand", "with a digest"} {
			t.Run(mode.name+", undone "+how, func(t *testing.T) {
				t.Parallel()
				server, c := start(t)
				unsealed(t, c, 333, web)
				b := backend(t, server, 300, 400)
				before := readOnly(t, b) // else it would undo the edit itself
				if id, _, err := before.Allocate(t.Context(), web); id != 333 || err != nil {
					t.Fatalf("allocated %s, %v", id, err)
				}
				edit(t, c, 333, evil, nil)
				controllers.Eventually(t, time.Minute, func() string {
					if e := b.Edited(); !slices.Equal(e, []allocator.ID{333}) {
						return fmt.Sprintf("edited: %v", e)
					}
					return ""
				})
				after := mode.agent(t, backend(t, server, 300, 400))
				if id, _, err := after.Allocate(t.Context(), evil); id != 333 || err != nil {
					t.Fatalf("the labels of the edit have %s, %v", id, err)
				}
				o, err := c.Get(t.Context(), "333", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if o.SecurityLabels = web.GetAsMap(); how != "by hand" {
					identities.Seal(o)
				}
				if _, err := c.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if mode.name != "agents make identities" { // the operator's part
					unsealed(t, c, 334, evil)
				}
				controllers.Eventually(t, time.Minute, func() string {
					for name, a := range map[string]*allocator.Allocator{"before": before, "after": after} {
						// First, as who has not observed it yet would make another ID.
						if k, err := a.GetByID(t.Context(), 333); err != nil || k.GetKey() != web.GetKey() {
							return fmt.Sprintf("to the agent that runs from %s the edit on, it means %v, %v", name, k, err)
						}
						if mine, _, err := a.Allocate(t.Context(), web); mine != 333 || err != nil {
							return fmt.Sprintf("to the agent that runs from %s the edit on, the labels have %s, %v", name, mine, err)
						}
					}
					if id, _, err := after.Allocate(t.Context(), evil); id == 333 || err != nil {
						return fmt.Sprintf("the labels of the edit have %s, %v", id, err)
					}
					if e := b.Edited(); len(e) > 0 {
						return fmt.Sprintf("edited: %v", e)
					}
					return ""
				})
			})
		}
	}
}
