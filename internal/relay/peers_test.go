package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// lister is an agent that says which nodes there are, whatever it likes.
type lister struct {
	peer.UnimplementedPeerServer
	mu   sync.Mutex
	list []*peer.ChangeNotification
	drop chan struct{} // ends streams
}

func (l *lister) Notify(_ *peer.NotifyRequest, stream peer.Peer_NotifyServer) error {
	l.mu.Lock()
	list, drop := l.list, l.drop
	l.mu.Unlock()
	for _, n := range list {
		if err := stream.Send(n); err != nil {
			return err
		}
	}
	select {
	case <-stream.Context().Done():
	case <-drop:
	}
	return nil
}

// set changes the list and ends the streams.
func (l *lister) set(list []*peer.ChangeNotification) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drop != nil {
		close(l.drop)
	}
	l.list, l.drop = list, make(chan struct{})
}

func added(name, address string) *peer.ChangeNotification {
	return &peer.ChangeNotification{Type: peer.ChangeNotificationType_PEER_ADDED, Name: name, Address: address}
}

// TestListOfThousands: a list of more nodes than there can be, none of which answers, keeps the
// relay from neither those that do nor from its work, and a shorter list replaces it.
func TestListOfThousands(t *testing.T) {
	const most = 1200
	l := &lister{}
	path := filepath.Join(shortDir(t), "s")
	s := newStand(t, 2, func(c *Config) {
		c.PeerService, c.RetryTimeout, c.relist, c.nodes = "unix://"+path, 30*time.Second, 3*time.Second, most
	}, nil)
	var list []*peer.ChangeNotification
	closed := freePort(t)
	for i := range most + 1000 {
		list = append(list, added(fmt.Sprintf("prod/x%d", i), closed))
		if i == 1000 {
			list = append(list, added("prod/n1", s.nodes[0].address), added("prod/n2", s.nodes[1].address),
				added("", closed), added(strings.Repeat("x", 1000), closed), added("prod/bad", "nowhere"))
		}
	}
	l.set(list)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.WaitForHandlers(true))
	peer.RegisterPeerServer(srv, l)
	s.run(func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, srv.Stop)
		defer stop()
		defer srv.Stop()
		return srv.Serve(listener)
	})
	s.connected(2)
	controllers.Eventually(t, testTimeout, func() string {
		views, _ := s.relay.roster.nodes()
		if len(views) != most {
			return fmt.Sprintf("%d nodes", len(views))
		}
		return ""
	})
	if n := runtime.NumGoroutine(); n > 4*most {
		t.Errorf("%d goroutines", n)
	}
	want := s.nodes[1].add(time.Now())
	got, states, err := s.get(&observer.GetFlowsRequest{}).all()
	if err != nil || len(got) != 1 || got[0] != want || len(states) < most/namesAtOnce || len(states) > most/namesAtOnce+2*problemsAtOnce {
		t.Errorf("%v, %d messages about nodes, %v", got, len(states), err)
	}
	c := s.get(&observer.GetFlowsRequest{Follow: true})
	if problem := c.state("prod/bad", relay.NodeState_NODE_UNAVAILABLE); !strings.Contains(problem, "host:port") && !strings.Contains(problem, "several reasons") {
		t.Error(problem)
	}
	// The next list has one node: the others are gone, after a while.
	l.set([]*peer.ChangeNotification{added("prod/n1", s.nodes[0].address)})
	c.state("prod/n2", relay.NodeState_NODE_GONE)
	nodes, err := s.client().GetNodes(t.Context(), &observer.GetNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetName() != "prod/n1" {
		t.Errorf("%d nodes, %v", len(nodes.GetNodes()), err)
	}
}

// TestListOfAgentThatStarts: the agent that lists the nodes is replaced by one that knows itself
// only, as when its store is away. No node is gone because of it; what that agent lists when it
// knows all counts again.
func TestListOfAgentThatStarts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	s := newStand(t, 3, func(c *Config) { c.PeerService, c.relist = "unix://"+path, 500*time.Millisecond }, nil)
	serve := func(nodes *table.Table[node.Key, node.Node], synced func(context.Context) error) (end func()) {
		t.Helper()
		srv, err := flowserver.New(flowserver.Config{
			Record: s.nodes[0].record, Nodes: nodes, WaitSynced: synced, Self: s.nodes[0].key, PeerPort: netip.MustParseAddrPort(s.nodes[0].address).Port(), Version: "v1",
		})
		if err != nil {
			t.Fatal(err)
		}
		var l net.Listener
		controllers.Eventually(t, testTimeout, func() string {
			if l, err = net.Listen("unix", path); err != nil {
				return err.Error()
			}
			return ""
		})
		return s.run(func(ctx context.Context) error { return srv.Serve(ctx, l, nil) })
	}
	end := serve(s.table, nil)
	s.connected(3)
	end()

	var refused atomic.Int32
	var synced atomic.Bool
	starting := table.New[node.Key](node.Node.Equal)
	self, _ := s.table.Get(s.nodes[0].key)
	starting.Upsert(self.Key(), self)
	serve(starting, func(context.Context) error {
		if synced.Load() {
			return nil
		}
		refused.Add(1)
		return errors.New("its store is away")
	})
	asked := time.Now()
	controllers.Eventually(t, testTimeout, func() string {
		if refused.Load() < 4 || time.Since(asked) < 4*s.relay.cfg.relist {
			return "it was not asked for long enough"
		}
		return ""
	})
	if nodes, _ := s.relay.roster.nodes(); len(nodes) != 3 {
		t.Fatalf("an agent that starts made %d of 3 nodes stay", len(nodes))
	}
	n2, _ := s.table.Get(s.nodes[1].key)
	starting.Upsert(n2.Key(), n2)
	synced.Store(true)
	controllers.Eventually(t, testTimeout, func() string {
		nodes, _ := s.relay.roster.nodes()
		if len(nodes) != 2 {
			return fmt.Sprintf("%d nodes, and the list has 2", len(nodes))
		}
		return ""
	})
}
