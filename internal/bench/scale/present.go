package scale

import (
	"context"
	"sync"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
)

// presence counts the identities that have labels, as a watch of the harness's own shows
// them: IDs in quarantine do not count.
type presence struct {
	c      *cluster
	synced chan struct{} // closed when all are known that were there at the start

	mu      sync.Mutex
	present map[string]bool
}

func (c *cluster) newPresence() *presence {
	return &presence{c: c, synced: make(chan struct{}), present: map[string]bool{}}
}

// run follows the identities until ctx ends, and returns nil then.
func (s *presence) run(ctx context.Context) error {
	note := func(name string, there bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if there {
			s.present[name] = true
		} else {
			delete(s.present, name)
		}
	}
	return k8s.Follow(ctx, k8s.Kind(s.c.client.UrgentV2, v2.ResourceIdentities, ""), k8s.Options[*v2.CiliumIdentity]{}, k8s.Handler[*v2.CiliumIdentity]{
		Upsert: func(o *v2.CiliumIdentity) { _, _, quarantined := identities.Quarantined(o); note(o.Name, !quarantined) },
		Delete: func(k k8s.Key) { note(k.Name, false) },
		Synced: func() { close(s.synced) },
	})
}

func (s *presence) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.present)
}

// has counts those of the names that are present.
func (s *presence) has(names []string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if s.present[name] {
			n++
		}
	}
	return n
}
