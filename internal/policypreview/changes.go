package policypreview

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policydir"
)

// Bounds of what is asked about.
const (
	// MaxDocuments is the size of all documents together in bytes.
	MaxDocuments = 256 << 10
	maxTexts     = 256
	maxDeletes   = 1024
	maxPolicies  = 1024
	// maxKeys and maxSelectors are how much of each all documents have: see [policy.Size].
	maxKeys      = 16 << 10
	maxSelectors = 1 << 10
	// maxSelected is how many selectors times identities, maxEntries how many keys of peers times
	// identities there are: what one endpoint's rule set may come to. A kernel takes far less.
	maxSelected = 2 << 20
	maxEntries  = 16 << 20
)

// changes is what is asked about.
type changes struct {
	rules    []policy.Change
	applied  []*policypb.PolicyChange
	warnings []string
	// other are the rules that are not in force already.
	other []*policy.Rule
	// given has the documents that were given, by the owner of their rules.
	given map[policy.Owner]given
	// groups are the policies whose groups change or go.
	groups []regrouped
}

// given is where a policy is in what was given.
type given struct {
	document string
	lines    map[string]int
}

// places returns where rules are: in what was given, else where the node has them.
func (c *changes) places(otherwise places) places {
	return func(o policy.Owner, path string) (string, int) {
		if g, ok := c.given[o]; ok {
			return g.document, g.lines[path]
		}
		return otherwise(o, path)
	}
}

// newChanges reads what is asked about. Errors name the document and the line.
func newChanges(req *policypb.PreviewRequest, inForce map[policy.Owner][]*policy.Rule) (*changes, error) {
	size := 0
	for _, d := range req.GetDocuments() {
		size += len(d.GetContent())
	}
	switch {
	case size > MaxDocuments:
		return nil, fmt.Errorf("the documents have %d bytes together; up to %d are evaluated at once", size, MaxDocuments)
	case len(req.GetDocuments()) > maxTexts || len(req.GetDelete()) > maxDeletes:
		return nil, fmt.Errorf("%d documents and %d policies to delete are too many; up to %d and %d are evaluated at once", len(req.GetDocuments()), len(req.GetDelete()), maxTexts, maxDeletes)
	}
	owners := map[policy.Name][]policy.Owner{}
	for _, o := range slices.Sorted(maps.Keys(inForce)) {
		owners[o.Policy()] = append(owners[o.Policy()], o)
	}
	c := &changes{given: map[policy.Owner]given{}}
	var errs []error
	names := map[policy.Name]string{}
	for i, d := range req.GetDocuments() {
		name := cmp.Or(d.GetName(), fmt.Sprintf("document %d", i+1))
		docs, err := policydir.Documents(d.GetContent())
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		for _, doc := range docs {
			if before, ok := names[doc.Name]; ok {
				errs = append(errs, fmt.Errorf("%s: line %d: %s is in %s too", name, doc.Line, doc.Name, before))
				continue
			}
			names[doc.Name] = name
			if o := owners[doc.Name]; len(groupsOf(doc.Rules)) > 0 && len(o) > 0 && !ofKubernetes(o[0]) {
				errs = append(errs, fmt.Errorf("%s: line %d: %s is in a file of the nodes, where fromGroups and toGroups are not supported", name, doc.Line, doc.Name))
				continue
			}
			c.add(name, doc, owners[doc.Name], inForce)
		}
	}
	for _, d := range req.GetDelete() {
		errs = append(errs, c.delete(policy.Name{Kind: d.GetKind(), Namespace: d.GetNamespace(), Name: d.GetName()}, owners, names))
	}
	c.deleteDerived(owners, names)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	switch {
	case len(c.applied) == 0:
		return nil, errors.New("there is no policy in what was given, and none to delete")
	case len(c.applied) > maxPolicies:
		return nil, fmt.Errorf("there are %d policies; up to %d are evaluated at once", len(c.applied), maxPolicies)
	}
	return c, nil
}

// add notes a policy that is added, or that replaces those with its name.
func (c *changes) add(document string, doc policydir.Document, replaced []policy.Owner, inForce map[policy.Owner][]*policy.Rule) {
	ch := &policypb.PolicyChange{Policy: nameMessage(doc.Name), Action: policypb.ChangeAction_ADDED, Document: document, Line: uint32(doc.Line)}
	owner := ownerOf(doc.Name)
	if len(replaced) > 0 {
		ch.Action, owner = policypb.ChangeAction_REPLACED, replaced[0]
		if len(replaced) == 1 && reflect.DeepEqual(inForce[owner], doc.Rules) {
			ch.Action = policypb.ChangeAction_UNCHANGED
		}
		for _, o := range replaced[1:] {
			c.rules = append(c.rules, policy.Change{Owner: o})
		}
	}
	c.rules = append(c.rules, policy.Change{Owner: owner, Rules: doc.Rules})
	c.given[owner] = given{document, doc.Lines}
	c.applied = append(c.applied, ch)
	if ch.Action != policypb.ChangeAction_UNCHANGED {
		c.other = append(c.other, doc.Rules...)
	}
	at := fmt.Sprintf("%s: line %d", document, doc.Line)
	for _, w := range policy.Warnings(doc.Rules) {
		c.warnings = append(c.warnings, at+": "+w)
	}
	var before []string
	for _, o := range replaced {
		before = append(before, groupsOf(inForce[o])...)
	}
	if now := groupsOf(doc.Rules); !slices.Equal(before, now) {
		c.groups = append(c.groups, regrouped{doc.Name, at, len(now) > 0})
		if len(now) > 0 {
			c.warnings = append(c.warnings, at+": the members of groups are not looked up: what they will be allowed counts as refused")
		}
	}
}

// ownerOf is the owner of a policy that does not exist yet, as of a Kubernetes object.
func ownerOf(n policy.Name) policy.Owner {
	if n.Namespace == "" {
		return policy.Owner("k8s/" + n.Kind + "/" + n.Name)
	}
	return policy.Owner("k8s/" + n.Kind + "/" + n.Namespace + "/" + n.Name)
}

// delete notes a policy that goes.
func (c *changes) delete(name policy.Name, owners map[policy.Name][]policy.Owner, given map[policy.Name]string) error {
	var found []policy.Name
	for n := range owners {
		if n.Name == name.Name && n.Namespace == name.Namespace && (name.Kind == "" || name.Kind == n.Kind) {
			found = append(found, n)
		}
	}
	switch {
	case len(found) == 0:
		return fmt.Errorf("delete: there is no policy %q in force; name one as namespace/name, or name for one of the whole cluster", qualified(name))
	case len(found) > 1:
		return fmt.Errorf("delete: %q names policies of several kinds; name one as kind/namespace/name", qualified(name))
	case given[found[0]] != "":
		return fmt.Errorf("delete: %s is in %s too", found[0], given[found[0]])
	}
	for _, o := range owners[found[0]] {
		c.rules = append(c.rules, policy.Change{Owner: o})
	}
	c.applied = append(c.applied, &policypb.PolicyChange{Policy: nameMessage(found[0]), Action: policypb.ChangeAction_DELETED})
	c.groups = append(c.groups, regrouped{name: found[0]})
	return nil
}

func qualified(n policy.Name) string {
	text := n.Name
	if n.Namespace != "" {
		text = n.Namespace + "/" + text
	}
	if n.Kind != "" {
		text = n.Kind + "/" + text
	}
	return text
}
