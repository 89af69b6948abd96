package aws

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

var _ nodemanager.StaticProvider = (*Provider)(nil)

// maxTags is how many a resource can have ("Tag your Amazon EC2 resources"), and how many filters a
// request ("List and filter using the CLI and API").
const maxTags = 50

// literal escapes a value of a filter: EC2 has wildcards there, and the value comes from a
// CiliumNode, which others may write.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`)

// StaticIPs implements [nodemanager.StaticProvider]. The answer does not come in pages
// ("DescribeAddresses").
func (p *Provider) StaticIPs(ctx context.Context, tags map[string]string) ([]nodemanager.StaticIP, error) {
	if len(tags) > maxTags {
		return nil, &nodemanager.Error{Text: fmt.Sprintf("spec.ipam.static-ip-tags has %d tags, and an elastic IP %d at most: name fewer", len(tags), maxTags)}
	}
	asked := map[string]string{}
	for k, v := range tags {
		asked[k] = literal.Replace(v)
	}
	out, err := call(ctx, p, "DescribeAddresses", p.ec2.DescribeAddresses, &ec2.DescribeAddressesInput{Filters: tagFilters(asked)})
	if err != nil {
		return nil, err
	}
	var all []nodemanager.StaticIP
	for k := range out.Addresses {
		x := &out.Addresses[k]
		// What has no allocation, or is another service's, cannot be associated; and tags are
		// compared here, whatever a filter takes them for.
		if aws.ToString(x.AllocationId) == "" || x.ServiceManaged != "" || !nodemanager.HasTags(tagsOf(x.Tags), tags) {
			continue
		}
		a, err := readStatic(x)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func readStatic(x *types.Address) (nodemanager.StaticIP, error) {
	a := nodemanager.StaticIP{
		ID: aws.ToString(x.AllocationId), IP: aws.ToString(x.PublicIp), Interface: aws.ToString(x.NetworkInterfaceId),
		Used: aws.ToString(x.AssociationId)+aws.ToString(x.InstanceId)+aws.ToString(x.NetworkInterfaceId) != "",
	}
	_, err := netip.ParseAddr(a.IP)
	if text := aws.ToString(x.PrivateIpAddress); err == nil && text != "" {
		a.Private, err = netip.ParseAddr(text)
	}
	if err != nil {
		return a, &nodemanager.Error{Text: fmt.Sprintf("AWS: elastic IP %s is %q of %q, which are no addresses", a.ID, a.IP, aws.ToString(x.PrivateIpAddress)), Err: err}
	}
	return a, nil
}

// Associate implements [nodemanager.StaticProvider]. EC2 moves an address from another network
// interface unless the request forbids it.
func (p *Provider) Associate(ctx context.Context, a nodemanager.StaticIP, to nodemanager.Interface) error {
	_, err := call(ctx, p, "AssociateAddress", p.ec2.AssociateAddress, &ec2.AssociateAddressInput{
		AllocationId: &a.ID, NetworkInterfaceId: &to.ID, PrivateIpAddress: aws.String(to.Primary.String()), AllowReassociation: aws.Bool(false),
	})
	return err
}
