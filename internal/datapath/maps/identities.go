package maps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// unknownPerWord is UNKNOWN_PER_WORD of bpf/lib/maps.h: the identities in a word of the map, a set
// bit for each that policy does not know. The first bit of all, which is no pod's, is set when the
// map has been written.
const unknownPerWord = 64

// identityWords are the words of the map.
const identityWords = (datapath.MaxPodIdentity + 1) / unknownPerWord

// SetKnownIdentities implements datapath.Maps.
func (m *Maps) SetKnownIdentities(ids []uint32) error {
	if err := datapath.ValidatePodIdentities(ids); err != nil {
		return err
	}
	words := make([]uint64, identityWords)
	for i := range words {
		words[i] = ^uint64(0)
	}
	for _, id := range ids {
		words[id/unknownPerWord] &^= 1 << (id % unknownPerWord)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := make([]uint32, len(words))
	for i := range keys {
		keys[i] = uint32(i)
	}
	// The first word comes last: a map that is written in part is one that was not.
	for at := len(keys); at > 0; at -= batchSize {
		from := max(0, at-batchSize)
		if _, err := m.maps[kernelMapUnknownIdentities].BatchUpdate(keys[from:at], words[from:at], nil); err != nil {
			return fmt.Errorf("known identities: %w", classify(err))
		}
	}
	return nil
}

// UpdateKnownIdentities implements datapath.Maps.
func (m *Maps) UpdateKnownIdentities(added, removed []uint32) error {
	if err := errors.Join(datapath.ValidatePodIdentities(added), datapath.ValidatePodIdentities(removed)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var first uint64
	if err := m.maps[kernelMapUnknownIdentities].Lookup(uint32(0), &first); err != nil {
		return fmt.Errorf("known identities: %w", err)
	}
	if first&1 == 0 {
		return nil // all are
	}
	words := map[uint32]uint64{}
	change := func(ids []uint32, apply func(word, bit uint64) uint64) error {
		for _, id := range ids {
			at := id / unknownPerWord
			word, read := words[at]
			if !read {
				if err := m.maps[kernelMapUnknownIdentities].Lookup(at, &word); err != nil {
					return fmt.Errorf("known identities: read %d: %w", id, err)
				}
			}
			words[at] = apply(word, 1<<(id%unknownPerWord))
		}
		return nil
	}
	if err := change(removed, func(word, bit uint64) uint64 { return word | bit }); err != nil {
		return err
	}
	if err := change(added, func(word, bit uint64) uint64 { return word &^ bit }); err != nil {
		return err
	}
	for at, word := range words {
		if err := m.maps[kernelMapUnknownIdentities].Update(at, word, ebpf.UpdateExist); err != nil {
			return fmt.Errorf("known identities: write %d: %w", at*unknownPerWord, classify(err))
		}
	}
	return nil
}

// KnownIdentities implements datapath.Maps.
func (m *Maps) KnownIdentities() (ids []uint32, all bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	written := false
	err = each(m.maps[kernelMapUnknownIdentities], func(at uint32, word uint64) bool {
		if at == 0 {
			written = word&1 != 0
		}
		for bit := uint32(0); written && word != ^uint64(0) && bit < unknownPerWord; bit++ {
			if id := at*unknownPerWord + bit; word>>bit&1 == 0 && id >= datapath.MinPodIdentity {
				ids = append(ids, id)
			}
		}
		return written
	})
	if err != nil {
		return nil, false, fmt.Errorf("known identities: %w", err)
	}
	slices.Sort(ids)
	return ids, !written, nil
}
