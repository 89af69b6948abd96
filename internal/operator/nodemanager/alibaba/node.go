package alibaba

import (
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// Instance implements [nodemanager.Provider].
func (p *Provider) Instance(n *v2.CiliumNode) string { return n.Spec.InstanceID }

// InstanceType implements [nodemanager.Provider].
func (p *Provider) InstanceType(n *v2.CiliumNode) string { return n.Spec.AlibabaCloud.InstanceType }

// Describe implements [nodemanager.Provider]: the first interface is the node's alone.
func (p *Provider) Describe(n *v2.CiliumNode, s *nodemanager.Snapshot, v *nodemanager.View) {
	spec := &n.Spec.AlibabaCloud
	v.First = 1
	v.Place(nodemanager.Wish{
		VPC: spec.VPCID, Zone: spec.AvailabilityZone,
		IDs: spec.VSwitches, IDsField: "spec.alibaba-cloud.vswitches", Tags: spec.VSwitchTags, TagsField: "spec.alibaba-cloud.vswitch-tags",
		Groups: spec.SecurityGroups, GroupTags: spec.SecurityGroupTags,
	}, s, func(*nodemanager.Subnet) bool { return true })
}

// Status implements [nodemanager.Provider]: status.alibaba-cloud.enis.
func (p *Provider) Status(n *v2.CiliumNode, s *nodemanager.Snapshot, attached []nodemanager.Interface) (field string, value any, same bool) {
	diff := nodemanager.Diff(n.Status.AlibabaCloud.ENIs, attached, func(i *nodemanager.Interface) v2.AlibabaENI { return eniOf(i, s) }, whole)
	return "alibaba-cloud", map[string]any{"enis": diff}, len(diff) == 0
}

// whole returns the merge patch by which what is there becomes e: a merge leaves what is absent.
func whole(e, has v2.AlibabaENI) any {
	return map[string]any{
		"network-interface-id": e.NetworkInterfaceID, "instance-id": e.InstanceID, "mac-address": e.MACAddress, "type": e.Type, "primary-ip-address": e.PrimaryIPAddress,
		"private-ipsets": e.PrivateIPSets, "security-groupids": e.SecurityGroupIDs, "tags": nodemanager.DiffTags(e.Tags, has.Tags), "zone-id": e.ZoneID,
		"vpc":     map[string]any{"vpc-id": e.VPC.VPCID, "cidr": e.VPC.CIDR, "secondary-cidrs": e.VPC.SecondaryCIDRs},
		"vswitch": map[string]any{"vswitch-id": e.VSwitch.VSwitchID, "cidr": e.VSwitch.CIDR},
	}
}

func eniOf(i *nodemanager.Interface, s *nodemanager.Snapshot) v2.AlibabaENI {
	e := v2.AlibabaENI{
		NetworkInterfaceID: i.ID, InstanceID: i.Instance, MACAddress: i.MAC, Type: "Secondary", SecurityGroupIDs: i.Groups, Tags: i.Tags, ZoneID: i.Zone,
		VPC:     v2.AlibabaVPC{VPCID: i.VPC, CIDR: s.VPCs[i.VPC].Primary, SecondaryCIDRs: s.VPCs[i.VPC].CIDRs},
		VSwitch: v2.AlibabaVSwitch{VSwitchID: i.Subnet, CIDR: s.Subnets[i.Subnet].CIDR},
	}
	if i.Index == 0 {
		e.Type = "Primary"
	}
	if i.Primary.IsValid() {
		e.PrimaryIPAddress = i.Primary.String()
		e.PrivateIPSets = append(e.PrivateIPSets, v2.AlibabaPrivateIPSet{PrivateIPAddress: e.PrimaryIPAddress, Primary: true})
	}
	for _, u := range i.Held {
		e.PrivateIPSets = append(e.PrivateIPSets, v2.AlibabaPrivateIPSet{PrivateIPAddress: u.Addr().String()})
	}
	return e
}
