package clustermesh

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

func TestMain(m *testing.M) {
	testenv.VerifyTestMain(m,
		// The embedded server leaves these behind for the life of the process.
		goleak.IgnoreAnyFunction("go.etcd.io/etcd/client/pkg/v3/fileutil.purgeFile"),
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
	)
}

// tables keep what they are given, as text.
type tables struct {
	mu         sync.Mutex
	identities map[identity.ID]string
	nodes      map[string]bool
	addresses  map[string]string
	services   map[string]int // backends
	// observed counts calls for nodes, written those for single addresses and services.
	observed int
	written  []string
}

func newTables() *tables {
	return &tables{identities: map[identity.ID]string{}, nodes: map[string]bool{}, addresses: map[string]string{}, services: map[string]int{}}
}

func (s *tables) SetIdentities(upserts map[identity.ID]labels.Set, deletes []identity.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, set := range upserts {
		s.identities[id] = set.KVString()
	}
	for _, id := range deletes {
		delete(s.identities, id)
	}
	return nil
}

func (s *tables) Observe(_ context.Context, n node.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[n.Key().String()] = true
	s.observed++
	return nil
}

func (s *tables) Forget(_ context.Context, k node.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, k.String())
	return nil
}

func (s *tables) Dismiss(ctx context.Context, k node.Key) error { return s.Forget(ctx, k) }

func (s *tables) Upsert(p netip.Prefix, c ipcache.Claim) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = append(s.written, p.String())
	s.addresses[c.Owner+" "+p.String()] = fmt.Sprintf("%s at %s by %s", c.Identity, c.Host, c.Source)
	return 0, nil
}

func (s *tables) Delete(p netip.Prefix, _ ipcache.Source, owner string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.addresses, owner+" "+p.String())
	return 0
}

func (s *tables) SetShared(v service.Shared) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = append(s.written, v.GetKeyName())
	s.services[v.GetKeyName()] = len(v.Backends)
}

func (s *tables) DeleteShared(cluster string, n service.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.services, cluster+"/"+n.String())
}

// text is all that the tables hold, sorted.
func (s *tables) text() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []string{}
	for id, l := range s.identities {
		out = append(out, fmt.Sprintf("identity %d %s", id, l))
	}
	for n := range s.nodes {
		out = append(out, "node "+n)
	}
	for p, c := range s.addresses {
		out = append(out, "address "+p+" "+c)
	}
	for n, b := range s.services {
		out = append(out, fmt.Sprintf("service %s %d", n, b))
	}
	slices.Sort(out)
	return out
}

// world is some clusters' stores and a mesh that follows them.
type world struct {
	t      *testing.T
	dir    string
	mem    map[string]*kvstore.Memory
	tables *tables
	mesh   *Mesh
	log    *testenv.Log
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), mem: map[string]*kvstore.Memory{}, tables: newTables(), log: &testenv.Log{}}
	for _, name := range []string{"b", "c"} {
		w.mem[name] = kvstore.NewMemory()
	}
	var err error
	w.mesh, err = New(Params{
		Config: Config{Dir: w.dir}, Name: "a", ID: 1, MaxClusters: 255, Poll: 5 * time.Millisecond, Describe: 5 * time.Millisecond,
		Sinks: Sinks{w.tables, w.tables, w.tables, w.tables}, Log: slog.New(slog.NewTextHandler(w.log, nil)),
		// A file names the store to open.
		Open: func(_ context.Context, file string, _ *slog.Logger) (kvstore.Backend, error) {
			data, err := os.ReadFile(file)
			_, name, _ := strings.Cut(strings.TrimSpace(string(data)), "endpoints: ")
			if err != nil || w.mem[name] == nil {
				return nil, fmt.Errorf("no store %q: %w", name, err)
			}
			return w.mem[name].Client(), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.mesh.SetMine([]netip.Prefix{pfx("10.1.0.0/24"), pfx("192.0.2.1/32")})
	return w
}

func (w *world) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.mesh.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// config writes the file of a cluster, which names a store; an empty one removes it.
func (w *world) config(cluster, store string) {
	w.t.Helper()
	path := filepath.Join(w.dir, cluster)
	if store == "" {
		if err := os.Remove(path); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(path+".tmp", []byte("endpoints: "+store+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		w.t.Fatal(err)
	}
}

// put writes keys into a store; nil values are deleted.
func (w *world) put(store string, keys map[string]any) {
	w.t.Helper()
	c := w.mem[store].Client()
	defer c.Close()
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		var err error
		switch v := keys[k].(type) {
		case nil:
			err = kvstore.Delete(w.t.Context(), c, k)
		case string:
			err = kvstore.Put(w.t.Context(), c, k, []byte(v), kvstore.Permanent)
		default:
			var data []byte
			if data, err = json.Marshal(v); err == nil {
				err = kvstore.Put(w.t.Context(), c, k, data, kvstore.Permanent)
			}
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// cluster is the state of a good cluster.
func cluster(name string, id uint32) map[string]any {
	n := testNode(func(n *node.Node) {
		n.Cluster, n.ClusterID = name, id
		n.Addresses = []node.Address{{Type: node.InternalIP, IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(id)})}}
		n.IPv4PodCIDRs, n.IPv6PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(id), 1, 0}), 24)}, nil
	})
	pod := netip.AddrFrom4([4]byte{10, byte(id), 1, 5})
	s := service.Shared{
		Cluster: name, ClusterID: id, Name: service.Name{Namespace: "ns", Name: "web"}, Offered: true,
		Backends: map[netip.Addr]map[string]service.SharedPort{pod: {"": {Proto: 6, Port: 80}}},
	}
	value, _ := s.Marshal()
	return map[string]any{
		"cilium/cluster-config/" + name:                                            Description{ID: id},
		fmt.Sprintf("cilium/state/identities/v1/id/%d", id<<16+5):                  "k8s:app=x;k8s:io.cilium.k8s.policy.cluster=" + name + ";",
		"cilium/state/nodes/v1/" + name + "/n1":                                    n,
		"cilium/state/ip/v1/default/" + pod.String():                               ipcache.Pair{Prefix: ipcache.Single(pod), Host: n.UnderlayIPv4(), Identity: identity.ID(id<<16 + 5)},
		"cilium/state/services/v1/" + name + "/ns/web":                             string(value),
		"cilium/state/identities/v1/value/k8s:app=x;/" + n.UnderlayIPv4().String(): fmt.Sprint(id<<16 + 5),
	}
}

// rowsOf is what the tables have of a good cluster.
func rowsOf(name string, id uint32) []string {
	return []string{
		fmt.Sprintf("address %s 10.%d.1.5/32 %d at 192.0.2.%d by clustermesh", name, id, id<<16+5, id),
		fmt.Sprintf("identity %d k8s:app=x;k8s:io.cilium.k8s.policy.cluster=%s;", id<<16+5, name),
		"node " + name + "/n1", "service " + name + "/ns/web 1",
	}
}

// eventually waits until the tables hold this.
func (w *world) eventually(what string, want ...[]string) {
	w.t.Helper()
	all := slices.Sorted(slices.Values(slices.Concat(want...)))
	if all == nil {
		all = []string{}
	}
	w.until(what, func() string { return gocmp.Diff(all, w.tables.text()) })
}

func (w *world) until(what string, wrong func() string) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		fault := wrong()
		if fault == "" {
			return
		}
		if time.Now().After(deadline) {
			list, _ := w.mesh.Status()
			w.t.Fatalf("%s:\n%s\n%+v\n%s", what, fault, list, w.log.String())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// status waits until a cluster's status is right.
func (w *world) status(cluster string, right func(Status) bool) {
	w.t.Helper()
	w.until("status of "+cluster, func() string {
		list, _ := w.mesh.Status()
		for _, s := range list {
			if s.Name == cluster && right(s) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", list)
	})
}

// TestComeAndGo: clusters appear, change their store, and go.
func TestComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	w.put("c", cluster("c", 3))
	w.config("b", "b")
	w.config("a", "b") // this cluster's own file is not followed
	if err := os.WriteFile(filepath.Join(w.dir, "ca.crt"), []byte("endpoints: none"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	if err := w.mesh.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.eventually("a cluster that was there", rowsOf("b", 2))
	w.config("c", "c")
	w.eventually("one more", rowsOf("b", 2), rowsOf("c", 3))
	w.status("c", func(s Status) bool {
		return s.ID == 3 && s.Ready && s.Connected && s.Nodes == 1 && s.Identities == 1 && s.Addresses == 1 && s.Services == 1 && s.Refused == 0
	})
	// Objects change and go.
	w.put("b", map[string]any{
		"cilium/state/identities/v1/id/131078": "k8s:app=y;k8s:io.cilium.k8s.policy.cluster=b;",
		"cilium/state/services/v1/b/ns/web":    nil,
		"cilium/state/ip/v1/default/10.2.1.5":  nil,
		"cilium/state/identities/v1/id/131077": nil,
	})
	left := []string{"identity 131078 k8s:app=y;k8s:io.cilium.k8s.policy.cluster=b;", "node b/n1"}
	w.eventually("after changes", left, rowsOf("c", 3))
	// Another store for the same cluster: what is there no more goes, what is the same stays.
	w.mem["b2"] = kvstore.NewMemory()
	w.put("b2", cluster("b", 2))
	w.config("b", "b2")
	w.eventually("another store", rowsOf("b", 2), rowsOf("c", 3))
	// A node that is gone takes its addresses with it.
	w.put("c", map[string]any{"cilium/state/nodes/v1/c/n1": nil})
	w.eventually("without its node", rowsOf("b", 2), rowsOf("c", 3)[1:2], rowsOf("c", 3)[3:])
	w.config("b", "")
	w.eventually("removed", rowsOf("c", 3)[1:2], rowsOf("c", 3)[3:])
}

// TestAway: a store that cannot be reached, or lost its description, changes nothing.
func TestAway(t *testing.T) {
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	w.status("b", func(s Status) bool { return s.Ready })
	w.put("b", map[string]any{"cilium/cluster-config/b": nil})
	w.config("b", "b # again") // no such store
	w.status("b", func(s Status) bool { return s.Ready && !s.Connected && s.LastError != "" && s.Failures > 0 })
	w.eventually("away", rowsOf("b", 2))
	w.put("b", map[string]any{"cilium/state/services/v1/b/ns/web": nil})
	w.config("b", "b")
	w.status("b", func(s Status) bool { return strings.Contains(s.LastError, "no description") })
	w.eventually("without a description", rowsOf("b", 2))
	w.put("b", map[string]any{"cilium/cluster-config/b": Description{ID: 2}})
	w.eventually("back", rowsOf("b", 2)[:3])
	w.status("b", func(s Status) bool { return s.Connected && s.LastError == "" })
}

// TestHostile: a cluster that speaks of others is not accepted, and the log says so.
func TestHostile(t *testing.T) {
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	bad := cluster("a", 1)
	delete(bad, "cilium/cluster-config/a")
	w.put("b", bad) // the whole of this cluster, in the other's store
	w.put("b", map[string]any{
		"cilium/state/identities/v1/id/131079":   "k8s:app=z;k8s:io.cilium.k8s.policy.cluster=a;",
		"cilium/state/identities/v1/id/131080":   "reserved:host=;k8s:io.cilium.k8s.policy.cluster=b;",
		"cilium/state/nodes/v1/b/n2":             testNode(func(n *node.Node) { n.Name = "n2"; n.IPv4PodCIDRs[0] = pfx("32.0.0.0/4") }),
		"cilium/state/nodes/v1/b/n3":             testNode(func(n *node.Node) { n.Name = "n3"; n.Addresses[0].IP = addr("192.0.2.1") }),
		"cilium/state/nodes/v1/b/n4":             testNode(func(n *node.Node) { n.Name = "n4"; n.Cluster = "a" }),
		"cilium/state/ip/v1/default/10.1.0.9":    ipcache.Pair{Prefix: pfx("10.1.0.9/32"), Host: addr("192.0.2.2"), Identity: 131077},
		"cilium/state/ip/v1/default/10.2.1.9":    ipcache.Pair{Prefix: pfx("10.2.1.9/32"), Host: addr("192.0.2.2"), Identity: identity.KubeAPIServer},
		"cilium/state/ip/v1/default/8.8.8.8":     ipcache.Pair{Prefix: pfx("8.8.8.8/32"), Host: addr("192.0.2.2"), Identity: 131077},
		"cilium/state/services/v1/b/ns/nonsense": "{",
	})
	w.config("b", "b")
	w.config("c", "c")
	w.put("c", cluster("c", 2)) // the ID of b
	w.start()
	w.until("one of two with an ID", func() string {
		list, _ := w.mesh.Status()
		for _, s := range list {
			if strings.Contains(s.LastError, "which cluster") && s.Nodes == 0 {
				return ""
			}
		}
		return "both are followed"
	})
	// Whoever came second is let in when the first goes.
	list, _ := w.mesh.Status()
	winner := list[0].Name
	if list[0].LastError != "" {
		winner = list[1].Name
	}
	other := map[string]string{"b": "c", "c": "b"}[winner]
	if winner == "c" {
		w.config("c", "")
	} else {
		w.eventually("while it is refused", rowsOf("b", 2))
		w.config("b", "")
		w.eventually("the other one", rowsOf("c", 2))
		w.config("c", "")
		w.eventually("no cluster", nil)
		w.config("b", "b")
	}
	w.eventually("what is accepted", rowsOf("b", 2))
	w.status("b", func(s Status) bool { return s.Refused == 11 })
	for _, part := range []string{
		"identity 65541 is outside", "does not carry the label", "not a label of a pod", "larger than a /8", "192.0.2.1 (InternalIP)", "holds node a/n4",
		"10.1.0.9/32 overlaps", "identity kube-apiserver", "8.8.8.8/32 is in no range", "ns/nonsense",
	} {
		if !strings.Contains(w.log.String(), part) {
			t.Errorf("the log does not say %q (first %s, then %s):\n%s", part, winner, other, w.log.String())
		}
	}
	// The description turns to this cluster's own ID: everything goes.
	w.put("b", map[string]any{"cilium/cluster-config/b": Description{ID: 1}})
	w.config("b", "b ")
	w.eventually("own ID", nil)
	w.status("b", func(s Status) bool { return strings.Contains(s.LastError, "own ID 1") })
	for line := range strings.Lines(w.log.String()) {
		if strings.Contains(line, "stays in force") {
			t.Errorf("nothing was read of it, or all of that was removed: %s", line)
		}
	}
}

// TestMineMoves: what is this cluster's own may be observed later than the other cluster.
func TestMineMoves(t *testing.T) {
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	w.mesh.SetMine([]netip.Prefix{pfx("10.2.1.0/28")})
	w.eventually("its node has our pods' addresses", rowsOf("b", 2)[1:2], []string{"service b/ns/web 0"})
	w.mesh.SetMine([]netip.Prefix{pfx("10.1.0.0/24")})
	w.eventually("and no more", rowsOf("b", 2))
}

// TestMirror: a store that mirrors a cluster has its state elsewhere, and says when it is complete.
func TestMirror(t *testing.T) {
	w := newWorld(t)
	keys := map[string]any{"cilium/cluster-config/b": Description{ID: 2, Capabilities: Capabilities{SyncedCanaries: true, Cached: true}}}
	for k, v := range cluster("b", 2) {
		switch {
		case strings.HasPrefix(k, "cilium/cluster-config"):
		case strings.HasPrefix(k, "cilium/state/identities/v1/id/"):
			keys[strings.Replace(k, "cilium/state/identities/v1/id", "cilium/cache/identities/v1/b/id", 1)] = v
		case strings.HasPrefix(k, "cilium/state/ip/v1/default"):
			keys[strings.Replace(k, "cilium/state/ip/v1/default", "cilium/cache/ip/v1/b", 1)] = v
		default:
			keys[strings.Replace(k, "cilium/state", "cilium/cache", 1)] = v
		}
	}
	w.put("b", keys)
	w.config("b", "b")
	w.start()
	w.eventually("mirrored", rowsOf("b", 2))
	for i, kind := range []string{kindIdentities, kindNodes, kindAddresses, kindServices} {
		w.status("b", func(s Status) bool { return !s.Ready && s.Services == 1 })
		w.put("b", map[string]any{"cilium/synced/b/cilium/cache/" + kind: fmt.Sprint(i)})
	}
	w.status("b", func(s Status) bool { return s.Ready })
}

// TestNodeUnderAnotherName: a node was made anew under another name, with its address, while the
// key of the former one has not gone. Pods of both are known.
func TestNodeUnderAnotherName(t *testing.T) {
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	for _, name := range []string{"n2", "a1"} { // in the order of names, after and before the former one
		anew := testNode(func(n *node.Node) {
			n.Cluster, n.ClusterID, n.Name = "b", 2, name
			n.Addresses = []node.Address{{Type: node.InternalIP, IP: addr("192.0.2.2")}}
			n.IPv4PodCIDRs, n.IPv6PodCIDRs = []netip.Prefix{pfx("10.2.2.0/24")}, nil
		})
		w.put("b", map[string]any{
			"cilium/state/nodes/v1/b/" + name:     anew,
			"cilium/state/ip/v1/default/10.2.2.5": ipcache.Pair{Prefix: pfx("10.2.2.5/32"), Host: addr("192.0.2.2"), Identity: 131077},
			"cilium/state/ip/v1/default/10.2.3.5": ipcache.Pair{Prefix: pfx("10.2.3.5/32"), Host: addr("192.0.2.2"), Identity: 131077},
		})
		w.eventually("with "+name, rowsOf("b", 2), []string{"node b/" + name, "address b 10.2.2.5/32 131077 at 192.0.2.2 by clustermesh"})
		w.put("b", map[string]any{"cilium/state/nodes/v1/b/" + name: nil})
		w.eventually("without "+name, rowsOf("b", 2))
	}
}

// TestNoMoreBelieved: what an identity or an address was does not outlive that its key says
// something else, which is not accepted.
func TestNoMoreBelieved(t *testing.T) {
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	good := cluster("b", 2)
	w.put("b", map[string]any{"cilium/state/identities/v1/id/131077": "k8s:app=other;", "cilium/state/ip/v1/default/10.2.1.5": "{"})
	w.eventually("neither can be accepted", rowsOf("b", 2)[2:])
	w.status("b", func(s Status) bool { return s.Refused == 2 })
	w.put("b", good)
	w.eventually("and now both can", rowsOf("b", 2))
	w.status("b", func(s Status) bool { return s.Refused == 0 })
}

// TestNodeChanges: what changes of a node concerns the addresses that it hosts only, and those only
// if it changes which addresses it may host.
func TestNodeChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	one := func(n *node.Node) {
		n.Cluster, n.ClusterID = "b", 2
		n.Addresses = []node.Address{{Type: node.InternalIP, IP: addr("192.0.2.2")}}
		n.IPv4PodCIDRs, n.IPv6PodCIDRs = []netip.Prefix{pfx("10.2.1.0/24")}, nil
	}
	other := testNode(func(n *node.Node) {
		one(n)
		n.Name, n.Addresses[0].IP, n.IPv4PodCIDRs[0] = "n2", addr("192.0.2.22"), pfx("10.2.2.0/24")
	})
	w.put("b", map[string]any{
		"cilium/state/nodes/v1/b/n2":          other,
		"cilium/state/ip/v1/default/10.2.2.5": ipcache.Pair{Prefix: pfx("10.2.2.5/32"), Host: addr("192.0.2.22"), Identity: 131077},
	})
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2), []string{"node b/n2", "address b 10.2.2.5/32 131077 at 192.0.2.22 by clustermesh"})
	w.status("b", func(s Status) bool { return s.Ready })
	for _, step := range []struct {
		what   string
		change func(*node.Node)
		want   []string
	}{
		{"another label", func(n *node.Node) { n.Labels = map[string]string{"rack": "7"} }, nil},
		{"one more range", func(n *node.Node) { n.IPv4PodCIDRs = append(n.IPv4PodCIDRs, pfx("10.2.3.0/24")) }, []string{"10.2.1.5/32"}},
		{"one more address", func(n *node.Node) {
			n.Addresses = append(n.Addresses, node.Address{Type: node.ExternalIP, IP: addr("192.0.2.23")})
		}, []string{"10.2.1.5/32"}},
	} {
		w.tables.mu.Lock()
		observed := w.tables.observed
		w.tables.written = nil
		w.tables.mu.Unlock()
		w.put("b", map[string]any{"cilium/state/nodes/v1/b/n1": testNode(func(n *node.Node) { one(n); step.change(n) })})
		w.until(step.what, func() string {
			w.tables.mu.Lock()
			defer w.tables.mu.Unlock()
			if w.tables.observed == observed {
				return "the node's change is not observed"
			}
			return ""
		})
		w.until(step.what, func() string {
			w.tables.mu.Lock()
			defer w.tables.mu.Unlock()
			return gocmp.Diff(step.want, w.tables.written)
		})
		time.Sleep(2 * gather) // what else would follow
		if w.tables.mu.Lock(); !slices.Equal(step.want, w.tables.written) {
			t.Errorf("%s: written %q, want %q", step.what, w.tables.written, step.want)
		}
		w.tables.mu.Unlock()
	}
}

// slow are nodes of which none is removed before a while, or the context, is over.
type slow struct {
	*tables
	removing chan struct{}
}

func (s slow) Dismiss(ctx context.Context, k node.Key) error {
	close(s.removing)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return s.Forget(ctx, k)
	}
}

// TestDrainIsFinished: the file of a cluster changes while everything of it is removed. That is
// finished, and its former ID is free.
func TestDrainIsFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nodes := slow{w.tables, make(chan struct{})}
	w.mesh.p.Sinks.Nodes = nodes
	w.put("b", cluster("b", 2))
	w.put("c", cluster("c", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	w.put("b", map[string]any{"cilium/cluster-config/b": Description{ID: 3}})
	<-nodes.removing
	w.config("b", "b ")
	w.status("b", func(s Status) bool { return s.ID == 3 && s.Ready })
	w.eventually("its ID has changed", nil)
	w.config("c", "c")
	w.eventually("another cluster with its former ID", rowsOf("c", 2))
}

// TestLostID: the description of a cluster that was let in and is not any more is looked at as
// often as that of one that never was.
func TestLostID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mesh.p.Describe = 200 * time.Millisecond
	w.put("b", cluster("b", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	w.put("b", map[string]any{"cilium/cluster-config/b": Description{ID: 1}})
	w.eventually("with the ID of this cluster", nil)
	start := time.Now()
	w.put("b", map[string]any{"cilium/cluster-config/b": Description{ID: 2}})
	w.eventually("with its own again", rowsOf("b", 2))
	if took := time.Since(start); took > 9*w.mesh.p.Describe {
		t.Errorf("it is let in again after %s", took)
	}
}

// unlisted is a store that never lists what is below a part of a key.
type unlisted struct {
	kvstore.Backend
	part string
}

func (u unlisted) Watch(ctx context.Context, prefix string) <-chan kvstore.Event {
	if !strings.Contains(prefix, u.part) {
		return u.Backend.Watch(ctx, prefix)
	}
	silent := make(chan kvstore.Event)
	context.AfterFunc(ctx, func() { close(silent) })
	return silent
}

// TestMineFromTheStart: a cluster that is new, and has not listed its nodes, is not believed about
// this cluster's addresses meanwhile.
func TestMineFromTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open, part := w.mesh.p.Open, kindNodes
	w.mesh.p.Open = func(ctx context.Context, file string, log *slog.Logger) (kvstore.Backend, error) {
		store, err := open(ctx, file, log)
		return unlisted{store, part}, err
	}
	keys := cluster("b", 2)
	value, err := service.Shared{
		Cluster: "b", ClusterID: 2, Name: service.Name{Namespace: "ns", Name: "web"}, Offered: true,
		Backends: map[netip.Addr]map[string]service.SharedPort{addr("10.1.0.5"): {"": {Proto: 6, Port: 80}}},
	}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	keys["cilium/state/services/v1/b/ns/web"] = string(value)
	w.put("b", keys)
	w.config("b", "b")
	w.start()
	w.status("b", func(s Status) bool { return s.Services == 1 && s.Refused == 1 })
	only := []string{rowsOf("b", 2)[1], "service b/ns/web 0"}
	w.eventually("its own node and address are not known yet", only)
	// Then it lists nothing any more, and this cluster has grown meanwhile.
	keys["cilium/state/services/v1/b/ns/web"] = cluster("b", 2)["cilium/state/services/v1/b/ns/web"]
	w.put("b", keys)
	w.eventually("a backend of its own", []string{only[0], rowsOf("b", 2)[3]})
	w.config("b", "away") // no such store
	w.status("b", func(s Status) bool { return strings.Contains(s.LastError, "no store") })
	part = "/" // all
	w.mesh.SetMine([]netip.Prefix{pfx("10.2.1.0/28")})
	w.config("b", "b")
	w.eventually("which is this cluster's now", only)
}

// TestUnreadDirectory: nothing is taken for complete before the directory could be read.
func TestUnreadDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	if err := os.Remove(w.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.until("the fault is shown", func() string {
		if _, fault := w.mesh.Status(); fault == "" {
			return "none"
		}
		return ""
	})
	synced := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	go func() { synced <- w.mesh.WaitSynced(t.Context()) }()
	if err := w.mesh.WaitSynced(ctx); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("the directory is a file, and synced: %v", err)
	}
	select {
	case err := <-synced:
		t.Fatalf("the directory is a file, and synced: %v", err)
	default:
	}
	if err := os.Remove(w.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.dir+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.dir+".new/b", []byte("endpoints: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(w.dir+".new", w.dir); err != nil {
		t.Fatal(err)
	}
	if err := <-synced; err != nil {
		t.Fatal(err)
	}
	w.eventually("the directory can be read", rowsOf("b", 2))
	if _, fault := w.mesh.Status(); fault != "" {
		t.Errorf("it can be read: %s", fault)
	}
}

// TestUnreadFile: a file that cannot be read is that of a cluster that cannot be followed, and
// concerns no other. What is known of it stays.
func TestUnreadFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, name := range []string{"b", "c"} {
		w.put(name, cluster(name, uint32(2+i)))
	}
	spoil := func(name string) {
		t.Helper()
		if err := os.Truncate(filepath.Join(w.dir, name), maxFile+1); err != nil {
			t.Fatal(err)
		}
	}
	w.config("b", "b")
	spoil("b")
	w.config("c", "c")
	w.start()
	w.eventually("the other one", rowsOf("c", 3))
	w.status("b", func(s Status) bool {
		return !s.Ready && strings.Contains(s.LastError, "no configuration") && s.Failures == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.mesh.WaitSynced(ctx); err == nil || !strings.Contains(err.Error(), "clusters b:") {
		t.Errorf("a file cannot be read, and synced: %v", err)
	}
	w.config("b", "b")
	if err := w.mesh.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := slices.Concat(rowsOf("b", 2), rowsOf("c", 3))
	w.eventually("it can be read", both)
	spoil("c")
	w.until("the fault is shown", func() string {
		if _, fault := w.mesh.Status(); !strings.Contains(fault, "no configuration") {
			return fmt.Sprintf("%q", fault)
		}
		return ""
	})
	time.Sleep(5 * w.mesh.p.Poll)
	w.put("c", map[string]any{"cilium/state/services/v1/c/ns/web": nil})
	w.eventually("that cannot be read any more is followed", both[:len(both)-1])
}
