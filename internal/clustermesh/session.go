package clustermesh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// session is one connection to a cluster.
type session struct {
	*remote
	store  kvstore.Backend
	cancel context.CancelFunc // ends the watches
	watch  func(kind string)  // begins one more; nil while there are none
	events map[string]<-chan kvstore.Event
	// updated is when the status was last brought up to date; zero if that is due.
	updated time.Time
	// met means that the present description was let in.
	met atomic.Bool
	// look is due when nodes or this cluster's addresses have changed.
	look <-chan time.Time
}

// run follows the cluster until ctx ends.
func (s *session) run(ctx context.Context) {
	described := make(chan described)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { s.describe(ctx, described) })
	changed, forget := s.m.followMine()
	defer forget()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer func() {
		if s.cancel != nil {
			s.cancel()
		}
	}()
	for ctx.Err() == nil {
		if time.Since(s.updated) > gather {
			s.updateStatus()
			s.updated = time.Now()
		}
		select {
		case <-ctx.Done():
		case d := <-described:
			s.meet(ctx, d)
		case e, ok := <-s.events[kindIdentities]:
			s.takeIdentities(e, ok)
		case e, ok := <-s.events[kindNodes]:
			s.take(kindNodes, e, ok)
			if h := s.progress[kindNodes]; h.fresh == nil && s.events[kindAddresses] == nil {
				s.revalidate(ctx) // so that the hosts of the addresses are known
				s.watch(kindAddresses)
			}
		case e, ok := <-s.events[kindAddresses]:
			s.take(kindAddresses, e, ok)
		case e, ok := <-s.events[kindServices]:
			s.take(kindServices, e, ok)
		case e, ok := <-s.events[kindCanaries]:
			s.takeCanary(e, ok)
		case <-changed:
			s.later()
		case <-s.look:
			s.look = nil
			s.revalidate(ctx)
		case <-tick.C: // for the status
		}
	}
}

// kindCanaries is the watch of the keys that show what is complete.
const kindCanaries = "canaries"

// later has everything evaluated again soon.
func (s *session) later() {
	if s.look == nil {
		s.look = time.After(gather)
	}
}

// described is what one look at a cluster's description found.
type described struct {
	Description
	err error
}

// describe polls the cluster's description until ctx ends. It is no watch, because the client may
// have access to this one key only.
func (s *session) describe(ctx context.Context, to chan<- described) {
	key := kvstore.JoinKey(storekeys.ClusterConfigPrefix, s.name)
	for {
		var d described
		get, cancel := context.WithTimeout(ctx, 10*time.Second)
		kv, err := s.store.Get(get, key)
		cancel()
		switch {
		case errors.Is(err, kvstore.ErrNotFound):
			d.err = fmt.Errorf("the store has no description of cluster %s (key %s): does its operator run, and is this its name", s.name, key)
		case err != nil:
			d.err = fmt.Errorf("cannot read the cluster's description: %w", err)
		default:
			d.Description, d.err = ParseDescription(kv.Value)
		}
		freed := s.m.whenFreed()
		select {
		case to <- d:
		case <-ctx.Done():
			return
		}
		pause := s.m.p.Describe
		if s.met.Load() {
			pause, freed = 10*pause, nil
		}
		select {
		case <-time.After(pause):
		case <-freed: // perhaps the ID that this cluster waits for
		case <-ctx.Done():
			return
		}
	}
}

// meet compares the cluster's description with the configuration, and begins to follow it.
func (s *session) meet(ctx context.Context, d described) {
	s.updated = time.Time{}
	s.met.Store(false)
	if d.err != nil {
		s.fail(d.err)
		return
	}
	p, err := newPeer(s.name, d.Description, s.m.p.ID, s.m.p.MaxClusters)
	if err == nil && p.id != s.peer.id {
		err = s.m.claim(p.id, s.name)
	}
	if err != nil {
		s.fail(err)
		if s.peer.id != 0 && d.ID != s.peer.id {
			s.halt()
			s.drain(ctx) // its ID was that of another cluster, or is one now
		}
		return
	}
	s.well()
	s.met.Store(true)
	if s.peer == p && s.desc.Capabilities == d.Capabilities && s.cancel != nil {
		return
	}
	if s.peer.id != 0 && (s.peer != p || s.desc.Capabilities.Cached != d.Capabilities.Cached) {
		s.log.Warn("another cluster has changed; removing what was received from it", "number", p.id, "before", s.peer.id)
		s.drain(ctx)
		if err := s.m.claim(p.id, s.name); err != nil {
			s.met.Store(false)
			s.halt()
			s.fail(err)
			return
		}
	}
	s.halt()
	s.peer, s.desc = p, d.Description
	s.log.Info("following another cluster", "number", p.id, "identities", fmt.Sprintf("%d-%d", p.first, p.last), "mirrored", d.Capabilities.Cached)
	watches, cancel := context.WithCancel(ctx)
	s.cancel, s.events = cancel, map[string]<-chan kvstore.Event{}
	s.watch = func(kind string) { s.events[kind] = s.store.Watch(watches, s.layout().prefix(kind)) }
	for _, h := range s.progress {
		h.fresh = map[string]bool{}
	}
	for _, kind := range []string{kindIdentities, kindNodes, kindServices} { // addresses when the nodes are known
		s.watch(kind)
	}
	if d.Capabilities.SyncedCanaries {
		s.events[kindCanaries] = s.store.Watch(watches, s.layout().canaries())
	}
}

// halt ends the watches.
func (s *session) halt() {
	if s.cancel != nil {
		s.cancel()
	}
	s.cancel, s.watch, s.events = nil, nil, nil
}
