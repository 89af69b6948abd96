package hubble

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/time/rate"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
)

// enginePolicy is a policy of one revision.
type enginePolicy struct{ engine *policy.Engine }

func (enginePolicy) Revision() uint64 { return 1 }

func (p enginePolicy) TryView(f func(*policy.Engine)) bool { f(p.engine); return true }

func (p enginePolicy) View(f func(*policy.Engine)) { f(p.engine) }

// oneEndpoint is a node with a single endpoint.
type oneEndpoint struct{ endpoint.Endpoint }

func (e oneEndpoint) Get(id uint16) (endpoint.Endpoint, bool) { return e.Endpoint, id == e.ID }

func (e oneEndpoint) ByAddr(a netip.Addr) (endpoint.Endpoint, bool) { return e.Endpoint, a == e.IPv4 }

func (e oneEndpoint) List() []endpoint.Endpoint { return []endpoint.Endpoint{e.Endpoint} }

// clientIdentity is that of a pod client of another node.
const clientIdentity = 301

func appLabels(t *testing.T, app string) labels.Set {
	t.Helper()
	set, err := labels.PodLabels(labels.Pod{Namespace: "shop", Cluster: "default", Labels: map[string]string{"app": app}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// webOf returns a directory of a node with a pod web, which so many policies allow client to reach,
// and the verdict of a packet of client.
func webOf(t *testing.T, policies int) (*directory, *policy.Engine, datapath.Event) {
	t.Helper()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	web := endpoint.Endpoint{ID: 1, Identity: 300, IdentityLabels: appLabels(t, "web"), Attachment: endpoint.Attachment{IPv4: netip.MustParseAddr("10.1.0.1")}}
	engine.SetIdentity(web.Identity, web.IdentityLabels)
	for i := range policies {
		name := fmt.Sprintf("%0200d", i)
		var np v2.CiliumNetworkPolicy
		if err := yaml.Unmarshal([]byte(`
metadata: {name: "`+name+`", namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress: [{fromEndpoints: [{matchLabels: {app: client}}]}]
`), &np); err != nil {
			t.Fatal(err)
		}
		rules, err := policy.Parse(&np)
		if err != nil {
			t.Fatal(err)
		}
		if err := engine.SetRules(policy.Owner("k8s/CiliumNetworkPolicy/shop/"+name), rules); err != nil {
			t.Fatal(err)
		}
	}
	d := newDirectory(Node{Self: node.Key{Cluster: "default", Name: "n1"}, Endpoints: oneEndpoint{web}, Addresses: ipcache.New(), Policy: enginePolicy{engine}})
	return d, engine, datapath.Event{
		Type: datapath.EventVerdict, Direction: datapath.Ingress, Reason: datapath.ReasonForwarded, Endpoint: web.ID,
		SrcIdentity: clientIdentity, DstIdentity: uint32(web.Identity),
		Packet: datapath.Packet{L3: "ipv4", Src: netip.MustParseAddr("10.2.0.1"), Dst: web.IPv4, Proto: datapath.ProtoTCP, DstPort: 80},
	}
}

// TestPoliciesOfFlowAreBounded: of very many policies that all allow the same, a flow names some,
// and answers share them.
func TestPoliciesOfFlowAreBounded(t *testing.T) {
	d, engine, ev := webOf(t, 2000)
	engine.SetIdentity(clientIdentity, appLabels(t, "client"))
	d.answers.all, d.answers.limits[1] = rate.NewLimiter(rate.Inf, 1), rate.NewLimiter(rate.Inf, 1)
	res, err := engine.Trace(policy.Party{Identity: clientIdentity}, policyParty(d.node.Endpoints.List()[0]), datapath.ProtoTCP, 80)
	if err != nil || res.Ingress.Verdict != policy.Allowed {
		t.Fatalf("%v, %v", res.Ingress.Verdict, err)
	}
	named := d.Policies(ev)
	if len(named) != maxNamed || named[0].GetNamespace() != "shop" {
		t.Errorf("a flow names %d policies, %v and others", len(named), named[:min(1, len(named))])
	}
	before := heap()
	for port := range uint16(maxDecided - 1) {
		list := d.answers.get(question{endpoint: 1, port: port}, netip.Addr{}, 1, func(question) (answer, bool) {
			return answer{policies: policiesOf(res.Ingress, d.answers.named)}, true
		})
		if len(list) > maxNamed {
			t.Fatalf("an answer names %d policies", len(list))
		}
	}
	if grew := heap() - before; grew > 8<<20 {
		t.Errorf("%d answers take %d MiB", len(d.answers.decided), grew>>20)
	}
	runtime.KeepAlive(d)
}

// TestNamesOfPoliciesAreBounded: the policies that were named are remembered up to a bound.
func TestNamesOfPoliciesAreBounded(t *testing.T) {
	t.Parallel()
	a := newAnswers()
	a.decided[question{}] = answer{}
	for i := range 3 * maxNames {
		owner := policy.Owner(fmt.Sprint("k8s/NetworkPolicy/shop/", i))
		if p := a.named(owner); p != a.named(owner) || p.GetName() != fmt.Sprint(i) {
			t.Fatalf("%s is %v", owner, p)
		}
	}
	if len(a.names) > maxNames || len(a.decided) != 0 {
		t.Errorf("%d names and %d answers are remembered", len(a.names), len(a.decided))
	}
}

// TestPoliciesOfNewIdentity: that an identity is not known yet is no answer; once it is, the next
// flow names the policy.
func TestPoliciesOfNewIdentity(t *testing.T) {
	t.Parallel()
	d, engine, ev := webOf(t, 1)
	if got := d.Policies(ev); len(got) != 0 {
		t.Fatalf("of an identity that is not known: %v", got)
	}
	engine.SetIdentity(identity.ID(clientIdentity), appLabels(t, "client"))
	if got := d.Policies(ev); len(got) != 1 || got[0].GetNamespace() != "shop" {
		t.Errorf("once it is known: %v", got)
	}
}
