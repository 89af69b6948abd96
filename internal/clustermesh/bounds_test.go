package clustermesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// alone returns a session with cluster b that has no store, and vouches for all of its state.
func alone() *session {
	p := Params{Name: "a", ID: 1, MaxClusters: 255}
	p.defaults()
	s := &session{remote: newRemote(&Mesh{p: p}, "b"), met: true, cancel: func() {}}
	s.events, s.ends = map[string]<-chan kvstore.Event{}, map[string]context.CancelFunc{}
	s.watch = func(string) (<-chan kvstore.Event, context.CancelFunc) { return make(chan kvstore.Event), func() {} }
	for kind := range s.progress {
		s.begin(kind)
		s.progress[kind].complete = true
	}
	return s
}

// TestBounds: of a cluster that has more than the bounds allow, what is one too many is refused,
// and what is known already can still change.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := alone()
	for i := range maxNodes - 1 {
		s.nodes[fmt.Sprint(i)] = node.Node{}
	}
	for i := range maxServices - 1 {
		s.services[service.Name{Namespace: "ns", Name: fmt.Sprint(i)}] = service.Shared{}
	}
	takeNode := func(name string) error {
		value, err := json.Marshal(testNode(func(n *node.Node) { n.Name, n.Cluster, n.ClusterID = name, "b", 2 }))
		if err != nil {
			t.Fatal(err)
		}
		return s.takeNode(name, value)
	}
	takeService := func(name string) error {
		sv := service.Shared{Cluster: "b", ClusterID: 2, Name: service.Name{Namespace: "ns", Name: name}}
		value, err := sv.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return s.takeService("ns/"+name, value)
	}
	for _, take := range []func(string) error{takeNode, takeService} {
		for _, step := range []struct {
			name string
			ok   bool
		}{{"last", true}, {"beyond", false}, {"last", true}} {
			if err := take(step.name); (err == nil) != step.ok || err != nil && !strings.Contains(err.Error(), "more than") {
				t.Errorf("%s: %v", step.name, err)
			}
		}
	}
	for i := range maxRefused + 1 {
		s.reject(kindIdentities, fmt.Sprint(i), errors.New("a fault"))
	}
	if n := len(s.refused); n != maxRefused {
		t.Errorf("%d refused keys are remembered, want %d", n, maxRefused)
	}
}

// TestRoomAppears: what was refused for lack of room is read again when there is some, though not
// all the time.
func TestRoomAppears(t *testing.T) {
	t.Parallel()
	s := alone()
	s.m.p.Sinks.Services = newTables()
	lists := 0
	watch := s.watch
	s.watch = func(kind string) (<-chan kvstore.Event, context.CancelFunc) {
		lists++
		return watch(kind)
	}
	h := s.progress[kindServices]
	if err := s.space[kindServices].take("others", maxSpace); err != nil {
		t.Fatal(err)
	}
	event := func(kind kvstore.EventKind, name string) {
		t.Helper()
		value, err := service.Shared{Cluster: "b", ClusterID: 2, Name: service.Name{Namespace: "ns", Name: name}}.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		s.take(kindServices, kvstore.Event{Kind: kind, Revision: 1, KeyValue: kvstore.KeyValue{Key: s.layout().prefix(kindServices) + "ns/" + name, Value: value}}, true)
	}
	settled := func(when string, want int) {
		t.Helper()
		s.settle()
		if lists != want {
			t.Errorf("%s: listed again %d times, want %d", when, lists, want)
		}
	}
	s.services[service.Name{Namespace: "ns", Name: "known"}] = service.Shared{}
	event(kvstore.EventCreate, "web")
	if s.refused["services/v1/ns/web"] != true {
		t.Error("there is room")
	}
	h.begun = time.Now().Add(-refill)
	settled("no room", 0)
	h.begun = time.Now()
	event(kvstore.EventDelete, "known")
	settled("too early", 0)
	h.begun = h.begun.Add(-refill)
	settled("room", 1)
	h.begun, h.complete = h.begun.Add(-refill), true
	settled("nothing was refused since", 1)
}

// TestTooLargeStore: a store beyond the bounds of its client is followed no further, which its
// status says, and other clusters are followed.
func TestTooLargeStore(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	w := newWorld(t)
	open := w.mesh.p.Open
	w.mesh.p.Open = func(ctx context.Context, file string, log *slog.Logger) (kvstore.Backend, error) {
		if filepath.Base(file) != "b" {
			return open(ctx, file, log)
		}
		c := etcd.Defaults()
		c.Endpoints, c.MaxKeys = []string{server.Endpoint()}, 100
		return etcd.New(ctx, c, log)
	}
	raw := server.Client()
	put := func(key, value string) {
		t.Helper()
		if _, err := raw.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	put("cilium/cluster-config/b", `{"id":2}`)
	for i := range 200 {
		put(fmt.Sprintf("cilium/state/identities/v1/id/%d", 2<<16+i), "k8s:app=x;k8s:io.cilium.k8s.policy.cluster=b;")
	}
	w.put("c", cluster("c", 3))
	w.config("b", "b")
	w.config("c", "c")
	w.start()
	w.status("b", func(s Status) bool {
		return s.ID == 2 && !s.Connected && !s.Ready && strings.Contains(s.LastError, etcd.ErrTooMuch.Error()) && s.Failures > 0
	})
	w.eventually("the other cluster", rowsOf("c", 3))
}

// TestRefusedAndGone: a key that was refused, and is gone when a new connection has listed
// everything, is not counted as refused any more.
func TestRefusedAndGone(t *testing.T) {
	t.Parallel()
	s := alone()
	for _, of := range []struct{ kind, key string }{{kindIdentities, "5"}, {kindIdentities, "6"}, {kindNodes, "n1"}, {kindServices, "ns/web"}} {
		s.reject(of.kind, of.key, errors.New("a fault"))
	}
	for _, kind := range []string{kindIdentities, kindServices} {
		s.begin(kind)
	}
	s.takeIdentities(kvstore.Event{Kind: kvstore.EventCreate, KeyValue: kvstore.KeyValue{Key: s.layout().prefix(kindIdentities) + "6"}}, true)
	for _, kind := range []string{kindIdentities, kindServices} {
		s.note(kind, kvstore.Event{Kind: kvstore.EventListDone, Revision: 7}, true)
	}
	if err := s.vouch(look{number: 1, marks: map[string]int64{kindIdentities: 5, kindServices: 5}}); err != nil {
		t.Error(err)
	}
	s.settle()
	want := []string{kindIdentities + "/6", kindNodes + "/n1"}
	if diff := gocmp.Diff(want, slices.Sorted(maps.Keys(s.refused))); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}

// TestSpace: what a cluster keeps in this node's memory is bounded in bytes for each kind. A known
// key can still shrink, and what goes makes room.
func TestSpace(t *testing.T) {
	t.Parallel()
	s := alone()
	s.peer = testPeer(t)
	seen := newTables()
	s.m.p.Sinks.Identities, s.m.p.Sinks.Services = seen, seen
	filler := func(n int) string { return strings.Repeat("x", n) }
	event := func(kind, key string, value []byte) kvstore.Event {
		e := kvstore.Event{Kind: kvstore.EventModify, Revision: 1, KeyValue: kvstore.KeyValue{Key: s.layout().prefix(kind) + key, Value: value}}
		if value == nil {
			e.Kind = kvstore.EventDelete
		}
		return e
	}
	const cluster = `k8s:io.cilium.k8s.policy.cluster=b;`
	identity := func(values int) []byte {
		text := cluster
		for i := range values {
			text += fmt.Sprintf("k8s:l%d=%s;", i, filler(63))
		}
		return []byte(text)
	}
	service := func(name string, size int) []byte {
		value, err := service.Shared{Cluster: "b", ClusterID: 2, Name: service.Name{Namespace: "ns", Name: name}, Labels: map[string]string{"l": filler(size)}}.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	node := func(name string, size int) []byte {
		value, err := json.Marshal(testNode(func(n *node.Node) {
			n.Name, n.Cluster, n.ClusterID, n.Labels = name, "b", 2, map[string]string{"l": filler(size)}
		}))
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	for _, c := range []struct {
		kind  string
		key   func(int) string
		value func(i int, large bool) []byte
		take  func(kvstore.Event)
		have  func() int
	}{
		{
			kindIdentities, func(i int) string { return fmt.Sprint(int(s.peer.first) + i) },
			func(_ int, large bool) []byte {
				if large {
					return identity(800)
				}
				return identity(1)
			},
			func(e kvstore.Event) { s.takeIdentities(e, true) }, func() int { return len(seen.identities) },
		},
		{
			kindServices, func(i int) string { return fmt.Sprintf("ns/s%d", i) },
			func(i int, large bool) []byte {
				if large {
					return service(fmt.Sprintf("s%d", i), 1<<20)
				}
				return service(fmt.Sprintf("s%d", i), 1)
			},
			func(e kvstore.Event) { s.take(kindServices, e, true) }, func() int { return len(s.services) },
		},
		{
			kindNodes, func(i int) string { return fmt.Sprintf("n%d", i) },
			func(i int, large bool) []byte {
				if large {
					return node(fmt.Sprintf("n%d", i), 256<<10)
				}
				return node(fmt.Sprintf("n%d", i), 1)
			},
			func(e kvstore.Event) { s.take(kindNodes, e, true) }, func() int { return len(s.nodes) },
		},
	} {
		put := func(i int, large bool) (taken bool) {
			value := c.value(i, large)
			c.take(event(c.kind, c.key(i), value))
			return s.space[c.kind].sizes[c.key(i)] == len(value)
		}
		const fits = 3
		others := maxSpace - fits*len(c.value(0, true)) - len(c.value(0, true))/2
		if err := s.space[c.kind].take("others", others); err != nil {
			t.Fatal(err)
		}
		for i := range fits + 1 {
			if taken := put(i, true); taken != (i < fits) {
				t.Errorf("%s: key %d of those of which %d fit: taken is %v", c.kind, i, fits, taken)
			}
		}
		if c.have() != fits || s.space[c.kind].used > maxSpace {
			t.Errorf("%s: %d of %d keys with %d bytes", c.kind, c.have(), fits, s.space[c.kind].used)
		}
		if !put(0, false) || !put(fits, true) {
			t.Errorf("%s: a key that shrank made no room", c.kind)
		}
		if put(0, true) {
			t.Errorf("%s: a key that is known took more than there is", c.kind)
		}
		c.take(event(c.kind, c.key(1), nil))
		if !put(0, true) {
			t.Errorf("%s: a key that went made no room", c.kind)
		}
		for i := range fits + 1 {
			c.take(event(c.kind, c.key(i), nil))
		}
		if sp := s.space[c.kind]; sp.used != others || len(sp.sizes) != 1 || c.have() != 0 {
			t.Errorf("%s: %d bytes of %d keys are left, %d objects", c.kind, sp.used, len(sp.sizes), c.have())
		}
	}
	long, err := json.Marshal(map[string]any{"IP": "10.2.1.5", "HostIP": "192.0.2.2", "ID": s.peer.first, "K8sPodName": filler(maxAddress)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.takeAddress("10.2.1.5", long); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("an address with a long name: %v", err)
	}
}

// addressValue is the value of an address of cluster b, with these named ports.
func addressValue(ip netip.Addr, ports []string) []byte {
	return fmt.Appendf(nil, `{"IP":%q,"HostIP":"192.0.2.2","ID":131077,"NamedPorts":[%s]}`, ip, strings.Join(ports, ","))
}

// TestAddressesTakeMemory: what is kept of addresses, of no node that is known, is no multiple of
// what their cluster writes, whatever that is.
func TestAddressesTakeMemory(t *testing.T) {
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	const addresses = 1000
	short := make([]string, maxAddressPorts) // as short as named ports are
	for i := range short {
		short[i] = fmt.Sprintf(`{"Name":"a","Port":%d,"Protocol":"TCP"}`, 1+i)
	}
	for name, ports := range map[string][]string{
		"elements without content": slices.Repeat([]string{"{}"}, 1024),
		"ports without a name":     slices.Repeat([]string{`{"Port":1}`}, 700),
		"short ports":              short[:80],
	} {
		s := alone()
		s.peer = testPeer(t)
		before, bytes := heap(), 0
		at := addr("10.2.0.0")
		for range addresses {
			at = at.Next()
			value := addressValue(at, ports)
			bytes += len(value)
			s.take(kindAddresses, kvstore.Event{Kind: kvstore.EventModify, Revision: 1, KeyValue: kvstore.KeyValue{Key: s.layout().prefix(kindAddresses) + at.String(), Value: value}}, true)
		}
		kept := heap() - before
		t.Logf("%s: %d addresses, %d MiB as JSON, %d MiB kept", name, len(s.pairs), bytes>>20, kept>>20)
		if len(s.pairs) != addresses || s.pairsSize != bytes {
			t.Errorf("%s: %d addresses with %d bytes are known, of %d bytes", name, len(s.pairs), s.pairsSize, bytes)
		}
		if kept > 3*bytes {
			t.Errorf("%s: %d MiB of addresses take %d MiB", name, bytes>>20, kept>>20)
		}
		runtime.KeepAlive(s)
	}
}

// TestSpaceOfAddresses: the values of a cluster's addresses are bounded together, whether they come
// by a listing or by changes. What shrinks and what goes makes room.
func TestSpaceOfAddresses(t *testing.T) {
	t.Parallel()
	s := alone()
	s.peer = testPeer(t)
	ports := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(`{"Name":"http","Port":%d,"Protocol":"TCP"}`, 10_000+i))
		}
		return list
	}
	large, small := ports(maxAddressPorts), ports(1)
	ips := []netip.Addr{addr("10.2.1.1"), addr("10.2.1.2"), addr("10.2.1.3"), addr("10.2.1.4")}
	size := len(addressValue(ips[0], large))
	const fits = 3
	others := maxAddressesSize - fits*size - size/2
	s.pairsSize = others
	put := func(i int, kind kvstore.EventKind, ports []string) (taken bool) {
		e := kvstore.Event{Kind: kind, Revision: 1, KeyValue: kvstore.KeyValue{Key: s.layout().prefix(kindAddresses) + ips[i].String(), Value: addressValue(ips[i], ports)}}
		s.take(kindAddresses, e, true)
		return len(s.pairs[ipcache.Single(ips[i])].NamedPorts) == len(ports)
	}
	for i := range ips {
		if taken := put(i, kvstore.EventCreate, large); taken != (i < fits) {
			t.Errorf("address %d of those of which %d fit: taken is %v", i, fits, taken)
		}
	}
	if h := s.progress[kindAddresses]; !h.full || len(s.pairs) != fits || s.pairsSize != others+fits*size {
		t.Errorf("%d addresses, %d bytes, full: %v", len(s.pairs), s.pairsSize-others, h.full)
	}
	if !put(0, kvstore.EventModify, small) || !put(fits, kvstore.EventModify, large) {
		t.Error("an address that shrank made no room")
	}
	if put(0, kvstore.EventModify, large) {
		t.Error("an address that is known took more than there is")
	}
	for i := range ips {
		put(i, kvstore.EventDelete, nil)
	}
	if s.pairsSize != others || len(s.pairs) != 0 {
		t.Errorf("%d addresses with %d bytes are left", len(s.pairs), s.pairsSize-others)
	}
	if put(0, kvstore.EventModify, ports(maxAddressPorts+1)) || !s.refused[kindAddresses+"/"+ips[0].String()] {
		t.Errorf("an address with %d named ports is taken", maxAddressPorts+1)
	}
	s.reset()
	if s.pairsSize != 0 {
		t.Errorf("nothing is kept, and counts %d bytes", s.pairsSize)
	}
	// Nor are keys that nothing is kept of: they may be long.
	s.take(kindServices, kvstore.Event{Kind: kvstore.EventModify, KeyValue: kvstore.KeyValue{Key: s.layout().prefix(kindServices) + strings.Repeat("x", maxRefusedKey+1)}}, true)
	if len(s.refused) != 0 {
		t.Error("a long key that was refused is kept")
	}
}
