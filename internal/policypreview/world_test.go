package policypreview

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	flowpb "github.com/hawser-net/hawser/api/flow"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
)

// world is a small random cluster with an agent's engine.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	mu      sync.Mutex
	engine  *policy.Engine
	cfg     policy.Config
	pods    []pod
	outside []netip.Addr
	// policies are those in force, as the oracle reads them.
	policies map[policy.Owner]oracle.Policy
	rules    map[policy.Owner][]*policy.Rule
	ring     *flows.Record
	// unsynced has received nothing yet; evaluated are the keys of labels that count, nil for all.
	unsynced     bool
	policyLabels *labels.Keys
	// beyond and back are what each answer about shares says.
	beyond, back []policy.Owner
	// inFile is the owner of a policy that is in a file of the node.
	inFile policy.Owner
}

type pod struct {
	number uint16
	id     identity.ID
	set    labels.Set
	addr   netip.Addr
}

var _ Agent = (*world)(nil)

func (w *world) Ready() bool { return !w.unsynced }

func (w *world) PolicyLabels() labels.Keys {
	if w.policyLabels != nil {
		return *w.policyLabels
	}
	return labels.AllKeys()
}

func (w *world) Shares([]policy.Change) (beyond, back []policy.Owner) { return w.beyond, w.back }

func (w *world) View(f func(*policy.Engine)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.engine)
}

func (w *world) Endpoint(number uint16) (policy.Subject, identity.ID, bool) {
	for _, p := range w.pods {
		if p.number == number {
			return policy.Subject{Identity: p.id, Labels: p.set.KVString()}, p.id, true
		}
	}
	return policy.Subject{}, 0, false
}

func (w *world) RuleLine(o policy.Owner, path string) (string, int) {
	if w.inFile != "" && o == w.inFile {
		return "node.yaml", len(path)
	}
	return "", 0
}

func (w *world) Addresses() iter.Seq2[netip.Addr, identity.ID] {
	return func(yield func(netip.Addr, identity.ID) bool) {
		for _, p := range w.pods {
			if !yield(p.addr, p.id) {
				return
			}
		}
	}
}

func seed(t testing.TB) uint64 {
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("HAWSER_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s = n
	}
	t.Logf("seed: HAWSER_SEED=%d", s)
	return s
}

func podSet(t testing.TB, namespace string, own map[string]string) labels.Set {
	set, err := labels.PodLabels(labels.Pod{Namespace: namespace, Cluster: "c1", Labels: own})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newWorld returns a cluster of pods without policies.
func newWorld(t testing.TB, rng *rand.Rand, pods int) *world {
	w := &world{t: t, rng: rng, policies: map[policy.Owner]oracle.Policy{}, rules: map[policy.Owner][]*policy.Rule{}}
	w.cfg = policy.Config{ClusterName: "c1", AllowLocalhost: true, DefaultLocalCluster: true, DualStack: true, AllowNonDefaultDeny: true}
	var err error
	if w.engine, err = policy.New(w.cfg); err != nil {
		t.Fatal(err)
	}
	if w.ring, err = flows.NewRecord(4096, time.Now()); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		own := map[string]string{"app": w.pick("x", "y", "z")}
		if w.rng.IntN(2) == 0 {
			own["tier"] = w.pick("f", "g")
		}
		if pods > 100 {
			own["num"] = fmt.Sprint(i)
		}
		w.addPod(podSet(t, w.pick("a", "b", "c"), own), netip.AddrFrom4([4]byte{10, byte(i % 2), byte(i >> 8), byte(i)}))
	}
	for _, s := range []string{"192.0.2.1", "10.9.0.1", "198.51.100.7"} {
		w.outside = append(w.outside, netip.MustParseAddr(s))
	}
	return w
}

func (w *world) addPod(set labels.Set, addr netip.Addr) pod {
	n := len(w.pods)
	p := pod{uint16(n + 1), identity.ID(1000 + n), set, addr}
	w.pods = append(w.pods, p)
	w.engine.SetIdentity(p.id, set)
	return p
}

func (w *world) pick(list ...string) string { return list[w.rng.IntN(len(list))] }

// words are those of the pods and addresses above.
func words() policygen.Words {
	return policygen.Words{
		Namespaces: []string{"a", "b", "c"}, Clusters: []string{"c1"},
		CIDRs: []string{"0.0.0.0/0", "10.9.0.0/16", "192.0.2.0/24", "192.0.2.1/32", "172.16.0.0/12", "2001:db8::/32"},
		Wide4: []string{"0.0.0.0/0", "192.0.0.0/8"}, Except4: []string{"192.0.2.0/24", "192.0.2.1/32"},
		Wide6: []string{"::/0"}, Except6: []string{"fd00::/64"},
		Blocks4: []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16"}, BlockExcept4: []string{"10.1.0.4/32", "10.1.1.0/24", "10.1.0.0/17"}, Exact4: []string{"10.0.0.4/32"},
		Blocks6: []string{"::/0"}, BlockExcept6: []string{"fd00::/64"},
		Networks: []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.1/32", "::/0"},
	}
}

// random returns a random policy of a name, as a document and as the oracle reads it.
func (w *world) random(name string) (policy.Name, []byte, oracle.Policy) {
	gen := policygen.Generator{Rand: w.rng, Words: words()}
	switch w.rng.IntN(5) {
	case 0:
		obj := gen.NetworkPolicy(name)
		obj.APIVersion, obj.Kind = "networking.k8s.io/v1", "NetworkPolicy"
		return policy.Name{Kind: obj.Kind, Namespace: obj.Namespace, Name: name}, mustJSON(obj), oracle.FromNetworkPolicy(obj)
	case 1:
		obj := gen.Cluster(name)
		obj.APIVersion, obj.Kind = "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"
		return policy.Name{Kind: obj.Kind, Name: name}, mustJSON(obj), oracle.FromClusterNetworkPolicy(obj)
	case 2:
		obj := gen.Clusterwide(name)
		obj.APIVersion, obj.Kind = v2.APIVersion, v2.KindClusterwideNetworkPolicy
		return policy.Name{Kind: obj.Kind, Name: name}, mustJSON(obj), oracle.FromClusterwide(obj)
	}
	obj := gen.Namespaced(name)
	obj.APIVersion, obj.Kind = v2.APIVersion, v2.KindNetworkPolicy
	return policy.Name{Kind: obj.Kind, Namespace: obj.Namespace, Name: name}, mustJSON(obj), oracle.FromObject(obj)
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// put puts rules in force, as the agent does: prefixes have identities before.
func (w *world) put(owner policy.Owner, rules []*policy.Rule, pol oracle.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.policies[owner], w.rules[owner] = pol, rules
	for _, p := range policy.CIDRs(rules) {
		w.engine.SetIdentity(numberOf(identity.LocalScope, p), identity.CIDRLabels(p, true))
	}
	for _, p := range policy.Blocks(rules) {
		w.engine.SetIdentity(numberOf(identity.BlockScope, p), identity.BlockLabels(p))
	}
	if err := w.engine.SetRules(owner, rules); err != nil {
		w.t.Fatal(err)
	}
}

// numberOf makes a number of a prefix: those here are few and differ in what it looks at.
func numberOf(scope identity.ID, p netip.Prefix) identity.ID {
	b := p.Addr().As16()
	n := identity.ID(p.Bits())
	for _, x := range b {
		n = (n*31 + identity.ID(x)) & 0xffff
	}
	return scope | 0x020000 | n
}

func (w *world) oracleConfig() oracle.Config {
	return oracle.Config{ClusterName: "c1", AllowLocalhost: true, DefaultLocalCluster: true, AllowNonDefaultDeny: true}
}

// after is what the oracle reads if the policies given were in force too.
func after(now map[policy.Owner]oracle.Policy, more map[policy.Owner]oracle.Policy, gone ...policy.Owner) (out []oracle.Policy) {
	all := maps.Clone(now)
	maps.Copy(all, more)
	for _, o := range gone {
		delete(all, o)
	}
	for _, o := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[o])
	}
	return out
}

// connectionEnd is an end of a connection.
type connectionEnd struct {
	end  oracle.End
	flow *flowpb.Endpoint
	addr netip.Addr
}

func (w *world) podEnd(p pod) connectionEnd {
	return connectionEnd{
		oracle.End{Labels: p.set, Addr: p.addr},
		&flowpb.Endpoint{ID: uint32(p.number), Identity: uint32(p.id), Namespace: p.set.Value(labels.SourceK8s, labels.KeyNamespace), PodName: fmt.Sprint("pod-", p.number), Labels: p.set.Strings()},
		p.addr,
	}
}

func (w *world) outsideEnd(a netip.Addr) connectionEnd {
	set, _ := identity.ReservedLabels(identity.WorldIPv4)
	return connectionEnd{oracle.End{Addr: a}, &flowpb.Endpoint{Identity: uint32(identity.WorldIPv4), Labels: set.Strings()}, a}
}

// flowBetween is the verdict about the first packet of a connection.
func flowBetween(src, dst connectionEnd, proto uint8, port uint16) *flowpb.Flow {
	f := &flowpb.Flow{
		Time: timestamppb.Now(), Verdict: flowpb.Verdict_FORWARDED, IsReply: wrapperspb.Bool(false), TrafficDirection: flowpb.TrafficDirection_EGRESS,
		IP: &flowpb.IP{Source: src.addr.String(), Destination: dst.addr.String()}, Source: src.flow, Destination: dst.flow,
		EventType: &flowpb.CiliumEventType{Type: flows.EventVerdict}, NodeName: "c1/n1",
	}
	switch proto {
	case datapath.ProtoTCP:
		f.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{SourcePort: 40000, DestinationPort: uint32(port), Flags: &flowpb.TCPFlags{SYN: true}}}}
	case datapath.ProtoUDP:
		f.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_UDP{UDP: &flowpb.UDP{SourcePort: 40000, DestinationPort: uint32(port)}}}
	case datapath.ProtoICMP:
		f.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_ICMPv4{ICMPv4: &flowpb.ICMPv4{Type: uint32(port)}}}
	}
	return f
}

// record remembers that a connection was seen.
func (w *world) record(src, dst connectionEnd, proto uint8, port uint16) {
	w.ring.Add(flowBetween(src, dst, proto, port), src.addr, dst.addr, time.Now())
}

// addr is the address of the n-th pod.
func (w *world) addr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 200, n}) }
