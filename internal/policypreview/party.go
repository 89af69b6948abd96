package policypreview

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	flowpb "github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// names has the workloads of identities, as flows name them.
type names map[identity.ID]string

// note remembers the workload at an end of a flow.
func (n names) note(e *flowpb.Endpoint) {
	if w := e.GetWorkloads(); len(w) > 0 && w[0].GetName() != "" {
		n[identity.ID(e.GetIdentity())] = w[0].GetName()
	}
}

// party describes an identity.
func (j *evaluator) party(id identity.ID, workloads names) *policypb.Party {
	set := j.labelsOf(id)
	p := &policypb.Party{Identity: uint32(id), Labels: set.Strings()}
	if prefix, ok := identity.CIDRPrefix(set); ok {
		p.Kind, p.Name = policypb.PartyKind_PARTY_CIDR, prefix.String()
		return p
	}
	if ns := set.Value(labels.SourceK8s, labels.KeyNamespace); ns != "" {
		p.Kind, p.Namespace = policypb.PartyKind_PARTY_PODS, ns
		p.Name = cmp.Or(workloads[id], j.nameOf(id, set))
		if c := set.Value(labels.SourceK8s, labels.KeyCluster); c != j.snap.Config.ClusterName {
			p.Cluster = c
		}
		return p
	}
	p.Kind, p.Name = policypb.PartyKind_PARTY_ENTITY, id.String()
	if !slices.ContainsFunc(set, func(l labels.Label) bool { return l.Source == labels.SourceReserved }) {
		p.Kind, p.Name = policypb.PartyKind_PARTY_PODS, j.nameOf(id, set)
	}
	return p
}

// namesakes are identities whose labels call their pods alike.
type namesakes struct {
	n int
	// labels counts those with each of the pods' own labels; nil if there is only one.
	labels map[string]int
}

// nameKey is what is alike of namesakes.
func nameKey(set labels.Set) string {
	return set.Value(labels.SourceK8s, labels.KeyCluster) + "/" + set.Value(labels.SourceK8s, labels.KeyNamespace) + "/" + nameOf(set)
}

// nameOf is what labels call pods, with those labels that distinguish them from others of that
// name.
func (j *evaluator) nameOf(id identity.ID, set labels.Set) string {
	if j.names == nil {
		j.names = map[string]*namesakes{}
		for _, s := range j.snap.Identities {
			if s.Value(labels.SourceK8s, labels.KeyNamespace) == "" {
				continue
			}
			key := nameKey(s)
			if j.names[key] == nil {
				j.names[key] = &namesakes{}
			}
			j.names[key].n++
		}
		for _, s := range j.snap.Identities {
			all := j.names[nameKey(s)]
			if all == nil || all.n == 1 {
				continue
			}
			if all.labels == nil {
				all.labels = map[string]int{}
			}
			for _, l := range ownLabels(s) {
				all.labels[l.Key+"="+l.Value]++
			}
		}
	}
	all := j.names[nameKey(set)]
	if all == nil || all.n == 1 {
		return nameOf(set)
	}
	return apart(id, set, func(label string) bool { return all.labels[label] < all.n })
}

// apart is what labels call pods, with those labels that differ, or with some of them and the
// identity.
func apart(id identity.ID, set labels.Set, differs func(label string) bool) string {
	var own []string
	for _, l := range ownLabels(set) {
		if text := l.Key + "=" + l.Value; differs(text) {
			own = append(own, text)
		}
	}
	if len(own) == 0 {
		return nameOf(set)
	}
	if len(own) > maxNameLabels {
		own = append(own[:maxNameLabels], "…", "identity "+strconv.FormatUint(uint64(id), 10))
	}
	return nameOf(set) + " (" + strings.Join(own, ", ") + ")"
}

// namedFor is what labels call pods, distinguished from others of that name.
func namedFor(x, than *explained) string {
	set, other := x.set, than.set
	if nameKey(set) != nameKey(other) {
		return nameOf(set)
	}
	theirs := map[string]bool{}
	for _, l := range ownLabels(other) {
		theirs[l.Key+"="+l.Value] = true
	}
	return apart(x.Identity, set, func(label string) bool { return !theirs[label] })
}

// maxNameLabels is how many labels a name has at most.
const maxNameLabels = 3

// nameOf is what labels call pods: by those that are customary, else the first of the pods' own.
func nameOf(set labels.Set) string {
	for _, key := range []string{"app.kubernetes.io/name", "k8s-app", "app", "name", "run"} {
		if l, ok := set.Get(key); ok && l.Value != "" {
			return l.Value
		}
	}
	var own []string
	for _, l := range ownLabels(set) {
		own = append(own, l.Key+"="+l.Value)
	}
	if len(own) > maxNameLabels {
		own = append(own[:maxNameLabels], "…")
	}
	return cmp.Or(strings.Join(own, ","), "(no labels)")
}

// ownLabels are those of the pods themselves: not of their namespace, account or cluster.
func ownLabels(set labels.Set) (out []labels.Label) {
	for _, l := range set {
		if l.Source == labels.SourceReserved || labels.Owned(l.Key) || strings.HasPrefix(l.Key, labels.KeyNamespaceLabels) ||
			slices.Contains([]string{labels.KeyNamespace, labels.KeyServiceAccount, labels.KeyCluster, labels.KeyNamedPorts}, l.Key) {
			continue
		}
		out = append(out, l)
	}
	return out
}

func nameMessage(n policy.Name) *policypb.PolicyName {
	return &policypb.PolicyName{Kind: n.Kind, Namespace: n.Namespace, Name: n.Name}
}

// maxNamed is how many policies are named in one place.
const maxNamed = 16

func ownerNames(owners []policy.Owner) (out []*policypb.PolicyName) {
	for _, o := range owners[:min(len(owners), maxNamed)] {
		out = append(out, nameMessage(o.Policy()))
	}
	return out
}

// protocolName is a protocol as flows call it.
func protocolName(proto uint8) string {
	if proto == datapath.ProtoICMP {
		return "ICMPv4"
	}
	return datapath.ProtoName(proto)
}

func ranges(list []policy.PortMatch) (out []*policypb.PortRange) {
	for _, m := range list {
		out = append(out, &policypb.PortRange{Protocol: protocolName(m.Proto), First: uint32(m.First), Last: uint32(m.Last)})
	}
	return out
}

func verdictOf(passes bool) policypb.Verdict {
	if passes {
		return policypb.Verdict_ALLOWED
	}
	return policypb.Verdict_DENIED
}
