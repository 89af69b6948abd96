package groups

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
)

// maxMembers bounds the addresses of one policy's groups: an object of Kubernetes holds about 1 MB.
const maxMembers = 10_000

// maxGroups bounds the groups that one policy may name: each costs calls of the account.
const maxGroups = 64

// Members are the addresses of a group's members, sorted.
type Members []netip.Addr

// lookup returns the members of a group.
type lookup func(v2.Group) (Members, error)

// named reports whether any entry that allows names groups.
func named(rules []*v2.Rule) bool {
	return slices.ContainsFunc(rules, func(r *v2.Rule) bool {
		return slices.ContainsFunc(r.Ingress, func(e v2.IngressRule) bool { return e.FromGroups != nil }) ||
			slices.ContainsFunc(r.Egress, func(e v2.EgressRule) bool { return e.ToGroups != nil })
	})
}

// understood returns a function that reports whether an entry is understood as a whole: parsing the
// policy found no fault in it, in its rule, or in the object outside of entries.
func understood(refused error) func(rule, entry string) bool {
	if refused == nil {
		return func(string, string) bool { return true }
	}
	fields, known := faultyFields(refused)
	return func(rule, entry string) bool {
		return known && !slices.ContainsFunc(fields, func(f string) bool {
			ofEntry := slices.ContainsFunc([]string{".ingress[", ".ingressDeny[", ".egress[", ".egressDeny["}, func(section string) bool {
				return strings.Contains(f, section)
			})
			if !ofEntry {
				return !strings.HasPrefix(f, "spec") || f == "specs" || under(f, rule)
			}
			return under(f, entry)
		})
	}
}

// under reports whether a field is the one at path or a part of it.
func under(field, path string) bool {
	rest, ok := strings.CutPrefix(field, path)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// faultyFields returns the fields that an error names; ok is false if it has parts that name none.
func faultyFields(err error) (fields []string, ok bool) {
	if list, many := err.(interface{ Unwrap() []error }); many {
		ok = true
		for _, err := range list.Unwrap() {
			more, known := faultyFields(err)
			fields, ok = append(fields, more...), ok && known
		}
		return fields, ok
	}
	var fe *policy.FieldError
	if errors.As(err, &fe) {
		return []string{fe.Field}, true
	}
	return nil, false
}

// derive returns the rules of the derivative policy: the entries of rules that name groups, with
// their members instead. A group that cannot be looked up has no members; the error names it. So it
// is with groups beyond maxGroups. Rules must be valid.
func derive(rules []*v2.Rule, find lookup) ([]*v2.Rule, error) {
	var out []*v2.Rule
	var errs []error
	left := maxMembers
	seen := map[string]bool{} // whether it is looked up
	members := func(at string, groups []v2.Group) []v2.CIDRRule {
		list := []v2.CIDRRule{} // present, and without members
		var all Members
		for i, g := range groups {
			k := key(g)
			look, counted := seen[k]
			if !counted {
				look = len(seen) < maxGroups
				seen[k] = look
			}
			if !look {
				continue
			}
			m, err := find(g)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s[%d]: %w", at, i, err))
			}
			all = append(all, m...)
		}
		slices.SortFunc(all, netip.Addr.Compare)
		all = slices.Compact(all)
		if len(all) > left {
			errs = append(errs, fmt.Errorf("%s: the groups of a policy may have %d members, these have more; none of them is allowed", at, maxMembers))
			return list
		}
		left -= len(all)
		for _, a := range all {
			list = append(list, v2.CIDRRule{CIDR: netip.PrefixFrom(a, a.BitLen()).String()})
		}
		return list
	}
	for n, r := range rules {
		d := &v2.Rule{EndpointSelector: r.EndpointSelector, Labels: r.Labels, Description: r.Description, EnableDefaultDeny: r.EnableDefaultDeny}
		for i, e := range r.Ingress {
			if e.FromGroups != nil {
				e.FromCIDRSet, e.FromGroups = members(fmt.Sprintf("rule %d: ingress[%d].fromGroups", n, i), e.FromGroups), nil
				d.Ingress = append(d.Ingress, e)
			}
		}
		for i, e := range r.Egress {
			if e.ToGroups != nil {
				e.ToCIDRSet, e.ToGroups = members(fmt.Sprintf("rule %d: egress[%d].toGroups", n, i), e.ToGroups), nil
				d.Egress = append(d.Egress, e)
			}
		}
		if len(d.Ingress)+len(d.Egress) > 0 {
			out = append(out, d)
		}
	}
	if len(seen) > maxGroups {
		errs = slices.Insert(errs, 0, fmt.Errorf("a policy may name %d groups, this one names %d; those beyond are allowed nothing", maxGroups, len(seen)))
	}
	return out, errors.Join(errs...)
}

// key is the same for groups that mean the same.
func key(g v2.Group) string {
	if g.AWS != nil {
		a := *g.AWS
		a.SecurityGroupsIDs = slices.Sorted(slices.Values(a.SecurityGroupsIDs))
		a.SecurityGroupsNames = slices.Sorted(slices.Values(a.SecurityGroupsNames))
		g.AWS = &a
	}
	text, err := json.Marshal(g) // maps are written in order
	if err != nil {
		return fmt.Sprint(g)
	}
	return string(text)
}
