package ipcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/table"
)

// KernelMap is the part of [datapath.Maps] that holds what the kernel knows of addresses.
type KernelMap interface {
	UpsertIPCache(entries []datapath.IPCacheEntry) error
	DeleteIPCache(prefixes []netip.Prefix) error
	IPCache() ([]datapath.IPCacheEntry, error)
}

// Maps is the [table.Target] that reconciles the kernel's map with the table. It writes only what
// differs from what the kernel holds, so a restart of the agent touches nothing that stayed the
// same. It is for one reconciler.
type Maps struct {
	// Edited, if not nil, is called by a Prune after the first with how many entries another
	// process has changed, removed or added since they were written, and one of them. They are as
	// they should be again when Prune has succeeded.
	Edited func(entries int, one netip.Prefix)

	kernel KernelMap
	tunnel bool
	// known is what the kernel holds, from the first look until the first Prune; nil after that:
	// then the reconciler knows what it wrote.
	known  map[netip.Prefix]datapath.IPCacheEntry
	pruned bool
}

// NewMaps returns a target for the kernel's map. tunnel reports whether other nodes' pods are
// reached through a tunnel; otherwise the kernel does not know nodes.
func NewMaps(kernel KernelMap, tunnel bool) *Maps { return &Maps{kernel: kernel, tunnel: tunnel} }

var _ table.Target[netip.Prefix, Entry] = (*Maps)(nil)

// Row returns what the kernel should hold for an entry.
func Row(p netip.Prefix, e Entry, tunnel bool) datapath.IPCacheEntry {
	r := datapath.IPCacheEntry{Prefix: p, Identity: uint32(e.Identity)}
	if host := e.Host(); tunnel && e.Source < Endpoint && !(p.IsSingleIP() && p.Addr() == host) {
		r.TunnelEndpoint = host // a node is not reached through itself
	}
	return r
}

// look reads the kernel's map into known.
func (m *Maps) look() error {
	rows, err := m.kernel.IPCache()
	if err != nil {
		return fmt.Errorf("reading the kernel's address map: %w", err)
	}
	m.known = make(map[netip.Prefix]datapath.IPCacheEntry, len(rows))
	for _, r := range rows {
		m.known[r.Prefix] = r
	}
	return nil
}

// Update implements [table.Target].
func (m *Maps) Update(_ context.Context, rows []table.Row[netip.Prefix, Entry]) error {
	if !m.pruned && m.known == nil {
		if err := m.look(); err != nil {
			return err
		}
	}
	entries := make([]datapath.IPCacheEntry, 0, len(rows))
	for _, r := range rows {
		want := Row(r.Key, r.Value, m.tunnel)
		if have, ok := m.known[r.Key]; !ok || have != want {
			entries = append(entries, want)
		}
	}
	return m.write(entries)
}

func (m *Maps) write(entries []datapath.IPCacheEntry) error {
	if len(entries) == 0 {
		return nil
	}
	if m.known != nil {
		for _, e := range entries {
			delete(m.known, e.Prefix) // until it is known that all were written
		}
	}
	if err := m.kernel.UpsertIPCache(entries); err != nil {
		return fmt.Errorf("writing %d addresses to the kernel: %w", len(entries), err)
	}
	if m.known != nil {
		for _, e := range entries {
			m.known[e.Prefix] = e
		}
	}
	return nil
}

// Delete implements [table.Target].
func (m *Maps) Delete(_ context.Context, rows []table.Row[netip.Prefix, Entry]) error {
	prefixes := make([]netip.Prefix, len(rows))
	for i, r := range rows {
		prefixes[i] = r.Key
		delete(m.known, r.Key)
	}
	if err := m.kernel.DeleteIPCache(prefixes); err != nil {
		return fmt.Errorf("removing %d addresses from the kernel: %w", len(prefixes), err)
	}
	return nil
}

// batch is how many addresses a look through the kernel's map writes or removes at once.
const batch = 1024

// writeMost writes all that there is room for. It returns the first error, at once if that is not
// for want of room.
func (m *Maps) writeMost(ctx context.Context, entries []datapath.IPCacheEntry) (full error) {
	for len(entries) > 0 && ctx.Err() == nil {
		n := min(batch, len(entries))
		err := m.write(entries[:n])
		if errors.Is(err, datapath.ErrFull) {
			full = cmp.Or(full, err)
			for i := range n { // the batch has ended at the first
				if err = m.write(entries[i : i+1]); err != nil && !errors.Is(err, datapath.ErrFull) {
					break
				}
				err = nil
			}
		}
		if err != nil {
			return err
		}
		entries = entries[n:]
	}
	return full
}

// Prune implements [table.Target]: it also writes again what the kernel lost or has otherwise.
func (m *Maps) Prune(ctx context.Context, desired iter.Seq2[netip.Prefix, Entry]) error {
	// What others did to the map since the last look shows only in the kernel itself.
	if err := m.look(); err != nil {
		return err
	}
	var lost []datapath.IPCacheEntry
	wanted := make(map[netip.Prefix]bool)
	for p, e := range desired {
		wanted[p] = true
		want := Row(p, e, m.tunnel)
		if have, ok := m.known[p]; !ok || have != want {
			lost = append(lost, want)
		}
	}
	var stale []netip.Prefix
	for p := range m.known {
		if !wanted[p] {
			stale = append(stale, p)
		}
	}
	if m.pruned && m.Edited != nil {
		switch n := len(lost) + len(stale); {
		case len(lost) > 0:
			m.Edited(n, lost[0].Prefix)
		case n > 0:
			m.Edited(n, stale[0])
		}
	}
	// Write first: a removal must not uncover a shorter prefix while the right one is missing. What
	// does not fit must not keep stale entries in its place.
	full := m.writeMost(ctx, lost)
	if full != nil && !errors.Is(full, datapath.ErrFull) {
		return full
	}
	freed := len(stale) > 0
	for len(stale) > 0 && ctx.Err() == nil {
		n := min(batch, len(stale))
		for _, p := range stale[:n] {
			delete(m.known, p)
		}
		if err := m.kernel.DeleteIPCache(stale[:n]); err != nil {
			return fmt.Errorf("removing %d stale addresses from the kernel: %w", n, err)
		}
		stale = stale[n:]
	}
	if full != nil && freed {
		full = m.writeMost(ctx, slices.DeleteFunc(lost, func(e datapath.IPCacheEntry) bool {
			have, ok := m.known[e.Prefix]
			return ok && have == e
		}))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if full != nil {
		return full
	}
	m.known, m.pruned = nil, true
	return nil
}
