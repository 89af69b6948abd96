package maps

import (
	"context"
	"encoding/binary"
	"fmt"
)

// MasqueradeShare returns how many of the flows of clients outside that other nodes serve in this
// node's name may be those of clients with one hash of their address: three quarters, so that no
// client takes all.
func (m *Maps) MasqueradeShare() uint32 {
	size := m.maps[kernelMapMasquerade].MaxEntries()
	return max(size-size/4, 1)
}

// addrHash is addr_hash of bpf/lib/addr.h.
func addrHash(a [16]byte) uint32 {
	const golden = 0x9E3779B97F4A7C15
	hash := binary.NativeEndian.Uint64(a[:8])*golden ^ binary.NativeEndian.Uint64(a[8:])
	return uint32((hash ^ hash>>32) * golden >> 32)
}

// collectMasquerade deletes SNAT bindings whose flows have ended. Programs reuse their ports
// anyway, but the entries take room in the map. Then it writes how many are left for each hash of a
// client.
func (m *Maps) collectMasquerade(ctx context.Context, now uint32) error {
	accounts := m.maps[kernelMapMasqueradeAccounts]
	counts := make([]uint32, accounts.MaxEntries())
	// A binding that was renewed since it was listed has not expired and stays.
	ended := func(v kernelMasqueradeValue) bool { return int32(v.Expires-now) <= 0 }
	err := sweep[kernelMasqueradeKey](ctx, m.maps[kernelMapMasquerade], ended, func(v kernelMasqueradeValue) {
		counts[addrHash(v.Client.B)%uint32(len(counts))]++
	})
	if err != nil {
		return fmt.Errorf("masquerading: %w", err)
	}
	if ctx.Err() != nil {
		return nil
	}
	for i, n := range counts {
		if err := accounts.Put(uint32(i), n); err != nil {
			return fmt.Errorf("masquerading: write the number of ports in use: %w", err)
		}
	}
	return nil
}
