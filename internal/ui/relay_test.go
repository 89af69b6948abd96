package ui_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policydir"
	"github.com/hawser-net/hawser/internal/policypreview"
	"github.com/hawser-net/hawser/internal/relay"
	"github.com/hawser-net/hawser/internal/table"
)

// cluster is two nodes with the policy engine of agents and a relay that asks both.
type cluster struct {
	t      *testing.T
	mu     sync.Mutex
	engine *policy.Engine
	pods   []clusterPod
	nodes  []*clusterNode
	socket string // of the relay
	flows  uint32
}

type clusterPod struct {
	name string
	node int
	id   identity.ID
	set  labels.Set
	addr netip.Addr
}

type clusterNode struct {
	record *flows.Record
	end    func()
}

var _ policypreview.Agent = (*cluster)(nil)

func (c *cluster) Ready() bool                                 { return true }
func (c *cluster) RuleLine(policy.Owner, string) (string, int) { return "", 0 } // no files
func (c *cluster) PolicyLabels() labels.Keys                   { return labels.AllKeys() }
func (c *cluster) Shares([]policy.Change) (beyond, back []policy.Owner) {
	return nil, nil
}
func (c *cluster) View(f func(*policy.Engine)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.engine)
}

func (c *cluster) Endpoint(number uint16) (policy.Subject, identity.ID, bool) {
	if int(number) < 1 || int(number) > len(c.pods) {
		return policy.Subject{}, 0, false
	}
	p := c.pods[number-1]
	return policy.Subject{Identity: p.id, Labels: p.set.KVString()}, p.id, true
}

func (c *cluster) Addresses() iter.Seq2[netip.Addr, identity.ID] {
	return func(yield func(netip.Addr, identity.ID) bool) {
		for _, p := range c.pods {
			if !yield(p.addr, p.id) {
				return
			}
		}
	}
}

// newCluster starts pods of the namespace shop, one after the other on two nodes, and a relay.
func newCluster(t *testing.T, pods ...string) *cluster {
	t.Helper()
	c := &cluster{t: t}
	var err error
	if c.engine, err = policy.New(policy.Config{ClusterName: "prod", AllowLocalhost: true, DefaultLocalCluster: true}); err != nil {
		t.Fatal(err)
	}
	for i, name := range pods {
		set, err := labels.PodLabels(labels.Pod{Namespace: "shop", Cluster: "prod", Labels: map[string]string{"app": name}})
		if err != nil {
			t.Fatal(err)
		}
		p := clusterPod{name, i % 2, identity.ID(1000 + i), set, netip.AddrFrom4([4]byte{10, 0, byte(i % 2), byte(10 + i)})}
		c.pods = append(c.pods, p)
		c.engine.SetIdentity(p.id, set)
	}
	// All nodes have the same port, and addresses of their own.
	first, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.1:0", 1+rand.N(250), 1+rand.N(250)))
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddrPort(first.Addr().String())
	second, err := net.Listen("tcp", netip.AddrPortFrom(own.Addr().Next(), own.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	peers, err := net.Listen("unix", filepath.Join(dir, "n1"))
	if err != nil {
		t.Fatal(err)
	}
	nodes := table.New[node.Key](node.Node.Equal)
	for i, l := range []net.Listener{first, second} {
		n := &clusterNode{}
		key := node.Key{Cluster: "prod", Name: fmt.Sprintf("n%d", i+1)}
		nodes.Upsert(key, node.Node{Cluster: key.Cluster, Name: key.Name, Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddrPort(l.Addr().String()).Addr()}}})
		if n.record, err = flows.NewRecord(1024, time.Now()); err != nil {
			t.Fatal(err)
		}
		preview, err := policypreview.New(policypreview.Config{Agent: c, Record: n.record, Node: key.String()})
		if err != nil {
			t.Fatal(err)
		}
		srv, err := flowserver.New(flowserver.Config{
			Services: func(r grpc.ServiceRegistrar) { policypb.RegisterPolicyServer(r, preview) },
			Record:   n.record, Nodes: nodes, Self: key, PeerPort: own.Port(), Version: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		n.end = c.run(func(ctx context.Context) error { return srv.Serve(ctx, l, nil) })
		if i == 0 {
			c.run(func(ctx context.Context) error { return srv.Serve(ctx, peers, nil) })
		}
		c.nodes = append(c.nodes, n)
	}
	c.socket = filepath.Join(dir, "relay")
	cfg := relay.Defaults()
	cfg.ListenAddress, cfg.HealthAddress, cfg.PeerService = "unix://"+c.socket, "", "unix://"+filepath.Join(dir, "n1")
	cfg.NoClientTLS, cfg.NoServerTLS, cfg.RetryTimeout = true, true, time.Second
	r, err := relay.New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)), "test")
	if err != nil {
		t.Fatal(err)
	}
	c.run(r.Run)
	return c
}

// run runs until the test ends, or end is called.
func (c *cluster) run(f func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(end)
	return end
}

// apply puts a policy in force, which both agents report.
func (c *cluster) apply(name, text string) {
	c.t.Helper()
	docs, err := policydir.Documents([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	err = c.engine.SetRules(policy.Owner("k8s/CiliumNetworkPolicy/shop/"+name), docs[0].Rules)
	c.mu.Unlock()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, n := range c.nodes {
		n.record.AddEvent(flows.Event{Time: time.Now(), Event: policyEvent(name)})
	}
}

// connect has both nodes of a connection record it: the receiver's lets it in or refuses it.
func (c *cluster) connect(from, to string, port uint16, allowed bool) {
	c.t.Helper()
	var src, dst clusterPod
	ends := make([]*flow.Endpoint, 2)
	for i, p := range c.pods {
		e := &flow.Endpoint{ID: uint32(i + 1), Identity: uint32(p.id), Namespace: "shop", PodName: p.name, Labels: p.set.Strings(), Workloads: []*flow.Workload{{Name: p.name, Kind: "Deployment"}}}
		if p.name == from {
			src, ends[0] = p, e
		}
		if p.name == to {
			dst, ends[1] = p, e
		}
	}
	c.flows++
	for i, p := range []clusterPod{src, dst} {
		f := &flow.Flow{
			Time: timestamppb.Now(), NodeName: fmt.Sprintf("prod/n%d", p.node+1), Source: ends[0], Destination: ends[1], Type: flow.FlowType_L3_L4, IsReply: wrapperspb.Bool(false),
			IP:        &flow.IP{Source: src.addr.String(), Destination: dst.addr.String(), IpVersion: flow.IPVersion_IPv4},
			L4:        &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 20000 + c.flows, DestinationPort: uint32(port), Flags: &flow.TCPFlags{SYN: true}}}},
			EventType: &flow.CiliumEventType{Type: 5}, TrafficDirection: flow.TrafficDirection_EGRESS, Verdict: flow.Verdict_FORWARDED,
		}
		if i == 1 {
			f.TrafficDirection = flow.TrafficDirection_INGRESS
			if !allowed {
				f.Verdict, f.DropReasonDesc, f.DropReason = flow.Verdict_DROPPED, flow.DropReason_POLICY_DENIED, 133
			}
		}
		c.nodes[p.node].record.Add(f, src.addr, dst.addr, time.Now())
	}
}

const dbClients = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: db-clients, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: db}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: front}}, {matchLabels: {app: archive}}]
    toPorts: [{ports: [{port: "5432", protocol: TCP}]}]
`

// TestPageOfRelay: the page asks a relay, which asks two nodes with the engine that agents have. A
// document that would deny what was seen says so, the matrix has what may be beside what is,
// and a node that goes is shown.
func TestPageOfRelay(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "front", "db", "archive", "intruder")
	c.apply("db-clients", dbClients)
	time.Sleep(1200 * time.Millisecond) // until nodes evaluate by it
	for range 5 {
		c.connect("front", "db", 5432, true)
		c.connect("intruder", "db", 5432, false)
		c.connect("db", "front", 80, true)
	}
	s := newPageOf(t, c.socket)
	b := newBrowser(t, s)
	b.size(1280, 800)
	b.run("the page", navigate(s.url))
	b.until("connections of both nodes, each once", `document.body.dataset.edges === "3" && `+row+`[0].textContent.includes("shop/intruder → shop/db") && `+row+`.every(r => /[✕●] 5$/.test(r.querySelector(".sum").textContent.trim()))`)
	b.until("both nodes", `document.getElementById("status").textContent.startsWith("2 of 2 nodes")`)
	b.key("2")
	cell := func(from, to string) string {
		return fmt.Sprintf("document.querySelector(`#matrix button[title^=\"%s → %s:\"]`)", from, to)
	}
	b.until("what may and was seen", cell("shop/front", "shop/db")+`?.title.endsWith(": let in, policies allow some of it")`)
	b.until("what may not, and was refused", cell("shop/intruder", "shop/db")+`?.title.endsWith(": refused, policies refuse it")`)
	b.until("what may, and was never seen", cell("shop/archive", "shop/db")+`?.title.endsWith(": never seen, policies allow some of it")`)
	b.until("nothing restricts others", cell("shop/db", "shop/front")+`?.title.endsWith(": let in, policies allow it")`)
	b.run("a pair", click(`#matrix button[data-pair="shop/archive>shop/db"]`))
	b.until("why", `["TCP 5432", "shop/db-clients"].every(x => document.getElementById("panel").textContent.includes(x))`)
	b.picture("relay-matrix")
	b.key(kb.Escape)
	evaluate := func(document string) {
		t.Helper()
		b.key(kb.Escape)
		b.key("5")
		b.until("the field", `document.activeElement.id === "document"`)
		b.run("a policy", evaluate(fmt.Sprintf(`document.getElementById("document").value = %q`, document)))
		b.run("evaluate", click("#evaluate"))
	}
	evaluate(strict)
	// strict allows the archive alone beside what db-clients allows: no more is refused.
	b.until("nothing would be refused", `document.querySelector("#preview .verdict")?.textContent.includes("Nothing that was seen would be refused")`)
	evaluate(strings.Replace(strict, "name: strict", "name: db-clients", 1))
	b.until("what was seen would be refused", `document.querySelector("#preview .verdict")?.textContent.includes("1 of the kinds of connections that were seen would be refused") &&
		[...document.querySelectorAll("#preview .connections tbody tr")].some(r => /refused.*front.*db.*TCP 5432/.test(r.textContent))`)
	b.until("which policy it replaces", `/replaced.*shop.db-clients/.test(document.querySelector("#preview .changes").textContent)`)
	b.until("pairs", `/front.*db.*partial.*denied/.test(document.querySelector("#preview .pairs").textContent)`)
	b.picture("relay-whatif")
	evaluate("kind: [")
	b.until("an error with its line", `document.querySelector("#preview [role=alert]")?.textContent.includes("line 1")`)

	// Once the policy is in force, the page has what it refuses.
	c.apply("db-clients", strings.Replace(strict, "name: strict", "name: db-clients", 1))
	time.Sleep(1200 * time.Millisecond) // until nodes evaluate by it
	c.connect("front", "db", 5432, false)
	b.key(kb.Escape)
	b.key("2")
	b.until("partly refused, and no more allowed", cell("shop/front", "shop/db")+`?.title.endsWith(": partly refused, policies refuse it")`)
	b.key("c")
	b.until("the change of both nodes that did it", `["Policies changed at", "shop/db-clients", "Reported by 2 nodes", "● let in ⇒ ✕ refused"].every(x => document.getElementById("panel").textContent.includes(x))`)
	b.key(kb.Escape)
	c.nodes[1].end()
	b.until("a node that is gone", `document.getElementById("status").className === "bad" && document.getElementById("status").textContent.startsWith("1 of 2 nodes")`)
	b.key("4")
	b.until("which one", `/prod.n2✕ unavailable/.test(document.getElementById("nodes").textContent)`)
	evaluate(strict)
	b.until("that not all is known", `document.querySelector("#preview .verdict")?.textContent.startsWith("○ Nothing that is known") && document.getElementById("preview").textContent.includes("at least 2 stay as they are")`)
	b.until("whose flows are missing", `document.getElementById("preview").textContent.includes("Nothing of prod/n2")`)
	b.picture("relay-gone")
}
