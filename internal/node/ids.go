package node

import (
	"cmp"
	"math"
	"slices"

	"github.com/hawser-net/hawser/internal/table"
)

// ids numbers nodes from 1; a number is free again when its node is gone.
type ids struct {
	of map[Key]uint16
}

// assign numbers the nodes other than self and forgets those that are not listed. Nodes beyond the
// last number are left out.
func (d *ids) assign(nodes []table.Row[Key, Node], self Key) []ID {
	old := d.of
	d.of = make(map[Key]uint16, len(nodes))
	used := make(map[uint16]bool, len(nodes))
	for _, r := range nodes {
		if id, ok := old[r.Key]; ok {
			d.of[r.Key], used[id] = id, true
		}
	}
	// New ones are numbered by name, so that nodes observed together get the same numbers
	// everywhere.
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b table.Row[Key, Node]) int {
		return cmp.Or(cmp.Compare(a.Key.Cluster, b.Key.Cluster), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	next := 1
	list := make([]ID, 0, len(nodes))
	for _, r := range nodes {
		if r.Key == self {
			continue
		}
		id, ok := d.of[r.Key]
		if !ok {
			for next <= math.MaxUint16 && used[uint16(next)] {
				next++
			}
			if next > math.MaxUint16 {
				continue
			}
			id = uint16(next)
			d.of[r.Key], used[id] = id, true
		}
		list = append(list, ID{ID: id, Key: r.Key, IPs: append(r.Value.NodeIPs(), r.Value.RouterIPs()...)})
	}
	slices.SortFunc(list, func(a, b ID) int { return cmp.Compare(a.ID, b.ID) })
	return list
}
