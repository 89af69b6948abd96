package agent

import (
	"net/netip"
	"slices"
	"strings"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// flowDirectory is what the agent's tables know of the ends of flows. It is for one goroutine.
type flowDirectory struct {
	a *api
	// texts has the labels of identities as flows show them, so that flows share them.
	texts   map[identity.ID]labelTexts
	answers flowAnswers
}

// maxTexts bounds of how many identities the labels are remembered.
const maxTexts = 65536

type labelTexts struct {
	set       labels.Set
	texts     []string
	namespace string
}

var _ flows.Directory = (*flowDirectory)(nil)

func newFlowDirectory(a *api) *flowDirectory {
	return &flowDirectory{
		a: a, texts: map[identity.ID]labelTexts{}, answers: newFlowAnswers(),
	}
}

// Endpoint implements [flows.Directory].
func (d *flowDirectory) Endpoint(number uint16) flows.Party {
	row, ok := d.a.registry.Get(number)
	if !ok {
		return flows.Party{}
	}
	return d.local(row)
}

// local is an endpoint of this node.
func (d *flowDirectory) local(row endpoint.Endpoint) flows.Party {
	p := flows.Party{Endpoint: row.ID, Identity: uint32(row.Seen()), Namespace: row.Namespace, Pod: row.PodName}
	if d.a.kube != nil && row.PodName != "" {
		if w := d.a.kube.pods.Workload(k8s.Key{Namespace: row.Namespace, Name: row.PodName}); w.Name != "" {
			p.Workloads = []*flowpb.Workload{{Kind: w.Kind, Name: w.Name}}
		}
	}
	return p
}

// Party implements [flows.Directory].
func (d *flowDirectory) Party(addr netip.Addr) flows.Party {
	if row, ok := d.a.registry.ByAddr(addr); ok {
		return d.local(row)
	}
	_, e, ok := d.a.cache.Lookup(addr)
	if !ok {
		return flows.Party{}
	}
	p := flows.Party{Identity: uint32(e.Identity)}
	p.Namespace, p.Pod = e.Pod()
	return p
}

// Labels implements [flows.Directory].
func (d *flowDirectory) Labels(number uint32) (texts []string, namespace string) {
	id := identity.ID(number)
	set, ok := d.a.identities.labelsOf(id)
	if !ok {
		if set, ok = identity.ReservedLabels(id); !ok {
			return nil, ""
		}
	}
	known, ok := d.texts[id]
	if !ok || !known.set.Equal(set) {
		known = labelTexts{set, set.Strings(), set.Value(labels.SourceK8s, labels.KeyNamespace)}
		if len(d.texts) >= maxTexts {
			clear(d.texts)
		}
		d.texts[id] = known
	}
	return known.texts, known.namespace
}

// Service implements [flows.Directory].
func (d *flowDirectory) Service(addr netip.Addr, port uint16, proto uint8) *flowpb.Service {
	if d.a.kube == nil || d.a.kube.services == nil || port == 0 {
		return nil
	}
	row, ok := d.a.kube.services.Table().Get(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(addr, port), Proto: proto})
	if !ok {
		return nil
	}
	return &flowpb.Service{Namespace: row.Owner.Namespace, Name: row.Owner.Name}
}

// Policies implements [flows.Directory]. It asks the rules of now, which may be others than when
// the packet was judged: if they say something else, or if there is too much to ask, nobody is
// named.
func (d *flowDirectory) Policies(ev datapath.Event) []*flowpb.Policy {
	if ev.Reason == datapath.ReasonPolicyDenied {
		return nil // for want of a rule that allows
	}
	row, ok := d.a.registry.Get(ev.Endpoint)
	if !ok || ev.Packet.Fragment || !ev.Packet.Src.IsValid() {
		return nil
	}
	q := flowQuestion{
		direction: ev.Direction, endpoint: row.ID, subject: row.Identity, proto: ev.Packet.Proto,
		passed: ev.Reason == datapath.ReasonForwarded, denied: ev.Reason == datapath.ReasonPolicyDeny,
	}
	// An answer is judged again in the direction in which its connection was opened.
	own := ev.Packet.Src
	if ev.Direction == datapath.Ingress {
		own = ev.Packet.Dst
	}
	opening := slices.Contains(row.Addresses(), own)
	var peerAddr netip.Addr
	if opening == (ev.Direction == datapath.Egress) {
		q.peer, peerAddr = identity.ID(ev.DstIdentity), ev.Packet.Dst
	} else {
		q.peer, peerAddr = identity.ID(ev.SrcIdentity), ev.Packet.Src
	}
	if _, local := d.a.registry.ByAddr(peerAddr); local {
		q.peerAddr = peerAddr // its row says more of it than its identity
	}
	switch {
	case ev.Packet.ICMPType != nil && opening:
		q.port = uint16(*ev.Packet.ICMPType)
	case ev.Packet.ICMPType != nil:
		return nil // of which request is not known
	case opening:
		q.port = ev.Packet.DstPort
	default:
		q.port = ev.Packet.SrcPort
	}
	return d.answers.get(q, peerAddr, d.a.policy.Revision(), func(q flowQuestion) (flowAnswer, bool) { return d.ask(row, q) })
}

// ask returns the owners of the rules that settle a question. It is not answered while policy is
// busy: flows are not worth waiting for it, nor holding it up.
func (d *flowDirectory) ask(row endpoint.Endpoint, q flowQuestion) (answer flowAnswer, ok bool) {
	subject := policyParty(row)
	peer := policy.Party{Identity: q.peer, Addr: q.peerAddr}
	if other, ok := d.a.registry.ByAddr(q.peerAddr); ok {
		peer = policyParty(other)
		peer.Addr = q.peerAddr
	}
	from, to := subject, peer
	if q.direction == datapath.Ingress {
		from, to = peer, subject
	}
	var res policy.TraceResult
	var err error
	if !d.a.policy.TryView(func(e *policy.Engine) { res, err = e.Trace(from, to, q.proto, q.port) }) {
		return flowAnswer{}, false
	}
	if err != nil {
		return flowAnswer{}, true
	}
	side := res.Egress
	if q.direction == datapath.Ingress {
		side = res.Ingress
	}
	switch {
	case slices.ContainsFunc(side.Steps, func(s policy.TraceStep) bool { return s.ByAddress }):
		return flowAnswer{byAddress: true}, true
	case side.Verdict.Pass() != q.passed || (side.Verdict == policy.Denied) != q.denied:
		return flowAnswer{}, true
	}
	return flowAnswer{policies: policiesOf(side)}, true
}

// policyParty is an endpoint of this node as one side of a trace.
func policyParty(row endpoint.Endpoint) policy.Party {
	return policy.Party{Identity: row.Identity, Labels: row.IdentityLabels, SeenAs: row.Seen(), NamedPorts: policy.FormatNamedPorts(row.NamedPorts)}
}

// policiesOf names the policies whose rules brought about a verdict: all ordinary ones that say so,
// or the one of a tier that decides.
func policiesOf(side policy.TraceSide) []*flowpb.Policy {
	at := slices.IndexFunc(side.Steps, func(s policy.TraceStep) bool { return s.Decides && !s.Pass })
	if at < 0 {
		return nil // for want of a rule
	}
	settles := side.Steps[at]
	var out []*flowpb.Policy
	seen := map[policy.Owner]bool{}
	for i, s := range side.Steps {
		same := s.Tier == policy.TierOrdinary && settles.Tier == policy.TierOrdinary && s.Matches() && s.Deny == settles.Deny
		if (i == at || same) && !s.Local && !seen[s.Owner] {
			seen[s.Owner] = true
			out = append(out, policyNamed(s.Owner))
		}
	}
	return out
}

// policyNamed is the policy that an owner of rules is: k8s/kind/namespace/name of Kubernetes or
// file/namespace/name of a file, without the namespace for one of the whole cluster.
func policyNamed(o policy.Owner) *flowpb.Policy {
	parts := strings.Split(string(o), "/")
	var kind string
	if parts = parts[1:]; strings.HasPrefix(string(o), "k8s/") && len(parts) > 1 {
		kind, parts = parts[0], parts[1:]
	}
	p := &flowpb.Policy{}
	switch len(parts) {
	case 0:
		p.Name = string(o)
	case 1:
		p.Name = parts[0]
	default:
		p.Namespace, p.Name = parts[0], parts[1]
	}
	switch {
	case kind != "":
	case p.Namespace != "":
		kind = "CiliumNetworkPolicy"
	default:
		kind = "CiliumClusterwideNetworkPolicy"
	}
	label := func(key, value string) {
		if value != "" {
			p.Labels = append(p.Labels, labels.New(labels.SourceK8s, "io.cilium.k8s.policy."+key, value).String())
		}
	}
	label("derived-from", kind)
	label("name", p.Name)
	label("namespace", p.Namespace)
	return p
}
