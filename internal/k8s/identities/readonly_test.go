package identities_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// TestReadOnly is the beginning of "Agent changes" in CFP-27752: an agent that leaves identities to
// the operator finds those that are there, makes none, takes no mark off, restores none, and
// follows when the ID in force changes.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	backend, err := identities.New(identities.Config{Client: client, First: 256, Last: 65535, KeyType: key{}})
	if err != nil {
		t.Fatal(err)
	}
	events := make(allocator.AllocatorEventChan, 256)
	a, err := allocator.NewAllocator(key{}, allocator.ReadOnly(backend), allocator.WithMin(256), allocator.WithMax(65535), allocator.WithEvents(events),
		allocator.WithMasterKeyProtection(), allocator.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context()) }()
	t.Cleanup(func() {
		a.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	wait := func(kind allocator.AllocatorEvent) {
		t.Helper()
		for end := time.After(20 * time.Second); ; {
			select {
			case ev := <-events:
				if ev.Kind == kind.Kind && (kind.ID == allocator.NoID || ev.ID == kind.ID) {
					return
				}
			case <-end:
				t.Fatalf("never delivered: %+v", kind)
			}
		}
	}
	web := app("web")
	began := time.Now()
	if id, _, err := a.Allocate(t.Context(), web); !errors.Is(err, allocator.ErrUnassigned) {
		t.Errorf("labels without an identity: %s, %v", id, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v to say that there is none", took)
	}
	make := func(name string, annotations map[string]string) *v2.CiliumIdentity {
		t.Helper()
		o, err := c.Create(t.Context(), &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, SecurityLabels: web.GetAsMap()}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	marked := make("4711", map[string]string{identities.HeartbeatAnnotation: "2026-01-01T00:00:00Z"})
	wait(allocator.AllocatorEvent{Kind: allocator.EventUpsert, ID: 4711})
	for range 2 {
		if id, isNew, err := a.Allocate(t.Context(), web); err != nil || id != 4711 || isNew {
			t.Errorf("labels with an identity: %s, %v, %v", id, isNew, err)
		}
	}
	time.Sleep(1100 * time.Millisecond) // times of creation have seconds
	make("800", nil)                    // a duplicate, which counts for nothing while the older one is there
	wait(allocator.AllocatorEvent{Kind: allocator.EventUpsert, ID: 800})
	if got, err := c.Get(t.Context(), "4711", metav1.GetOptions{}); err != nil || got.ResourceVersion != marked.ResourceVersion {
		t.Errorf("the object was touched: %+v, %v", got, err)
	}
	if err := c.Delete(t.Context(), "4711", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(allocator.AllocatorEvent{Kind: allocator.EventRenumbered, ID: 800})
	if id, _, err := a.Allocate(t.Context(), web); err != nil || id != 800 {
		t.Errorf("the ID in force now: %s, %v", id, err)
	}
	// Gone for good: it stays in use here, nothing makes it again, and another that comes is taken.
	if err := c.Delete(t.Context(), "800", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if id, _, err := a.Allocate(t.Context(), web); err != nil || id != 800 {
		t.Errorf("the ID that was deleted while in use: %s, %v", id, err)
	}
	if list, err := c.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%d identities have been made: %v", len(list.Items), err)
	}
	make("900", nil)
	wait(allocator.AllocatorEvent{Kind: allocator.EventRenumbered, ID: 900})
	if _, _, err := allocator.ReadOnly(backend).RunGC(t.Context(), nil, allocator.Range{}, nil); err == nil {
		t.Error("a backend that only reads collects")
	}
}
