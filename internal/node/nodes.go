package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Config is what [Nodes] is made from.
type Config struct {
	// Self names the local node.
	Self Key
	// Prefix is where nodes are found in the store, [storekeys.NodesPrefix] by default.
	Prefix string
	// MaxClusterID is the largest cluster number, 255 by default.
	MaxClusterID uint32
	// DeleteDelay is how long a node is kept after its key went, 30 seconds by default.
	DeleteDelay time.Duration
	// Resync is how often it is checked that the store has what was announced, 5 minutes by
	// default.
	Resync time.Duration
	// WriteTimeout bounds one attempt to write, 30 seconds by default; MinBackoff and MaxBackoff
	// the random pause after one that failed, 200 ms to 30 seconds by default.
	WriteTimeout time.Duration
	MinBackoff   time.Duration
	MaxBackoff   time.Duration
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Defaults sets what is not set.
func (c *Config) Defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.DeleteDelay, 30*time.Second)
	set(&c.Resync, 5*time.Minute)
	set(&c.WriteTimeout, 30*time.Second)
	set(&c.MinBackoff, 200*time.Millisecond)
	set(&c.MaxBackoff, 30*time.Second)
	if c.Prefix == "" {
		c.Prefix = storekeys.NodesPrefix
	}
	if c.MaxClusterID == 0 {
		c.MaxClusterID = 255
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports all settings that make no sense.
func (c *Config) Validate() error {
	var errs []error
	if _, err := ParseKey(c.Self.String()); err != nil {
		errs = append(errs, fmt.Errorf("local node: %w", err))
	}
	for _, d := range []time.Duration{c.DeleteDelay, c.Resync, c.WriteTimeout, c.MinBackoff} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("duration %v is negative", d))
		}
	}
	if c.MaxBackoff < c.MinBackoff {
		errs = append(errs, fmt.Errorf("backoff from %v to %v is no range", c.MinBackoff, c.MaxBackoff))
	}
	return errors.Join(errs...)
}

// Nodes keeps the table of all nodes and announces the local one. Its methods are safe for
// concurrent use.
type Nodes struct {
	cfg    Config
	store  kvstore.Backend
	table  *table.Table[Key, Node]
	synced chan struct{}
	dirty  chan struct{} // the local node may have to be written

	mu     sync.Mutex
	local  *Node
	value  []byte // what the store should hold for local
	stored string // what it holds, as far as the watch told; "" is nothing

	told chan func() // what Learn and Forget have for the goroutine that watches

	// Of the goroutine that watches:
	vanishing map[Key]time.Time // nodes without a key, and when they go
	ids       ids
}

// New returns Nodes with an empty table.
func New(cfg Config, store kvstore.Backend) (*Nodes, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return &Nodes{
		cfg: cfg, store: store,
		table:     table.New[Key](Node.Equal),
		synced:    make(chan struct{}),
		dirty:     make(chan struct{}, 1),
		told:      make(chan func(), 64),
		vanishing: make(map[Key]time.Time),
	}, nil
}

// Table returns the table of nodes, which the caller must not write to.
func (s *Nodes) Table() *table.Table[Key, Node] { return s.table }

// Peers returns what the datapath must know of the other nodes, and the claims that are refused;
// see the function [Peers].
func (s *Nodes) Peers(held []datapath.Peer, await bool) ([]datapath.Peer, []*datapath.RouteError) {
	return Peers(s.table.All(), s.cfg.Self, held, await)
}

// Announce sets what is told of the local node. It is written as long as Run runs, and again
// whenever it gets lost.
func (s *Nodes) Announce(n Node) error {
	if n.Key() != s.cfg.Self {
		return fmt.Errorf("cannot announce node %v: this is %v", n.Key(), s.cfg.Self)
	}
	if err := n.Validate(s.cfg.MaxClusterID); err != nil {
		return fmt.Errorf("cannot announce node %v: %w", n.Key(), err)
	}
	value, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("cannot announce node %v: %w", n.Key(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.local != nil && s.local.Equal(n) {
		return nil
	}
	s.local, s.value = &n, value
	s.table.Upsert(n.Key(), n)
	s.wake()
	return nil
}

func (s *Nodes) wake() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// WaitSynced waits until the table holds the nodes that the store held when Run began.
func (s *Nodes) WaitSynced(ctx context.Context) error {
	select {
	case <-s.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of nodes: %w", context.Cause(ctx))
	}
}

// Run watches the other nodes and writes the local one until ctx ends, and returns its cause. It is
// called once. The local node's key is left in the store: it goes with the lease.
func (s *Nodes) Run(ctx context.Context) error {
	stop := s.store.ObserveLostLeases(s.ownKey(), func([]string) {
		s.mu.Lock()
		s.stored = ""
		s.mu.Unlock()
		s.wake()
	})
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() { s.write(ctx) })
	err := s.watch(ctx)
	cancel(err)
	return err
}

func (s *Nodes) ownKey() string { return s.cfg.Prefix + "/" + s.cfg.Self.String() }

// write puts the local node into the store whenever that may be needed.
func (s *Nodes) write(ctx context.Context) {
	resync := time.NewTicker(s.cfg.Resync)
	defer resync.Stop()
	backoff := s.cfg.MinBackoff
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		case <-retry:
		case <-resync.C:
			s.mu.Lock()
			same := s.stored == string(s.value)
			s.mu.Unlock()
			if same {
				continue
			}
		}
		retry = nil
		s.mu.Lock()
		value := s.value
		s.mu.Unlock()
		if value == nil {
			continue
		}
		wctx, cancel := context.WithTimeout(ctx, s.cfg.WriteTimeout)
		err := kvstore.Put(wctx, s.store, s.ownKey(), value, kvstore.Leased)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			pause := backoff - rand.N(backoff/2+1)
			s.cfg.Log.Warn("could not announce the local node", "retry", pause, "error", err)
			retry = time.After(pause)
			backoff = min(2*backoff, s.cfg.MaxBackoff)
		} else {
			backoff = s.cfg.MinBackoff
		}
	}
}

// watch keeps the table.
func (s *Nodes) watch(ctx context.Context) error {
	events := s.store.Watch(ctx, s.cfg.Prefix+"/")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var after <-chan time.Time
		if next := s.removeVanished(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
			after = timer.C
		}
		select {
		case <-after:
		case tell := <-s.told:
			tell()
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-events:
			switch {
			case ok:
				s.event(e)
			case ctx.Err() != nil:
				return context.Cause(ctx)
			default:
				return fmt.Errorf("watching nodes: %w", kvstore.ErrClosed)
			}
		}
	}
}

func (s *Nodes) event(e kvstore.Event) {
	if e.Kind == kvstore.EventListDone {
		select {
		case <-s.synced:
		default:
			close(s.synced)
		}
		return
	}
	name := strings.TrimPrefix(e.Key, s.cfg.Prefix+"/")
	if name == s.cfg.Self.String() {
		s.ownEvent(e)
		return
	}
	if e.Kind == kvstore.EventDelete {
		if k, err := ParseKey(name); err == nil {
			s.forget(k)
		}
		return
	}
	n, err := Parse(name, e.Value, s.cfg.MaxClusterID)
	if err != nil {
		s.cfg.Log.Warn("ignored a node that makes no sense; its last good version stays", "key", e.Key, "error", err)
		return
	}
	s.learn(n)
}

// Learn tells of another node, by a source other than the store. It waits for Run if that is far
// behind.
func (s *Nodes) Learn(ctx context.Context, n Node) error {
	if n.Key() == s.cfg.Self {
		return nil // this node knows best
	}
	if err := n.Validate(s.cfg.MaxClusterID); err != nil {
		return fmt.Errorf("node %v: %w", n.Key(), err)
	}
	return s.tell(ctx, func() { s.learn(n) })
}

// Forget tells that a node is gone, as Learn does. It stays for Config.DeleteDelay, as one whose
// key went.
func (s *Nodes) Forget(ctx context.Context, k Key) error { return s.tell(ctx, func() { s.forget(k) }) }

// Dismiss tells that a node is gone for good, as Forget does: somebody has said so, and it goes at
// once. A node that is dismissed before it is learned is no fault.
func (s *Nodes) Dismiss(ctx context.Context, k Key) error {
	return s.tell(ctx, func() {
		if _, known := s.table.Get(k); known && k != s.cfg.Self {
			s.remove(k, "its cluster is not followed any more")
		}
	})
}

func (s *Nodes) tell(ctx context.Context, what func()) error {
	select {
	case s.told <- what:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Settle waits until everything that Learn and Forget were told before is in the table.
func (s *Nodes) Settle(ctx context.Context) error {
	done := make(chan struct{})
	if err := s.tell(ctx, func() { close(done) }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Nodes) forget(k Key) {
	if _, known := s.table.Get(k); known && k != s.cfg.Self {
		s.vanishing[k] = time.Now().Add(s.cfg.DeleteDelay)
	}
}

func (s *Nodes) learn(n Node) {
	delete(s.vanishing, n.Key())
	for k := range s.vanishing {
		if old, _ := s.table.Get(k); conflict(old, n) {
			s.remove(k, "another node has its addresses")
		}
	}
	s.table.Upsert(n.Key(), n)
}

// ownEvent is told what became of the local node's key.
func (s *Nodes) ownEvent(e kvstore.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = string(e.Value)
	if e.Kind == kvstore.EventDelete {
		s.stored = ""
		if s.value != nil {
			s.wake()
		}
	}
}

// conflict reports whether two nodes claim an address or a pod network in common.
func conflict(a, b Node) bool {
	for _, x := range a.Addresses {
		for _, y := range b.Addresses {
			if x.IP == y.IP {
				return true
			}
		}
	}
	for _, x := range a.PodCIDRs() {
		for _, y := range b.PodCIDRs() {
			if x.Overlaps(y) {
				return true
			}
		}
	}
	return false
}

// removeVanished removes the nodes whose time has come, and returns when the next one's comes.
func (s *Nodes) removeVanished(now time.Time) (next time.Time) {
	for k, at := range s.vanishing {
		switch {
		case !now.Before(at):
			s.remove(k, "its key is gone")
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return next
}

func (s *Nodes) remove(k Key, why string) {
	delete(s.vanishing, k)
	s.table.Delete(k)
	s.cfg.Log.Info("removed a node", "node", k.String(), "reason", why)
}

// ID is the number of a node on this one, with all its addresses.
type ID struct {
	ID  uint16
	Key Key
	IPs []netip.Addr
}

// IDs returns a number for each node but the local one, which keeps it as long as it is in the
// table. They are for display only.
func (s *Nodes) IDs() []ID {
	nodes, _ := s.table.Snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids.assign(nodes, s.cfg.Self)
}
