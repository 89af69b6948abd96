// Package oracle evaluates single packets straight from the text of policy objects, in the most
// naive way: for each packet it reads every rule again. It shares no code with internal/policy,
// knows neither identities nor rule sets, and exists to be compared with: by the tests of the
// engine, and by the sandbox, which shows what should reach what beside what does.
//
// Of a Cilium policy that policy.Parse refuses because of its entries it knows what is in force:
// see refused.go. Its answers about other refused objects are meaningless, but it does not crash.
//
// The package is pure and safe for concurrent use.
package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
)

// Config is what besides the policies decides about a packet.
type Config struct {
	// Mode is "default" (or empty), "always" or "never".
	Mode                string
	ClusterName         string
	AllowLocalhost      bool
	DefaultLocalCluster bool
	AllowNonDefaultDeny bool
}

// Policy is a policy object; without a namespace it is clusterwide. With Network it is a
// NetworkPolicy of Kubernetes, with Cluster a ClusterNetworkPolicy, and has no Rules.
type Policy struct {
	Name      string
	Namespace string
	Rules     []*v2.Rule
	Network   *networkingv1.NetworkPolicySpec
	Cluster   *policyv1alpha2.ClusterNetworkPolicySpec
}

// FromObject returns the policy of a namespaced object.
func FromObject(p *v2.CiliumNetworkPolicy) Policy {
	return Policy{Name: p.Name, Namespace: p.Namespace, Rules: allRules(p.Spec, p.Specs)}
}

// FromClusterwide returns the policy of a clusterwide object.
func FromClusterwide(p *v2.CiliumClusterwideNetworkPolicy) Policy {
	return Policy{Name: p.Name, Rules: allRules(p.Spec, p.Specs)}
}

func allRules(spec *v2.Rule, specs []*v2.Rule) []*v2.Rule {
	if spec == nil {
		return specs
	}
	return append([]*v2.Rule{spec}, specs...)
}

// End is one end of a packet. With Labels it is an endpoint, a node or another reserved party, and
// Addr, its address, counts for an ipBlock only; without, it is the address Addr outside of the
// cluster.
type End struct {
	Labels labels.Set
	Addr   netip.Addr
	// NamedPorts are "name/PROTO/port", with protocol names as in policies.
	NamedPorts []string
}

// Verdict reports whether a new packet from one end to the other passes, and why. For ICMP (1) and
// ICMPv6 (58) port is the message type.
func Verdict(cfg Config, policies []Policy, from, to End, proto uint8, port uint16) (allowed bool, why string) {
	out, whyOut := Side(cfg, policies, false, from, to, proto, port)
	in, whyIn := Side(cfg, policies, true, to, from, proto, port)
	switch {
	case !out:
		return false, "egress: " + whyOut
	case !in:
		return false, "ingress: " + whyIn
	}
	return true, "egress: " + whyOut + "; ingress: " + whyIn
}

// Side evaluates one direction: ingress is the packet's arrival at self from other, otherwise its
// departure from self to other.
func Side(cfg Config, policies []Policy, ingress bool, self, other End, proto uint8, port uint16) (allowed bool, why string) {
	if !isEndpoint(self) {
		return true, "not an endpoint"
	}
	if cfg.Mode == "never" {
		return true, "mode never"
	}
	switch action, by := tierVerdict(cfg, policies, policyv1alpha2.AdminTier, ingress, self, other, proto, port); action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return true, "accepted by " + by
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		return false, "denied by " + by
	}
	// enforced is by a rule; otherwise is by something else, which leaves room for the baseline.
	enforced, otherwise, denied, permitted := "", "", "", ""
	if cfg.Mode == "always" {
		otherwise = "mode always"
	} else if self.Labels.HasReserved("init") {
		otherwise = "no labels yet"
	}
	for _, p := range policies {
		if p.Cluster != nil {
			continue
		}
		if p.Network != nil {
			isolates, permits := networkSide(cfg, p, ingress, self, other, proto, port)
			if isolates && enforced == "" {
				enforced = p.Name
			}
			if permits && permitted == "" {
				permitted = p.Name
			}
			continue
		}
		for i, r := range p.Rules {
			if r == nil || r.EndpointSelector == nil || !selectsSubject(p, *r.EndpointSelector, self) {
				continue
			}
			name := fmt.Sprintf("%s rule %d", p.Name, i)
			if enforced == "" && defaultDeny(cfg, r, ingress) {
				enforced = name
			}
			for _, c := range clauses(r, ingress) {
				peerOK := c.allPeers
				for _, peer := range c.peers {
					peerOK = peerOK || peer(cfg, p, other)
				}
				named := self.NamedPorts
				if !ingress {
					named = other.NamedPorts
				}
				matches := peerOK && c.portMatches(proto, port, named, false)
				// What may be meant by a deny is denied, whatever the names of its ports.
				if c.deny && (c.pods || c.allPeers) && unlabelled(other) {
					matches = matches || c.portMatches(proto, port, named, !ingress)
				}
				if !matches {
					continue
				}
				if c.deny && denied == "" {
					denied = name
				} else if !c.deny && permitted == "" {
					permitted = name
				}
			}
		}
	}
	if permitted == "" && ingress && cfg.AllowLocalhost && other.Labels.HasReserved("host") {
		permitted = "allow-localhost"
	}
	switch {
	case denied != "":
		return false, "denied by " + denied
	case permitted != "":
		return true, "allowed by " + permitted
	case enforced != "":
		return false, "nothing allows it; enforced by " + enforced
	}
	switch action, by := tierVerdict(cfg, policies, policyv1alpha2.BaselineTier, ingress, self, other, proto, port); action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return true, "accepted by " + by
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		return false, "denied by " + by
	}
	if otherwise != "" {
		return false, "nothing allows it; enforced by " + otherwise
	}
	return true, "not enforced"
}

// isEndpoint: pods, unlabelled pods, and the network's own health and ingress endpoints.
func isEndpoint(e End) bool {
	if len(e.Labels) == 0 {
		return false
	}
	for _, name := range []string{"host", "remote-node", "kube-apiserver", "unmanaged", "world", "world-ipv4", "world-ipv6", "unknown"} {
		if e.Labels.HasReserved(name) {
			return false
		}
	}
	return true
}

func defaultDeny(cfg Config, r *v2.Rule, ingress bool) bool {
	var chosen *bool
	if d := r.EnableDefaultDeny; d != nil {
		if ingress {
			chosen = d.Ingress
		} else {
			chosen = d.Egress
		}
	}
	entries := len(r.Egress)+len(r.EgressDeny) > 0
	if ingress {
		entries = len(r.Ingress)+len(r.IngressDeny) > 0
	}
	switch {
	case chosen == nil:
		return entries
	case cfg.AllowNonDefaultDeny:
		return *chosen
	}
	return *chosen || entries
}

// selectsSubject: a policy of a namespace selects nothing outside of it.
func selectsSubject(p Policy, sel v2.LabelSelector, self End) bool {
	if p.Namespace == "" {
		return selectorMatches(sel, self.Labels)
	}
	if self.Labels.Value("k8s", "io.kubernetes.pod.namespace") != p.Namespace {
		return false
	}
	// That it names another one is not counted.
	own := v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{}}
	isNamespace := func(key string) bool {
		return key == "io.kubernetes.pod.namespace" || key == "k8s:io.kubernetes.pod.namespace" || key == "any:io.kubernetes.pod.namespace"
	}
	for k, v := range sel.MatchLabels {
		if !isNamespace(k) {
			own.MatchLabels[k] = v
		}
	}
	for _, x := range sel.MatchExpressions {
		one := x.Operator == "In" && !slices.ContainsFunc(x.Values, func(v string) bool { return v != x.Values[0] })
		if !isNamespace(x.Key) || !one {
			own.MatchExpressions = append(own.MatchExpressions, x)
		}
	}
	return selectorMatches(own, self.Labels)
}

// selectorMatches evaluates a label selector without any scope.
func selectorMatches(sel v2.LabelSelector, set labels.Set) bool {
	for k, v := range sel.MatchLabels {
		if got, ok := lookup(set, k); !ok || got != string(v) {
			return false
		}
	}
	for _, x := range sel.MatchExpressions {
		got, ok := lookup(set, x.Key)
		in := ok && slices.Contains(x.Values, got)
		holds := map[string]bool{"In": in, "NotIn": !in, "Exists": ok, "DoesNotExist": !ok}[x.Operator]
		if !holds {
			return false
		}
	}
	return true
}

// lookup finds a label by "source:key" or "key".
func lookup(set labels.Set, name string) (string, bool) {
	source, key, ok := strings.Cut(name, ":")
	if !ok {
		source, key = "any", name
	}
	for _, l := range set {
		if l.Key == key && (source == "any" || source == l.Source) {
			return l.Value, true
		}
	}
	if name == "reserved:world" && (set.HasReserved("world-ipv4") || set.HasReserved("world-ipv6")) {
		return "", true
	}
	return "", false
}

// namesReserved reports whether a selector mentions the label, or any reserved label if name is
// empty.
func namesReserved(sel v2.LabelSelector, name string) bool {
	is := func(key string) bool {
		return strings.HasPrefix(key, "reserved:") && (name == "" || key == "reserved:"+name)
	}
	for k := range sel.MatchLabels {
		if is(k) {
			return true
		}
	}
	return slices.ContainsFunc(sel.MatchExpressions, func(x v2.LabelSelectorRequirement) bool { return is(x.Key) })
}

// clause is an entry of a rule's lists, with the two directions made alike.
type clause struct {
	deny     bool
	allPeers bool
	peers    []func(Config, Policy, End) bool
	pods     bool // peers are about pods, by labels or as members of the cluster
	anything bool // whatever the protocol and port
	toPorts  []v2.PortRule
	icmps    []v2.ICMPRule
}

// entry is one of any of the four lists.
type entry struct {
	deny     bool
	eps      []v2.LabelSelector
	cidrs    []string
	sets     []v2.CIDRRule
	entities []string
	toPorts  []v2.PortRule
	icmps    []v2.ICMPRule
	beyond   beyond
}

func clauses(r *v2.Rule, ingress bool) (out []clause) {
	for _, e := range entries(r, ingress) {
		out = append(out, e.clause(r))
	}
	return out
}

func entries(r *v2.Rule, ingress bool) (out []entry) {
	if ingress {
		of := func(deny bool, x v2.IngressRule) entry {
			return entry{deny, x.FromEndpoints, x.FromCIDR, x.FromCIDRSet, x.FromEntities, x.ToPorts, x.ICMPs,
				beyond{restricted: x.Authentication != nil || len(x.FromRequires) > 0, lists: present(x.FromNodes != nil)}}
		}
		for _, x := range r.Ingress {
			out = append(out, of(false, x))
		}
		for _, x := range r.IngressDeny {
			out = append(out, of(true, x.Entry()))
		}
		return out
	}
	of := func(deny bool, x v2.EgressRule) entry {
		return entry{deny, x.ToEndpoints, x.ToCIDR, x.ToCIDRSet, x.ToEntities, x.ToPorts, x.ICMPs,
			beyond{restricted: x.Authentication != nil || len(x.ToRequires) > 0, lists: present(x.ToNodes != nil, x.ToServices != nil, x.ToFQDNs != nil)}}
	}
	for _, x := range r.Egress {
		out = append(out, of(false, x))
	}
	for _, x := range r.EgressDeny {
		out = append(out, of(true, x.Entry()))
	}
	return out
}

func (x entry) clause(r *v2.Rule) clause {
	c := clause{deny: x.deny, anything: len(x.toPorts)+len(x.icmps) == 0, toPorts: x.toPorts, icmps: x.icmps}
	absent := x.eps == nil && x.cidrs == nil && x.sets == nil && x.entities == nil && x.beyond.lists == 0
	// An empty entry matches nothing.
	c.allPeers = absent && !c.anything
	empty := x.eps != nil && len(x.eps) == 0 || x.cidrs != nil && len(x.cidrs) == 0 || x.sets != nil && len(x.sets) == 0 || x.entities != nil && len(x.entities) == 0
	if !empty { // an empty list matches nothing, whatever else is set
		for _, s := range x.eps {
			c.peers = append(c.peers, func(cfg Config, p Policy, e End) bool {
				everywhere := p.Namespace == "" && namesReserved(*r.EndpointSelector, "init")
				return endpointPeer(cfg, p, s, e, everywhere)
			})
			c.pods = c.pods || aboutPods(s)
		}
		for _, s := range x.cidrs {
			c.peers = append(c.peers, func(_ Config, _ Policy, e End) bool { return cidrPeer(s, nil, e) })
		}
		for _, s := range x.sets {
			if s.CIDRGroupRef == "" {
				c.peers = append(c.peers, func(_ Config, _ Policy, e End) bool { return cidrPeer(s.CIDR, s.Except, e) })
			}
		}
		for _, s := range x.entities {
			c.peers = append(c.peers, func(cfg Config, _ Policy, e End) bool { return entityPeer(cfg, s, e) })
			c.pods = c.pods || s == "all" || s == "cluster" || s == "cluster-mesh"
		}
	}
	return x.refused(c)
}

// aboutPods: what a selector says of reserved labels holds for pods, which have none.
func aboutPods(sel v2.LabelSelector) bool {
	reserved := v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{}}
	for k, v := range sel.MatchLabels {
		if strings.HasPrefix(k, "reserved:") {
			reserved.MatchLabels[k] = v
		}
	}
	for _, x := range sel.MatchExpressions {
		if strings.HasPrefix(x.Key, "reserved:") {
			reserved.MatchExpressions = append(reserved.MatchExpressions, x)
		}
	}
	return selectorMatches(reserved, nil)
}

// unlabelled: a pod whose labels are not known, which may be the very one that a deny is about.
func unlabelled(e End) bool {
	return e.Labels.HasReserved("init") || e.Labels.HasReserved("unmanaged") || e.Labels.HasReserved("unobserved")
}

// otherThanReserved reports whether a selector is about labels that are not reserved.
func otherThanReserved(sel v2.LabelSelector) bool {
	for k := range sel.MatchLabels {
		if !strings.HasPrefix(k, "reserved:") {
			return true
		}
	}
	return slices.ContainsFunc(sel.MatchExpressions, func(x v2.LabelSelectorRequirement) bool { return !strings.HasPrefix(x.Key, "reserved:") })
}

// endpointPeer: a selector of peers, in the scope that the policy gives it, or in none.
func endpointPeer(cfg Config, p Policy, sel v2.LabelSelector, e End, everywhere bool) bool {
	set := e.Labels
	if len(set) == 0 { // outside: all that is known of it is that it is the world
		set = labels.NewSet(labels.Reserved("world-ipv4"))
		if e.Addr.Is6() {
			set = labels.NewSet(labels.Reserved("world-ipv6"))
		}
	}
	if !selectorMatches(sel, set) {
		return false
	}
	if set.HasReserved("unobserved") && otherThanReserved(sel) {
		return false // it may have any labels
	}
	if everywhere || namesReserved(sel, "") {
		return true
	}
	namespace, namespaceLabel, cluster := false, false, false
	note := func(name string) {
		source, key, ok := strings.Cut(name, ":")
		if !ok {
			source, key = "any", name
		}
		if source == "any" || source == "k8s" {
			namespace = namespace || key == "io.kubernetes.pod.namespace"
			namespaceLabel = namespaceLabel || strings.HasPrefix(key, "io.cilium.k8s.namespace.labels.")
			cluster = cluster || key == "io.cilium.k8s.policy.cluster"
		}
	}
	for k := range sel.MatchLabels {
		note(k)
	}
	for _, x := range sel.MatchExpressions {
		note(x.Key)
	}
	if !namespace {
		has := set.Has("k8s", "io.kubernetes.pod.namespace")
		if p.Namespace != "" && !namespaceLabel {
			has = has && set.Value("k8s", "io.kubernetes.pod.namespace") == p.Namespace
		}
		if !has {
			return false
		}
	}
	if !cluster && cfg.DefaultLocalCluster && cfg.ClusterName != "" {
		return set.Value("k8s", "io.cilium.k8s.policy.cluster") == cfg.ClusterName
	}
	return true
}

// cidrPeer: prefixes match addresses outside the cluster only.
func cidrPeer(cidr string, except []string, e End) bool {
	if len(e.Labels) > 0 || !inPrefix(cidr, e.Addr) {
		return false
	}
	for _, x := range except {
		if inPrefix(x, e.Addr) {
			return false
		}
	}
	return true
}

func inPrefix(s string, a netip.Addr) bool {
	if !strings.Contains(s, "/") {
		addr, err := netip.ParseAddr(s)
		return err == nil && addr == a
	}
	p, err := netip.ParsePrefix(s)
	return err == nil && p.Contains(a)
}

func entityPeer(cfg Config, entity string, e End) bool {
	outside := len(e.Labels) == 0
	switch entity {
	case "all":
		return true
	case "none":
		return false
	case "world":
		return outside || e.Labels.HasReserved("world") || e.Labels.HasReserved("world-ipv4") || e.Labels.HasReserved("world-ipv6")
	case "world-ipv4":
		return outside && e.Addr.Is4() || e.Labels.HasReserved(entity)
	case "world-ipv6":
		return outside && e.Addr.Is6() || e.Labels.HasReserved(entity)
	case "cluster", "cluster-mesh":
		for _, name := range []string{"host", "remote-node", "init", "ingress", "health", "unmanaged", "kube-apiserver"} {
			if e.Labels.HasReserved(name) {
				return true
			}
		}
		has := e.Labels.Has("k8s", "io.cilium.k8s.policy.cluster")
		if entity == "cluster" {
			return has && e.Labels.Value("k8s", "io.cilium.k8s.policy.cluster") == cfg.ClusterName
		}
		return has
	}
	return e.Labels.HasReserved(entity)
}

// portMatches: anyName if the peer may have any names of ports.
func (c clause) portMatches(proto uint8, port uint16, named []string, anyName bool) bool {
	if c.anything {
		return true
	}
	for _, pr := range c.toPorts {
		if layer7(pr) {
			continue
		}
		for _, p := range pr.Ports {
			if portMatches(p, proto, port, named, anyName) {
				return true
			}
		}
	}
	for _, ic := range c.icmps {
		for _, f := range ic.Fields {
			want := uint8(1)
			if f.Family == "IPv6" {
				want = 58
			}
			if proto == want && f.Type != nil && icmpType(want, f.Type.Text) == int(port) {
				return true
			}
		}
	}
	return false
}

func portMatches(p v2.PortProtocol, proto uint8, port uint16, named []string, anyName bool) bool {
	names := map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}
	anyProto := p.Protocol == "" || p.Protocol == "ANY"
	if names[proto] == "" || !anyProto && names[proto] != p.Protocol || unreadable(p) {
		return false
	}
	if p.Port == "0" {
		return true
	}
	n, err := strconv.Atoi(p.Port)
	if err != nil {
		return anyName || slices.Contains(named, fmt.Sprintf("%s/%s/%d", strings.ToLower(p.Port), names[proto], port))
	}
	last := n
	if p.EndPort != 0 {
		last = int(p.EndPort)
	}
	return int(port) >= n && int(port) <= last
}

// icmpType returns the number of a message type, -1 if the name is not known. Only the names that
// people use daily are known here.
func icmpType(proto uint8, s string) int {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	v4 := map[string]int{"EchoReply": 0, "DestinationUnreachable": 3, "Echo": 8, "EchoRequest": 8, "TimeExceeded": 11}
	v6 := map[string]int{"DestinationUnreachable": 1, "PacketTooBig": 2, "TimeExceeded": 3, "EchoRequest": 128, "EchoReply": 129}
	m := v4
	if proto == 58 {
		m = v6
	}
	if n, ok := m[s]; ok {
		return n
	}
	return -1
}
