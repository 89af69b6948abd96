package clustermesh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// session is one connection to a cluster.
type session struct {
	*remote
	store kvstore.Backend
	// empty is drain with the context of [Mesh.Run]: it must not end half-way with the connection.
	empty  func()
	cancel context.CancelFunc // ends the watches
	// watch begins to watch a kind; nil while none is watched.
	watch  func(kind string) (<-chan kvstore.Event, context.CancelFunc)
	events map[string]<-chan kvstore.Event
	ends   map[string]context.CancelFunc // of one watch each
	// updated is when the status was last brought up to date; zero if that is due.
	updated time.Time
	// met means that the present description was let in, answers that the store was well when the
	// status was last brought up to date.
	met, answers bool
	// looks is how many looks at the description have begun; hurry means that another one is due.
	looks int
	hurry bool
	// due is when nodes or this cluster's addresses, which have changed, are to be looked at.
	due <-chan time.Time
}

// run follows the cluster until ctx ends.
func (s *session) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	looked := make(chan look, 1)
	var next <-chan time.Time // when the next look begins; nil while one is under way
	var freed <-chan struct{} // closed when an ID has become free since the look began
	begin := func() {
		next, freed, s.hurry = nil, s.m.whenFreed(), false
		s.looks++
		number := s.looks
		wg.Go(func() { looked <- s.look(ctx, number) })
	}
	begin()
	changed, forget := s.m.followMine()
	defer forget()
	// Nothing may be evaluated by the addresses that this cluster had earlier, or by none.
	s.revalidate(ctx)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer s.halt()
	for ctx.Err() == nil {
		if time.Since(s.updated) > gather {
			s.updateStatus()
			s.settle()
			s.updated = time.Now()
		}
		if s.hurry && next != nil {
			begin()
		}
		waiting := freed // perhaps for the ID that this cluster lacks
		if s.met || next == nil {
			waiting = nil
		}
		select {
		case <-ctx.Done():
		case l := <-looked:
			s.meet(ctx, l)
			next = time.After(s.pause())
		case <-next:
			begin()
		case <-waiting:
			begin()
		case e, ok := <-s.events[kindIdentities]:
			s.takeIdentities(e, ok)
		case e, ok := <-s.events[kindNodes]:
			s.take(kindNodes, e, ok)
			if s.progress[kindNodes].since != 0 && s.ends[kindAddresses] == nil {
				s.revalidate(ctx) // so that the hosts of the addresses are known
				s.begin(kindAddresses)
			}
		case e, ok := <-s.events[kindAddresses]:
			s.take(kindAddresses, e, ok)
		case e, ok := <-s.events[kindServices]:
			s.take(kindServices, e, ok)
		case e, ok := <-s.events[canaries]:
			s.takeCanary(e, ok)
		case <-changed:
			s.later()
		case <-s.due:
			s.due = nil
			s.revalidate(ctx)
		case <-tick.C: // for the status
		}
	}
}

// later has everything evaluated again soon.
func (s *session) later() {
	if s.due == nil {
		s.due = time.After(gather)
	}
}

// look is what one look at a cluster's description found.
type look struct {
	number int
	Description
	// marks are the revisions of the keys by which the cluster vouches that it has written all of a
	// kind, by kind; unread is why they could not be read.
	marks  map[string]int64
	unread error
	err    error // of reading the description
}

// look reads the cluster's description. It is no watch, because the client may have access to this
// one key only.
func (s *session) look(ctx context.Context, number int) look {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	l := look{number: number, marks: map[string]int64{}}
	key := kvstore.JoinKey(storekeys.ClusterConfigPrefix, s.name)
	kv, err := s.store.Get(ctx, key)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		l.err = fmt.Errorf("the store has no description of cluster %s (key %s): does its operator run, and is this its name", s.name, key)
		return l
	case err != nil:
		l.err = fmt.Errorf("cannot read the cluster's description: %w", err)
		return l
	}
	if l.Description, l.err = ParseDescription(kv.Value); l.err != nil {
		return l
	}
	kinds := []string{kindIdentities, kindNodes, kindAddresses, kindServices}
	if !l.Capabilities.SyncedCanaries {
		for _, kind := range kinds {
			l.marks[kind] = kv.ModRevision
		}
		return l
	}
	where := layout{s.name, l.Capabilities.Cached}
	for _, kind := range kinds {
		switch kv, err := s.store.Get(ctx, where.canary(kind)); {
		case errors.Is(err, kvstore.ErrNotFound):
		case err != nil:
			l.unread = fmt.Errorf("cannot read whether the cluster's state is complete: %w", err)
			return l
		default:
			l.marks[kind] = kv.ModRevision
		}
	}
	return l
}

// pause is how long after a look the next one begins.
func (s *session) pause() time.Duration {
	if !s.met {
		return s.m.p.Describe
	}
	for _, h := range s.progress {
		if h.since != 0 && !h.complete {
			return s.m.p.Describe
		}
	}
	return 10 * s.m.p.Describe
}

// meet compares the cluster's description with the configuration, and begins to follow it.
func (s *session) meet(ctx context.Context, d look) {
	s.updated = time.Time{}
	s.met = false
	if d.err != nil {
		s.fail(d.err)
		return
	}
	p, err := newPeer(s.name, d.Description, s.m.p.ID, s.m.p.MaxClusters)
	if err == nil && p.id != s.peer.id {
		err = s.m.claim(p.id, s.name)
	}
	if err != nil {
		if s.peer.id != 0 && d.ID != s.peer.id {
			s.halt()
			s.empty() // its ID was that of another cluster, or is one now
		}
		s.fail(err)
		return
	}
	if s.peer == p && s.desc.Capabilities == d.Capabilities && s.cancel != nil {
		s.met = true
		if err := s.vouch(d); err != nil {
			s.fail(err)
		} else {
			s.well()
		}
		return
	}
	if s.peer.id != 0 && (s.peer != p || s.desc.Capabilities.Cached != d.Capabilities.Cached) {
		s.log.Warn("another cluster has changed; removing what was received from it", "number", p.id, "before", s.peer.id)
		s.empty()
		if err := s.m.claim(p.id, s.name); err != nil {
			s.halt()
			s.fail(err)
			return
		}
	}
	s.well()
	s.met = true
	s.halt()
	s.peer, s.desc = p, d.Description
	s.log.Info("following another cluster", "number", p.id, "identities", fmt.Sprintf("%d-%d", p.first, p.last), "mirrored", d.Capabilities.Cached)
	watches, cancel := context.WithCancel(ctx)
	s.cancel, s.events, s.ends = cancel, map[string]<-chan kvstore.Event{}, map[string]context.CancelFunc{}
	s.watch = func(kind string) (<-chan kvstore.Event, context.CancelFunc) {
		one, end := context.WithCancel(watches)
		return s.store.Watch(one, s.layout().prefix(kind)), end
	}
	for _, kind := range []string{kindIdentities, kindNodes, kindServices} { // addresses when the nodes are known
		s.begin(kind)
	}
	if d.Capabilities.SyncedCanaries {
		s.events[canaries] = s.store.Watch(watches, s.layout().canaries())
	}
}

// halt ends the watches.
func (s *session) halt() {
	if s.cancel != nil {
		s.cancel()
	}
	s.cancel, s.watch, s.events, s.ends = nil, nil, nil, nil
}
