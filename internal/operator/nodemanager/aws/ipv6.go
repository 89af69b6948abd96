package aws

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// ipv6Bits is the size of the prefixes that EC2 delegates (Amazon EC2 User Guide, "Prefix
// delegation for Amazon EC2 network interfaces").
const ipv6Bits = 80

func ipv6Prefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil && (!p.Addr().Is6() || p.Bits() != ipv6Bits) {
		err = fmt.Errorf("%s is no IPv6 prefix of %d bits", p, ipv6Bits)
	}
	return p.Masked(), err
}

// readIPv6 adds to i what x has of IPv6.
func readIPv6(x *types.NetworkInterface, i *nodemanager.Interface) error {
	i.OtherIPv6 = len(x.Ipv6Addresses)
	for _, s := range x.Ipv6Prefixes {
		p, err := ipv6Prefix(aws.ToString(s.Ipv6Prefix))
		if err != nil {
			return &nodemanager.Error{Text: fmt.Sprintf("AWS: interface %s has %q, which is no IPv6 prefix of %d bits", i.ID, aws.ToString(s.Ipv6Prefix), ipv6Bits)}
		}
		i.IPv6Prefixes = append(i.IPv6Prefixes, p)
	}
	// Sorted, so that a different order does not cause a write of the status.
	slices.SortFunc(i.IPv6Prefixes, netip.Prefix.Compare)
	return nil
}

// hasIPv6 reports whether prefixes can be delegated out of a subnet.
func hasIPv6(x *types.Subnet) bool {
	return slices.ContainsFunc(x.Ipv6CidrBlockAssociationSet, func(a types.SubnetIpv6CidrBlockAssociation) bool {
		return a.Ipv6CidrBlockState != nil && a.Ipv6CidrBlockState.State == types.SubnetCidrBlockStateCodeAssociated
	})
}

// ipv6Limit returns how many IPv6 addresses an interface can have.
func ipv6Limit(x *types.NetworkInfo) int {
	if !aws.ToBool(x.Ipv6Supported) {
		return 0
	}
	return int(aws.ToInt32(x.Ipv6AddressesPerInterface))
}

// assignIPv6 has one prefix be delegated to an interface.
func (p *Provider) assignIPv6(ctx context.Context, s nodemanager.Step) ([]netip.Prefix, error) {
	out, err := call(ctx, p, "AssignIpv6Addresses", p.ec2.AssignIpv6Addresses, &ec2.AssignIpv6AddressesInput{NetworkInterfaceId: &s.Interface.ID, Ipv6PrefixCount: aws.Int32(1)})
	if err != nil {
		return nil, err
	}
	var units []netip.Prefix
	for _, text := range out.AssignedIpv6Prefixes {
		prefix, err := ipv6Prefix(text)
		if err != nil {
			return nil, &nodemanager.Error{Text: fmt.Sprintf("AWS assigned %q to interface %s, which is no IPv6 prefix of %d bits", text, s.Interface.ID, ipv6Bits), Err: err}
		}
		units = append(units, prefix)
	}
	return units, nil
}

// prefixTexts is how the status has prefixes.
func prefixTexts(list []netip.Prefix) (out []string) {
	for _, p := range list {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return out
}
