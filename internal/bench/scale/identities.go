package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/retry"
)

// identitySource gives a stub agent the numbers of label sets.
type identitySource interface {
	// Run follows the identities of the cluster until ctx ends. moved gets sets whose number
	// may be another one now.
	Run(ctx context.Context, moved func(labels.Set)) error
	// Ready waits for the first list.
	Ready(ctx context.Context) error
	Acquire(ctx context.Context, set labels.Set) (identity.ID, error)
	Release(ctx context.Context, set labels.Set)
}

// allocated is the real agent's: its allocator on its backend.
type allocated struct {
	alloc  *allocator.Allocator
	events allocator.AllocatorEventChan
}

func newAllocated(client *k8s.Client, first, last identity.ID, log *slog.Logger) (*allocated, error) {
	return newAllocator(client, first, last, func(b allocator.Backend) allocator.Backend { return b }, log)
}

// newAllocator makes one on what on makes of the backend.
func newAllocator(client *k8s.Client, first, last identity.ID, on func(allocator.Backend) allocator.Backend, log *slog.Logger) (*allocated, error) {
	backend, err := identities.New(identities.Config{
		Client: client, First: allocator.ID(first), Last: allocator.ID(last), KeyType: identities.Key{}, Log: log,
	})
	if err != nil {
		return nil, err
	}
	events := make(allocator.AllocatorEventChan, 64)
	alloc, err := allocator.NewAllocator(identities.Key{}, on(backend), allocator.WithMin(allocator.ID(first)), allocator.WithMax(allocator.ID(last)),
		allocator.WithMasterKeyProtection(), allocator.WithEvents(events), allocator.WithLogger(log))
	return &allocated{alloc, events}, err
}

// Run implements identitySource.
func (s *allocated) Run(ctx context.Context, moved func(labels.Set)) error {
	done := make(chan error, 1)
	go func() { done <- s.alloc.Run(ctx) }()
	for {
		select {
		case ev := <-s.events:
			if key, ok := ev.Key.(identities.Key); ok && ev.Kind == allocator.EventRenumbered {
				moved(key.Set)
			}
		case err := <-done:
			return err
		}
	}
}

// follower is an agent's that leaves identities to the operator: the same allocator, on a backend
// that only reads.
type follower struct {
	*allocated

	mu      sync.Mutex
	waiting map[string]labels.Set
}

func newFollower(client *k8s.Client, first, last identity.ID, log *slog.Logger) (*follower, error) {
	a, err := newAllocator(client, first, last, allocator.ReadOnly, log)
	return &follower{allocated: a, waiting: map[string]labels.Set{}}, err
}

// errUnassigned says that the operator has made no identity for a label set yet.
var errUnassigned = allocator.ErrUnassigned

// Run implements identitySource.
func (s *follower) Run(ctx context.Context, moved func(labels.Set)) error {
	done := make(chan error, 1)
	go func() { done <- s.alloc.Run(ctx) }()
	for {
		select {
		case ev := <-s.events:
			key, ok := ev.Key.(identities.Key)
			if !ok || ev.Kind != allocator.EventUpsert && ev.Kind != allocator.EventRenumbered {
				break
			}
			s.mu.Lock()
			_, waits := s.waiting[key.GetKey()]
			delete(s.waiting, key.GetKey())
			s.mu.Unlock()
			if waits || ev.Kind == allocator.EventRenumbered {
				moved(key.Set)
			}
		case err := <-done:
			return err
		}
	}
}

// Acquire implements identitySource.
func (s *follower) Acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	s.mu.Lock()
	s.waiting[set.KVString()] = set
	s.mu.Unlock()
	id, err := s.allocated.Acquire(ctx, set)
	if err == nil {
		s.mu.Lock()
		delete(s.waiting, set.KVString())
		s.mu.Unlock()
	}
	return id, err
}

// Ready implements identitySource.
func (s *allocated) Ready(ctx context.Context) error { return s.alloc.WaitForInitialSync(ctx) }

// Acquire implements identitySource.
func (s *allocated) Acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	id, _, err := s.alloc.Allocate(ctx, identities.Key{Set: set})
	return identity.ID(id), err
}

// Release implements identitySource.
func (s *allocated) Release(ctx context.Context, set labels.Set) {
	_, _ = s.alloc.Release(ctx, identities.Key{Set: set}) // with objects there is nothing to write
}

// randomly is how Cilium's agents allocate, here for comparison only: a label set that the watch
// has not shown gets a number picked at random, and only an agent that picks the same ID is
// notified that it is taken.
type randomly struct {
	client      *k8s.Client
	first, last identity.ID
	ready       chan struct{}

	mu    sync.Mutex
	taken map[identity.ID]string
	known map[string]identity.ID
}

func newRandomly(client *k8s.Client, first, last identity.ID) *randomly {
	return &randomly{
		client: client, first: first, last: last, ready: make(chan struct{}), taken: map[identity.ID]string{}, known: map[string]identity.ID{},
	}
}

// Run implements identitySource.
func (s *randomly) Run(ctx context.Context, _ func(labels.Set)) error {
	return k8s.Follow(ctx, k8s.Kind(s.client.V2, v2.ResourceIdentities, ""), k8s.Options[*v2.CiliumIdentity]{}, k8s.Handler[*v2.CiliumIdentity]{
		Upsert: func(o *v2.CiliumIdentity) {
			id, err := identity.Parse(o.Name)
			key, err2 := identities.Key{}.PutKeyFromMap(o.SecurityLabels)
			if err != nil || err2 != nil {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.taken[id] = key.GetKey()
			if _, ok := s.known[key.GetKey()]; !ok {
				s.known[key.GetKey()] = id
			}
		},
		Delete: func(k k8s.Key) {
			id, err := identity.Parse(k.Name)
			if err != nil {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if text := s.taken[id]; s.known[text] == id {
				delete(s.known, text)
			}
			delete(s.taken, id)
		},
		Synced: func() { close(s.ready) },
	})
}

// Ready implements identitySource.
func (s *randomly) Ready(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pick returns the number of a label set, or one that seems free.
func (s *randomly) pick(text string) (id identity.ID, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.known[text]; ok {
		return id, true
	}
	for {
		id := s.first + identity.ID(rand.Uint32N(uint32(s.last-s.first)+1))
		if _, taken := s.taken[id]; !taken {
			return id, false
		}
	}
}

// Acquire implements identitySource.
func (s *randomly) Acquire(ctx context.Context, set labels.Set) (identity.ID, error) {
	key := identities.Key{Set: set}
	for range 16 {
		id, known := s.pick(key.GetKey())
		if known {
			return id, nil
		}
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}, SecurityLabels: key.GetAsMap()}
		err := s.client.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(o).Do(ctx).Error()
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.taken[id] = key.GetKey()
			if _, ok := s.known[key.GetKey()]; !ok {
				s.known[key.GetKey()] = id
			}
			return id, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return 0, fmt.Errorf("create identity %s: %w", id, err)
		}
	}
	return 0, errors.New("no number is free after 16 attempts")
}

// Release implements identitySource.
func (s *randomly) Release(context.Context, labels.Set) {}

// persist calls f until it succeeds or ctx ends, with a pause between.
func persist(ctx context.Context, pause time.Duration, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if !retry.Sleep(ctx, pause) {
			return errors.Join(err, ctx.Err())
		}
	}
}
