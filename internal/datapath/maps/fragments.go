package maps

import (
	"context"
	"fmt"
	"math/bits"
)

// Parts of the map of fragments, for each direction. With the default size what 240 endpoints and
// the node can fill is less than the whole.
const (
	fragmentPodPart  = 64
	fragmentPodMost  = 256
	fragmentNodePart = 32
	fragmentNodeMost = 4096

	// fragmentTicks is how long a first fragment is remembered, a little longer than programs use
	// it.
	fragmentTicks = 60
)

// FragmentPlaces returns how many fragmented packets under way are remembered of those that an
// endpoint sends, and of those that it is sent, and how many of those that are the node's own: as
// powers of two.
func (m *Maps) FragmentPlaces() (endpoint, node uint8) {
	size := m.maps[kernelMapFragments].MaxEntries()
	log := func(n uint32) uint8 { return uint8(bits.Len32(max(n, 1)) - 1) }
	return log(min(size/fragmentPodPart, fragmentPodMost)), log(min(size/fragmentNodePart, fragmentNodeMost))
}

// collectFragments removes what is remembered of packets whose fragments have come, or will not.
func (m *Maps) collectFragments(ctx context.Context, now uint32) error {
	stale := func(v kernelFragValue) bool { return int32(now-v.Seen) > fragmentTicks }
	if err := sweep[kernelFragKey](ctx, m.maps[kernelMapFragments], stale, func(kernelFragValue) {}); err != nil {
		return fmt.Errorf("fragments: %w", err)
	}
	return nil
}
