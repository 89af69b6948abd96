package alibaba

import (
	"maps"
	"slices"
	"strconv"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// View returns what there is now. An interface that is being attached is not attached yet.
func (c *Cloud) View() cloud.View {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out cloud.View
	for _, id := range slices.Sorted(maps.Keys(c.instances)) {
		out.Instances = append(out.Instances, cloud.Instance{ID: id, Type: c.instances[id].kind})
	}
	for _, id := range slices.Sorted(maps.Keys(c.vswitches)) {
		s := c.vswitches[id]
		out.Subnets = append(out.Subnets, cloud.Subnet{ID: id, Zone: s.zone, CIDR: s.CIDR, Free: len(c.free(s))})
	}
	all := c.interfaces.Now()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		i := all[id]
		x := cloud.Interface{ID: id, Subnet: i.VSwitch, MAC: i.MAC, Primary: i.Primary, Addresses: i.Addresses}
		if statusOf(i) == "InUse" {
			x.Instance = i.Instance
		}
		if !i.Main {
			// The cloud itself does not number them; who made one says its number by a tag.
			x.Index, _ = strconv.Atoi(i.Tags["cilium-eni-index"])
			x.Index = max(x.Index, 1)
		}
		out.Interfaces = append(out.Interfaces, x)
	}
	return out
}
