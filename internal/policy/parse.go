package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// Limits on a single entry, as the schema has them.
const (
	maxPorts      = 40
	maxICMPFields = 40
	maxLabelValue = 63
)

// FieldError is a problem with one field of a policy object.
type FieldError struct {
	// Field is the path, such as "spec.egress[0].toPorts[1].rules.http".
	Field string
	// Problem names what is wrong and what to do.
	Problem string
	// Unsupported is set if the field is valid but not implemented.
	Unsupported bool
}

// Error returns "field: problem".
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Option changes what is accepted.
type Option func(*parser)

// WithGroups accepts fromGroups and toGroups in entries that allow. They match nothing here: the
// operator derives another policy from the addresses of a group's members. Without an operator that
// does, leave the option out, so that such policies are refused.
func WithGroups() Option { return func(ps *parser) { ps.groups = true } }

// WithFaults passes the fields of the object that could not be decoded into its type. They are
// treated like unsupported ones.
func WithFaults(faults []*FieldError) Option {
	return func(ps *parser) {
		for _, f := range faults {
			ps.errs = append(ps.errs, f)
			ps.markUnread(f.Field)
		}
	}
}

// Parse returns the rules of a namespaced policy. Every fault is reported, as FieldErrors joined.
//
// The rules are returned with an error, too, for a policy that the API server has accepted already.
// They are what can be enforced of it, and never allow more, or deny less, than it does:
//
//   - Whom the policy selects is isolated in the directions it has entries for; in both if it has
//     none. enableDefaultDeny counts as ever.
//   - What is wholly understood is granted: of a list of peers, ports or messages the items that
//     are. An entry that is restricted by something else that is not supported (authentication,
//     layer 7, names) grants nothing.
//   - A deny of which the peers are not understood denies all peers, one of which the ports are
//     not, all traffic.
//   - What of an endpointSelector is not understood is left out, so that more endpoints are
//     selected; such a rule grants nothing. Without one a rule selects all pods: those of its
//     namespace, or of the cluster.
//   - A rule that selects nodes is left out: no endpoint is meant.
//
// Rule.Faults lists for each rule what is not enforced as it is written.
func Parse(p *v2.CiliumNetworkPolicy, opts ...Option) ([]*Rule, error) {
	if p == nil {
		return nil, errors.New("the policy is missing")
	}
	ps := newParser(p.Namespace, opts)
	if !validNamespace(ps.namespace) {
		ps.fail("metadata.namespace", "%q is not the name of a namespace", clip(ps.namespace))
		_, err := ps.object(p.Name, p.Spec, p.Specs)
		return nil, err // whom it may be about is not known at all
	}
	return ps.object(p.Name, p.Spec, p.Specs)
}

// ParseClusterwide returns the rules of a clusterwide policy, as Parse does.
func ParseClusterwide(p *v2.CiliumClusterwideNetworkPolicy, opts ...Option) ([]*Rule, error) {
	if p == nil {
		return nil, errors.New("the policy is missing")
	}
	ps := newParser("", opts)
	if p.Namespace != "" {
		ps.fail("metadata.namespace", "a clusterwide policy has no namespace; leave it out or use the kind %s", v2.KindNetworkPolicy)
	}
	return ps.object(p.Name, p.Spec, p.Specs)
}

// parser collects the faults of one object.
type parser struct {
	namespace string // "" for clusterwide policies
	groups    bool   // accepted, as peers that match nothing
	// unconfined: the rule at hand is clusterwide and names reserved:init, so that its selectors of
	// peers are confined to nothing.
	unconfined bool
	warnings   []string // about the rule at hand
	errs       []error
	unread     map[string]bool // see WithFaults: paths of what could not be read, and of all that it is a part of
	outside    map[string]bool // paths of rules of which something that is no part of an entry could not be read
}

func newParser(namespace string, opts []Option) *parser {
	ps := &parser{namespace: namespace, unread: map[string]bool{}, outside: map[string]bool{}}
	for _, o := range opts {
		o(ps)
	}
	return ps
}

func (ps *parser) fail(field, format string, args ...any) {
	ps.errs = append(ps.errs, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
}

// warn notes what is accepted, but may mean something else than its author thought.
func (ps *parser) warn(field, format string, args ...any) {
	ps.warnings = append(ps.warnings, field+": "+fmt.Sprintf(format, args...))
}

// unsupported refuses the field name under at if it is present.
func (ps *parser) unsupported(present bool, at, name string) {
	if present {
		ps.errs = append(ps.errs, &FieldError{Field: at + "." + name, Problem: "is not supported", Unsupported: true})
	}
}

func (ps *parser) object(name string, spec *v2.Rule, specs []*v2.Rule) ([]*Rule, error) {
	if name == "" {
		ps.fail("metadata.name", "is missing")
	}
	if spec == nil && len(specs) == 0 {
		ps.fail("spec", "is missing; write spec or specs")
	}
	var rules []*Rule
	if spec != nil {
		rules = append(rules, ps.rule("spec", spec))
	}
	for i, r := range specs {
		path := fmt.Sprintf("specs[%d]", i)
		if r == nil {
			ps.fail(path, "is null")
			continue
		}
		rules = append(rules, ps.rule(path, r))
	}
	rules = slices.DeleteFunc(rules, func(r *Rule) bool { return r == nil })
	faults := ps.faults()
	for _, r := range rules {
		r.Faults = faults[r.Path]
	}
	return rules, errors.Join(ps.errs...)
}

// faults returns the faults of each part of the object: a rule's are at its path. There may be
// thousands of both.
func (ps *parser) faults() map[string][]string {
	out := map[string][]string{}
	for _, err := range ps.errs {
		var fe *FieldError
		if errors.As(err, &fe) {
			part, _, _ := strings.Cut(fe.Field, ".")
			out[part] = append(out[part], fe.Error())
		}
	}
	return out
}

// markUnread notes that a field could not be read.
func (ps *parser) markUnread(field string) {
	ps.unread[field] = true
	for i := range len(field) {
		if field[i] == '.' || field[i] == '[' {
			ps.unread[field[:i]] = true
		}
	}
	rule, rest, _ := strings.Cut(field, ".")
	section, _, isItem := strings.Cut(rest, "[")
	if !isItem || !slices.Contains([]string{"ingress", "ingressDeny", "egress", "egressDeny"}, section) {
		ps.outside[rule] = true
	}
}

// rule reads one rule; nil if it can be about no endpoint.
func (ps *parser) rule(path string, in *v2.Rule) *Rule {
	r := &Rule{Namespace: ps.namespace, Path: path, Description: in.Description}
	ps.warnings, ps.unconfined = nil, false
	ps.unsupported(in.NodeSelector != nil, path, "nodeSelector")
	ps.unsupported(in.Log != nil, path, "log")
	understood := !ps.outside[path]
	if in.EndpointSelector == nil {
		if in.NodeSelector == nil && !ps.unread[path+".endpointSelector"] && !ps.unread[path] {
			ps.fail(path+".endpointSelector", "is missing; write {} to select all endpoints")
		}
		understood = false
		r.Subject = newLabelSelector(ps.namespace, ps.namespace == "", false, nil)
	} else {
		n := len(ps.errs)
		r.Subject = ps.subject(path+".endpointSelector", in.EndpointSelector)
		understood = understood && len(ps.errs) == n
	}
	if len(in.Ingress)+len(in.IngressDeny)+len(in.Egress)+len(in.EgressDeny) == 0 && !ps.unread[path] {
		ps.fail(path, "has no entry; write at least one of ingress, ingressDeny, egress, egressDeny")
	}
	for i := range in.Ingress {
		ps.ingress(r, path, fmt.Sprintf("ingress[%d]", i), &in.Ingress[i], false)
	}
	for i := range in.IngressDeny {
		entry := in.IngressDeny[i].Entry()
		ps.ingress(r, path, fmt.Sprintf("ingressDeny[%d]", i), &entry, true)
	}
	for i := range in.Egress {
		ps.egress(r, path, fmt.Sprintf("egress[%d]", i), &in.Egress[i], false)
	}
	for i := range in.EgressDeny {
		entry := in.EgressDeny[i].Entry()
		ps.egress(r, path, fmt.Sprintf("egressDeny[%d]", i), &entry, true)
	}
	r.DefaultDeny = [2]bool{r.has(datapath.Ingress), r.has(datapath.Egress)}
	if len(r.Clauses) == 0 { // a fault: the sections may show its directions
		ingress, egress := in.Ingress != nil || in.IngressDeny != nil, in.Egress != nil || in.EgressDeny != nil
		r.DefaultDeny = [2]bool{ingress || !egress, egress || !ingress}
	}
	if d := in.EnableDefaultDeny; d != nil {
		if d.Ingress != nil {
			r.DefaultDeny[datapath.Ingress] = *d.Ingress
		}
		if d.Egress != nil {
			r.DefaultDeny[datapath.Egress] = *d.Egress
		}
	}
	var ls []labels.Label
	for i, l := range in.Labels {
		label := labels.New(l.Source, l.Key, l.Value)
		if err := label.Validate(); err != nil {
			ps.fail(fmt.Sprintf("%s.labels[%d]", path, i), "%v", err)
			continue
		}
		ls = append(ls, label)
	}
	r.Labels = labels.NewSet(ls...)
	r.Warnings = ps.warnings
	if in.EndpointSelector == nil && in.NodeSelector != nil && !ps.unread[path+".endpointSelector"] {
		return nil
	}
	if !understood {
		r.grantNothing()
	}
	return r
}

// grantNothing leaves what a rule denies and enforces.
func (r *Rule) grantNothing() {
	for i := range r.Clauses {
		if c := &r.Clauses[i]; !c.Deny {
			c.AllPeers, c.Peers = false, nil
		}
	}
}

// peerList is one of the alternative lists of peers of an entry.
type peerList struct {
	field   string
	present bool
	empty   bool // present, and names no peer
	faulty  bool // not all of it is understood; what is, is in peers
	peers   []*Selector
}

// unsupported reports whether nothing of the list is understood.
func (l *peerList) unsupported() bool { return l.faulty && len(l.peers) == 0 }

func (ps *parser) ingress(r *Rule, path, sub string, in *v2.IngressRule, deny bool) {
	at := path + "." + sub
	before := len(ps.errs)
	ps.unsupported(in.Authentication != nil, at, "authentication")
	ps.unsupported(len(in.FromRequires) > 0, at, "fromRequires")
	whole := len(ps.errs) == before && !ps.unread[at]
	ps.clause(r, Clause{Direction: datapath.Ingress, Deny: deny, Path: sub}, at, whole, []peerList{
		ps.unsupportedPeers(in.FromNodes != nil, at, "fromNodes"),
		ps.endpoints(at, "fromEndpoints", in.FromEndpoints),
		ps.cidrs(at, "fromCIDR", in.FromCIDR),
		ps.cidrSet(at, "fromCIDRSet", in.FromCIDRSet),
		ps.entities(at, "fromEntities", in.FromEntities),
		ps.groupList(at, "fromGroups", in.FromGroups, deny),
	}, in.ToPorts, in.ICMPs)
}

func (ps *parser) egress(r *Rule, path, sub string, in *v2.EgressRule, deny bool) {
	at := path + "." + sub
	before := len(ps.errs)
	ps.unsupported(in.Authentication != nil, at, "authentication")
	ps.unsupported(len(in.ToRequires) > 0, at, "toRequires")
	whole := len(ps.errs) == before && !ps.unread[at]
	ps.clause(r, Clause{Direction: datapath.Egress, Deny: deny, Path: sub}, at, whole, []peerList{
		ps.unsupportedPeers(in.ToServices != nil, at, "toServices"),
		ps.unsupportedPeers(in.ToFQDNs != nil, at, "toFQDNs"),
		ps.unsupportedPeers(in.ToNodes != nil, at, "toNodes"),
		ps.endpoints(at, "toEndpoints", in.ToEndpoints),
		ps.cidrs(at, "toCIDR", in.ToCIDR),
		ps.cidrSet(at, "toCIDRSet", in.ToCIDRSet),
		ps.entities(at, "toEntities", in.ToEntities),
		ps.groupList(at, "toGroups", in.ToGroups, deny),
	}, in.ToPorts, in.ICMPs)
}

// unsupportedPeers is a list of peers of a kind that is not supported.
func (ps *parser) unsupportedPeers(present bool, at, name string) peerList {
	ps.unsupported(present, at, name)
	return peerList{field: name, present: present, faulty: present}
}

// clause finishes an entry and adds it to the rule. whole is false if the entry contains more than
// peers and ports, and that is not understood.
func (ps *parser) clause(r *Rule, c Clause, at string, whole bool, lists []peerList, toPorts []v2.PortRule, icmps []v2.ICMPRule) {
	var from, empty *peerList
	peersOK := true
	for i := range lists {
		peersOK = peersOK && !lists[i].faulty
		switch {
		case !lists[i].present:
		case lists[i].empty:
			empty = &lists[i]
		case from != nil:
			whole = false
			if !from.unsupported() && !lists[i].unsupported() { // one fault is enough
				ps.fail(at+"."+lists[i].field, "cannot be combined with %s in one entry; write two entries", from.field)
			}
		default:
			from = &lists[i]
		}
	}
	switch {
	case from != nil && empty != nil:
		ps.warn(at+"."+empty.field, "is empty, so the entry matches no peer in spite of %s", from.field)
	case from != nil:
		c.Peers = from.peers
	}
	before := len(ps.errs)
	if len(toPorts) > 0 && len(icmps) > 0 {
		ps.fail(at+".icmps", "cannot be combined with toPorts in one entry; write two entries")
		whole = false
	}
	switch {
	case len(toPorts) > 0:
		c.Ports = ps.ports(at+".toPorts", toPorts)
	case len(icmps) > 0:
		c.Ports = ps.icmps(at+".icmps", icmps)
	default:
		c.Ports = []PortMatch{{Proto: datapath.ProtoAny, First: 0, Last: 65535}}
	}
	// "- {}" has neither peers nor ports and matches nothing.
	c.AllPeers = from == nil && empty == nil && len(toPorts)+len(icmps) > 0
	switch {
	case !c.Deny && !whole:
		c.AllPeers, c.Peers = false, nil
	case c.Deny && !(whole && peersOK):
		c.AllPeers, c.Peers = true, nil
	}
	if c.Deny && !(whole && len(ps.errs) == before) {
		c.Ports = []PortMatch{{Proto: datapath.ProtoAny, First: 0, Last: 65535}}
	}
	r.Clauses = append(r.Clauses, c)
}

func (ps *parser) endpoints(at, name string, in []v2.LabelSelector) peerList {
	out := peerList{field: name, present: in != nil, empty: in != nil && len(in) == 0}
	for i := range in {
		reqs, ok := ps.requirements(fmt.Sprintf("%s.%s[%d]", at, name, i), &in[i], sourcedKey)
		if !ok {
			out.faulty = true
			continue
		}
		namesNamespace, namesNamespaceLabel, namesCluster, reserved := false, false, false, false
		for _, q := range reqs {
			typed := q.source == "" || q.source == labels.SourceK8s
			switch {
			case q.key == labels.KeyNamespace && typed:
				namesNamespace = true
			case q.key == labels.KeyCluster && typed:
				namesCluster = true
			case strings.HasPrefix(q.key, labels.KeyNamespaceLabels+".") && typed:
				namesNamespaceLabel = true
			case q.source == labels.SourceReserved:
				// Under any operator: "not the host" is about the world and other namespaces too.
				reserved = true
			}
		}
		var s *Selector
		switch {
		case reserved || ps.unconfined:
			s = newLabelSelector("", false, false, reqs)
		case namesNamespace:
			s = newLabelSelector("", false, !namesCluster, reqs)
		case namesNamespaceLabel:
			s = newLabelSelector("", true, !namesCluster, reqs)
		default:
			s = newLabelSelector(ps.namespace, ps.namespace == "", !namesCluster, reqs)
		}
		out.peers = append(out.peers, s)
	}
	return out
}

// groupList reads groups of a cloud provider. It has no peers: see WithGroups.
func (ps *parser) groupList(at, name string, in []v2.Group, deny bool) (out peerList) {
	out = peerList{field: name, present: in != nil, empty: in != nil && len(in) == 0}
	before := len(ps.errs)
	defer func() { out.faulty = len(ps.errs) > before }()
	if !ps.groups {
		ps.unsupported(in != nil, at, name)
		return out
	}
	if in != nil && deny {
		// Until the members are known, nothing would be denied.
		ps.errs = append(ps.errs, &FieldError{
			Field: at + "." + name, Problem: "is not supported where traffic is denied; allow the groups that may instead", Unsupported: true,
		})
	}
	for i, g := range in {
		at := fmt.Sprintf("%s.%s[%d]", at, name, i)
		if g.AWS == nil {
			ps.fail(at+".aws", "is missing")
		} else if len(g.AWS.Labels)+len(g.AWS.SecurityGroupsIDs)+len(g.AWS.SecurityGroupsNames) == 0 {
			ps.fail(at+".aws", "names no group; write at least one of labels, securityGroupsIds, securityGroupsNames")
		}
	}
	return out
}

// subject reads an endpointSelector.
func (ps *parser) subject(field string, in *v2.LabelSelector) *Selector {
	reqs, understood := ps.requirements(field, in, sourcedKey)
	if ps.namespace == "" {
		ps.unconfined = slices.ContainsFunc(reqs, func(q requirement) bool {
			return q.source == labels.SourceReserved && q.key == identity.Init.String()
		})
		ps.unconfined = ps.unconfined || !understood // perhaps it is; and it grants nothing
		return newLabelSelector("", !understood && len(reqs) == 0, false, reqs)
	}
	reqs = slices.DeleteFunc(reqs, func(q requirement) bool {
		if q.source == labels.SourceReserved && (q.op == opIn || q.op == opExists) {
			ps.fail(field, "a policy of a namespace cannot select %s; use the kind %s", &q, v2.KindClusterwideNetworkPolicy)
		}
		typed := q.source == "" || q.source == labels.SourceK8s
		other := typed && q.key == labels.KeyNamespace && q.op == opIn && !slices.Contains(q.values, ps.namespace)
		_, one := q.equality()
		selected := "none"
		if one {
			selected = fmt.Sprintf("those of %q", ps.namespace)
		}
		if other {
			ps.warn(field, "names namespace %q, but a policy selects endpoints of its own namespace only: it applies to %s", clip(strings.Join(q.values, ", ")), selected)
		}
		return other && one
	})
	return newLabelSelector(ps.namespace, false, false, reqs)
}

var operators = map[string]operator{v2.OpIn: opIn, v2.OpNotIn: opNotIn, v2.OpExists: opExists, v2.OpDoesNotExist: opDoesNotExist}

// requirements reads both parts of a label selector; named reads a key. It returns those that are
// understood, sorted, and whether all are.
func (ps *parser) requirements(field string, in *v2.LabelSelector, named func(key string) (requirement, error)) ([]requirement, bool) {
	before := len(ps.errs)
	reqs := make([]requirement, 0, len(in.MatchLabels)+len(in.MatchExpressions))
	for _, k := range slices.Sorted(maps.Keys(in.MatchLabels)) {
		v := string(in.MatchLabels[k])
		q, err := named(k)
		if err := cmp.Or(err, checkValue(v)); err != nil {
			ps.fail(fmt.Sprintf("%s.matchLabels[%s]", field, clip(k)), "%v", err)
			continue
		}
		q.op, q.values = opIn, []string{v}
		reqs = append(reqs, q)
	}
	for i, e := range in.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		sofar := len(ps.errs)
		q, err := named(e.Key)
		if err != nil {
			ps.fail(at+".key", "%v", err)
		}
		op, known := operators[e.Operator]
		if q.op = op; !known {
			ps.fail(at+".operator", "%q is not one of In, NotIn, Exists, DoesNotExist", clip(e.Operator))
		}
		needsValues := e.Operator == v2.OpIn || e.Operator == v2.OpNotIn
		if needsValues && len(e.Values) == 0 {
			ps.fail(at+".values", "operator %s needs at least one value", e.Operator)
		}
		if (q.op == opExists || q.op == opDoesNotExist) && len(e.Values) > 0 {
			ps.fail(at+".values", "operator %s takes no values", clip(e.Operator))
		}
		for j, v := range e.Values {
			if err := checkValue(v); err != nil {
				ps.fail(fmt.Sprintf("%s.values[%d]", at, j), "%v", err)
			}
		}
		if len(ps.errs) > sofar {
			continue
		}
		q.values = slices.Compact(slices.Sorted(slices.Values(e.Values)))
		reqs = append(reqs, q)
	}
	slices.SortFunc(reqs, func(a, b requirement) int { return strings.Compare(a.String(), b.String()) })
	return reqs, len(ps.errs) == before
}

// sourcedKey reads "[source:]key".
func sourcedKey(s string) (requirement, error) {
	r := requirement{key: s}
	if source, rest, ok := strings.Cut(s, ":"); ok {
		if source == "" {
			return r, errors.New("the source before the colon is empty")
		}
		r.source, r.key = source, rest
		if source == labels.SourceAny {
			r.source = ""
		}
	}
	if err := labels.New(r.source, r.key, "").Validate(); err != nil {
		return r, err
	}
	if strings.ContainsAny(s, "!@(),{} ") {
		return r, fmt.Errorf("the key %q holds a character that is not allowed", clip(s))
	}
	return r, nil
}

// checkValue checks the value of a label.
func checkValue(v string) error {
	if len(v) > maxLabelValue {
		return fmt.Errorf("the value is longer than %d bytes", maxLabelValue)
	}
	for i := 0; i < len(v); i++ {
		c := v[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(v)-1 && (c == '-' || c == '_' || c == '.')
		if !alnum && !inner {
			return fmt.Errorf("%q is not the value of a label", clip(v))
		}
	}
	return nil
}

func (ps *parser) cidrs(at, name string, in []string) peerList {
	out := peerList{field: name, present: in != nil, empty: in != nil && len(in) == 0}
	for i, s := range in {
		p, ok := ps.prefix(fmt.Sprintf("%s.%s[%d]", at, name, i), s)
		if !ok {
			out.faulty = true
			continue
		}
		out.peers = append(out.peers, newCIDRSelector(p, nil))
	}
	return out
}

func (ps *parser) cidrSet(at, name string, in []v2.CIDRRule) peerList {
	out := peerList{field: name, present: in != nil, empty: in != nil && len(in) == 0}
	for i, c := range in {
		at := fmt.Sprintf("%s.%s[%d]", at, name, i)
		before := len(ps.errs)
		ps.unsupported(c.CIDRGroupRef != "", at, "cidrGroupRef")
		ps.unsupported(c.CIDRGroupSelector != nil, at, "cidrGroupSelector")
		if c.CIDR == "" {
			if c.CIDRGroupRef == "" && c.CIDRGroupSelector == nil {
				ps.fail(at+".cidr", "is missing")
			}
			out.faulty = true
			continue
		}
		p, ok := ps.prefix(at+".cidr", c.CIDR)
		if !ok {
			out.faulty = true
			continue
		}
		except := ps.excepts(at, p, c.Except)
		if len(ps.errs) > before { // without one of its exceptions it would be too wide
			out.faulty = true
			continue
		}
		out.peers = append(out.peers, newCIDRSelector(p, except))
	}
	return out
}

// excepts reads the exceptions from a prefix, sorted.
func (ps *parser) excepts(at string, from netip.Prefix, in []string) (out []netip.Prefix) {
	for i, s := range in {
		at := fmt.Sprintf("%s.except[%d]", at, i)
		e, ok := ps.prefix(at, s)
		if ok && !containsPrefix(from, e) {
			ps.fail(at, "%s is not inside %s", e, from)
		}
		out = append(out, e)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// prefix reads a prefix, or an address as a prefix of full length, and masks it.
func (ps *parser) prefix(field, s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, aerr := netip.ParseAddr(s)
		if aerr != nil {
			ps.fail(field, "%q is not a prefix such as 10.0.0.0/8 or fd00::/8", clip(s))
			return p, false
		}
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	if p.Addr().Is4In6() || p.Addr().Zone() != "" {
		ps.fail(field, "%q: write IPv4 prefixes as such, and no zone", clip(s))
		return p, false
	}
	return p.Masked(), true
}

func (ps *parser) entities(at, name string, in []string) peerList {
	out := peerList{field: name, present: in != nil, empty: in != nil && len(in) == 0}
	for i, s := range in {
		e := identity.Entity(s)
		if _, _, _, ok := identity.EntityMembers(e); !ok {
			ps.fail(fmt.Sprintf("%s.%s[%d]", at, name, i), "entity %q is not known", clip(s))
			out.faulty = true
			continue
		}
		out.peers = append(out.peers, newEntitySelector(e))
	}
	return out
}

func (ps *parser) ports(field string, in []v2.PortRule) []PortMatch {
	var out []PortMatch
	for i := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		pr := &in[i]
		before := len(ps.errs)
		if pr.Rules != nil {
			ps.unsupported(pr.Rules.HTTP != nil, at, "rules.http")
			ps.unsupported(pr.Rules.DNS != nil, at, "rules.dns")
			ps.unsupported(pr.Rules.HTTP == nil && pr.Rules.DNS == nil, at, "rules")
		}
		ps.unsupported(pr.Listener != nil, at, "listener")
		ps.unsupported(pr.OriginatingTLS != nil, at, "originatingTLS")
		ps.unsupported(pr.TerminatingTLS != nil, at, "terminatingTLS")
		ps.unsupported(pr.ServerNames != nil, at, "serverNames")
		if len(pr.Ports) > maxPorts {
			ps.fail(at+".ports", "%d ports; at most %d are allowed", len(pr.Ports), maxPorts)
		}
		if len(ps.errs) > before { // the ports alone would be too much
			continue
		}
		for j := range pr.Ports {
			out = append(out, ps.port(fmt.Sprintf("%s.ports[%d]", at, j), &pr.Ports[j])...)
		}
	}
	return out
}

// port reads one port; ANY, the protocols that have ports, makes three of it.
func (ps *parser) port(field string, in *v2.PortProtocol) []PortMatch {
	var protos []uint8
	switch in.Protocol {
	case "TCP":
		protos = []uint8{datapath.ProtoTCP}
	case "UDP":
		protos = []uint8{datapath.ProtoUDP}
	case "SCTP":
		protos = []uint8{datapath.ProtoSCTP}
	case "ANY", "":
		protos = []uint8{datapath.ProtoTCP, datapath.ProtoUDP, datapath.ProtoSCTP}
	case "VRRP", "IGMP", "GRE", "IPIP", "IPV6", "ESP", "AH":
		ps.errs = append(ps.errs, &FieldError{
			Field: field + ".protocol", Problem: in.Protocol + " is not supported", Unsupported: true,
		})
		return nil
	default:
		ps.fail(field+".protocol", "%q is not one of TCP, UDP, SCTP, ANY", clip(in.Protocol))
		return nil
	}
	m := PortMatch{}
	n, err := strconv.ParseUint(in.Port, 10, 16)
	switch {
	case in.Port == "":
		ps.fail(field+".port", `is missing; write "0" for every port`)
		return nil
	case err == nil && len(in.Port) > 1 && in.Port[0] == '0':
		ps.fail(field+".port", "%q has leading zeros; write the number without them", clip(in.Port))
		return nil
	case err == nil && n == 0:
		if in.EndPort != 0 {
			ps.fail(field+".endPort", "needs a port other than 0")
			return nil
		}
		m.Last = 65535
	case err == nil:
		m.First, m.Last = uint16(n), uint16(n)
		if in.EndPort != 0 {
			if in.EndPort < int32(n) || in.EndPort > 65535 {
				ps.fail(field+".endPort", "%d is not in %d to 65535", in.EndPort, n)
				return nil
			}
			m.Last = uint16(in.EndPort)
		}
	default:
		m.Name = strings.ToLower(in.Port)
		if !datapath.ValidPortName(m.Name) {
			ps.fail(field+".port", "%q is neither a port number nor the name of a port", clip(in.Port))
			return nil
		}
		if in.EndPort != 0 {
			ps.fail(field+".endPort", "needs a number as port, not a name")
			return nil
		}
	}
	out := make([]PortMatch, 0, len(protos))
	for _, p := range protos {
		m.Proto = p
		out = append(out, m)
	}
	return out
}

func (ps *parser) icmps(field string, in []v2.ICMPRule) []PortMatch {
	var out []PortMatch
	for i := range in {
		at := fmt.Sprintf("%s[%d].fields", field, i)
		if n := len(in[i].Fields); n > maxICMPFields {
			ps.fail(at, "%d fields; at most %d are allowed", n, maxICMPFields)
			continue
		}
		for j, f := range in[i].Fields {
			fat := fmt.Sprintf("%s[%d]", at, j)
			m := PortMatch{Proto: datapath.ProtoICMP}
			switch f.Family {
			case "IPv4", "":
			case "IPv6":
				m.Proto = datapath.ProtoICMPv6
			default:
				ps.fail(fat+".family", "%q is neither IPv4 nor IPv6", clip(f.Family))
				continue
			}
			if f.Type == nil {
				ps.fail(fat+".type", "is missing")
				continue
			}
			typ, named := datapath.ICMPTypes(m.Proto == datapath.ProtoICMPv6)[f.Type.Text]
			if !named {
				n, err := strconv.ParseUint(f.Type.Text, 10, 8)
				if err != nil {
					ps.fail(fat+".type", "%q is neither 0 to 255 nor the name of a message type", clip(f.Type.Text))
					continue
				}
				typ = uint8(n)
			}
			m.First, m.Last = uint16(typ), uint16(typ)
			if !datapath.ICMPUnderPolicy(m.Proto == datapath.ProtoICMPv6, typ) {
				ps.warn(fat+".type", "%s has no effect: policy does not decide about ICMP errors, which pass if they are about a known connection, nor about"+
					" neighbour discovery and redirects, which never pass", clip(f.Type.Text))
			}
			out = append(out, m)
		}
	}
	return out
}

// validNamespace reports whether s is a DNS label (RFC 1123), as names of namespaces are.
func validNamespace(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
