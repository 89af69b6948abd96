package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

type noPlacer struct{}

func (noPlacer) PlacePrefixes(map[netip.Prefix]identity.ID, []netip.Prefix) error { return nil }

// ruleBench is a rule book on fake kernel maps, with one subject in force.
type ruleBench struct {
	t      *testing.T
	node   *fake.Node
	policy *endpoint.Policy
	book   *rules
	dir    string
}

var benchSubject = netip.MustParseAddr("10.1.0.1")

func (b *ruleBench) start() {
	b.t.Helper()
	engine, err := policy.New(policy.Defaults())
	if err == nil {
		b.policy, err = endpoint.NewPolicy(slog.New(slog.DiscardHandler), engine, b.node.Maps)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	set, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "default", Labels: map[string]string{"app": "x"}})
	if err != nil {
		b.t.Fatal(err)
	}
	if b.book, err = newRules(slog.New(slog.DiscardHandler), b.policy, &identities{known: map[identity.ID]labels.Set{}}, noPlacer{}, b.node.Maps, true,
		filepath.Join(b.dir, "numbers.json")); err != nil {
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
	if err := b.book.apply(changes); err != nil {
		b.t.Fatal(err)
	}
}

// passes says which of the addresses the subject may send to, whoever has them.
func (b *ruleBench) passes(want map[string]bool) {
	b.t.Helper()
	got := map[string]bool{}
	for a := range want {
		got[a] = b.node.Maps.Judge(benchSubject, datapath.Egress, 4711, netip.MustParseAddr(a), 6, 80) == datapath.ReasonForwarded
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

// TestRulesPlaceBlocks: blocks are in the kernel while rules name them, overlapping ones mean what each rule says, and a
// restarted agent finds the same numbers again.
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

	// A restart, after which the policies are heard again, but for one.
	b.start()
	b.apply(egress(t, "inner", "10.2.3.0/24", "10.2.3.4/32"), egress(t, "wide", "10.0.0.0/8", "10.2.0.0/16"), egress(t, "new", "12.0.0.0/8"))
	after := b.blocks()
	for p, id := range before {
		if after[p] != id {
			t.Errorf("%s has number %d after a restart, and had %d", p, after[p], id)
		}
	}
	if err := b.book.settled(); err != nil {
		t.Fatal(err)
	}
	if _, left := b.blocks()["fd00::/8"]; left || len(b.blocks()) != 5 {
		t.Errorf("once all is heard the kernel has %v", b.blocks())
	}
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": false, "10.2.3.1": true, "10.2.3.4": false, "12.0.0.1": true, "fd00::1": false})

	b.apply(policy.Change{Owner: "inner"}, egress(t, "wide", "10.0.0.0/8"))
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": true, "10.2.3.4": true, "12.0.0.1": true})
	b.apply(policy.Change{Owner: "wide"}, policy.Change{Owner: "new"})
	if left := b.blocks(); len(left) > 0 {
		t.Errorf("the kernel has %v and no rule names any", left)
	}
}

// TestRulesNeverWithoutExceptions: while blocks cannot be written, no address passes that is excepted, and they are written
// when they can be.
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
	if err := b.book.apply([]policy.Change{egress(t, "wide", "10.0.0.0/8", "10.2.0.0/16")}); !errors.Is(err, full) {
		t.Errorf("the fault is told as %v", err)
	}
	b.passes(map[string]bool{"10.3.0.1": false, "10.2.0.1": false})
	if err := b.book.retry(); !errors.Is(err, full) {
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
	if err := b.book.retry(); err != nil {
		t.Fatal(err)
	}
	if len(order) != 2 || order[0].Bits() < order[1].Bits() {
		t.Errorf("written in the order %v, want exceptions first", order)
	}
	b.passes(map[string]bool{"10.3.0.1": true, "10.2.0.1": false})
}
