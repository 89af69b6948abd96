package nodemanager

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Wish is where a node wants its new interfaces, in a cloud in which it may have more.
type Wish struct {
	// VPC, Zone and Subnet are the node's location according to its CiliumNode.
	VPC, Zone, Subnet string
	// IDs and Tags choose subnets; the fields are how the node's spec calls them.
	IDs                 []string
	Tags                map[string]string
	IDsField, TagsField string
	// Groups and GroupTags choose security groups.
	Groups    []string
	GroupTags map[string]string
}

// Place sets Choice, Chosen and Groups. Subnets are those named, else those with the tags, else the
// one that the node is in, as far as they are allowed: an interface can only be attached within its
// zone. Security groups are those named, else those with the tags, else those of the first
// interface.
func (v *View) Place(w Wish, s *Snapshot, allowed func(*Subnet) bool) {
	if len(v.Attached) > 0 {
		// The first interface's location is the cloud's data, and so authoritative.
		first := &v.Attached[0]
		w.VPC, w.Zone, w.Subnet, v.Groups = first.VPC, first.Zone, first.Subnet, first.Groups
	}
	ok := func(x *Subnet) bool { return x.ID == w.Subnet }
	v.Chosen = fmt.Sprintf("the node's subnet %s is not among those that the operator may use", w.Subnet)
	switch {
	case len(w.IDs) > 0:
		ok = func(x *Subnet) bool { return slices.Contains(w.IDs, x.ID) }
		v.Chosen = fmt.Sprintf("none of %s is in %s of %s", w.IDsField, w.Zone, w.VPC)
	case len(w.Tags) > 0:
		ok = func(x *Subnet) bool { return HasTags(x.Tags, w.Tags) }
		v.Chosen = fmt.Sprintf("none in %s of %s has the tags of %s", w.Zone, w.VPC, w.TagsField)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Subnets)) {
		if x := s.Subnets[id]; x.VPC == w.VPC && x.Zone == w.Zone && ok(&x) && allowed(&x) {
			v.Choice = append(v.Choice, id)
		}
	}
	switch {
	case len(w.Groups) > 0:
		v.Groups = w.Groups
	case len(w.GroupTags) > 0:
		v.Groups = nil
		for _, id := range slices.Sorted(maps.Keys(s.Groups)) {
			if g := s.Groups[id]; g.VPC == w.VPC && HasTags(g.Tags, w.GroupTags) {
				v.Groups = append(v.Groups, id)
			}
		}
	}
}

// Diff returns the merge patch that brings a status of interfaces by ID to what is attached: of
// makes the status of one, whole the patch of one that differs.
func Diff[T any](has map[string]T, attached []Interface, of func(*Interface) T, whole func(e, has T) any) map[string]any {
	diff, want := map[string]any{}, map[string]bool{}
	for k := range attached {
		id, e := attached[k].ID, of(&attached[k])
		want[id] = true
		if had, ok := has[id]; !ok || !equality.Semantic.DeepEqual(had, e) {
			diff[id] = whole(e, had)
		}
	}
	for id := range has {
		if !want[id] {
			diff[id] = nil
		}
	}
	return diff
}

// DiffTags returns the merge patch by which tags become want: a merge leaves what is absent.
func DiffTags(want, has map[string]string) map[string]any {
	tags := map[string]any{}
	for k := range has {
		tags[k] = nil
	}
	for k, v := range want {
		tags[k] = v
	}
	return tags
}
