package policypreview

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	flowpb "github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// maxSteps is how many entries of rules are listed for each side.
const maxSteps = 64

// partyOf is one end as the engine traces it.
func partyOf(id identity.ID, s policy.Subject, addr netip.Addr) policy.Party {
	p := policy.Party{Identity: id, Addr: addr}
	if s == (policy.Subject{}) {
		return p
	}
	p.Identity, p.NamedPorts, p.SeenAs = s.Identity, s.NamedPorts, id
	p.Labels, _ = labels.ParseKV(s.Labels)
	return p
}

// explained is one end of a packet that is explained.
type explained struct {
	policy.Party
	set labels.Set
	ep  *flowpb.Endpoint
}

// explain traces the packet of a flow on the live engine.
func explain(agent Agent, f *flowpb.Flow) (*policypb.ExplainResponse, error) {
	if f.GetIP() == nil {
		return nil, invalid("the flow has no addresses: nothing that policies apply to")
	}
	addr := func(text string) netip.Addr { a, _ := netip.ParseAddr(text); return a.Unmap() }
	src, dst := explained{ep: f.GetSource()}, explained{ep: f.GetDestination()}
	from, to := addr(f.GetIP().GetSource()), addr(f.GetIP().GetDestination())
	reply := f.GetIsReply().GetValue()
	if reply {
		src, dst, from, to = dst, src, to, from
	}
	proto, port, _, ok := opened(f, reply)
	switch {
	case !ok:
		return nil, invalid("the flow does not contain the port or message that a connection began with")
	case !from.IsValid() || !to.IsValid():
		return nil, invalid("the flow has an address that is not an IP address")
	}
	var res policy.TraceResult
	var err error
	out := &policypb.ExplainResponse{}
	agent.View(func(e *policy.Engine) {
		src.find(agent, e, from)
		dst.find(agent, e, to)
		res, err = e.Trace(src.Party, dst.Party, proto, port)
		out.Revision = e.Revision()
	})
	if err != nil {
		return nil, notFound("%v", err)
	}
	out.Verdict = verdictOf(res.Allowed)
	out.Egress, out.Ingress = explainSide(&res.Egress, agent.RuleLine), explainSide(&res.Ingress, agent.RuleLine)
	for _, side := range []*policy.TraceSide{&res.Egress, &res.Ingress} {
		if !side.Verdict.Pass() {
			out.Suggestions = append(out.Suggestions, suggest(side, &src, &dst, proto, port))
		}
	}
	return out, nil
}

// find fills in the party at an end, from the engine, else from the flow.
func (x *explained) find(agent Agent, e *policy.Engine, addr netip.Addr) {
	id := identity.ID(x.ep.GetIdentity())
	if id.IsOutside() {
		id = e.Outside(addr)
	}
	x.Party = policy.Party{Identity: id, Addr: addr}
	x.set, _ = e.Labels(id)
	set, err := labels.ParseSet(x.ep.GetLabels())
	if len(x.set) == 0 && err == nil {
		x.set, x.Labels = set, set
	}
	if x.ep.GetID() == 0 || x.ep.GetID() > 65535 {
		return
	}
	if s, seen, ok := agent.Endpoint(uint16(x.ep.GetID())); ok && (s.Identity == id || seen == id) {
		x.Party = partyOf(id, s, addr)
		if len(x.Labels) > 0 {
			x.set = x.Labels
		}
	}
}

func explainSide(s *policy.TraceSide, at places) *policypb.ExplainSide {
	out := &policypb.ExplainSide{Verdict: verdictOf(s.Verdict.Pass()), Enforced: s.Enforced, Reason: s.Why, EnforcedBy: isolating(s, at)}
	// What matches comes first, so that it is not cut off.
	steps := slices.Clone(s.Steps)
	slices.SortStableFunc(steps, func(a, b policy.TraceStep) int { return cmp.Compare(rank(a), rank(b)) })
	for i, step := range steps {
		if i == maxSteps {
			out.StepsLeftOut = uint32(len(steps) - i)
			break
		}
		effect := policypb.Effect_NONE
		switch {
		case step.Matches() && step.Deny:
			effect = policypb.Effect_DENY
		case step.Matches() && step.Pass:
			effect = policypb.Effect_PASS
		case step.Matches():
			effect = policypb.Effect_ALLOW
		}
		out.Steps = append(out.Steps, &policypb.ExplainStep{Rule: at.ruleOf(step), Effect: effect, Reason: step.What(), Decides: step.Decides})
	}
	return out
}

func rank(s policy.TraceStep) int {
	switch {
	case s.Decides:
		return 0
	case s.Matches():
		return 1
	}
	return 2
}

// places returns in which document a rule or an entry of one is, and at which line: no document for
// an object of Kubernetes, and 0 for a line that is not known.
type places func(o policy.Owner, path string) (document string, line int)

// ruleOf names the entry of a step; what allows the node itself has none.
func (at places) ruleOf(s policy.TraceStep) *policypb.Rule {
	if s.Local {
		return &policypb.Rule{Path: "(allow-localhost)"}
	}
	return at.rule(s.Owner, s.Path)
}

func (at places) rule(o policy.Owner, path string) *policypb.Rule {
	r := &policypb.Rule{Policy: nameMessage(o.Policy()), Path: path}
	if at != nil {
		document, line := at(o, path)
		r.Document, r.Line = document, uint32(line)
	}
	return r
}

// decisionOf returns what decides a trace: the side that denies, else what allows on both sides.
func decisionOf(res *policy.TraceResult, at places) *policypb.Decision {
	for _, side := range []*policy.TraceSide{&res.Egress, &res.Ingress} {
		if !side.Verdict.Pass() {
			d := &policypb.Decision{Direction: direction(side.Direction), Reason: side.Verdict.String()}
			d.Rules = deciding(side, at)
			if len(d.Rules) == 0 {
				d.Reason = "no rule allows it; " + side.Why
				d.Rules = isolating(side, at)
			}
			return d
		}
	}
	d := &policypb.Decision{Direction: flowpb.TrafficDirection_INGRESS, Reason: res.Ingress.Verdict.String()}
	if d.Rules = deciding(&res.Ingress, at); len(d.Rules) == 0 {
		if rules := deciding(&res.Egress, at); len(rules) > 0 {
			return &policypb.Decision{Direction: flowpb.TrafficDirection_EGRESS, Rules: rules, Reason: res.Egress.Verdict.String()}
		}
		d.Reason = "neither side is isolated any more"
	}
	return d
}

func direction(d datapath.Direction) flowpb.TrafficDirection {
	if d == datapath.Egress {
		return flowpb.TrafficDirection_EGRESS
	}
	return flowpb.TrafficDirection_INGRESS
}

// deciding returns the entries that decide a side.
func deciding(side *policy.TraceSide, at places) (out []*policypb.Rule) {
	for _, s := range side.Steps {
		if s.Decides && !s.Pass {
			out = append(out, at.ruleOf(s))
		}
	}
	return out
}

// isolating returns the policies by which what no rule allows is dropped.
func isolating(side *policy.TraceSide, at places) (out []*policypb.Rule) {
	for _, by := range side.EnforcedBy[:min(len(side.EnforcedBy), maxNamed)] {
		out = append(out, at.rule(by.Owner, by.Path))
	}
	return out
}

// suggest returns what would let a packet pass one side.
func suggest(side *policy.TraceSide, src, dst *explained, proto uint8, port uint16) *policypb.Suggestion {
	out := &policypb.Suggestion{Direction: direction(side.Direction)}
	self, other, field := dst, src, "ingress"
	if side.Direction == datapath.Egress {
		self, other, field = src, dst, "egress"
	}
	ns := self.set.Value(labels.SourceK8s, labels.KeyNamespace)
	switch {
	case side.Verdict == policy.Denied:
		var who []string
		for _, r := range deciding(side, nil) {
			who = append(who, policy.Name{Kind: r.GetPolicy().GetKind(), Namespace: r.GetPolicy().GetNamespace(), Name: r.GetPolicy().GetName()}.String()+" "+r.GetPath())
		}
		out.Text = "change or remove " + strings.Join(who, ", ") + ": what it denies no other rule can allow"
		return out
	case ns == "":
		out.Text = "add a rule to a policy that selects the endpoint, which is in no namespace"
		return out
	}
	entry := map[string]any{}
	if !addPeer(entry, side.Direction, self, other) {
		out.Text = "the other side cannot be named by a rule"
		return out
	}
	switch {
	case proto == datapath.ProtoICMP || proto == datapath.ProtoICMPv6:
		family := "IPv4"
		if proto == datapath.ProtoICMPv6 {
			family = "IPv6"
		}
		entry["icmps"] = []any{map[string]any{"fields": []any{map[string]any{"type": int(port), "family": family}}}}
	default:
		entry["toPorts"] = []any{map[string]any{"ports": []any{map[string]any{"port": fmt.Sprint(port), "protocol": datapath.ProtoName(proto)}}}}
	}
	what := "receive from"
	if side.Direction == datapath.Egress {
		what = "send to"
	}
	out.Text = fmt.Sprintf("let %s/%s %s %s on %s", ns, namedFor(self, other), what, otherName(other, self), policy.PortMatch{Proto: proto, First: port, Last: port})
	doc := map[string]any{
		"apiVersion": v2.APIVersion, "kind": v2.KindNetworkPolicy,
		"metadata": map[string]any{"name": objectName(side.Direction, self, other, proto, port), "namespace": ns},
		"spec": map[string]any{
			"endpointSelector": matchLabels(ownLabels(self.set)), field: []any{entry},
			// Others have these labels too, perhaps: they must not be isolated by it.
			"enableDefaultDeny": map[string]any{"ingress": false, "egress": false},
		},
	}
	if text, err := yaml.Marshal(doc); err == nil {
		out.Document = string(text)
	}
	return out
}

// addPeer adds the other side to an entry, as narrowly as a peer can be described.
func addPeer(entry map[string]any, d datapath.Direction, self, x *explained) bool {
	prefix := "from"
	if d == datapath.Egress {
		prefix = "to"
	}
	if x.set.Value(labels.SourceK8s, labels.KeyNamespace) != "" {
		list := ownLabels(x.set)
		// Without these a selector is about the policy's own namespace and cluster.
		for _, key := range []string{labels.KeyNamespace, labels.KeyCluster} {
			theirs := x.set.Value(labels.SourceK8s, key)
			if theirs != "" && theirs != self.set.Value(labels.SourceK8s, key) {
				list = append(list, labels.New(labels.SourceK8s, key, theirs))
			}
		}
		entry[prefix+"Endpoints"] = []any{matchLabels(list)}
		return true
	}
	for _, name := range []identity.ID{identity.Host, identity.KubeAPIServer, identity.RemoteNode, identity.Health, identity.Ingress, identity.Init, identity.Unmanaged} {
		if x.set.HasReserved(name.String()) {
			entry[prefix+"Entities"] = []any{name.String()}
			return true
		}
	}
	if !x.Addr.IsValid() {
		return false
	}
	entry[prefix+"CIDR"] = []any{netip.PrefixFrom(x.Addr, x.Addr.BitLen()).String()}
	return true
}

// matchLabels is a selector of what has all of these labels.
func matchLabels(list []labels.Label) map[string]any {
	out := map[string]any{}
	for _, l := range list {
		out[l.Source+":"+l.Key] = l.Value
	}
	if len(out) == 0 {
		return map[string]any{}
	}
	return map[string]any{"matchLabels": out}
}

func otherName(x, than *explained) string {
	if ns := x.set.Value(labels.SourceK8s, labels.KeyNamespace); ns != "" {
		return ns + "/" + namedFor(x, than)
	}
	if x.Identity.IsOutside() {
		return x.Addr.String()
	}
	return x.Identity.String()
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// objectName makes a name for a suggested policy: one for each who, whom and what, so that what is
// suggested for one packet takes nothing away from what was for another.
func objectName(d datapath.Direction, self, other *explained, proto uint8, port uint16) string {
	name, whom := other.Identity.String(), other.Addr.String()
	if len(other.set.Value(labels.SourceK8s, labels.KeyNamespace)) > 0 {
		name, whom = nameOf(other.set), other.set.KVString()
	}
	way := "from"
	if d == datapath.Egress {
		way = "to"
	}
	protocol := datapath.ProtoName(proto)
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%d", self.set.KVString(), way, whom, protocol, port)
	text := notInNames.ReplaceAllString(strings.ToLower(nameOf(self.set)+"-"+way+"-"+name), "-")
	return strings.Trim(text[:min(len(text), 50)], "-") + fmt.Sprintf("-%s-%d-%08x", strings.ToLower(protocol), port, h.Sum32())
}
