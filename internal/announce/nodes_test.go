package announce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// fixture is a store with a node "c/self" in it.
type fixture struct {
	t      *testing.T
	mem    *kvstore.Memory
	client *kvstore.MemoryClient // of the node
	other  *kvstore.MemoryClient // of the rest of the world
	nodes  *Nodes
}

func running(t *testing.T, fn func(*testing.T, *fixture)) {
	runningWith(t, 30*time.Second, fn)
}

func runningWith(t *testing.T, delay time.Duration, fn func(*testing.T, *fixture)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, mem: kvstore.NewMemory()}
		f.client, f.other = f.mem.Client(), f.mem.Client()
		f.put(peer("before", "192.0.2.100", "10.0.100.0/24"))
		var err error
		f.nodes, err = NewNodes(NodesConfig{Config: node.Config{Self: node.Key{Cluster: "c", Name: "self"}, DeleteDelay: delay}}, f.client)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		ended := make(chan error)
		go func() { ended <- f.nodes.Run(ctx) }()
		fn(t, f)
		cancel(stop)
		if err := <-ended; !errors.Is(err, stop) {
			t.Errorf("Run: %v", err)
		}
		_, _ = f.client.Close(), f.other.Close()
	})
}

func peer(name, ip, cidr string) node.Node {
	return node.Node{Cluster: "c", Name: name, Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr(ip)}}, IPv4PodCIDRs: pfxs(cidr)}
}

func (f *fixture) put(n node.Node) {
	f.t.Helper()
	v, err := json.Marshal(n)
	if err != nil {
		f.t.Fatal(err)
	}
	f.putRaw(n.Key().String(), string(v))
}

func (f *fixture) putRaw(key, value string) {
	f.t.Helper()
	if err := kvstore.Put(f.t.Context(), f.other, storekeys.NodesPrefix+"/"+key, []byte(value), kvstore.Leased); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) del(key string) {
	f.t.Helper()
	if err := kvstore.Delete(f.t.Context(), f.other, storekeys.NodesPrefix+"/"+key); err != nil {
		f.t.Fatal(err)
	}
}

// stored returns the local node as the store has it.
func (f *fixture) stored() (node.Node, bool) {
	f.t.Helper()
	synctest.Wait()
	kv, err := f.other.Get(f.t.Context(), storekeys.NodesPrefix+"/c/self")
	if errors.Is(err, kvstore.ErrNotFound) {
		return node.Node{}, false
	}
	if err != nil {
		f.t.Fatal(err)
	}
	if kv.Lease == "" {
		f.t.Error("the node's key has no lease")
	}
	n, err := node.Parse("c/self", kv.Value, 255)
	if err != nil {
		f.t.Fatal(err)
	}
	return n, true
}

func (f *fixture) wantNodes(names string) {
	f.t.Helper()
	synctest.Wait()
	var got []string
	for k := range f.nodes.Table().All() {
		got = append(got, k.Name)
	}
	slices.Sort(got)
	if s := strings.Join(got, " "); s != names {
		f.t.Errorf("nodes %q, want %q", s, names)
	}
}

func TestWatch(t *testing.T) {
	running(t, func(t *testing.T, f *fixture) {
		if err := f.nodes.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.wantNodes("before")
		f.put(peer("a", "192.0.2.1", "10.0.1.0/24"))
		f.put(peer("b", "192.0.2.2", "10.0.2.0/24"))
		f.wantNodes("a b before")
		if p, _ := f.nodes.Peers(nil, false); len(p) != 3 || p[0].Name != "a" {
			t.Errorf("peers %v", p)
		}
		if ids := f.nodes.IDs(); len(ids) != 3 || ids[0].ID != 1 {
			t.Errorf("ids %v", ids)
		}

		// Nonsense is ignored and does not replace what is known.
		f.putRaw("c/a", "{")
		f.putRaw("c/a", `{"Name":"n1","Cluster":"default","IPAddresses":[{"Type":"InternalIP","IP":"192.0.2.1"}]}`) // another node
		f.putRaw("c/new", `{"Name":"new","Cluster":"c","ClusterID":1000}`)
		f.putRaw("nonsense", `{}`)
		f.del("nonsense")
		f.wantNodes("a b before")
		if n, _ := f.nodes.Table().Get(node.Key{Cluster: "c", Name: "a"}); len(n.Addresses) != 1 {
			t.Errorf("node a is %v", n)
		}

		// A node that went stays for a while, and may come back.
		f.del("c/a")
		time.Sleep(29 * time.Second)
		f.wantNodes("a b before")
		f.put(peer("a", "192.0.2.1", "10.0.1.0/24"))
		time.Sleep(time.Minute)
		f.wantNodes("a b before")
		f.del("c/a")
		time.Sleep(30*time.Second + time.Millisecond)
		f.wantNodes("b before")

		// It goes at once when another has its network.
		f.del("c/b")
		f.put(peer("c", "192.0.2.3", "10.0.3.0/24"))
		f.wantNodes("b before c")
		f.put(peer("b2", "192.0.2.4", "10.0.2.0/25"))
		f.wantNodes("b2 before c")

		// What changed while the watch was broken is noticed.
		f.client.BreakWatches()
		f.del("c/c")
		f.mem.Compact()
		time.Sleep(time.Minute)
		f.wantNodes("b2 before")
	})
}

// Without a delay a node goes as soon as its key does.
func TestNoDelay(t *testing.T) {
	runningWith(t, 0, func(t *testing.T, f *fixture) {
		f.put(peer("a", "192.0.2.1", "10.0.1.0/24"))
		f.wantNodes("a before")
		f.del("c/a")
		f.wantNodes("before")
	})
}

// A node of a cluster that is not followed any more goes at once, whether its key went before or
// not, and no other one does.
func TestDismiss(t *testing.T) {
	running(t, func(t *testing.T, f *fixture) {
		if err := f.nodes.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"x", "y"} {
			n := peer(name, fmt.Sprintf("192.0.2.%d", 101+i), fmt.Sprintf("10.1.%d.0/24", i))
			n.Cluster, n.ClusterID = "other", 2
			if err := f.nodes.Observe(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		f.wantNodes("before x y")
		if err := f.nodes.Forget(t.Context(), node.Key{Cluster: "other", Name: "x"}); err != nil {
			t.Fatal(err)
		}
		f.wantNodes("before x y")
		for _, k := range []node.Key{{Cluster: "other", Name: "x"}, {Cluster: "other", Name: "y"}, {Cluster: "other", Name: "unknown"}, {Cluster: "c", Name: "self"}} {
			if err := f.nodes.Dismiss(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
		f.wantNodes("before")
	})
}

func TestAnnounce(t *testing.T) {
	running(t, func(t *testing.T, f *fixture) {
		if _, ok := f.stored(); ok {
			t.Error("announced before anything was")
		}
		if err := f.nodes.Announce(peer("other", "192.0.2.9", "10.0.9.0/24")); err == nil {
			t.Error("announced another node")
		}
		if err := f.nodes.Announce(peer("self", "127.0.0.1", "10.0.9.0/24")); err == nil {
			t.Error("announced a node that is invalid")
		}
		self := peer("self", "192.0.2.9", "10.0.9.0/24")
		want := func() {
			t.Helper()
			n, ok := f.stored()
			for end := time.Now().Add(10 * time.Minute); (!ok || !n.Equal(self)) && time.Now().Before(end); n, ok = f.stored() {
				time.Sleep(100 * time.Millisecond)
			}
			if !ok || !n.Equal(self) {
				t.Errorf("store has %+v (%v), want %+v", n, ok, self)
			}
			f.wantNodes("before self")
		}
		if err := f.nodes.Announce(self); err != nil {
			t.Fatal(err)
		}
		want()
		if p, _ := f.nodes.Peers(nil, false); len(p) != 1 {
			t.Errorf("peers %v", p)
		}
		calls := f.client.Calls()
		if err := f.nodes.Announce(self); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		want()
		if n := f.client.Calls(); n != calls {
			t.Errorf("%d calls for nothing", n-calls)
		}

		self.IPv4PodCIDRs = pfxs("10.0.9.0/24", "10.0.10.0/24")
		if err := f.nodes.Announce(self); err != nil {
			t.Fatal(err)
		}
		want()
		f.client.ExpireLeases()
		want()
		f.del("c/self")
		want()

		// Another writer is not fought at once, but does not win.
		f.putRaw("c/self", "nonsense")
		time.Sleep(5*time.Minute + time.Second)
		want()

		// The store is away for a while.
		down := errors.New("store is away")
		f.client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return down, nil })
		self.BootID = "second"
		if err := f.nodes.Announce(self); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		f.client.SetFault(nil)
		want()
	})
}

// TestAnnounceAtOnce: two that announce at once leave table and store with the same value, whoever
// was last.
func TestAnnounceAtOnce(t *testing.T) {
	t.Parallel()
	client := kvstore.NewMemory().Client()
	t.Cleanup(func() { _ = client.Close() })
	nodes, err := NewNodes(NodesConfig{Config: node.Config{Self: node.Key{Cluster: "c", Name: "self"}}}, client)
	if err != nil {
		t.Fatal(err)
	}
	small := peer("self", "192.0.2.9", "10.0.9.0/24")
	large := small // takes its time
	for i := range 250 {
		large.IPv4PodCIDRs = append(large.IPv4PodCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24))
	}
	for i := range 300 {
		var wg sync.WaitGroup
		for _, n := range []node.Node{large, small} {
			n.BootID = fmt.Sprint(i)
			wg.Go(func() {
				if err := nodes.Announce(n); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		table, _ := nodes.Table().Get(small.Key())
		var store node.Node
		for _, row := range wanted(nodes) {
			if err := json.Unmarshal([]byte(row), &store); err != nil {
				t.Fatal(err)
			}
		}
		if len(table.IPv4PodCIDRs) != len(store.IPv4PodCIDRs) {
			t.Fatalf("round %d: the table has %d pod CIDRs, the store gets %d", i, len(table.IPv4PodCIDRs), len(store.IPv4PodCIDRs))
		}
	}
}

// wanted are the values that are to be in the store.
func wanted(n *Nodes) (values []string) {
	rows, _ := n.keys.wanted.Snapshot()
	for _, r := range rows {
		values = append(values, r.Value)
	}
	return values
}

func TestClosedStore(t *testing.T) {
	t.Parallel()
	client := kvstore.NewMemory().Client()
	nodes, err := NewNodes(NodesConfig{Config: node.Config{Self: node.Key{Cluster: "c", Name: "self"}}}, client)
	if err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if err := nodes.Run(t.Context()); !errors.Is(err, kvstore.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	self := node.Key{Cluster: "c", Name: "a"}
	for _, cfg := range []NodesConfig{
		{},
		{Config: node.Config{Self: node.Key{Cluster: "c", Name: "a/b"}}},
		{Config: node.Config{Self: self, DeleteDelay: -1}},
		{Config: node.Config{Self: self}, Timing: Timing{MinBackoff: time.Hour}},
	} {
		if _, err := NewNodes(cfg, client); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

func pfxs(ss ...string) (ps []netip.Prefix) {
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// TestTwoNodesOfOneName: a second machine that announces itself under a living node's name is
// reported to both, and neither overwrites the other's key more often than it compares the store.
func TestTwoNodesOfOneName(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	const resync = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	var reports [2]atomic.Int32
	for i, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		cfg := etcd.Defaults()
		cfg.Endpoints, cfg.QPS = []string{server.Endpoint()}, 0
		store, err := etcd.New(ctx, cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		n, err := NewNodes(NodesConfig{
			Config: node.Config{Self: node.Key{Cluster: "c", Name: "n"}}, Timing: Timing{Resync: resync},
			Namesake: func(other node.Node) {
				if other.UnderlayIPv4().String() == ip {
					t.Errorf("node %d is reported to itself", i)
				}
				reports[i].Add(1)
			},
		}, store)
		if err != nil {
			t.Fatal(err)
		}
		local := peer("n", ip, "10.0.1.0/24")
		local.BootID = ip
		group.Go(func() { _ = n.Run(ctx) })
		if err := n.Announce(local); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() string {
			if v, _ := n.keys.Seen("c/n"); !strings.Contains(string(v), ip) {
				return "not announced yet"
			}
			return ""
		})
	}
	start := time.Now()
	testenv.Eventually(t, 20*time.Second, func() string {
		if reports[0].Load() < 2 || reports[1].Load() < 2 {
			return "not both nodes were told of the other"
		}
		return ""
	})
	res, err := server.Client().Get(ctx, storekeys.NodesPrefix+"/c/n")
	if err != nil || len(res.Kvs) != 1 {
		t.Fatalf("the key: %v, %v", res, err)
	}
	if most := 6 + 2*int64(time.Since(start)/resync+1); res.Kvs[0].Version > most {
		t.Errorf("the key was written %d times, want at most %d", res.Kvs[0].Version, most)
	}
}
