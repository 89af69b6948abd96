package identities_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/allocator/conformance"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
)

// TestConformance runs the suite of all allocator backends on a real API server.
func TestConformance(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	conformance.Run(t, conformance.Harness{
		IDs:      allocator.Range{Min: 256, Max: 65535},
		OwnOrder: true,
		Key: func(text string) allocator.AllocatorKey {
			return key{labels.NewSet(labels.New("k8s", "app", text), labels.New("k8s", labels.KeyNamespace, "default"))}
		},
		Open: func(t *testing.T, node string) allocator.Backend {
			t.Helper()
			c, err := k8s.New(server.Config)
			if err != nil {
				t.Fatal(err)
			}
			b, err := identities.New(identities.Config{Client: c, First: 256, Last: 65535, KeyType: key{}, Node: node, Namespace: "default"})
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
	})
}

// withoutMap is a key that is a text and no set of labels.
type withoutMap struct{ allocator.AllocatorKey }

// TestKeyWithoutMap: a key that has no labels is refused, and the error says so.
func TestKeyWithoutMap(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	b := backend(t, server, 300, 400)
	a := running(t, b, 300, 400, nil)
	if err := a.WaitForInitialSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	text := withoutMap{app("web")}
	if id, _, err := a.Allocate(ctx, text); err == nil || !strings.Contains(err.Error(), "MapKey") {
		t.Errorf("allocated %s, %v", id, err)
	}
	if err := b.Restore(t.Context(), allocator.Reference{ID: 300, Key: text}); err == nil || !strings.Contains(err.Error(), "MapKey") {
		t.Errorf("restored: %v", err)
	}
	if all := list(t, c); len(all) > 0 {
		t.Errorf("objects were made: %v", all)
	}
}
