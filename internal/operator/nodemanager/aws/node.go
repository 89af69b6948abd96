package aws

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// Instance implements [nodemanager.Provider].
func (p *Provider) Instance(n *v2.CiliumNode) string { return n.Spec.InstanceID }

// InstanceType implements [nodemanager.Provider].
func (p *Provider) InstanceType(n *v2.CiliumNode) string { return n.Spec.ENI.InstanceType }

// Describe implements [nodemanager.Provider].
func (p *Provider) Describe(n *v2.CiliumNode, s *nodemanager.Snapshot, v *nodemanager.View) {
	spec := &n.Spec.ENI
	if spec.FirstInterfaceIndex != nil {
		v.First = *spec.FirstInterfaceIndex
	}
	v.Exclude = spec.ExcludeInterfaceTags
	v.UsePrimary = p.cfg.UsePrimary
	if spec.UsePrimaryAddress != nil {
		v.UsePrimary = *spec.UsePrimaryAddress
	}
	v.Prefixes = p.cfg.PrefixDelegation && (spec.DisablePrefixDelegation == nil || !*spec.DisablePrefixDelegation)
	v.KeepOnTermination = spec.DeleteOnTermination != nil && !*spec.DeleteOnTermination
	vpc, zone, subnet := spec.VpcID, spec.AvailabilityZone, spec.NodeSubnetID
	var groups []string
	if len(v.Attached) > 0 {
		// What the first interface says is the cloud's word: the node cannot be elsewhere.
		first := &v.Attached[0]
		vpc, zone, subnet, groups = first.VPC, first.Zone, first.Subnet, first.Groups
	}
	v.Choice, v.Chosen = p.cfg.chooseSubnets(spec, s, vpc, zone, subnet)
	v.Groups = chooseGroups(spec, s, vpc, groups)
}

// chooseSubnets returns the subnets for new interfaces: those named, else those with the tags, else
// the one that the node is in. An interface can only be attached within its zone.
func (c *Config) chooseSubnets(spec *v2.ENISpec, s *nodemanager.Snapshot, vpc, zone, own string) (ids []string, how string) {
	ok := func(x nodemanager.Subnet) bool { return x.ID == own }
	how = fmt.Sprintf("the node's subnet %s is not among those that the operator may use", own)
	switch {
	case len(spec.SubnetIDs) > 0:
		ok = func(x nodemanager.Subnet) bool { return slices.Contains(spec.SubnetIDs, x.ID) }
		how = fmt.Sprintf("none of spec.eni.subnet-ids is in %s of %s", zone, vpc)
	case len(spec.SubnetTags) > 0:
		ok = func(x nodemanager.Subnet) bool { return nodemanager.HasTags(x.Tags, spec.SubnetTags) }
		how = fmt.Sprintf("none in %s of %s has the tags of spec.eni.subnet-tags", zone, vpc)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Subnets)) {
		if x := s.Subnets[id]; x.VPC == vpc && x.Zone == zone && ok(x) && c.allows(&x) {
			ids = append(ids, id)
		}
	}
	return ids, how
}

// allows reports whether the operator may use a subnet at all.
func (c *Config) allows(x *nodemanager.Subnet) bool {
	return (len(c.SubnetIDs) == 0 || slices.Contains(c.SubnetIDs, x.ID)) && nodemanager.HasTags(x.Tags, c.SubnetTags)
}

// chooseGroups returns the security groups of new interfaces: those named, else those with the
// tags, else those of the first interface.
func chooseGroups(spec *v2.ENISpec, s *nodemanager.Snapshot, vpc string, own []string) (ids []string) {
	switch {
	case len(spec.SecurityGroups) > 0:
		return spec.SecurityGroups
	case len(spec.SecurityGroupTags) == 0:
		return own
	}
	for _, id := range slices.Sorted(maps.Keys(s.Groups)) {
		if g := s.Groups[id]; g.VPC == vpc && nodemanager.HasTags(g.Tags, spec.SecurityGroupTags) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Status implements [nodemanager.Provider]: status.eni.enis.
func (p *Provider) Status(n *v2.CiliumNode, s *nodemanager.Snapshot, attached []nodemanager.Interface) (field string, value any, same bool) {
	diff := map[string]any{}
	want := map[string]bool{}
	for k := range attached {
		e := eniOf(&attached[k], s)
		want[e.ID] = true
		has, ok := n.Status.ENI.ENIs[e.ID]
		if ok && equality.Semantic.DeepEqual(has, e) {
			continue
		}
		diff[e.ID] = whole(e, has)
	}
	for id := range n.Status.ENI.ENIs {
		if !want[id] {
			diff[id] = nil
		}
	}
	return "eni", map[string]any{"enis": diff}, len(diff) == 0
}

// whole returns the merge patch by which what is there becomes e: a merge leaves what is absent.
func whole(e, has v2.ENI) any {
	tags := map[string]any{}
	for k := range has.Tags {
		tags[k] = nil
	}
	for k, v := range e.Tags {
		tags[k] = v
	}
	return map[string]any{
		"id": e.ID, "ip": e.IP, "mac": e.MAC, "availability-zone": e.AvailabilityZone, "description": e.Description, "number": e.Number,
		"subnet": e.Subnet, "vpc": map[string]any{"id": e.VPC.ID, "primary-cidr": e.VPC.PrimaryCIDR, "cidrs": e.VPC.CIDRs},
		"addresses": e.Addresses, "prefixes": e.Prefixes, "security-groups": e.SecurityGroups, "public-ip": e.PublicIP, "tags": tags,
	}
}

func eniOf(i *nodemanager.Interface, s *nodemanager.Snapshot) v2.ENI {
	e := v2.ENI{
		ID: i.ID, MAC: i.MAC, AvailabilityZone: i.Zone, Description: i.Description, Number: i.Index, SecurityGroups: i.Groups, Tags: i.Tags, PublicIP: i.PublicIP,
		Subnet: v2.ENISubnet{ID: i.Subnet, CIDR: s.Subnets[i.Subnet].CIDR}, VPC: v2.ENIVPC{ID: i.VPC, PrimaryCIDR: s.VPCs[i.VPC].Primary, CIDRs: s.VPCs[i.VPC].CIDRs},
	}
	if i.Primary.IsValid() {
		e.IP = i.Primary.String()
	}
	for _, u := range i.Held {
		if u.IsSingleIP() {
			e.Addresses = append(e.Addresses, u.Addr().String())
			continue
		}
		e.Prefixes = append(e.Prefixes, u.String())
		for a := u.Addr(); u.Contains(a); a = a.Next() {
			e.Addresses = append(e.Addresses, a.String())
		}
	}
	return e
}
