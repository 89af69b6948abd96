package maps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// UpsertBlocks implements datapath.Maps.
func (m *Maps) UpsertBlocks(blocks []datapath.Block) error {
	for _, b := range blocks {
		if err := b.Validate(); err != nil {
			return err
		}
	}
	for _, b := range blocks {
		p, err := datapath.CanonicalPrefix(b.Prefix)
		if err != nil {
			return err
		}
		if err := m.maps[kernelMapBlocks].Put(toKernelPrefix(p), b.Identity); err != nil {
			return fmt.Errorf("blocks: write %s: %w", p, classify(err))
		}
	}
	return nil
}

// DeleteBlocks implements datapath.Maps.
func (m *Maps) DeleteBlocks(prefixes []netip.Prefix) error {
	for _, p := range prefixes {
		if _, err := datapath.CanonicalPrefix(p); err != nil {
			return err
		}
	}
	for _, p := range prefixes {
		p, err := datapath.CanonicalPrefix(p)
		if err != nil {
			return err
		}
		if err := m.maps[kernelMapBlocks].Delete(toKernelPrefix(p)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("blocks: remove %s: %w", p, err)
		}
	}
	return nil
}

// Blocks implements datapath.Maps.
func (m *Maps) Blocks() ([]datapath.Block, error) {
	var list []datapath.Block
	err := each(m.maps[kernelMapBlocks], func(k kernelPrefix, id uint32) bool {
		list = append(list, datapath.Block{Prefix: fromKernelPrefix(k), Identity: id})
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("blocks: %w", err)
	}
	return list, nil
}
