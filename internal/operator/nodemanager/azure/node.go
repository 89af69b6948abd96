package azure

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// Instance implements [nodemanager.Provider].
func (p *Provider) Instance(n *v2.CiliumNode) string { return key(n.Spec.InstanceID) }

// InstanceType implements [nodemanager.Provider].
func (p *Provider) InstanceType(*v2.CiliumNode) string { return "" }

// Describe implements [nodemanager.Provider].
func (p *Provider) Describe(n *v2.CiliumNode, _ *nodemanager.Snapshot, v *nodemanager.View) {
	v.Only = n.Spec.Azure.InterfaceName
	v.UsePrimary = p.cfg.UsePrimary
	v.Limits = nodemanager.Limits{Interfaces: len(v.Attached), Addresses: maxAddresses}
}

// Status implements [nodemanager.Provider]: status.azure.interfaces.
func (p *Provider) Status(n *v2.CiliumNode, s *nodemanager.Snapshot, attached []nodemanager.Interface) (field string, value any, same bool) {
	list := []v2.AzureInterface{}
	for k := range attached {
		list = append(list, interfaceOf(&attached[k], s))
	}
	return "azure", map[string]any{"interfaces": list}, equality.Semantic.DeepEqual(list, slices.Concat([]v2.AzureInterface{}, n.Status.Azure.Interfaces))
}

func interfaceOf(i *nodemanager.Interface, s *nodemanager.Snapshot) v2.AzureInterface {
	subnet := s.Subnets[i.Subnet]
	out := v2.AzureInterface{ID: i.ID, Name: i.Name, MAC: i.MAC, State: i.State, CIDR: subnet.CIDR, Subnet: v2.AzureSubnet{ID: i.Subnet, CIDR: subnet.CIDR}}
	if i.Primary.IsValid() {
		out.IP = i.Primary.String()
	}
	if len(i.Groups) > 0 {
		out.SecurityGroup = i.Groups[0]
	}
	if cidr, err := netip.ParsePrefix(subnet.CIDR); err == nil {
		out.Gateway = cidr.Masked().Addr().Next().String() // "Azure Virtual Network FAQ": the first address
	}
	for _, u := range i.Held {
		out.Addresses = append(out.Addresses, v2.AzureAddress{IP: u.Addr().String(), Subnet: i.Subnet, State: "succeeded"})
	}
	return out
}
