package policy

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
)

// A world is a small random cluster: few names, so that rules and packets meet often.
type world struct {
	rng      *rand.Rand
	cfg      Config
	pods     []pod
	reserved []identity.ID
	outside  []netip.Addr
	policies map[Owner]object
	tiers    bool // has policies of the admin and baseline tiers
}

type pod struct {
	id    identity.ID
	set   labels.Set
	ports string // canonical
	addrs [2]netip.Addr
}

type object struct {
	rules  []*Rule
	policy oracle.Policy
}

func (w *world) pick(list ...string) string { return list[w.rng.IntN(len(list))] }
func (w *world) chance(percent int) bool    { return w.rng.IntN(100) < percent }

func newWorld(rng *rand.Rand) *world {
	w := &world{rng: rng, policies: map[Owner]object{}}
	w.tiers = w.chance(50)
	w.cfg = Config{
		Mode:        []Mode{ModeDefault, ModeDefault, ModeDefault, ModeDefault, ModeAlways, ModeNever}[rng.IntN(6)],
		ClusterName: "c1", AllowLocalhost: w.chance(50), DefaultLocalCluster: w.chance(50), DualStack: true,
		AllowNonDefaultDeny: w.chance(80),
	}
	for i := range 3 + rng.IntN(6) {
		w.pods = append(w.pods, w.newPod(identity.ID(300+i)))
	}
	w.reserved = []identity.ID{identity.Host, identity.RemoteNode, identity.Health, identity.Init, identity.KubeAPIServer, identity.Ingress, identity.Unmanaged, identity.Unobserved}
	for _, s := range []string{"10.0.0.1", "10.0.1.1", "10.1.0.1", "10.1.0.2", "192.0.2.1", "fd00::1", "fd00:0:0:1::1", "fd01::1", "2001:db8::5"} {
		w.outside = append(w.outside, netip.MustParseAddr(s))
	}
	if w.chance(50) { // a cluster of one family
		w.cfg.DualStack, w.cfg.IPv6Only = false, w.chance(50)
		w.outside = slices.DeleteFunc(w.outside, func(a netip.Addr) bool { return a.Is4() == w.cfg.IPv6Only })
	}
	for i := range 1 + rng.IntN(6) {
		w.setPolicy(Owner(fmt.Sprintf("p%d", i)))
	}
	return w
}

func (w *world) newPod(id identity.ID) pod {
	return pod{id: id, set: w.podLabels(), ports: w.namedPorts(), addrs: [2]netip.Addr{
		netip.AddrFrom4([4]byte{10, byte(w.rng.IntN(2)), byte(w.rng.IntN(2)), byte(3 + w.rng.IntN(4))}),
		netip.AddrFrom16([16]byte{0: 0xfd, 7: byte(w.rng.IntN(2)), 15: byte(1 + w.rng.IntN(3))}),
	}}
}

func (w *world) podLabels() labels.Set {
	p := labels.Pod{
		Namespace: w.pick("a", "b", "c"), Cluster: w.pick("c1", "c1", "c1", "c2"), ServiceAccount: w.pick("", "sa"),
		Labels: map[string]string{"app": w.pick("x", "y", "z")}, NamespaceLabels: map[string]string{},
	}
	if w.chance(50) {
		p.Labels["tier"] = w.pick("f", "g")
	}
	if w.chance(50) {
		p.NamespaceLabels["team"] = w.pick("red", "blue")
	}
	set, err := labels.PodLabels(p)
	if err != nil {
		panic(err)
	}
	if w.chance(10) {
		set = set.With(labels.New("container", "app", "x"))
	}
	return set
}

func (w *world) namedPorts() string {
	var ports []NamedPort
	for _, name := range []string{"http", "dns"} {
		if w.chance(50) {
			ports = append(ports, NamedPort{name, []uint8{datapath.ProtoTCP, datapath.ProtoUDP}[w.rng.IntN(2)], []uint16{53, 80, 81}[w.rng.IntN(3)]})
		}
	}
	return FormatNamedPorts(ports)
}

// words are those of the pods and addresses above.
func words() policygen.Words {
	return policygen.Words{
		Namespaces: []string{"a", "b", "c"}, Clusters: []string{"c1", "c2"},
		CIDRs: []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "10.1.0.1/32", "10.1.0.2", "10.9.9.9/8",
			"fd00::/8", "fd00::/64", "fd00::1", "192.0.2.0/24", "2001:db8::/32"},
		Wide4: []string{"0.0.0.0/0", "10.0.0.0/8"}, Except4: []string{"10.0.0.0/16", "10.1.0.0/16", "10.1.0.1/32", "10.0.0.0/9"},
		Wide6: []string{"::/0", "fd00::/8"}, Except6: []string{"fd00::/64", "fd00::1/128"},
		Blocks4: []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16"}, BlockExcept4: []string{"10.1.0.4/32", "10.1.1.0/24", "10.1.0.0/17"}, Exact4: []string{"10.0.0.4/32"},
		Blocks6: []string{"::/0", "fd00::/8"}, BlockExcept6: []string{"fd00::/64", "fd00::1/128"},
		Networks: []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.0.0.4/32", "10.1.0.1/32", "::/0", "fd00::/64"},
	}
}

// setPolicy gives the owner new random rules.
func (w *world) setPolicy(o Owner) {
	var rules []*Rule
	var err error
	var pol oracle.Policy
	gen := policygen.Generator{Rand: w.rng, Words: words()}
	if w.chance(50) { // else all of them are accepted
		gen.Refused = 15
	}
	switch n := w.rng.IntN(100); {
	case w.tiers && w.chance(50):
		obj := gen.Cluster(string(o))
		rules, err = ParseClusterNetworkPolicy(obj)
		pol = oracle.FromClusterNetworkPolicy(obj)
	case n < 35:
		obj := gen.NetworkPolicy(string(o))
		rules, err = ParseNetworkPolicy(obj)
		pol = oracle.FromNetworkPolicy(obj)
	case n < 84:
		obj := gen.Namespaced(string(o))
		rules, err = Parse(obj)
		pol = oracle.FromObject(obj)
	default:
		obj := gen.Clusterwide(string(o))
		rules, err = ParseClusterwide(obj)
		pol = oracle.FromClusterwide(obj)
	}
	if err != nil && gen.Refused == 0 {
		panic(fmt.Sprintf("the generator made a policy that is refused: %v", err))
	}
	w.policies[o] = object{rules, pol}
}

func (w *world) packet() (proto uint8, port uint16) {
	proto = []uint8{datapath.ProtoTCP, datapath.ProtoTCP, datapath.ProtoUDP, datapath.ProtoSCTP, datapath.ProtoICMP, datapath.ProtoICMPv6, 47}[w.rng.IntN(7)]
	switch proto {
	case datapath.ProtoICMP, datapath.ProtoICMPv6:
		return proto, []uint16{0, 8, 128, 3}[w.rng.IntN(4)]
	case 47:
		return proto, 0
	}
	if w.chance(20) {
		return proto, uint16(1 + w.rng.IntN(65535))
	}
	return proto, []uint16{80, 81, 443, 53, 444, 65535, 1, 1024, 2048, 50}[w.rng.IntN(10)]
}

func (w *world) oracleConfig() oracle.Config {
	return oracle.Config{
		Mode: w.cfg.Mode.String(), ClusterName: w.cfg.ClusterName, AllowLocalhost: w.cfg.AllowLocalhost,
		DefaultLocalCluster: w.cfg.DefaultLocalCluster, AllowNonDefaultDeny: w.cfg.AllowNonDefaultDeny,
	}
}

func (w *world) oraclePolicies() []oracle.Policy {
	var out []oracle.Policy
	for _, o := range slices.Sorted(maps.Keys(w.policies)) {
		out = append(out, w.policies[o].policy)
	}
	return out
}

// oraclePorts writes named ports as the oracle reads them.
func oraclePorts(canonical string) []string {
	ports, _ := ParseNamedPorts(canonical)
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s/%s/%d", p.Name, datapath.ProtoName(p.Proto), p.Port))
	}
	return out
}

// kernel is what the engine's updates built: a stand-in for the maps and the ipcache.
type kernel struct {
	t       testing.TB
	sets    map[datapath.RuleSetID]*kernelSet
	bind    map[Subject]Binding
	cidrs   *prefixIDs
	blocks  *prefixIDs
	highest datapath.RuleSetID
}

type kernelSet struct {
	enforced [2]bool
	entries  map[datapath.PolicyKey]datapath.PolicyEntry
}

func newKernel(t testing.TB) *kernel {
	return &kernel{
		t: t, sets: map[datapath.RuleSetID]*kernelSet{}, bind: map[Subject]Binding{},
		cidrs: newPrefixIDs(t, identity.LocalScope), blocks: newPrefixIDs(t, identity.BlockScope),
	}
}

// sync flushes the engine as an agent would, and checks what updates promise.
func (k *kernel) sync(e *Engine) Update {
	k.t.Helper()
	goneCIDRs, goneBlocks := k.addPrefixes(e)
	u := e.Flush()
	for _, rs := range u.Install {
		if rs.ID <= k.highest {
			k.t.Fatalf("rule set %d is not new", rs.ID)
		}
		k.highest = rs.ID
		ks := &kernelSet{enforced: [2]bool{rs.IngressEnforced, rs.EgressEnforced}, entries: map[datapath.PolicyKey]datapath.PolicyEntry{}}
		if n := e.byID[rs.ID].len(); n != len(rs.Entries) {
			k.t.Fatalf("rule set %d has a key twice: %d entries with %d keys", rs.ID, n, len(rs.Entries))
		}
		if err := rs.Validate(); err != nil {
			k.t.Fatal(err)
		}
		maps.Copy(ks.entries, rs.Entries)
		k.sets[rs.ID] = ks
	}
	for _, d := range u.Deltas {
		ks := k.sets[d.ID]
		if ks == nil {
			k.t.Fatalf("delta for rule set %d, which is not there", d.ID)
		}
		k.applyDelta(ks, d)
	}
	for s, b := range u.Bind {
		if b.RuleSet != 0 && k.sets[b.RuleSet] == nil {
			k.t.Fatalf("%v is bound to rule set %d, which is not there", s, b.RuleSet)
		}
		if b.Generation <= k.bind[s].Generation {
			k.t.Fatalf("%v: generation %d is not new", s, b.Generation)
		}
		k.bind[s] = b
	}
	for _, id := range u.Remove {
		if k.sets[id] == nil {
			k.t.Fatalf("rule set %d is removed, but is not there", id)
		}
		delete(k.sets, id)
	}
	k.cidrs.release(e, goneCIDRs)
	k.blocks.release(e, goneBlocks)
	return u
}

// prefixIDs are the identities of prefixes of one kind.
type prefixIDs struct {
	ids   map[netip.Prefix]identity.ID
	alloc *identity.LocalAllocator
}

func newPrefixIDs(t testing.TB, scope identity.ID) *prefixIDs {
	t.Helper()
	alloc, err := identity.NewLocalAllocator(scope)
	if err != nil {
		t.Fatal(err)
	}
	return &prefixIDs{ids: map[netip.Prefix]identity.ID{}, alloc: alloc}
}

// allocate gives the prefixes identities, and returns those that are wanted no more.
func (x *prefixIDs) allocate(t testing.TB, e *Engine, want []netip.Prefix, labels func(netip.Prefix) labels.Set) (gone []netip.Prefix) {
	t.Helper()
	for _, p := range want {
		if x.ids[p] != 0 {
			continue
		}
		set := labels(p)
		id, _, err := x.alloc.Allocate(set)
		if err != nil {
			t.Fatal(err)
		}
		x.ids[p] = id
		e.SetIdentity(id, set)
	}
	for p := range x.ids {
		if !slices.Contains(want, p) {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, netip.Prefix.Compare)
	return gone
}

func (x *prefixIDs) release(e *Engine, gone []netip.Prefix) {
	for _, p := range gone {
		x.alloc.Release(x.ids[p])
		e.RemoveIdentity(x.ids[p])
		delete(x.ids, p)
	}
}

// addPrefixes gives the prefixes that rules name identities, and returns those that none names any
// more.
func (k *kernel) addPrefixes(e *Engine) (goneCIDRs, goneBlocks []netip.Prefix) {
	var rules []*Rule
	for _, info := range e.Rules() {
		rules = append(rules, info.Rule)
	}
	goneCIDRs = k.cidrs.allocate(k.t, e, CIDRs(rules), func(p netip.Prefix) labels.Set { return identity.CIDRLabels(p, e.cfg.DualStack) })
	return goneCIDRs, k.blocks.allocate(k.t, e, Blocks(rules), identity.BlockLabels)
}

// applyDelta writes a delta entry by entry; no probe may pass in between that passes neither
// before nor after, and with tiers none may be dropped that passes before and after.
func (k *kernel) applyDelta(ks *kernelSet, d Delta) {
	k.t.Helper()
	type probe struct {
		dir   datapath.Direction
		id    identity.ID
		proto uint8
		port  uint16
	}
	var probes []probe
	for _, u := range d.Upserts {
		probes = append(probes, probe{u.Direction, identity.ID(u.Identity), u.Proto, u.Port}, probe{u.Direction, identity.ID(u.Identity), u.Proto, u.Port | 0xffff>>u.PortBits})
	}
	for _, u := range d.Deletes {
		probes = append(probes, probe{u.Direction, identity.ID(u.Identity), u.Proto, u.Port}, probe{u.Direction, identity.ID(u.Identity), u.Proto, u.Port | 0xffff>>u.PortBits})
	}
	after := &kernelSet{ks.enforced, maps.Clone(ks.entries)}
	for _, u := range d.Upserts {
		after.entries[u.PolicyKey] = u.PolicyEntry
	}
	for _, key := range d.Deletes {
		delete(after.entries, key)
	}
	may, must := make([]bool, len(probes)), make([]bool, len(probes))
	for i, p := range probes {
		one, other := ks.pass(p.dir, p.id, 0, p.proto, p.port), after.pass(p.dir, p.id, 0, p.proto, p.port)
		may[i], must[i] = one || other, one && other
	}
	check := func() {
		for i, p := range probes {
			now := ks.pass(p.dir, p.id, 0, p.proto, p.port)
			if !may[i] && now {
				k.t.Fatalf("while delta %+v is written, %+v passes", d, p)
			}
			if d.Ordered && must[i] && !now {
				k.t.Fatalf("while delta %+v is written, %+v does not pass", d, p)
			}
		}
	}
	for _, u := range d.Upserts {
		if old, had := ks.entries[u.PolicyKey]; had && old == u.PolicyEntry {
			k.t.Fatalf("delta writes %v, which is there already", u)
		}
		ks.entries[u.PolicyKey] = u.PolicyEntry
		check()
	}
	for _, key := range d.Deletes {
		if _, had := ks.entries[key]; !had {
			k.t.Fatalf("delta deletes %v, which is not there", key)
		}
		delete(ks.entries, key)
		check()
	}
}

// pass evaluates a packet with the three probes of the kernel.
func (ks *kernelSet) pass(dir datapath.Direction, id, block identity.ID, proto uint8, port uint16) bool {
	probe := func(id identity.ID) datapath.PolicyEntry {
		for n := 16; n >= 0; n-- {
			if d, ok := ks.entries[portKey{proto, uint8(n), port & (0xffff << (16 - n))}.key(dir, id)]; ok {
				return d
			}
		}
		return ks.entries[portKey{}.key(dir, id)]
	}
	d1, d2, d3 := probe(id), probe(0), probe(block)
	tier := func(of func(datapath.PolicyEntry) datapath.TierRule) datapath.TierAction {
		action, place := datapath.TierNone, 1<<20
		for _, d := range []datapath.PolicyEntry{d1, d2, d3} {
			if r := of(d); r != 0 && r.Place() < place {
				action, place = r.Action(), r.Place()
			}
		}
		return action
	}
	if a := tier(func(d datapath.PolicyEntry) datapath.TierRule { return d.Admin }); a == datapath.TierAccept || a == datapath.TierDeny {
		return a == datapath.TierAccept
	}
	if d1.Deny || d2.Deny || d3.Deny {
		return false
	}
	if d1.Allow || d2.Allow || d3.Allow {
		return true
	}
	if a := tier(func(d datapath.PolicyEntry) datapath.TierRule { return d.Baseline }); a == datapath.TierAccept || a == datapath.TierDeny {
		return a == datapath.TierAccept
	}
	return !ks.enforced[dir]
}

// evaluate evaluates a packet of a subject; false if it has no rule set.
func (k *kernel) evaluate(s Subject, dir datapath.Direction, id identity.ID, at netip.Addr, proto uint8, port uint16) bool {
	ks := k.sets[k.bind[s].RuleSet]
	return ks != nil && ks.pass(dir, id, k.block(at), proto, port)
}

// block finds the block around an address by longest prefix.
func (k *kernel) block(a netip.Addr) (id identity.ID) {
	best := -1
	for p, pid := range k.blocks.ids {
		if p.Contains(a) && p.Bits() > best {
			best, id = p.Bits(), pid
		}
	}
	return id
}

// resolve finds the identity of an address outside of the cluster by longest prefix.
func (k *kernel) resolve(cfg *Config, a netip.Addr) identity.ID {
	best, id := -1, identity.WorldIPv4
	switch {
	case !cfg.DualStack:
		id = identity.World
	case a.Is6():
		id = identity.WorldIPv6
	}
	for p, pid := range k.cidrs.ids {
		if p.Contains(a) && p.Bits() > best {
			best, id = p.Bits(), pid
		}
	}
	return id
}

// load puts the whole world into an engine.
func (w *world) load(t testing.TB, e *Engine) {
	t.Helper()
	for _, p := range w.pods {
		e.SetIdentity(p.id, p.set)
		if err := e.SetNamedPorts(p.id, p.ports); err != nil {
			t.Fatal(err)
		}
		e.AddSubject(Subject{Identity: p.id, NamedPorts: p.ports})
	}
	e.AddSubject(Subject{Identity: identity.Health})
	e.AddSubject(Subject{Identity: identity.Init})
	for _, o := range slices.Sorted(maps.Keys(w.policies)) {
		if err := e.SetRules(o, w.policies[o].rules); err != nil {
			t.Fatal(err)
		}
	}
}

// describe prints the policies for a failure.
func (w *world) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %+v\n", w.cfg)
	for _, o := range slices.Sorted(maps.Keys(w.policies)) {
		p := w.policies[o].policy
		fmt.Fprintf(&b, "%s in %q:\n", p.Name, p.Namespace)
		for _, r := range p.Rules {
			fmt.Fprintf(&b, "  %s\n", mustJSON(r))
		}
		if p.Network != nil {
			fmt.Fprintf(&b, "  %s\n", mustJSON(p.Network))
		}
		if p.Cluster != nil {
			fmt.Fprintf(&b, "  %s\n", mustJSON(p.Cluster))
		}
	}
	return b.String()
}

// randFor returns a generator that depends on text only.
func randFor(text string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(text))
	return rand.New(rand.NewPCG(h.Sum64(), 0))
}
