package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/table"
)

// Config is what [Nodes] is made from.
type Config struct {
	// Self names the local node.
	Self Key
	// MaxClusterID is the largest cluster number, 255 by default.
	MaxClusterID uint32
	// DeleteDelay is how long a node is kept after it was forgotten; 0 for not at all.
	DeleteDelay time.Duration
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Defaults sets what is not set.
func (c *Config) Defaults() {
	c.MaxClusterID = cmp.Or(c.MaxClusterID, 255)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all invalid settings.
func (c *Config) Validate() error {
	var errs []error
	if _, err := ParseKey(c.Self.String()); err != nil {
		errs = append(errs, fmt.Errorf("local node: %w", err))
	}
	if c.DeleteDelay < 0 {
		errs = append(errs, fmt.Errorf("the delay of deletions, %v, is negative", c.DeleteDelay))
	}
	return errors.Join(errs...)
}

// Nodes keeps the table of all nodes, as it is notified of them. Its methods are safe for
// concurrent use.
type Nodes struct {
	cfg   Config
	table *table.Table[Key, Node]

	mu    sync.Mutex
	local *Node

	calls chan func() // what Observe and Forget have for Run

	// Of Run:
	vanishing map[Key]time.Time // nodes that were forgotten, and when they go
	ids       ids
}

// New returns Nodes with an empty table.
func New(cfg Config) (*Nodes, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return &Nodes{
		cfg: cfg, table: table.New[Key](Node.Equal),
		calls: make(chan func(), 64), vanishing: make(map[Key]time.Time),
	}, nil
}

// Table returns the table of nodes, which the caller must not write to.
func (s *Nodes) Table() *table.Table[Key, Node] { return s.table }

// Peers returns what the datapath must know of the other nodes, and the claims that are refused;
// see the function [Peers].
func (s *Nodes) Peers(held []datapath.Peer, await bool) ([]datapath.Peer, []*datapath.RouteError) {
	return Peers(s.table.All(), s.cfg.Self, held, await)
}

// SetLocal sets the row of the local node, and reports whether that changed it.
func (s *Nodes) SetLocal(n Node) (changed bool, err error) {
	if n.Key() != s.cfg.Self {
		return false, fmt.Errorf("cannot announce node %v: this is %v", n.Key(), s.cfg.Self)
	}
	if err := n.Validate(s.cfg.MaxClusterID); err != nil {
		return false, fmt.Errorf("cannot announce node %v: %w", n.Key(), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.local != nil && s.local.Equal(n) {
		return false, nil
	}
	s.local = &n
	s.table.Upsert(n.Key(), n)
	return true, nil
}

// Run does what Observe, Forget and Dismiss ask, and removes nodes when their time has come, until
// ctx ends; it returns the cause. It is called once.
func (s *Nodes) Run(ctx context.Context) error {
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
		case call := <-s.calls:
			call()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Observe records another node. It waits for Run if that is far behind.
func (s *Nodes) Observe(ctx context.Context, n Node) error {
	if n.Key() == s.cfg.Self {
		return nil // this node knows best
	}
	if err := n.Validate(s.cfg.MaxClusterID); err != nil {
		return fmt.Errorf("node %v: %w", n.Key(), err)
	}
	return s.do(ctx, func() { s.observe(n) })
}

// Forget records that a node is gone, as Observe does. It stays for Config.DeleteDelay.
func (s *Nodes) Forget(ctx context.Context, k Key) error { return s.do(ctx, func() { s.forget(k) }) }

// Dismiss removes a node at once, where Forget waits: it was deleted explicitly. Dismissing an
// unknown node is no error.
func (s *Nodes) Dismiss(ctx context.Context, k Key) error {
	return s.do(ctx, func() {
		if _, known := s.table.Get(k); known && k != s.cfg.Self {
			s.remove(k, "its cluster is not followed any more")
		}
	})
}

func (s *Nodes) do(ctx context.Context, what func()) error {
	select {
	case s.calls <- what:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// WaitApplied waits until everything that Observe and Forget were called with before is in the
// table.
func (s *Nodes) WaitApplied(ctx context.Context) error {
	done := make(chan struct{})
	if err := s.do(ctx, func() { close(done) }); err != nil {
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

func (s *Nodes) observe(n Node) {
	delete(s.vanishing, n.Key())
	for k := range s.vanishing {
		if old, _ := s.table.Get(k); conflict(old, n) {
			s.remove(k, "another node has its addresses")
		}
	}
	s.table.Upsert(n.Key(), n)
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
