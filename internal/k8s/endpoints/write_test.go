package endpoints

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-net/hawser/internal/k8s"
)

// TestAttempts: a server that refuses, or is late, is asked less and less often, one that has
// accepted rarely, one that cannot be reached at every comparison.
func TestAttempts(t *testing.T) {
	t.Parallel()
	key, other := k8s.Key{Namespace: "a", Name: "pod"}, k8s.Key{Namespace: "a", Name: "other"}
	overloaded := fmt.Errorf("create: %w", apierrors.NewTooManyRequests("later", 1))
	slow := fmt.Errorf("create: %w", &url.Error{Op: "Post", Err: context.DeadlineExceeded})
	away := fmt.Errorf("create: %w", &url.Error{Op: "Post", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}})
	lost := fmt.Errorf("create: %w", &url.Error{Op: "Post", Err: io.ErrUnexpectedEOF})
	rarely := []int{1, 3, 7, 15, 23}
	var always []int
	for n := range 30 {
		always = append(always, n+1)
	}
	for _, tt := range []struct {
		name string
		err  error
		at   []int // comparisons with an attempt
	}{
		{"refused", overloaded, rarely},
		{"not answered in time", slow, rarely},
		{"not reached", away, always},
		{"broken off", lost, always},
		{"accepted, and not delivered by the watch", nil, []int{8, 16, 24}},
	} {
		r := attempts{}
		try := func() (changed bool) {
			if tt.err == nil {
				return r.wrote(key)
			}
			return r.failed(key, tt.err)
		}
		if try() != (tt.err != nil) {
			t.Errorf("%s: changes are failures, and the first of them", tt.name)
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
			if try() {
				t.Errorf("%s: the same again is a change", tt.name)
			}
		}
		if !slices.Equal(at, tt.at) {
			t.Errorf("%s: attempts at %v, want %v", tt.name, at, tt.at)
		}
		if tt.err != nil && (!r.wrote(key) || r.wrote(key)) {
			t.Errorf("%s: success is not reported once", tt.name)
		}
		if r.done(key) || !r.due(key) || len(r) > 0 {
			t.Errorf("%s: what is as it should be is not forgotten", tt.name)
		}
	}
	// A server that comes back is found soon, however long it refused before.
	r := attempts{}
	for range 10 {
		r.failed(key, overloaded)
	}
	r.failed(key, away)
	r.tick()
	if !r.due(key) {
		t.Error("it waits longer than one comparison for a server that was away")
	}
	// What another writer has written as it should be is reported, too.
	if !r.done(key) || r.done(key) {
		t.Error("success is not reported once")
	}
}
