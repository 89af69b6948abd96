package hubble

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// fixedPolicy is a policy of which only the revision is asked for.
type fixedPolicy struct{ Policy }

func (fixedPolicy) Revision() uint64 { return 42 }

// checkMovedAddresses checks that an address that changes says whose it was, be it there before the
// agent followed changes, as early was, or new.
func checkMovedAddresses(t *testing.T, cache *ipcache.Cache, early netip.Prefix, find func(string, func(int), func(*flowpb.AgentEvent) bool)) {
	t.Helper()
	moved := netip.MustParsePrefix("10.255.0.2/32")
	claim := func(p netip.Prefix, c ipcache.Claim) {
		t.Helper()
		c.Source = ipcache.KVStore
		if _, err := cache.Upsert(p, c); err != nil {
			t.Fatal(err)
		}
	}
	upserted := func(p netip.Prefix, want *flowpb.IPCacheNotification) {
		t.Helper()
		want.Cidr = p.String()
		find(fmt.Sprint("an address that changes: ", want), nil, func(ev *flowpb.AgentEvent) bool {
			return ev.GetType() == flowpb.AgentEventType_IPCACHE_UPSERTED && proto.Equal(ev.GetIpcacheUpdate(), want)
		})
	}
	claim(early, ipcache.Claim{Owner: "n2", Identity: 4712, Host: netip.MustParseAddr("192.0.2.3")})
	upserted(early, &flowpb.IPCacheNotification{Identity: 4712, OldIdentity: wrapperspb.UInt32(4711), HostIp: "192.0.2.3", OldHostIp: "192.0.2.2"})
	claim(moved, ipcache.Claim{Owner: "n2", Identity: 4711})
	upserted(moved, &flowpb.IPCacheNotification{Identity: 4711})
	claim(moved, ipcache.Claim{Owner: "n2", Identity: 4713})
	upserted(moved, &flowpb.IPCacheNotification{Identity: 4713, OldIdentity: wrapperspb.UInt32(4711)})
}

// TestAgentEvents: what becomes of endpoints, addresses and services can be read, not what was
// there before; a flood of addresses leaves the other events where they are, and how many were left
// out is sent.
func TestAgentEvents(t *testing.T) {
	t.Parallel()
	cache := ipcache.New()
	addr := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	put := func(i int) {
		if _, err := cache.Upsert(addr(i), ipcache.Claim{Source: ipcache.KVStore, Owner: "n2", Identity: 4711, Namespace: "shop", Pod: fmt.Sprint("p", i)}); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	early := netip.MustParsePrefix("10.255.0.1/32")
	if _, err := cache.Upsert(early, ipcache.Claim{Source: ipcache.KVStore, Owner: "n2", Identity: 4711, Host: netip.MustParseAddr("192.0.2.2")}); err != nil {
		t.Fatal(err)
	}
	services := table.New[datapath.ServiceFrontend](service.Frontend.Equal)
	var inForce atomic.Bool
	cfg := Defaults()
	cfg.Enable, cfg.SocketPath = true, filepath.Join(t.TempDir(), "s")
	h, err := New(cfg, Node{
		Self: node.Key{Cluster: "prod", Name: "n1"}, Nodes: table.New[node.Key](node.Node.Equal), Endpoints: endpoint.NewRegistry(), Addresses: cache,
		Monitor: monitor.New(slog.New(slog.DiscardHandler), fake.New().Maps), Frontends: services,
		Listen: func(path, _ string) (net.Listener, error) { return net.Listen("unix", path) },
		Report: func(string, rest.State, string) {}, InForce: inForce.Load, Policy: fixedPolicy{},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	if err := h.Start(func(part string, run func(context.Context) error) {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s: %v", part, err)
			}
		})
	}); err != nil {
		t.Fatal(err)
	}
	events := func() (list []*flowpb.AgentEvent) {
		buf := make([]flows.Event, h.recorder.record.Events.Cap())
		oldest, _ := h.recorder.record.Events.Bounds()
		n, _, _ := h.recorder.record.Events.Read(oldest, buf)
		for _, e := range buf[:n] {
			list = append(list, e.Event)
		}
		return list
	}
	find := func(what string, change func(i int), is func(*flowpb.AgentEvent) bool) {
		t.Helper()
		i := 0
		controllers.Eventually(t, time.Minute, func() string {
			if change != nil { // until it is followed
				change(i)
				i++
			}
			for _, ev := range events() {
				if is(ev) {
					return ""
				}
			}
			return fmt.Sprintf("no event: %s", what)
		})
	}
	find("an address that is new", func(i int) { put(2 + i) }, func(ev *flowpb.AgentEvent) bool {
		n := ev.GetIpcacheUpdate()
		return ev.GetType() == flowpb.AgentEventType_IPCACHE_UPSERTED && n.GetCidr() != addr(1).String() && n.GetIdentity() == 4711 &&
			n.GetNamespace() == "shop" && strings.HasPrefix(n.GetPodName(), "p")
	})
	checkMovedAddresses(t, cache, early, find)
	front := func(i int) datapath.ServiceFrontend {
		return datapath.ServiceFrontend{Addr: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), uint16(80+i)), Proto: 6}
	}
	find("a service", func(i int) {
		row := service.Frontend{Owner: service.Name{Namespace: "shop", Name: "web"}}
		row.ServiceFrontend, row.ID, row.Backends = front(i), 7, []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080")}
		services.Upsert(row.ServiceFrontend, row)
	}, func(ev *flowpb.AgentEvent) bool {
		n := ev.GetServiceUpsert()
		return n.GetName() == "web" && n.GetNamespace() == "shop" && n.GetId() == 7 && n.GetType() == "ClusterIP" && n.GetFrontendAddress().GetIp() == "10.96.0.1" &&
			len(n.GetBackendAddresses()) == 1 && n.GetBackendAddresses()[0].GetPort() == 8080 && n.GetIntTrafficPolicy() == "Cluster" && n.GetExtTrafficPolicy() == ""
	})
	find("a service for clients outside", func(i int) {
		row := service.Frontend{Owner: service.Name{Namespace: "shop", Name: "lb"}, Kind: service.LoadBalancer, Local: true}
		row.Addr, row.Proto, row.Scope = front(1000+i).Addr, 6, datapath.ServiceExternal
		services.Upsert(row.ServiceFrontend, row)
	}, func(ev *flowpb.AgentEvent) bool {
		n := ev.GetServiceUpsert()
		return n.GetName() == "lb" && n.GetType() == "LoadBalancer" && n.GetIntTrafficPolicy() == "" && n.GetExtTrafficPolicy() == "Local"
	})
	services.Delete(front(0))
	find("a service that is gone", nil, func(ev *flowpb.AgentEvent) bool {
		return ev.GetType() == flowpb.AgentEventType_SERVICE_DELETED && ev.GetServiceDelete().GetId() == 7
	})
	row := endpoint.Endpoint{ID: 9, Attachment: endpoint.Attachment{Namespace: "shop", PodName: "db"}}
	before := endpoint.State("")
	for _, s := range []endpoint.State{
		endpoint.StateCreating, endpoint.StateWaitingForIdentity, endpoint.StateWaitingToRegenerate, endpoint.StateRegenerating, endpoint.StateReady,
		endpoint.StateNotReady, endpoint.StateReady, endpoint.StateDisconnecting, endpoint.StateDisconnected,
	} {
		row.State = s
		h.EndpointChanged(before, row, "why")
		before = s
	}
	var sent []string
	for _, ev := range events() {
		if u, r := ev.GetEndpointUpdate(), ev.GetEndpointRegenerate(); u.GetId()+r.GetId() == 9 {
			sent = append(sent, ev.GetType().String()+r.GetError()+u.GetError())
		}
	}
	if want := "ENDPOINT_CREATED ENDPOINT_REGENERATE_SUCCESS ENDPOINT_REGENERATE_FAILUREwhy ENDPOINT_REGENERATE_SUCCESS ENDPOINT_DELETED"; strings.Join(sent, " ") != want {
		t.Errorf("of an endpoint is sent %v", sent)
	}
	guard := policy.Owner("k8s/NetworkPolicy/shop/guard")
	h.PolicyChanged([]policy.Change{{Owner: guard, Rules: []*policy.Rule{{}}}}) // what the agent observes as it starts
	inForce.Store(true)
	h.PolicyChanged([]policy.Change{{Owner: guard, Rules: []*policy.Rule{{}, {}}}})
	h.PolicyChanged([]policy.Change{{Owner: guard}})
	const flood = 50_000
	for i := range flood {
		put(100_000 + i)
	}
	find("how much was left out", nil, func(ev *flowpb.AgentEvent) bool {
		return ev.GetUnknown().GetType() == "ipcache" && strings.Contains(ev.GetUnknown().GetNotification(), "left out")
	})
	if list := events(); list[0].GetType() != flowpb.AgentEventType_AGENT_STARTED {
		t.Errorf("the first of %d events is %v: the flood has displaced others", len(list), list[0])
	}
	for i := range 2 * h.recorder.record.Events.Cap() {
		h.EndpointChanged("", endpoint.Endpoint{ID: uint16(i)}, "")
	}
	policies := make([]flows.Event, 8)
	n, _, _ := h.recorder.record.Policies.Read(0, policies)
	sent = sent[:0]
	for _, e := range policies[:n] {
		u := e.Event.GetPolicyUpdate()
		sent = append(sent, fmt.Sprint(e.Event.GetType(), " ", u.GetRevision(), " ", u.GetRuleCount(), " ", u.GetLabels()))
	}
	named := "[k8s:io.cilium.k8s.policy.derived-from=NetworkPolicy k8s:io.cilium.k8s.policy.name=guard k8s:io.cilium.k8s.policy.namespace=shop]"
	if want := []string{"POLICY_UPDATED 42 2 " + named, "POLICY_DELETED 42 0 " + named}; !slices.Equal(sent, want) {
		t.Errorf("of policies is sent %q, want %q", sent, want)
	}
	for _, ev := range events() {
		if ev.GetIpcacheUpdate().GetCidr() == addr(1).String() {
			t.Error("what was there before is sent as a change")
		}
	}
}

// TestEventsOfManyLabels: events of an endpoint with very many labels, whose labels change all the
// time, take little memory, and say how many labels are left out.
func TestEventsOfManyLabels(t *testing.T) {
	record, err := flows.NewRecord(16, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := &Hubble{recorder: &recorder{record: record}}
	row := endpoint.Endpoint{ID: 7, State: endpoint.StateReady}
	var sets [2]labels.Set
	for i := range sets {
		list := []labels.Label{labels.New(labels.SourceK8s, "0", fmt.Sprint(i))}
		for j := range 999 {
			list = append(list, labels.New(labels.SourceK8s, fmt.Sprintf("%0300d", j), "v"))
		}
		sets[i] = labels.NewSet(list...)
	}
	before := heap()
	for i := range 5000 {
		row.Labels = sets[i%2]
		h.EndpointChanged(endpoint.StateRegenerating, row, "")
	}
	if grew := heap() - before; grew > 20<<20 {
		t.Errorf("the events take %d MiB", grew>>20)
	}
	_, next := record.Events.Bounds()
	events := make([]flows.Event, 1)
	record.Events.Read(next-1, events)
	shown := events[0].Event.GetEndpointRegenerate().GetLabels()
	if n := len(shown) - 1; n < 10 || shown[0] != "k8s:0=1" || shown[n] != fmt.Sprint("hawser:labels-left-out=", 1000-n) {
		t.Errorf("%d labels are shown, the last of which is %q", len(shown), shown[n])
	}
	// Labels as pods have them are shown whole.
	few := labels.NewSet(sets[0][:12]...)
	if got := labelsShown(few); !slices.Equal(got, few.Strings()) {
		t.Errorf("of %d labels are shown %q", len(few), got)
	}
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var st runtime.MemStats
	runtime.ReadMemStats(&st)
	return int64(st.HeapAlloc)
}
