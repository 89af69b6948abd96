package azure

import (
	"maps"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// View returns what there is now.
func (c *Cloud) View() cloud.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish()
	var out cloud.View
	for _, id := range slices.Sorted(maps.Keys(c.machines)) {
		m := c.machines[id]
		out.Instances = append(out.Instances, cloud.Instance{ID: m.id, Type: m.size})
		for index, nic := range m.interfaces {
			i := c.interfaces.Now()[nic]
			x := cloud.Interface{ID: i.ID, MAC: strings.ToLower(strings.ReplaceAll(i.MAC, "-", ":")), Instance: m.id, Index: index}
			for _, conf := range i.Configs {
				switch {
				case !conf.Address.IsValid():
				case conf.Primary:
					x.Primary, x.Subnet = conf.Address, conf.Subnet
				default:
					x.Addresses = append(x.Addresses, conf.Address)
				}
			}
			out.Interfaces = append(out.Interfaces, x)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.networks)) {
		for _, s := range c.networks[id].subnets {
			out.Subnets = append(out.Subnets, cloud.Subnet{ID: s.id, CIDR: s.CIDR, Free: len(c.free(s))})
		}
	}
	return out
}
