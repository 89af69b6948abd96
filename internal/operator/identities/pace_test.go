package identities

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// TestPace: the events of all agents together are bounded, and so are the requests.
func TestPace(t *testing.T) {
	t.Parallel()
	for agents, want := range map[int]rate.Limit{0: 300, 1: 300, 3333: 300, 4000: 250, 5000: 200, 10000: 100, 23809: 42, 100000: 42} {
		if got := pace(agents); got != want {
			t.Errorf("with %d agents %v a second, want %v", agents, got, want)
		}
	}
}

// TestWritesWaitForTheWatch: no more is written than the operator has been notified of, but for a
// few, whether it is a mark, an end, or that of a record, and the next write does not come before
// the watch shows one of these.
func TestWritesWaitForTheWatch(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, servers.Take(t))
	const n = 3 * writers
	for i := range n {
		tr.identity(fmt.Sprint(1000 + i))
	}
	slow := &slowWatch{Client: tr.client, old: map[string]*unobserved{}}
	tr.client = slow
	for pass, what := range []string{"", "", "marks", "", "ends", "", "", "records"} {
		slow.writes = 0
		tr.pass()
		if what == "" {
			continue
		}
		t.Logf("pass %d, %s: %d writes", pass, what, slow.writes)
		if slow.writes != n {
			t.Errorf("%s: %d writes, want %d", what, slow.writes, n)
		}
	}
	if slow.most != writers {
		t.Errorf("at most %d were written that the watch had not delivered, want %d", slow.most, writers)
	}
	if len(slow.old) > 0 {
		t.Errorf("%d were not waited for", len(slow.old))
	}
}

// slowWatch shows what was written only when it has been asked for it a few times.
type slowWatch struct {
	client.Client

	mu           sync.Mutex
	old          map[string]*unobserved
	writes, most int
}

// unobserved is an object as it was before it was written.
type unobserved struct {
	o    *v2.CiliumIdentity
	left int // how often it is shown so
}

// Patch implements [client.Client].
func (s *slowWatch) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return s.write(ctx, o.GetName(), func() error { return s.Client.Patch(ctx, o, p, opts...) })
}

// Delete implements [client.Client].
func (s *slowWatch) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return s.write(ctx, o.GetName(), func() error { return s.Client.Delete(ctx, o, opts...) })
}

func (s *slowWatch) write(ctx context.Context, name string, f func() error) error {
	before := &v2.CiliumIdentity{}
	if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, before); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.old[name] = &unobserved{before, 20}
	s.most = max(s.most, len(s.old))
	return nil
}

// Get implements [client.Client].
func (s *slowWatch) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	s.mu.Lock()
	u := s.old[key.Name]
	if u != nil && u.left > 0 {
		u.left--
		u.o.DeepCopyInto(o.(*v2.CiliumIdentity))
		s.mu.Unlock()
		return nil
	}
	delete(s.old, key.Name)
	s.mu.Unlock()
	return s.Client.Get(ctx, key, o, opts...)
}
