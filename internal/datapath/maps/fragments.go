package maps

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
)

// Parts of the map of fragments, for each direction. With the default size what 240 endpoints and the node can fill
// is less than the whole.
const (
	fragmentPodPart  = 64
	fragmentPodMost  = 256
	fragmentNodePart = 32
	fragmentNodeMost = 4096

	// fragmentTicks is how long a first fragment is remembered, a little longer than programs use it.
	fragmentTicks = 60
)

// FragmentPlaces returns how many fragmented packets under way are remembered of those that an endpoint sends, and of those
// that it is sent, and how many of those that are the node's own: as powers of two.
func (m *Maps) FragmentPlaces() (endpoint, node uint8) {
	size := m.maps[kernelMapFragments].MaxEntries()
	log := func(n uint32) uint8 { return uint8(bits.Len32(max(n, 1)) - 1) }
	return log(min(size/fragmentPodPart, fragmentPodMost)), log(min(size/fragmentNodePart, fragmentNodeMost))
}

// collectFragments removes what is remembered of packets whose fragments have come, or will not.
func (m *Maps) collectFragments(ctx context.Context, now uint32) error {
	fragments := m.maps[kernelMapFragments]
	stale := func(v kernelFragValue) bool { return int32(now-v.Seen) > fragmentTicks }
	var old []kernelFragKey
	err := each(fragments, func(k kernelFragKey, v kernelFragValue) bool {
		if stale(v) {
			old = append(old, k)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return fmt.Errorf("fragments: %w", err)
	}
	for _, k := range old {
		if ctx.Err() != nil {
			return nil
		}
		var v kernelFragValue
		err := fragments.LookupAndDelete(k, &v)
		if err == nil && !stale(v) { // another packet has the place since it was listed
			err = fragments.Update(k, v, ebpf.UpdateNoExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("fragments: remove an old one: %w", err)
		}
	}
	return nil
}
