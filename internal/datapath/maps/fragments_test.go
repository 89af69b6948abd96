package maps

import (
	"testing"

	"github.com/cilium/ebpf"
)

// TestFragmentPlaces: an endpoint may fill a small part of the map, the node a little more, and
// with the size by default the pods of a large node together cannot fill it.
func TestFragmentPlaces(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		size              uint32
		endpoint, node    uint8
		endpointsThatFill int
	}{
		{128, 1, 2, 30}, {1024, 4, 5, 30}, {8192, 7, 8, 30}, {uint32(Defaults().Fragments), 8, 12, 240}, {1 << 20, 8, 12, 2032},
	} {
		m := &Maps{maps: map[string]*ebpf.Map{}}
		km, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 56, MaxEntries: row.size, Flags: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer km.Close()
		m.maps[kernelMapFragments] = km
		endpoint, node := m.FragmentPlaces()
		if endpoint != row.endpoint || node != row.node {
			t.Errorf("of %d: 2^%d for an endpoint, 2^%d for the node; want 2^%d and 2^%d", row.size, endpoint, node, row.endpoint, row.node)
		}
		if n := (int(row.size) - 2<<node) / (2 << endpoint); n != row.endpointsThatFill {
			t.Errorf("of %d: %d endpoints find room for all they may have, want %d", row.size, n, row.endpointsThatFill)
		}
	}
}
