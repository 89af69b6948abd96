package maps

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// collectMasquerade takes ports back that were lent to flows which have ended. Programs lend such a port to the next
// flow by themselves; but the map has no room for more while they are there.
func (m *Maps) collectMasquerade(ctx context.Context, now uint32) error {
	lent := m.maps[kernelMapMasquerade]
	var old []kernelMasqueradeKey
	err := each(lent, func(k kernelMasqueradeKey, v kernelMasqueradeValue) bool {
		if int32(v.Expires-now) <= 0 {
			old = append(old, k)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return fmt.Errorf("masquerading: %w", err)
	}
	for _, k := range old {
		if ctx.Err() != nil {
			return nil
		}
		var v kernelMasqueradeValue
		err := lent.LookupAndDelete(k, &v)
		// Lent again since it was listed: nobody else has it, so it is the new flow's still.
		if err == nil && int32(v.Expires-now) > 0 {
			err = lent.Update(k, v, ebpf.UpdateNoExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("masquerading: take a port back: %w", err)
		}
	}
	return nil
}
