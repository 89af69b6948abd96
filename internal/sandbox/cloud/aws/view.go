package aws

import (
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// View returns what there is now.
func (c *Cloud) View() cloud.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out cloud.View
	for _, id := range slices.Sorted(maps.Keys(c.instances)) {
		out.Instances = append(out.Instances, cloud.Instance{ID: id, Type: c.instances[id].kind})
	}
	for _, id := range slices.Sorted(maps.Keys(c.subnets)) {
		s := c.subnets[id]
		out.Subnets = append(out.Subnets, cloud.Subnet{ID: id, Zone: s.zone, CIDR: s.CIDR, IPv6: s.ipv6, Free: len(c.free(s))})
	}
	all := c.interfaces.Now()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		i := all[id]
		out.Interfaces = append(out.Interfaces, cloud.Interface{
			ID: id, Subnet: i.Subnet, MAC: i.MAC, Instance: i.Instance, Index: i.Index, Primary: i.Primary, Addresses: i.Addresses, Prefixes: i.Prefixes,
			IPv6: i.IPv6, IPv6Prefixes: i.IPv6Prefixes,
		})
	}
	out.StaticIPs = c.staticIPs()
	return out
}
