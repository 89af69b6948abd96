// Package aws has the node manager use AWS: addresses and prefixes of the elastic network
// interfaces of EC2 instances, by the official SDK.
package aws

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// instanceForm is that of the ID of an instance. IDs of another form are not looked up: they come
// from a CiliumNode, which others may write, and EC2 has wildcards in filters.
var instanceForm = regexp.MustCompile(`^i-[0-9a-z-]+$`)

// Provider implements [nodemanager.Provider]. Make it with [New].
type Provider struct {
	cfg    Config
	ec2    *ec2.Client
	budget *nodemanager.Budget
}

// New makes a provider. It reads the SDK's files and environment and sends nothing, unless it has
// to ask the instance that it runs on for the region. options are for tests.
func New(ctx context.Context, cfg Config, b *nodemanager.Budget, options ...func(*config.LoadOptions) error) (*Provider, error) {
	options = append([]func(*config.LoadOptions) error{config.WithEC2IMDSRegion()}, options...)
	c, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("AWS configuration: %w", err)
	}
	if c.Region == "" {
		return nil, fmt.Errorf("AWS: no region; set AWS_REGION for the operator")
	}
	// The node manager repeats what fails, within the budget and after it has looked.
	client := ec2.NewFromConfig(c, func(o *ec2.Options) { o.Retryer = aws.NopRetryer{} })
	return &Provider{cfg: cfg, ec2: client, budget: b}, nil
}

// call makes a call within the budget.
func call[In, Out, Option any](ctx context.Context, p *Provider, operation string, f func(context.Context, In, ...Option) (Out, error), in In) (out Out, err error) {
	do := p.budget.Do
	if strings.HasPrefix(operation, "Describe") {
		do = p.budget.Read
	}
	err = do(ctx, operation, func(ctx context.Context) error {
		var err error
		out, err = f(ctx, in)
		return explain(operation, err)
	})
	return out, err
}

const pageSize = 1000

// Read implements [nodemanager.Provider].
func (p *Provider) Read(ctx context.Context) (*nodemanager.Snapshot, error) {
	s := &nodemanager.Snapshot{Subnets: map[string]nodemanager.Subnet{}, Groups: map[string]nodemanager.SecurityGroup{}, VPCs: map[string]nodemanager.VPC{}}
	if err := p.readSubnets(ctx, s); err != nil {
		return nil, err
	}
	if err := p.readGroups(ctx, s); err != nil {
		return nil, err
	}
	if err := p.readVPCs(ctx, s); err != nil {
		return nil, err
	}
	var err error
	s.Interfaces, err = p.readInterfaces(ctx)
	return s, err
}

func (p *Provider) readSubnets(ctx context.Context, s *nodemanager.Snapshot) error {
	in := &ec2.DescribeSubnetsInput{MaxResults: aws.Int32(pageSize)}
	for {
		out, err := call(ctx, p, "DescribeSubnets", p.ec2.DescribeSubnets, in)
		if err != nil {
			return err
		}
		for _, x := range out.Subnets {
			id := aws.ToString(x.SubnetId)
			subnet := nodemanager.Subnet{
				ID: id, CIDR: aws.ToString(x.CidrBlock), VPC: aws.ToString(x.VpcId), Zone: aws.ToString(x.AvailabilityZone),
				Free: int(aws.ToInt32(x.AvailableIpAddressCount)), Tags: tagsOf(x.Tags),
			}
			subnet.IPv6 = hasIPv6(&x)
			if !p.cfg.allows(&subnet) {
				subnet.Free = 0 // not for this operator
			}
			s.Subnets[id] = subnet
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
	}
}

func (p *Provider) readGroups(ctx context.Context, s *nodemanager.Snapshot) error {
	in := &ec2.DescribeSecurityGroupsInput{MaxResults: aws.Int32(pageSize)}
	for {
		out, err := call(ctx, p, "DescribeSecurityGroups", p.ec2.DescribeSecurityGroups, in)
		if err != nil {
			return err
		}
		for _, x := range out.SecurityGroups {
			id := aws.ToString(x.GroupId)
			s.Groups[id] = nodemanager.SecurityGroup{ID: id, VPC: aws.ToString(x.VpcId), Tags: tagsOf(x.Tags)}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
	}
}

func (p *Provider) readVPCs(ctx context.Context, s *nodemanager.Snapshot) error {
	in := &ec2.DescribeVpcsInput{MaxResults: aws.Int32(pageSize)}
	for {
		out, err := call(ctx, p, "DescribeVpcs", p.ec2.DescribeVpcs, in)
		if err != nil {
			return err
		}
		for _, x := range out.Vpcs {
			v := nodemanager.VPC{ID: aws.ToString(x.VpcId), Primary: aws.ToString(x.CidrBlock)}
			for _, a := range x.CidrBlockAssociationSet {
				if c := aws.ToString(a.CidrBlock); c != "" && c != v.Primary {
					v.CIDRs = append(v.CIDRs, c)
				}
			}
			s.VPCs[v.ID] = v
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
	}
}

// readInterfaces returns all interfaces that match the filters.
func (p *Provider) readInterfaces(ctx context.Context, filters ...types.Filter) (all []nodemanager.Interface, err error) {
	in := &ec2.DescribeNetworkInterfacesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	for {
		out, err := call(ctx, p, "DescribeNetworkInterfaces", p.ec2.DescribeNetworkInterfaces, in)
		if err != nil {
			return nil, err
		}
		for k := range out.NetworkInterfaces {
			i, err := p.read(&out.NetworkInterfaces[k])
			if err != nil {
				return nil, err
			}
			all = append(all, i)
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return all, nil
		}
	}
}

// ReadInstance implements [nodemanager.Provider].
func (p *Provider) ReadInstance(ctx context.Context, instance string) ([]nodemanager.Interface, error) {
	if !instanceForm.MatchString(instance) {
		return nil, &nodemanager.Error{Text: fmt.Sprintf("%q is no instance ID of AWS: correct spec.instance-id of the CiliumNode", instance)}
	}
	attached, err := p.readInterfaces(ctx, filter("attachment.instance-id", instance))
	if err != nil {
		return nil, err
	}
	loose, err := p.readInterfaces(ctx, append(tagFilters(nodemanager.OwnTags(p.cfg.ClusterName)), filter("tag:"+nodemanager.InstanceTag, instance), filter("status", "available"))...)
	if err != nil {
		return nil, err
	}
	// Attached between the two.
	loose = slices.DeleteFunc(loose, func(l nodemanager.Interface) bool {
		return slices.ContainsFunc(attached, func(a nodemanager.Interface) bool { return a.ID == l.ID })
	})
	return append(attached, loose...), nil
}

// read understands an interface. One whose addresses cannot be read is an error: a part of what is
// assigned is not what is assigned.
func (p *Provider) read(x *types.NetworkInterface) (nodemanager.Interface, error) {
	i := nodemanager.Interface{
		ID: aws.ToString(x.NetworkInterfaceId), Subnet: aws.ToString(x.SubnetId), VPC: aws.ToString(x.VpcId), Zone: aws.ToString(x.AvailabilityZone),
		MAC: aws.ToString(x.MacAddress), Description: aws.ToString(x.Description), Tags: tagsOf(x.TagSet),
	}
	for _, g := range x.Groups {
		i.Groups = append(i.Groups, aws.ToString(g.GroupId))
	}
	if x.Association != nil {
		i.PublicIP, i.StaticIP = aws.ToString(x.Association.PublicIp), aws.ToString(x.Association.AllocationId)
	}
	i.Managed = nodemanager.Owned(i.Tags, p.cfg.ClusterName)
	if a := x.Attachment; a != nil && a.Status != types.AttachmentStatusDetached {
		i.Attachment, i.Instance, i.Index = aws.ToString(a.AttachmentId), aws.ToString(a.InstanceId), int(aws.ToInt32(a.DeviceIndex))
		i.DeleteOnTermination = aws.ToBool(a.DeleteOnTermination)
	} else if i.Managed {
		i.Instance = i.Tags[nodemanager.InstanceTag]
	}
	bad := func(what string) error {
		return &nodemanager.Error{Text: fmt.Sprintf("AWS: interface %s has %q, which is no address", i.ID, what)}
	}
	var err error
	if text := aws.ToString(x.PrivateIpAddress); text != "" {
		if i.Primary, err = netip.ParseAddr(text); err != nil {
			return i, bad(text)
		}
	}
	for _, a := range x.PrivateIpAddresses {
		if aws.ToBool(a.Primary) {
			continue
		}
		addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
		if err != nil || !addr.Is4() {
			return i, bad(aws.ToString(a.PrivateIpAddress))
		}
		i.Held = append(i.Held, netip.PrefixFrom(addr, 32))
	}
	for _, s := range x.Ipv4Prefixes {
		prefix, err := netip.ParsePrefix(aws.ToString(s.Ipv4Prefix))
		if err != nil || !prefix.Addr().Is4() || prefix.Bits() < 24 {
			return i, bad(aws.ToString(s.Ipv4Prefix))
		}
		i.Held = append(i.Held, prefix.Masked())
	}
	err = readIPv6(x, &i)
	return i, err
}

// Limits implements [nodemanager.Provider].
func (p *Provider) Limits(ctx context.Context, kind string) (nodemanager.Limits, error) {
	out, err := call(ctx, p, "DescribeInstanceTypes", p.ec2.DescribeInstanceTypes, &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(kind)}})
	if err != nil {
		return nodemanager.Limits{}, err
	}
	for _, t := range out.InstanceTypes {
		if string(t.InstanceType) != kind || t.NetworkInfo == nil {
			continue
		}
		return nodemanager.Limits{
			Interfaces: int(aws.ToInt32(t.NetworkInfo.MaximumNetworkInterfaces)), Addresses: int(aws.ToInt32(t.NetworkInfo.Ipv4AddressesPerInterface)),
			Prefixes: t.Hypervisor == types.InstanceTypeHypervisorNitro || aws.ToBool(t.BareMetal), IPv6: ipv6Limit(t.NetworkInfo),
		}, nil
	}
	return nodemanager.Limits{}, &nodemanager.Error{Text: fmt.Sprintf("AWS knows no instance type %q in this region", kind)}
}

// Assign implements [nodemanager.Provider].
func (p *Provider) Assign(ctx context.Context, s nodemanager.Step) ([]netip.Prefix, error) {
	if s.Call == nodemanager.AssignIPv6 {
		return p.assignIPv6(ctx, s)
	}
	in := &ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: &s.Interface.ID}
	if s.Prefixes > 0 {
		in.Ipv4PrefixCount = aws.Int32(int32(s.Prefixes))
	} else {
		in.SecondaryPrivateIpAddressCount = aws.Int32(int32(s.Addresses))
	}
	out, err := call(ctx, p, "AssignPrivateIpAddresses", p.ec2.AssignPrivateIpAddresses, in)
	if err != nil {
		return nil, err
	}
	var units []netip.Prefix
	for _, a := range out.AssignedPrivateIpAddresses {
		addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
		if err != nil {
			return nil, fmt.Errorf("AWS assigned %q: %w", aws.ToString(a.PrivateIpAddress), err)
		}
		units = append(units, netip.PrefixFrom(addr, addr.BitLen()))
	}
	for _, x := range out.AssignedIpv4Prefixes {
		prefix, err := netip.ParsePrefix(aws.ToString(x.Ipv4Prefix))
		if err != nil {
			return nil, fmt.Errorf("AWS assigned %q: %w", aws.ToString(x.Ipv4Prefix), err)
		}
		units = append(units, prefix)
	}
	return units, nil
}

// Unassign implements [nodemanager.Provider].
func (p *Provider) Unassign(ctx context.Context, s nodemanager.Step) error {
	in := &ec2.UnassignPrivateIpAddressesInput{NetworkInterfaceId: &s.Interface.ID}
	for _, u := range s.Units {
		if u.IsSingleIP() {
			in.PrivateIpAddresses = append(in.PrivateIpAddresses, u.Addr().String())
		} else {
			in.Ipv4Prefixes = append(in.Ipv4Prefixes, u.String())
		}
	}
	_, err := call(ctx, p, "UnassignPrivateIpAddresses", p.ec2.UnassignPrivateIpAddresses, in)
	return err
}

// Create implements [nodemanager.Provider].
func (p *Provider) Create(ctx context.Context, instance string, s nodemanager.Step) (nodemanager.Interface, error) {
	tags := nodemanager.OwnTags(p.cfg.ClusterName)
	maps.Copy(tags, p.cfg.InterfaceTags)
	tags[nodemanager.InstanceTag] = instance
	in := &ec2.CreateNetworkInterfaceInput{
		SubnetId: &s.Subnet, Groups: s.Groups, Description: aws.String("addresses of pods on " + instance),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: tagList(tags)}},
	}
	if s.Prefixes > 0 {
		in.Ipv4PrefixCount = aws.Int32(int32(s.Prefixes))
	} else if s.Addresses > 0 {
		in.SecondaryPrivateIpAddressCount = aws.Int32(int32(s.Addresses))
	}
	out, err := call(ctx, p, "CreateNetworkInterface", p.ec2.CreateNetworkInterface, in)
	if err != nil {
		return nodemanager.Interface{}, err
	}
	if out.NetworkInterface == nil {
		return nodemanager.Interface{}, &nodemanager.Error{Text: "AWS made an interface and returned no ID"}
	}
	return p.read(out.NetworkInterface)
}

// Attach implements [nodemanager.Provider].
func (p *Provider) Attach(ctx context.Context, instance string, s nodemanager.Step) (nodemanager.Interface, error) {
	i := s.Interface
	out, err := call(ctx, p, "AttachNetworkInterface", p.ec2.AttachNetworkInterface, &ec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: &i.ID, InstanceId: &instance, DeviceIndex: aws.Int32(int32(s.Index)),
	})
	if err != nil {
		return i, err
	}
	i.Attachment, i.Instance, i.Index = aws.ToString(out.AttachmentId), instance, s.Index
	return i, nil
}

// Modify implements [nodemanager.Provider].
func (p *Provider) Modify(ctx context.Context, s nodemanager.Step) error {
	_, err := call(ctx, p, "ModifyNetworkInterfaceAttribute", p.ec2.ModifyNetworkInterfaceAttribute, &ec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: &s.Interface.ID,
		Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: &s.Interface.Attachment, DeleteOnTermination: &s.Interface.DeleteOnTermination},
	})
	return err
}

// Delete implements [nodemanager.Provider]. One that is gone is deleted.
func (p *Provider) Delete(ctx context.Context, id string) error {
	_, err := call(ctx, p, "DeleteNetworkInterface", p.ec2.DeleteNetworkInterface, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &id})
	if codeOf(err) == "InvalidNetworkInterfaceID.NotFound" {
		return nil
	}
	return err
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: &name, Values: values}
}

func tagFilters(tags map[string]string) (out []types.Filter) {
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, filter("tag:"+k, tags[k]))
	}
	return out
}

func tagsOf(list []types.Tag) map[string]string {
	if len(list) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for _, t := range list {
		out[aws.ToString(t.Key)] = aws.ToString(t.Value)
	}
	return out
}

func tagList(tags map[string]string) (out []types.Tag) {
	for _, k := range slices.SortedFunc(maps.Keys(tags), strings.Compare) {
		out = append(out, types.Tag{Key: aws.String(k), Value: aws.String(tags[k])})
	}
	return out
}
