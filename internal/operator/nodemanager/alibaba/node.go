package alibaba

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
func (p *Provider) InstanceType(n *v2.CiliumNode) string { return n.Spec.AlibabaCloud.InstanceType }

// Describe implements [nodemanager.Provider]: the first interface is the node's alone.
func (p *Provider) Describe(n *v2.CiliumNode, s *nodemanager.Snapshot, v *nodemanager.View) {
	spec := &n.Spec.AlibabaCloud
	v.First = 1
	vpc, zone, own := spec.VPCID, spec.AvailabilityZone, ""
	var groups []string
	if len(v.Attached) > 0 {
		// What the first interface says is the cloud's word: the node cannot be elsewhere.
		first := &v.Attached[0]
		vpc, zone, own, groups = first.VPC, first.Zone, first.Subnet, first.Groups
	}
	v.Choice, v.Chosen = choose(spec, s, vpc, zone, own)
	v.Groups = chooseGroups(spec, s, vpc, groups)
}

// choose returns the vSwitches for new interfaces: those named, else those with the tags, else the
// one that the node is in. An interface can only be attached within its zone.
func choose(spec *v2.AlibabaCloudSpec, s *nodemanager.Snapshot, vpc, zone, own string) (ids []string, how string) {
	ok := func(x nodemanager.Subnet) bool { return x.ID == own }
	how = fmt.Sprintf("the node's vSwitch %s is not among those that the operator sees", own)
	switch {
	case len(spec.VSwitches) > 0:
		ok = func(x nodemanager.Subnet) bool { return slices.Contains(spec.VSwitches, x.ID) }
		how = fmt.Sprintf("none of spec.alibaba-cloud.vswitches is in %s of %s", zone, vpc)
	case len(spec.VSwitchTags) > 0:
		ok = func(x nodemanager.Subnet) bool { return nodemanager.HasTags(x.Tags, spec.VSwitchTags) }
		how = fmt.Sprintf("none in %s of %s has the tags of spec.alibaba-cloud.vswitch-tags", zone, vpc)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Subnets)) {
		if x := s.Subnets[id]; x.VPC == vpc && x.Zone == zone && ok(x) {
			ids = append(ids, id)
		}
	}
	return ids, how
}

// chooseGroups returns the security groups of new interfaces: those named, else those with the
// tags, else those of the first interface.
func chooseGroups(spec *v2.AlibabaCloudSpec, s *nodemanager.Snapshot, vpc string, own []string) (ids []string) {
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

// Status implements [nodemanager.Provider]: status.alibaba-cloud.enis.
func (p *Provider) Status(n *v2.CiliumNode, s *nodemanager.Snapshot, attached []nodemanager.Interface) (field string, value any, same bool) {
	diff := map[string]any{}
	want := map[string]bool{}
	for k := range attached {
		e := eniOf(&attached[k], s)
		want[e.NetworkInterfaceID] = true
		has, ok := n.Status.AlibabaCloud.ENIs[e.NetworkInterfaceID]
		if ok && equality.Semantic.DeepEqual(has, e) {
			continue
		}
		diff[e.NetworkInterfaceID] = whole(e, has)
	}
	for id := range n.Status.AlibabaCloud.ENIs {
		if !want[id] {
			diff[id] = nil
		}
	}
	return "alibaba-cloud", map[string]any{"enis": diff}, len(diff) == 0
}

// whole returns the merge patch by which what is there becomes e: a merge leaves what is absent.
func whole(e, has v2.AlibabaENI) any {
	tags := map[string]any{}
	for k := range has.Tags {
		tags[k] = nil
	}
	for k, v := range e.Tags {
		tags[k] = v
	}
	return map[string]any{
		"network-interface-id": e.NetworkInterfaceID, "instance-id": e.InstanceID, "mac-address": e.MACAddress, "type": e.Type, "primary-ip-address": e.PrimaryIPAddress,
		"private-ipsets": e.PrivateIPSets, "security-groupids": e.SecurityGroupIDs, "tags": tags, "zone-id": e.ZoneID,
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
