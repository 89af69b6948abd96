package enforcement

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	kernelmaps "github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

type noPublisher struct{}

func (noPublisher) PublishPrefixes(map[netip.Prefix]identity.ID, []netip.Prefix) error { return nil }

func writeFile(path string, data []byte) error { return os.WriteFile(path, data, 0o600) }

type noIdentities struct{}

func (noIdentities) Add(identity.ID, labels.Set) {}
func (noIdentities) Remove(identity.ID)          {}

// ruleBench is rules on fake kernel maps, with one subject in force.
type ruleBench struct {
	t      *testing.T
	node   *fake.Node
	policy *Policy
	rules  *Rules
	dir    string
	// changed has what was reported of changes.
	changed []string
}

// benchConfig is that of rules which publish nothing, with their checkpoint in a directory.
func benchConfig(p *Policy, kernel interface {
	Blocks
	Addresses
}, dir string) RulesConfig {
	return RulesConfig{
		Log: slog.New(slog.DiscardHandler), Policy: p, Identities: noIdentities{}, Prefixes: noPublisher{}, Blocks: kernel, Addresses: kernel, DualStack: true,
		Checkpoint: filepath.Join(dir, "numbers.json"), Write: writeFile, Filter: labels.DefaultFilter(),
	}
}

var benchSubject = netip.MustParseAddr("10.1.0.1")

func (b *ruleBench) start() {
	b.t.Helper()
	engine, err := policy.New(policy.Defaults())
	if err == nil {
		b.policy, err = NewPolicy(slog.New(slog.DiscardHandler), engine, b.node.Maps)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	set, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "default", Labels: map[string]string{"app": "x"}})
	if err != nil {
		b.t.Fatal(err)
	}
	cfg := benchConfig(b.policy, b.node.Maps, b.dir)
	cfg.Changed = func(list []policy.Change) {
		for _, ch := range list {
			b.changed = append(b.changed, fmt.Sprint(ch.Owner, " ", len(ch.Rules)))
		}
	}
	if b.rules, err = NewRules(cfg); err != nil {
		b.t.Fatal(err)
	}
	ep := endpoint.Endpoint{ID: 1, Identity: 300, IdentityLabels: set, Attachment: endpoint.Attachment{
		IfIndex: 7, IPv4: benchSubject, MAC: make([]byte, 6), HostMAC: make([]byte, 6),
	}}
	if _, _, err := b.policy.Attach(ep); err != nil {
		b.t.Fatal(err)
	}
	if err := b.policy.Synced(); err != nil {
		b.t.Fatal(err)
	}
}

// egress makes a policy that allows egress to a block.
func egress(t *testing.T, name, cidr string, except ...string) policy.Change {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}}}},
	}}
	list, err := policy.ParseNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Change{Owner: policy.Owner(name), Rules: list}
}

func (b *ruleBench) apply(changes ...policy.Change) {
	b.t.Helper()
	if err := b.rules.Apply(changes); err != nil {
		b.t.Fatal(err)
	}
}

// passes reports which of the addresses the subject may send to, whoever has them.
func (b *ruleBench) passes(want map[string]bool) {
	b.t.Helper()
	got := map[string]bool{}
	for a := range want {
		got[a] = b.node.Maps.Verdict(benchSubject, datapath.Egress, 4711, netip.MustParseAddr(a), 6, 80) == datapath.ReasonForwarded
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("what passes (-want +got):\n%s", diff)
	}
}

func (b *ruleBench) blocks() map[string]uint32 {
	b.t.Helper()
	list, err := b.node.Maps.Blocks()
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[string]uint32{}
	for _, bl := range list {
		out[bl.Prefix.String()] = bl.Identity
	}
	return out
}

// TestRulesPlaceBlocks: blocks are in the kernel while rules name them, overlapping ones mean what
// each rule says, and a restarted agent finds the same IDs again.
func TestRulesPlaceBlocks(t *testing.T) {
	t.Parallel()
	b := &ruleBench{t: t, node: fake.New(), dir: t.TempDir()}
	b.start()
	b.apply(egress(t, "wide", "10.0.0.0/8", "10.2.0.0/16"))
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": false, "11.0.0.1": false, "fd00::1": false})
	b.apply(egress(t, "inner", "10.2.3.0/24", "10.2.3.4/32"), egress(t, "six", "fd00::/8"))
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": false, "10.2.3.1": true, "10.2.3.4": false, "fd00::1": true})
	before := b.blocks()
	if len(before) != 5 {
		t.Errorf("the kernel has %v", before)
	}

	// A restart, after which the policies are observed again, but for one.
	b.start()
	b.apply(egress(t, "inner", "10.2.3.0/24", "10.2.3.4/32"), egress(t, "wide", "10.0.0.0/8", "10.2.0.0/16"), egress(t, "new", "12.0.0.0/8"))
	after := b.blocks()
	for p, id := range before {
		if after[p] != id {
			t.Errorf("%s has ID %d after a restart, and had %d", p, after[p], id)
		}
	}
	if err := b.rules.DropRestored(); err != nil {
		t.Fatal(err)
	}
	if _, left := b.blocks()["fd00::/8"]; left || len(b.blocks()) != 5 {
		t.Errorf("once all is observed the kernel has %v", b.blocks())
	}
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": false, "10.2.3.1": true, "10.2.3.4": false, "12.0.0.1": true, "fd00::1": false})

	b.apply(policy.Change{Owner: "inner"}, egress(t, "wide", "10.0.0.0/8"))
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": true, "10.2.3.4": true, "12.0.0.1": true})
	b.apply(policy.Change{Owner: "wide"}, policy.Change{Owner: "new"})
	if left := b.blocks(); len(left) > 0 {
		t.Errorf("the kernel has %v and no rule names any", left)
	}
}

// parsed makes a change of a CiliumNetworkPolicy, or, if its spec has a tier, of a
// ClusterNetworkPolicy.
func parsed(t *testing.T, name, spec string) policy.Change {
	t.Helper()
	var list []*policy.Rule
	var err error
	if strings.Contains(spec, `"tier"`) {
		p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err = json.Unmarshal([]byte(spec), &p.Spec); err == nil {
			list, err = policy.ParseClusterNetworkPolicy(p)
		}
	} else {
		p := &v2.CiliumNetworkPolicy{}
		if err = json.Unmarshal([]byte(`{"metadata":{"name":"`+name+`","namespace":"a"},"spec":`+spec+`}`), p); err == nil {
			list, err = policy.Parse(p)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return policy.Change{Owner: policy.Owner(name), Rules: list}
}

// TestRestoredPrefixes: what the kernel still knows of the prefixes and blocks of policies that
// went while no agent ran is judged by those of now: by a rule about a wider one too, which denies.
func TestRestoredPrefixes(t *testing.T) {
	t.Parallel()
	inner := netip.MustParsePrefix("10.2.0.0/16")
	within := netip.MustParseAddr("10.2.0.1")
	for name, row := range map[string]struct{ before, after string }{
		"prefix": {`{"endpointSelector":{},"egress":[{"toCIDR":["10.2.0.0/16"]}]}`,
			`{"endpointSelector":{},"egress":[{"toEntities":["all"]}],"egressDeny":[{"toCIDR":["10.0.0.0/8"]}]}`},
		"world": {`{"endpointSelector":{},"egress":[{"toCIDR":["10.2.0.0/16"]}]}`,
			`{"endpointSelector":{},"egress":[{"toEntities":["all"]}],"egressDeny":[{"toEntities":["world"]}]}`},
		"block": {`{"tier":"Admin","subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"networks":["10.2.0.0/16"]}]}]}`,
			`{"tier":"Admin","subject":{"namespaces":{}},"egress":[{"action":"Deny","to":[{"networks":["10.0.0.0/8"]}]}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &ruleBench{t: t, node: fake.New(), dir: t.TempDir()}
			b.start()
			b.apply(parsed(t, "before", row.before))
			peer := identity.WorldIPv4
			if id, ok := b.rules.cidrs.prefixes[inner]; ok {
				peer = id
			}
			verdict := func(what string, want datapath.DropReason) {
				t.Helper()
				if got := b.node.Maps.Verdict(benchSubject, datapath.Egress, uint32(peer), within, 6, 80); got != want {
					t.Errorf("%s: %s, want %s", what, got, want)
				}
			}
			b.start()
			verdict("without rules", datapath.ReasonForwarded)
			b.apply(parsed(t, "after", row.after))
			verdict("before the kernel has forgotten it", datapath.ReasonPolicyDeny)
			if err := b.rules.DropRestored(); err != nil {
				t.Fatal(err)
			}
			known := false
			b.policy.View(func(e *policy.Engine) { known = e.Knows(peer) })
			if known && peer != identity.WorldIPv4 {
				t.Errorf("policy still knows identity %d", peer)
			}
			if _, left := b.blocks()[inner.String()]; left {
				t.Errorf("the kernel still has the block %s", inner)
			}
			if peer == identity.WorldIPv4 {
				verdict("afterwards", datapath.ReasonPolicyDeny)
			}
		})
	}
}

// TestPrefixesKeepIDsOfKernel: a prefix that the kernel has keeps its ID, and nothing else is given
// it, also if the file of IDs is lost, damaged or from before.
func TestPrefixesKeepIDsOfKernel(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string, old []byte) error{
		"whole":   func(string, []byte) error { return nil },
		"lost":    func(path string, _ []byte) error { return os.Remove(path) },
		"damaged": func(path string, _ []byte) error { return writeFile(path, []byte("{")) },
		"old":     writeFile,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &ruleBench{t: t, node: fake.New(), dir: t.TempDir()}
			file := filepath.Join(b.dir, "numbers.json")
			rule := func(cidr string) policy.Change {
				return parsed(t, cidr, `{"endpointSelector":{},"egress":[{"toCIDR":["`+cidr+`"]}]}`)
			}
			id := func(cidr string) identity.ID { return b.rules.cidrs.prefixes[netip.MustParsePrefix(cidr)] }
			b.start()
			b.apply(rule("10.0.0.0/8"))
			old, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b.apply(rule("11.0.0.0/8"), rule("192.0.2.1/32"))
			before := map[string]identity.ID{}
			for _, cidr := range []string{"10.0.0.0/8", "11.0.0.0/8", "192.0.2.1/32"} {
				before[cidr] = id(cidr)
				if err := b.node.Maps.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.MustParsePrefix(cidr), Identity: uint32(id(cidr))}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := damage(file, old); err != nil {
				t.Fatal(err)
			}
			b.start()
			b.apply(rule("12.0.0.0/8"), rule("11.0.0.0/8"))
			if got := id("11.0.0.0/8"); got != before["11.0.0.0/8"] {
				t.Errorf("11.0.0.0/8 has ID %d, which was %d and is in the kernel", got, before["11.0.0.0/8"])
			}
			for cidr, was := range before {
				if id("12.0.0.0/8") == was {
					t.Errorf("12.0.0.0/8 has ID %d, by which the kernel knows %s", was, cidr)
				}
			}
		})
	}
}

// TestChangesOfRules: a policy is reported as changed if its rules are others, not because it was
// read again.
func TestChangesOfRules(t *testing.T) {
	t.Parallel()
	b := &ruleBench{t: t, node: fake.New(), dir: t.TempDir()}
	b.start()
	b.apply(egress(t, "a", "10.0.0.0/8"), egress(t, "b", "11.0.0.0/8"))
	b.apply(egress(t, "a", "10.0.0.0/8"), egress(t, "b", "12.0.0.0/8"))
	b.apply(policy.Change{Owner: "never"}, egress(t, "b", "12.0.0.0/8"))
	b.apply(policy.Change{Owner: "a"})
	b.apply(policy.Change{Owner: "a"})
	if want := []string{"a 1", "b 1", "b 1", "a 0"}; !slices.Equal(b.changed, want) {
		t.Errorf("notified of %q, want %q", b.changed, want)
	}
	b.passes(map[string]bool{"10.0.0.1": false, "11.0.0.1": false, "12.0.0.1": true})
}

// TestRulesNeverWithoutExceptions: while blocks cannot be written, no address passes that is
// excepted, and they are written when they can be.
func TestRulesNeverWithoutExceptions(t *testing.T) {
	t.Parallel()
	b := &ruleBench{t: t, node: fake.New(), dir: t.TempDir()}
	b.start()
	full := errors.New("full")
	b.node.SetFault(func(op string, _ any) error {
		if op == "Maps.UpsertBlocks" {
			return full
		}
		return nil
	})
	if err := b.rules.Apply([]policy.Change{egress(t, "wide", "10.0.0.0/8", "10.2.0.0/16")}); !errors.Is(err, full) {
		t.Errorf("the fault is reported as %v", err)
	}
	b.passes(map[string]bool{"10.3.0.1": false, "10.2.0.1": false})
	if err := b.rules.Retry(); !errors.Is(err, full) {
		t.Errorf("a retry says %v", err)
	}
	var order []netip.Prefix
	b.node.SetFault(func(_ string, arg any) error {
		if list, ok := arg.([]datapath.Block); ok {
			for _, bl := range list {
				order = append(order, bl.Prefix)
			}
		}
		return nil
	})
	if err := b.rules.Retry(); err != nil {
		t.Fatal(err)
	}
	if len(order) != 2 || order[0].Bits() < order[1].Bits() {
		t.Errorf("written in the order %v, want exceptions first", order)
	}
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": false})
}

// kernelRules returns rules of maps of the real kernel, with a bound of prefixes for a namespace.
func kernelRules(t *testing.T, c kernelmaps.Config, bound int) (*kernelmaps.Maps, *Policy, *Rules) {
	t.Helper()
	kernel, err := kernelmaps.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernel.Close() })
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	pol, err := NewPolicy(slog.New(slog.DiscardHandler), engine, kernel)
	if err != nil {
		t.Fatal(err)
	}
	cfg := benchConfig(pol, kernel, t.TempDir())
	cfg.NamespacePrefixes = bound
	rules, err := NewRules(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := pol.Synced(); err != nil {
		t.Fatal(err)
	}
	return kernel, pol, rules
}

// attachPod attaches a pod of a namespace, with an identity of its own.
func attachPod(t *testing.T, pol *Policy, id uint16, ns string) {
	t.Helper()
	set, err := labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", Labels: map[string]string{"app": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := pol.Attach(endpoint.Endpoint{ID: id, Identity: 300 + identity.ID(id), IdentityLabels: set, Attachment: endpoint.Attachment{
		IfIndex: 7 + int(id), IPv4: netip.AddrFrom4([4]byte{10, 1, 0, byte(id)}), MAC: make([]byte, 6), HostMAC: make([]byte, 6),
	}}); err != nil {
		t.Fatal(err)
	}
}

// TestFullBlockMap: the kernel's map of blocks has no room for one that is denied. Whose rules name
// it is locked and no other endpoint, until another policy goes.
func TestFullBlockMap(t *testing.T) {
	testenv.RequireRoot(t)
	c := kernelmaps.Defaults()
	c.Dir, c.CTEntries, c.PolicyEntries, c.IPCacheEntries, c.IPCachePrefixes, c.Blocks = "", 4096, 4096, 16, 2, 3
	kernel, pol, rules := kernelRules(t, c, 0)
	for id, ns := range map[uint16]string{1: "a", 2: "b"} {
		attachPod(t, pol, id, ns)
	}
	locked := func(when string, want ...bool) {
		t.Helper()
		rows, err := kernel.Endpoints()
		if err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
		for _, r := range rows {
			if r.Locked != want[r.ID-1] {
				t.Errorf("%s: endpoint %d is locked: %v", when, r.ID, r.Locked)
			}
		}
	}
	other := egress(t, "other", "192.0.2.0/24", "192.0.2.1/32", "192.0.2.2/32")
	for _, r := range other.Rules {
		r.Namespace = "b"
	}
	if err := rules.Apply([]policy.Change{other}); err != nil {
		t.Fatal(err)
	}
	locked("full, and no endpoint needs it", false, false)
	if err := rules.Apply([]policy.Change{egress(t, "mine", "10.0.0.0/8", "10.2.0.0/16")}); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("blocks that do not fit: %v", err)
	}
	locked("with a block too many", true, false)
	if err := errors.Join(rules.Retry(), pol.Retry()); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("tried again: %v", err)
	}
	locked("tried again", true, false)
	// Room for one of two: the exception comes first, and the rule still does not hold.
	one := egress(t, "other", "192.0.2.0/24", "192.0.2.1/32")
	one.Rules[0].Namespace = "b"
	if err := rules.Apply([]policy.Change{one}); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("room for one of two: %v", err)
	}
	locked("with room for one", true, false)
	if err := rules.Apply([]policy.Change{{Owner: "other"}}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	locked("with room again", false, false)
	if list, err := kernel.Blocks(); err != nil || len(list) != 2 {
		t.Errorf("the kernel has the blocks %v, %v", list, err)
	}
}

// TestCheckpointDiskFull: while the IDs of prefixes cannot be stored that is an error that names
// the file, and the rules are in force; they are stored when there is room.
func TestCheckpointDiskFull(t *testing.T) {
	t.Parallel()
	disk := testenv.NewSmallDisk(t)
	b := &ruleBench{t: t, node: fake.New(), dir: disk.Path}
	b.start()
	b.rules.cfg.Write = func(path string, data []byte) error {
		return atomicfile.Write(path, data, 0o600, atomicfile.Process)
	}
	rules, err := policy.Parse(&v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}, Spec: &v2.Rule{
		EndpointSelector: &v2.LabelSelector{}, Egress: []v2.EgressRule{{ToCIDR: []string{"192.0.2.0/24"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	disk.Fill()
	unsaved := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), b.rules.cfg.Checkpoint) {
			t.Errorf("%s: %v", what, err)
		}
		if cp, err := b.rules.readCheckpoint(); err != nil || len(cp.Identities) > 0 {
			t.Errorf("%s: stored are %v, %v", what, cp.Identities, err)
		}
	}
	unsaved("applied", b.rules.Apply([]policy.Change{{Owner: "p", Rules: rules}}))
	unsaved("tried again", b.rules.Retry())
	disk.Free()
	for range 2 {
		if err := b.rules.Retry(); err != nil {
			t.Error(err)
		}
	}
	if cp, err := b.rules.readCheckpoint(); err != nil || len(cp.Identities) != 1 {
		t.Errorf("with room stored are %v, %v", cp.Identities, err)
	}
}
