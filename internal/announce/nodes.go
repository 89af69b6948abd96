package announce

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// NodesConfig is what [Nodes] is made from.
type NodesConfig struct {
	node.Config
	Timing
	// Prefix is where nodes are found in the store, [storekeys.NodesPrefix] by default.
	Prefix string
	// Namesake, if not nil, is called with what another node of the local node's name has announced
	// in its place; it must not block. It is overwritten within the resync interval.
	Namesake func(node.Node)
}

// Nodes announces the local node, and keeps the table of all by what the store has of the others.
// Its methods are safe for concurrent use.
//
// Nodes meet in the key-value store, under cilium/state/nodes/v1/<cluster>/<node>, in the JSON of
// [node.Node], which other implementations read and write as well. Each node writes its own key, on
// its lease, and watches all of them.
type Nodes struct {
	*node.Nodes
	log  *slog.Logger
	self string // the local node's name in the store
	max  uint32
	keys *Keys

	announcing sync.Mutex // so that table and store get the same last value

	namesake func(node.Node)
	mu       sync.Mutex
	local    node.Node // as announced
	seen     bool      // the store had what was announced
}

// NewNodes returns Nodes with an empty table.
func NewNodes(cfg NodesConfig, store kvstore.Backend) (*Nodes, error) {
	cfg.Config.Defaults()
	cfg.Prefix = cmp.Or(cfg.Prefix, storekeys.NodesPrefix)
	all, err := node.New(cfg.Config)
	if err != nil {
		return nil, err
	}
	s := &Nodes{Nodes: all, log: cfg.Log, self: cfg.Self.String(), max: cfg.MaxClusterID, namesake: cfg.Namesake}
	s.keys, err = NewKeys(KeysConfig{
		Timing: cfg.Timing, Prefix: cfg.Prefix, What: "nodes", Log: cfg.Log,
		Owned:  func(name string, _ []byte) bool { return name == s.self },
		Put:    s.put,
		Delete: s.remove,
		Listed: func(ctx context.Context) { _ = s.WaitApplied(ctx) }, // fails when ctx ends only
	}, store)
	return s, err
}

// put handles a node's key. If ctx ends first, the update is dropped: its reader has stopped.
func (s *Nodes) put(ctx context.Context, name string, value []byte) {
	n, err := node.Parse(name, value, s.max)
	if name == s.self { // this node knows best
		if err == nil {
			s.observeSelf(n)
		}
		return
	}
	if err == nil {
		_ = s.Observe(ctx, n)
		return
	}
	s.log.Warn("ignored an invalid node; its last valid version stays", "key", name, "error", err)
}

// observeSelf looks at what the store has of the local node. Before this process has announced it
// that may be from the time before a restart of the machine, or of its agent with other addresses.
func (s *Nodes) observeSelf(n node.Node) {
	s.mu.Lock()
	same := n.SameMachine(s.local)
	s.seen = s.seen || same
	seen := s.seen
	s.mu.Unlock()
	if !same && seen && s.namesake != nil {
		s.namesake(n)
	}
}

func (s *Nodes) remove(ctx context.Context, name string) {
	if k, err := node.ParseKey(name); err == nil {
		_ = s.Forget(ctx, k)
	}
}

// Announce sets what is published of the local node. It is written as long as Run runs, and again
// whenever it gets lost.
func (s *Nodes) Announce(n node.Node) error {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	changed, err := s.SetLocal(n)
	if err != nil || !changed {
		return err
	}
	value, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("cannot announce node %v: %w", n.Key(), err)
	}
	s.mu.Lock()
	s.local = n
	s.mu.Unlock()
	s.keys.Announce(s.self, value)
	return nil
}

// WaitSynced waits until the table holds the nodes that the store held when Run began.
func (s *Nodes) WaitSynced(ctx context.Context) error { return s.keys.WaitSynced(ctx) }

// Run watches the other nodes and writes the local one until ctx ends, and returns its cause. It is
// called once. The local node's key is left in the store: it goes with the lease.
func (s *Nodes) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Go(func() { _ = s.Nodes.Run(ctx) }) // ends with ctx only
	err := s.keys.Run(ctx)
	cancel(err)
	return err
}
