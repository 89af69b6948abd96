package network

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/retry"
)

// networkOf returns the network of a node that knows no other one yet, and the table of nodes.
func networkOf(t *testing.T) (*Network, *table.Table[node.Key, node.Node]) {
	t.Helper()
	all, err := node.New(node.Config{Self: node.Key{Cluster: "a", Name: "self"}})
	if err != nil {
		t.Fatal(err)
	}
	return &Network{cfg: Config{
		Self: node.Key{Cluster: "a", Name: "self"}, MaxClusters: 255, Cache: ipcache.New(), Pool: &ipam.IPAM{}, Nodes: &announce.Nodes{Nodes: all},
		Log: slog.New(slog.DiscardHandler),
	}}, all.Table()
}

// TestContestedRouter: a node that has lost a pod CIDR to another one, and still has addresses of
// it for itself, does not pass for the other one's pod that has such an address; in whatever order
// the nodes are observed, and only as long as the CIDR is the other one's.
func TestContestedRouter(t *testing.T) {
	t.Parallel()
	disputed, pod := netip.MustParsePrefix("10.0.1.0/24"), netip.MustParseAddr("10.0.1.9")
	health, own := netip.MustParseAddr("10.0.1.8"), netip.MustParseAddr("10.0.2.7")
	of := func(name, at string, more ...node.Address) node.Node {
		return node.Node{Name: name, Cluster: "a", Addresses: append(more, node.Address{Type: node.InternalIP, IP: netip.MustParseAddr(at)}),
			IPv4PodCIDRs: []netip.Prefix{disputed}}
	}
	first := of("n1", "192.168.0.1", node.Address{Type: node.RouterIP, IP: netip.MustParseAddr("10.0.1.1")})
	second := of("n2", "192.168.0.2", node.Address{Type: node.RouterIP, IP: pod}, node.Address{Type: node.RouterIP, IP: own})
	second.IPv4HealthIP = health
	key1, key2 := first.Key(), second.Key()
	for name, steps := range map[string][]node.Node{
		"at once":               {first, second},
		"the holder first":      {first, {}, second},
		"the holder comes late": {second, {}, first},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, nodes := networkOf(t)
			if name == "the holder comes late" { // the next agent knows from disk whose it is
				n.heldPeers = []datapath.Peer{{Name: "n1", IPv4: netip.MustParseAddr("192.168.0.1"), PodCIDRs: []netip.Prefix{disputed}}}
			}
			watch := nodes.Watch()
			defer watch.Close()
			cluster := Cluster{Changed: func() {}}
			check := func(ip netip.Addr, want identity.ID, host string) {
				t.Helper()
				e, _ := n.cfg.Cache.Table().Get(ipcache.Single(ip))
				if got := e.Host(); e.Identity != want || want != 0 && got.String() != host {
					t.Errorf("%s has identity %d at %s, want %d at %s", ip, e.Identity, got, want, host)
				}
			}
			const ofPod = 1<<16 + 5
			if _, err := n.cfg.Cache.Upsert(ipcache.Single(pod), ipcache.Claim{Source: ipcache.KVStore, Identity: ofPod, Host: netip.MustParseAddr("192.168.0.1")}); err != nil {
				t.Fatal(err)
			}
			for _, s := range append(steps, node.Node{}) {
				if s.Name != "" {
					nodes.Upsert(s.Key(), s)
					continue
				}
				n.applyNodes(watch, cluster)
				check(pod, ofPod, "192.168.0.1")
				check(health, 0, "")
			}
			n.peersSynced = true
			n.applyNodes(watch, cluster)
			check(pod, ofPod, "192.168.0.1")
			check(health, 0, "")
			check(own, identity.RemoteNode, "192.168.0.2")
			check(netip.MustParseAddr("10.0.1.1"), identity.RemoteNode, "192.168.0.1")

			// The CIDR is the second one's when the first one has gone.
			nodes.Delete(key1)
			n.applyNodes(watch, cluster)
			check(pod, identity.RemoteNode, "192.168.0.2")
			check(health, identity.Health, "192.168.0.2")
			nodes.Delete(key2)
			n.applyNodes(watch, cluster)
			check(health, 0, "")
			if len(n.contested) > 0 {
				t.Errorf("contested are %v", n.contested)
			}
		})
	}
}

// The gate of nodes opens after one call: every node must be known by then, or its host counts as
// the world.
func TestManyNodesAtOnce(t *testing.T) {
	t.Parallel()
	n, nodes := networkOf(t)
	cache := n.cfg.Cache
	watch := nodes.Watch()
	defer watch.Close()
	const count = 5000
	first := netip.MustParseAddr("192.168.0.0")
	for i, at := 0, first; i < count; i++ {
		at = at.Next()
		key := node.Key{Cluster: "a", Name: fmt.Sprintf("n%d", i)}
		nodes.Upsert(key, node.Node{Name: key.Name, Cluster: key.Cluster, Addresses: []node.Address{{Type: node.InternalIP, IP: at}}})
	}
	changes := 0
	n.applyNodes(watch, Cluster{Changed: func() { changes++ }})
	unknown := 0
	for i, at := 0, first; i < count; i++ {
		at = at.Next()
		if e, _ := cache.Table().Get(netip.PrefixFrom(at, 32)); e.Identity != identity.RemoteNode {
			unknown++
		}
	}
	if unknown > 0 || changes != 1 {
		t.Errorf("%d of %d nodes are not known, and %d notices of a change, want 1", unknown, count, changes)
	}
}

// Nodes that change all the time cost a tenth of a processor at most, a change after a quiet time
// waits for nothing, and the last change of all is not left out.
func TestPassesArePaced(t *testing.T) {
	t.Parallel()
	const took = 70 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		changes, end := make(chan struct{}, 1), make(chan struct{})
		var began []time.Time
		go func() {
			pace := newPacer(changes)
			defer pace.pause.Stop()
			for {
				select {
				case <-end:
					return
				case <-pace.pause.C:
					pace.resume()
					continue
				case <-pace.next:
				}
				began = append(began, time.Now())
				time.Sleep(took)
				pace.passed(took)
			}
		}()
		start := time.Now()
		var last time.Time
		for range 10_000 {
			last = time.Now()
			retry.Notify(changes)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * maxPause)
		synctest.Wait()
		if n := len(began); n < 14 || n > 16 {
			t.Errorf("%d passes within ten seconds, want one in 700 ms", n)
		}
		if !began[0].Equal(start) || began[len(began)-1].Before(last) {
			t.Errorf("the first pass began at %s, the last one %s before the last change", began[0].Sub(start), last.Sub(began[len(began)-1]))
		}
		quiet := time.Now()
		retry.Notify(changes)
		synctest.Wait()
		if at := began[len(began)-1]; !at.Equal(quiet) {
			t.Errorf("a change after a quiet time waited %s", at.Sub(quiet))
		}
		close(end)
		time.Sleep(took)
	})
}
