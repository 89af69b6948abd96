package aws

import (
	"slices"

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
	v.IPv6 = p.cfg.IPv6
	v.KeepOnTermination = spec.DeleteOnTermination != nil && !*spec.DeleteOnTermination
	v.Place(nodemanager.Wish{
		VPC: spec.VpcID, Zone: spec.AvailabilityZone, Subnet: spec.NodeSubnetID,
		IDs: spec.SubnetIDs, IDsField: "spec.eni.subnet-ids", Tags: spec.SubnetTags, TagsField: "spec.eni.subnet-tags",
		Groups: spec.SecurityGroups, GroupTags: spec.SecurityGroupTags,
	}, s, p.cfg.allows)
}

// allows reports whether the operator may use a subnet at all.
func (c *Config) allows(x *nodemanager.Subnet) bool {
	return (len(c.SubnetIDs) == 0 || slices.Contains(c.SubnetIDs, x.ID)) && nodemanager.HasTags(x.Tags, c.SubnetTags)
}

// Status implements [nodemanager.Provider]: status.eni.enis.
func (p *Provider) Status(n *v2.CiliumNode, s *nodemanager.Snapshot, attached []nodemanager.Interface) (field string, value any, same bool) {
	diff := nodemanager.Diff(n.Status.ENI.ENIs, attached, func(i *nodemanager.Interface) v2.ENI { return eniOf(i, s) }, whole)
	return "eni", map[string]any{"enis": diff}, len(diff) == 0
}

// whole returns the merge patch by which what is there becomes e: a merge leaves what is absent.
func whole(e, has v2.ENI) any {
	tags := nodemanager.DiffTags(e.Tags, has.Tags)
	return map[string]any{
		"id": e.ID, "ip": e.IP, "mac": e.MAC, "availability-zone": e.AvailabilityZone, "description": e.Description, "number": e.Number,
		"subnet": e.Subnet, "vpc": map[string]any{"id": e.VPC.ID, "primary-cidr": e.VPC.PrimaryCIDR, "cidrs": e.VPC.CIDRs},
		"addresses": e.Addresses, "prefixes": e.Prefixes, "ipv6-prefixes": e.IPv6Prefixes, "security-groups": e.SecurityGroups, "public-ip": e.PublicIP, "tags": tags,
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
	e.IPv6Prefixes = prefixTexts(i.IPv6Prefixes)
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
