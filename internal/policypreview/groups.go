package policypreview

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	policypb "github.com/hawser-net/hawser/api/policy"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
)

// regrouped is a policy whose groups of a cloud provider change or go.
type regrouped struct {
	name policy.Name
	// at is where it was given, and named whether it still names groups.
	at    string
	named bool
}

// groupsOf returns a text for each rule that allows groups: see [v2.MarkGroups].
func groupsOf(rules []*policy.Rule) (out []string) {
	for _, r := range rules {
		if l, ok := r.Labels.Get(v2.GroupsLabel); ok {
			out = append(out, l.Value)
		}
	}
	return out
}

// ofKubernetes reports whether a policy is an object of Kubernetes.
func ofKubernetes(o policy.Owner) bool { return strings.HasPrefix(string(o), "k8s/") }

// derived matches the name of a policy that the operator derives from another one's groups; see
// internal/operator/groups. It begins with the name of the other one, or its first bytes.
var derived = regexp.MustCompile(`^(.+)-togroups-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// derivedNames is how many bytes of that name there are at most.
const derivedNames = 253 - len("-togroups-01234567-89ab-cdef-0123-456789abcdef")

// deleteDerived takes away what is derived from groups that change or go: which members the new
// ones have only the operator finds out, so that nothing is allowed to any.
func (c *changes) deleteDerived(owners map[policy.Name][]policy.Owner, given map[policy.Name]string) {
	if len(c.groups) == 0 {
		return
	}
	of := map[policy.Name]regrouped{}
	for _, r := range c.groups {
		prefix := r.name
		prefix.Name = strings.TrimRight(prefix.Name[:min(len(prefix.Name), derivedNames)], "-.")
		of[prefix] = r
	}
	gone := map[policy.Owner]bool{}
	for _, ch := range c.rules {
		gone[ch.Owner] = gone[ch.Owner] || len(ch.Rules) == 0
	}
	for _, n := range slices.SortedFunc(maps.Keys(owners), func(a, b policy.Name) int { return strings.Compare(a.String(), b.String()) }) {
		m := derived.FindStringSubmatch(n.Name)
		if m == nil || given[n] != "" || gone[owners[n][0]] {
			continue
		}
		r, ok := of[policy.Name{Kind: n.Kind, Namespace: n.Namespace, Name: m[1]}]
		if !ok {
			continue
		}
		for _, o := range owners[n] {
			c.rules = append(c.rules, policy.Change{Owner: o})
		}
		if r.named { // the operator makes another one of it
			c.warnings = append(c.warnings, fmt.Sprintf("%s: the groups change: what %s allows their members now counts as refused", r.at, n))
			continue
		}
		c.applied = append(c.applied, &policypb.PolicyChange{Policy: nameMessage(n), Action: policypb.ChangeAction_DELETED})
	}
}
