package endpoints

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-net/hawser/internal/k8s"
)

// TestRefused: a server that answers is asked less and less often, one that cannot be reached at every comparison.
func TestRefused(t *testing.T) {
	t.Parallel()
	key, other := k8s.Key{Namespace: "a", Name: "pod"}, k8s.Key{Namespace: "a", Name: "other"}
	overloaded := fmt.Errorf("create: %w", apierrors.NewTooManyRequests("later", 1))
	away := fmt.Errorf("create: %w", context.DeadlineExceeded)
	for _, tt := range []struct {
		name string
		err  error
		at   []int // comparisons with an attempt
	}{
		{"refused", overloaded, []int{1, 3, 7, 15, 23}},
		{"not reached", away, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30}},
	} {
		r := refused{}
		if !r.failed(key, tt.err) {
			t.Errorf("%s: the first failure is no news", tt.name)
		}
		var at []int
		for n := range 30 {
			r.tick()
			if !r.due(other) {
				t.Errorf("%s: another object waits", tt.name)
			}
			if !r.due(key) {
				continue
			}
			at = append(at, n+1)
			if r.failed(key, tt.err) {
				t.Errorf("%s: the same failure is news", tt.name)
			}
		}
		if !slices.Equal(at, tt.at) {
			t.Errorf("%s: attempts at %v, want %v", tt.name, at, tt.at)
		}
		if !r.worked(key) || r.worked(key) || !r.due(key) {
			t.Errorf("%s: success is not told once", tt.name)
		}
	}
	// A server that comes back is found soon, however long it refused before.
	r := refused{}
	for range 10 {
		r.failed(key, overloaded)
	}
	r.failed(key, away)
	r.tick()
	if !r.due(key) {
		t.Error("it waits longer than one comparison for a server that was away")
	}
}
