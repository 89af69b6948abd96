package restapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// ruleView is a rule in force as GET /policy shows it.
type ruleView struct {
	Owner            policy.Owner  `json:"owner"`
	Path             string        `json:"path"`
	Tier             string        `json:"tier,omitempty"`
	Priority         *int32        `json:"priority,omitempty"`
	Namespace        string        `json:"namespace,omitempty"`
	EndpointSelector string        `json:"endpointSelector"`
	Description      string        `json:"description,omitempty"`
	Labels           labels.Set    `json:"labels,omitempty"`
	Identities       []identity.ID `json:"identities"`
	Entries          []clauseView  `json:"entries"`
}

// clauseView is one entry of a rule.
type clauseView struct {
	Path      string   `json:"path"`
	Direction string   `json:"direction"`
	Verdict   string   `json:"verdict"`
	Peers     []string `json:"peers"`
	Ports     []string `json:"ports"`
}

// GetPolicy is GET /policy: all rules in force, as JSON text.
func (a *API) GetPolicy(context.Context, server.GetPolicyRequestObject) (server.GetPolicyResponseObject, error) {
	out := []ruleView{}
	a.Policy.View(func(e *policy.Engine) {
		for _, info := range e.Rules() {
			out = append(out, viewRule(info))
		}
	})
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, err
	}
	return server.GetPolicy200JSONResponse(rest.Policy{Policy: string(text), Revision: int(a.Policy.Revision())}), nil
}

func viewRule(info policy.RuleInfo) ruleView {
	r := info.Rule
	v := ruleView{
		Owner: info.Owner, Path: r.Path, Namespace: r.Namespace, EndpointSelector: r.Subject.String(), Description: r.Description,
		Labels: r.Labels, Identities: info.Subjects, Entries: []clauseView{},
	}
	if r.Tier != policy.TierOrdinary {
		v.Tier, v.Priority = r.Tier.String(), &r.Priority
	}
	for _, c := range r.Clauses {
		cv := clauseView{Path: c.Path, Direction: c.Direction.String(), Verdict: "allow", Peers: []string{}, Ports: []string{}}
		switch {
		case c.Deny:
			cv.Verdict = "deny"
		case c.Pass:
			cv.Verdict = "pass"
		}
		if c.AllPeers {
			cv.Peers = append(cv.Peers, "all")
		}
		for _, sel := range c.Peers {
			cv.Peers = append(cv.Peers, sel.String())
		}
		for _, m := range c.Ports {
			cv.Ports = append(cv.Ports, m.String())
		}
		v.Entries = append(v.Entries, cv)
	}
	return v
}

// ListSelectors is GET /policy/selectors: the selectors of peers that rule sets use.
func (a *API) ListSelectors(context.Context, server.ListSelectorsRequestObject) (server.ListSelectorsResponseObject, error) {
	out := []rest.SelectorIdentityMapping{}
	a.Policy.View(func(e *policy.Engine) {
		for _, s := range e.Selectors() {
			out = append(out, rest.SelectorIdentityMapping{Selector: s.Selector, Identities: numbers(s.Identities), Users: len(s.Users)})
		}
	})
	return server.ListSelectors200JSONResponse(out), nil
}

// ListSubjectSelectors is GET /policy/subject-selectors: whom the rules select, by rule.
func (a *API) ListSubjectSelectors(context.Context, server.ListSubjectSelectorsRequestObject) (server.ListSubjectSelectorsResponseObject, error) {
	type use struct {
		ids   map[identity.ID]bool
		users int
	}
	uses := map[string]*use{}
	a.Policy.View(func(e *policy.Engine) {
		for _, r := range e.Rules() {
			selector := r.Rule.Subject.String()
			u := uses[selector]
			if u == nil {
				u = &use{ids: map[identity.ID]bool{}}
				uses[selector] = u
			}
			u.users++
			for _, id := range r.Subjects {
				u.ids[id] = true
			}
		}
	})
	out := []rest.SelectorIdentityMapping{}
	for selector, u := range uses {
		m := rest.SelectorIdentityMapping{Selector: selector, Users: u.users}
		for id := range u.ids {
			m.Identities = append(m.Identities, int(id))
		}
		slices.Sort(m.Identities)
		out = append(out, m)
	}
	slices.SortFunc(out, func(x, y rest.SelectorIdentityMapping) int { return strings.Compare(x.Selector, y.Selector) })
	return server.ListSubjectSelectors200JSONResponse(out), nil
}

func numbers(ids []identity.ID) []int {
	out := make([]int, 0, len(ids))
	for _, id := range ids {
		out = append(out, int(id))
	}
	return out
}

// endpointPolicy is what is in force for an endpoint.
func (a *API) endpointPolicy(row endpoint.Endpoint) rest.EndpointPolicyStatus {
	p := rest.EndpointPolicy{PolicyEnabled: rest.EndpointPolicyEnabledNone, ID: int(row.Identity), PolicyRevision: int(a.Policy.Revision())}
	a.Policy.View(func(e *policy.Engine) {
		binding, ingress, egress, ok := e.RuleSetOf(row.Subject())
		switch {
		case !ok:
			return
		case ingress && egress:
			p.PolicyEnabled = rest.EndpointPolicyEnabledBoth
		case ingress:
			p.PolicyEnabled = rest.EndpointPolicyEnabledIngress
		case egress:
			p.PolicyEnabled = rest.EndpointPolicyEnabledEgress
		}
		rs, ok := e.RuleSet(binding.RuleSet)
		if !ok {
			return
		}
		lists := map[datapath.Direction]map[bool]*[]int{
			datapath.Ingress: {false: &p.AllowedIngressIdentities, true: &p.DeniedIngressIdentities},
			datapath.Egress:  {false: &p.AllowedEgressIdentities, true: &p.DeniedEgressIdentities},
		}
		for key, entry := range rs.Entries {
			verdict := policy.VerdictOf(entry, true)
			if verdict == policy.DefaultDenied {
				continue // a rule that passes everything on
			}
			list := lists[key.Direction][!verdict.Pass()]
			*list = append(*list, int(key.Identity))
		}
		for _, byVerdict := range lists {
			for _, list := range byVerdict {
				slices.Sort(*list)
				*list = slices.Compact(*list)
			}
		}
	})
	if word, ok := audited[p.PolicyEnabled]; ok {
		if kernel, _ := a.Policy.Row(row.ID); kernel.Audit {
			p.PolicyEnabled = word
		}
	}
	return rest.EndpointPolicyStatus{Realized: p, Spec: p}
}

// TracePolicy is GET /policy/trace: why would one side reach the other.
func (a *API) TracePolicy(_ context.Context, req server.TracePolicyRequestObject) (server.TracePolicyResponseObject, error) {
	src, err := a.traceParty(req.Params.From)
	if err != nil {
		return nil, err
	}
	dst, err := a.traceParty(req.Params.To)
	if err != nil {
		return nil, err
	}
	from, to := tracedFamily(src, dst)
	proto := uint8(6)
	if req.Params.Proto != "" {
		if proto, err = datapath.ParseProto(req.Params.Proto); err != nil {
			return nil, server.Errorf(http.StatusBadRequest, "proto: %w", err)
		}
	}
	port, err := tracePort(req.Params.DPort, proto, to)
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "dport: %w", err)
	}
	var res policy.TraceResult
	a.Policy.View(func(e *policy.Engine) { res, err = e.Trace(from, to, proto, port) })
	if err != nil {
		return nil, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	out := rest.PolicyTrace{
		DPort: int(port), Proto: datapath.ProtoName(proto), From: src.name, To: dst.name, Verdict: verdictName(res.Allowed),
		Egress: traceSide(res.Egress), Ingress: traceSide(res.Ingress),
	}
	return server.TracePolicy200JSONResponse(out), nil
}

// tracePort resolves a port, which may be one of the destination's named ports.
func tracePort(s string, proto uint8, to policy.Party) (uint16, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(s, 10, 16); err == nil {
		return uint16(n), nil
	}
	named, err := policy.ParseNamedPorts(to.NamedPorts)
	if err != nil {
		return 0, err
	}
	for _, p := range named {
		if p.Name == s && p.Proto == proto {
			return p.Port, nil
		}
	}
	return 0, fmt.Errorf("%q is neither a number nor a named %s port of the destination", s, datapath.ProtoName(proto))
}

func verdictName(allowed bool) rest.PolicyVerdict {
	if allowed {
		return rest.PolicyVerdictAllowed
	}
	return rest.PolicyVerdictDenied
}

func traceSide(s policy.TraceSide) rest.PolicyTraceDirection {
	out := rest.PolicyTraceDirection{Enforced: s.Enforced, Reason: s.Why, Verdict: verdictName(s.Verdict.Pass())}
	for _, step := range s.Steps {
		effect := rest.PolicyTraceStepEffectNone
		switch {
		case step.Matches() && step.Deny:
			effect = rest.PolicyTraceStepEffectDeny
		case step.Matches() && step.Pass:
			effect = rest.PolicyTraceStepEffectPass
		case step.Matches():
			effect = rest.PolicyTraceStepEffectAllow
		}
		rule := string(step.Owner) + " " + step.Path
		if step.Local {
			rule = "(allow-localhost)"
		}
		out.Steps = append(out.Steps, rest.PolicyTraceStep{Rule: rule, Effect: effect, Reason: step.What()})
	}
	return out
}

// tracedParty is one side of a trace.
type tracedParty struct {
	policy.Party
	name rest.PolicyTracePeer
	// addrs are the addresses it has, as far as they are known, IPv4 first.
	addrs []netip.Addr
}

// tracedFamily gives both sides addresses of one family: the only one that both have, or IPv4.
func tracedFamily(from, to tracedParty) (policy.Party, policy.Party) {
	of := func(p tracedParty, v6 bool) netip.Addr {
		for _, a := range p.addrs {
			if a.Is6() == v6 {
				return a
			}
		}
		return netip.Addr{}
	}
	for _, v6 := range []bool{false, true} {
		if src, dst := of(from, v6), of(to, v6); (src.IsValid() || len(from.addrs) == 0) && (dst.IsValid() || len(to.addrs) == 0) {
			from.Addr, to.Addr = src, dst
			if src.IsValid() || dst.IsValid() {
				break
			}
		}
	}
	return from.Party, to.Party
}

// traceParty resolves one side of a trace: an endpoint, an address, identity:<n>, or labels:<...>.
func (a *API) traceParty(s string) (tracedParty, error) {
	var none tracedParty
	switch {
	case s == "":
		return none, server.Errorf(http.StatusBadRequest, "from and to are needed")
	case strings.HasPrefix(s, "labels:"):
		set, err := labels.ParseSet(strings.FieldsFunc(strings.TrimPrefix(s, "labels:"), func(r rune) bool { return r == ';' || r == ',' }))
		if err != nil {
			return none, server.Errorf(http.StatusBadRequest, "%w", err)
		}
		return tracedParty{Party: policy.Party{Labels: set}, name: rest.PolicyTracePeer{Name: s, Labels: set.Strings()}}, nil
	case strings.HasPrefix(s, "identity:"):
		id, err := identity.Parse(strings.TrimPrefix(s, "identity:"))
		if err != nil {
			return none, server.Errorf(http.StatusBadRequest, "%w", err)
		}
		return a.tracedIdentity(s, id)
	}
	if ip, err := netip.ParseAddr(s); err == nil {
		p, err := a.tracedIdentity(s, a.identityAt(ip))
		p.addrs = []netip.Addr{ip.Unmap()}
		return p, err
	}
	row, err := a.find(s)
	if err != nil {
		return none, err
	}
	return tracedParty{
		Party: policy.Party{Identity: row.Identity, Labels: row.IdentityLabels, SeenAs: row.Seen(), NamedPorts: policy.FormatNamedPorts(row.NamedPorts)},
		name: rest.PolicyTracePeer{
			Name: fmt.Sprintf("endpoint %d (%s)", row.ID, row.Pod()), Endpoint: int(row.ID), Identity: int(row.Identity), Labels: row.IdentityLabels.Strings(),
		},
		addrs: row.Addresses(),
	}, nil
}

func (a *API) tracedIdentity(name string, id identity.ID) (tracedParty, error) {
	set, ok := a.Identities.Labels(id)
	if !ok {
		return tracedParty{}, server.Errorf(http.StatusNotFound, "identity %d is not known on this node", uint32(id))
	}
	return tracedParty{Party: policy.Party{Identity: id}, name: rest.PolicyTracePeer{Name: name, Identity: int(id), Labels: set.Strings()}}, nil
}

// ListPolicyFiles is GET /policy/files: what became of each file of --static-cnp-path, and of each
// policy of Kubernetes.
func (a *API) ListPolicyFiles(context.Context, server.ListPolicyFilesRequestObject) (server.ListPolicyFilesResponseObject, error) {
	count := map[policy.Owner]policy.RuleInfo{}
	rules := map[policy.Owner]int{}
	a.Policy.View(func(e *policy.Engine) {
		for _, info := range e.Rules() {
			if _, seen := count[info.Owner]; !seen {
				count[info.Owner] = info
			}
			rules[info.Owner]++
		}
	})
	files, err := a.Files.Status()
	out := []rest.PolicyFile{}
	for _, f := range files {
		pf := rest.PolicyFile{Path: f.File, State: rest.PolicyFileStateOk, InForce: len(f.Policies) > 0, Loaded: f.Loaded}
		if f.Err != nil {
			pf.State, pf.Error = rest.PolicyFileStateFaulty, f.Err.Error()
		}
		for _, owner := range f.Policies {
			pf.Policies = append(pf.Policies, policyOf(owner, count[owner].Rule, rules[owner]))
		}
		out = append(out, pf)
	}
	if err != nil {
		out = append(out, rest.PolicyFile{Path: a.Options.StaticCNPPath, State: rest.PolicyFileStateFaulty, Error: err.Error()})
	}
	out = append(out, a.policyObjects(func(o policy.Owner) string {
		if r := count[o].Rule; r != nil {
			return r.Description
		}
		return ""
	})...)
	return server.ListPolicyFiles200JSONResponse(out), nil
}

// policyOf describes an owner: file/namespace/name, or file/name for a clusterwide policy.
func policyOf(owner policy.Owner, first *policy.Rule, rules int) rest.PolicyFilePolicy {
	p := rest.PolicyFilePolicy{Rules: rules}
	parts := strings.Split(string(owner), "/")
	p.Name = parts[len(parts)-1]
	if p.Kind = "CiliumClusterwideNetworkPolicy"; len(parts) == 3 {
		p.Kind, p.Namespace = "CiliumNetworkPolicy", parts[1]
	}
	if first != nil {
		p.Description = first.Description
	}
	return p
}

// PolicyFileStates counts the policy files, and the policies of Kubernetes, by state.
func (a *API) PolicyFileStates() map[string]int {
	out := map[string]int{"ok": 0, "faulty": 0}
	files, err := a.Files.Status()
	if err != nil {
		out["faulty"]++
	}
	if a.Kubernetes != nil {
		ok, faulty := a.Kubernetes.PolicyCounts()
		out["ok"], out["faulty"] = out["ok"]+ok, out["faulty"]+faulty
	}
	for _, f := range files {
		if f.Err != nil {
			out["faulty"]++
		} else {
			out["ok"]++
		}
	}
	return out
}
