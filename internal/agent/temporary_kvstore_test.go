package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// guarded gives an etcd the users root and agent, each with its name as the password. The agent may
// read everything, and write nodes and addresses, but no identities.
func guarded(t *testing.T, store *kvstoretest.Etcd) {
	t.Helper()
	c := store.Client()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	grant := func(key, end string, p clientv3.PermissionType) {
		t.Helper()
		must(c.RoleGrantPermission(t.Context(), "agents", key, end, p))
	}
	must(c.RoleAdd(t.Context(), "agents"))
	grant("cilium/", "cilium0", clientv3.PermissionType(clientv3.PermRead))
	for _, prefix := range []string{storekeys.NodesPrefix, storekeys.IPsPrefix, storekeys.IdentitiesPrefix + "/confirmed"} {
		grant(prefix+"/", clientv3.GetPrefixRangeEnd(prefix+"/"), clientv3.PermissionType(clientv3.PermReadWrite))
	}
	for user, role := range map[string]string{"root": "root", "agent": "agents"} {
		must(c.UserAdd(t.Context(), user, user))
		must(c.UserGrantRole(t.Context(), user, role))
	}
	must(c.AuthEnable(t.Context()))
}

// clientFile writes the file of an etcd client for a user of [guarded].
func clientFile(t *testing.T, path string, store *kvstoretest.Etcd, user string) string {
	t.Helper()
	text := fmt.Sprintf("endpoints: [%q]\nusername: %s\npassword: %s\n", store.Endpoint(), user, user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// keyMaker does what the operator does where identities are keys: it makes IDs and holds
// references to them.
type keyMaker struct {
	store kvstore.Backend
	alloc *allocator.Allocator
}

func newKeyMaker(t *testing.T, file string) *keyMaker {
	t.Helper()
	cfg := storedial.Defaults()
	cfg.Kind, cfg.Options = "etcd", map[string]string{"etcd.config": file}
	store, err := storedial.Open(context.Background(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: store, BasePath: storekeys.IdentitiesPrefix, Suffix: "operator-1", KeyType: k8sids.Key{}})
	if err != nil {
		t.Fatal(err)
	}
	alloc, err := allocator.NewAllocator(k8sids.Key{}, b, allocator.WithMin(256), allocator.WithMax(65535))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := alloc.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return &keyMaker{store, alloc}
}

// make gives the labels of a pod's endpoint their ID.
func (m *keyMaker) make(p *machinePod) int {
	p.node.t.Helper()
	set, err := labels.ParseSet(p.endpoint().Status.Identity.Labels)
	if err != nil {
		p.node.t.Fatal(err)
	}
	id, _, err := m.alloc.Allocate(p.node.t.Context(), k8sids.Key{Set: set})
	if err != nil {
		p.node.t.Fatal(err)
	}
	return int(id)
}

// publishedID returns the ID under which the store has a pod's address, 0 for none.
func (m *keyMaker) publishedID(t testing.TB, p *machinePod) int {
	t.Helper()
	kv, err := m.store.Get(t.Context(), kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace, p.ip4.String()))
	if err != nil {
		return 0
	}
	var v struct{ ID int }
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		t.Fatal(err)
	}
	return v.ID
}

// writers returns who wrote below the prefix of identities.
func (m *keyMaker) writers(t testing.TB) map[string]int {
	t.Helper()
	l, err := m.store.List(t.Context(), storekeys.IdentitiesPrefix+"/value/")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, kv := range l.Pairs {
		out[kv.Key[strings.LastIndexByte(kv.Key, '/')+1:]]++
	}
	return out
}

// TestTemporaryWithKeys is "KVStore compatibility" of CFP-27752, which leaves it open: identities
// are keys of a store that the operator makes. Agents have no right to write them, and a pod has a
// temporary one until its ID is there; no other node ever sees that.
func TestTemporaryWithKeys(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	store := kvstoretest.StartEtcd(t)
	guarded(t, store)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid", "--identity-allocation-mode", "kvstore",
			"--kvstore", "etcd", "--kvstore-opt", "etcd.config="+clientFile(t, n.path("etcd.yaml"), store, "agent"))
		n.start()
	}
	c.watchLeaks(n1, n2)
	operator := newKeyMaker(t, clientFile(t, n1.path("root.yaml"), store, "root"))

	client, web := c.pod(n1, "client", map[string]string{"app": "client"}), c.pod(n2, "web", map[string]string{"app": "web"})
	for _, p := range []*machinePod{client, web} {
		p.temporary("at the start", identity.Init)
		c.eventually("the others observe "+p.name, func() bool { return operator.publishedID(t, p) == int(identity.Init) })
	}
	serveEcho(t, web.ns, web.both(80)[0])
	c.passing("no policy forbids it", client, web.both(80)[0])

	for _, p := range []*machinePod{client, web} {
		number := operator.make(p)
		c.eventually(p.name+" has its identity", p.has(number))
		c.eventually("the others observe it", func() bool { return operator.publishedID(t, p) == number })
		c.eventually("its object names it", func() bool { return c.publishedID(p) == number })
	}
	again := c.pod(n2, "again", map[string]string{"app": "web"})
	if a, b := again.endpoint().Status.Identity.ID, web.endpoint().Status.Identity.ID; a != b {
		t.Errorf("a pod whose labels are known has %d, not %d", a, b)
	}
	far := c.pod(n1, "far", map[string]string{"app": "web"})
	if a, b := far.endpoint().Status.Identity.ID, web.endpoint().Status.Identity.ID; a != b {
		t.Errorf("a pod of another node whose labels are known has %d, not %d", a, b)
	}
	c.passing("after the identities came", client, web.both(80)[0])

	// Without the store a pod starts all the same, and gets its ID when it is back.
	store.Stop()
	began := time.Now()
	late := c.pod(n1, "late", map[string]string{"app": "late"})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a pod took %v to start without the store", took)
	}
	late.temporary("without the store", identity.Init)
	store.Start()
	number := operator.make(late)
	c.eventually("the late pod has its identity", late.has(number))
	if by := operator.writers(t); len(by) != 1 || by["operator-1"] != 3 {
		t.Errorf("references by writer: %v, want 3 of the operator", by)
	}
	for _, n := range []*machineNode{n1, n2} {
		if text := n.logText(); strings.Contains(text, "permission denied") {
			i := strings.Index(text, "permission denied")
			t.Errorf("agent %s wanted to do what it may not: %s", n.name, text[max(0, i-300):i+50])
		}
		n.stop()
	}
}
