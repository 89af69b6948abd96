package maps

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Flags of a conntrack value, as in bpf/lib/maps.h.
const (
	ctOpenedByB  = 1 << 0
	ctSeenReply  = 1 << 1
	ctFinForward = 1 << 2
	ctFinReverse = 1 << 3
	ctRST        = 1 << 4
	ctSrcChecked = 1 << 5
	ctDstChecked = 1 << 6
	ctService    = 1 << 7
	ctTranslated = 1 << 8
	ctHairpin    = 1 << 9
	ctDSR        = 1 << 11
)

// ctEnded is ct_closing of bpf/lib/conntrack.h: a connection that one side has closed goes on.
func ctEnded(flags uint32) bool {
	const both = ctFinForward | ctFinReverse
	return flags&ctRST != 0 || flags&both == both
}

func fromKernelCT(k kernelCtKey, v kernelCtValue, now uint32) datapath.CTEntry {
	a := netip.AddrPortFrom(netip.AddrFrom16(k.A.B).Unmap(), ntohs(k.PortA))
	b := netip.AddrPortFrom(netip.AddrFrom16(k.B.B).Unmap(), ntohs(k.PortB))
	e := datapath.CTEntry{
		Src: a, Dst: b,
		Proto:          k.Proto,
		SrcIdentity:    v.SrcIdentity,
		DstIdentity:    v.DstIdentity,
		Expires:        time.Duration(int32(v.Expires-now)) * TickNanoseconds,
		SeenReply:      v.Flags&ctSeenReply != 0,
		Closing:        v.Flags&(ctFinForward|ctFinReverse|ctRST) != 0,
		ForwardPackets: uint64(v.ForwardPackets),
		ReversePackets: uint64(v.ReversePackets),
		SrcOwner:       v.SrcOwner,
		DstOwner:       v.DstOwner,
	}
	if v.Flags&ctOpenedByB != 0 {
		e.Src, e.Dst = b, a
	}
	if v.Flags&ctSrcChecked != 0 {
		e.SrcGeneration = v.SrcGeneration
	}
	if v.Flags&ctDstChecked != 0 {
		e.DstGeneration = v.DstGeneration
	}
	if v.Flags&ctTranslated != 0 {
		e.Service = netip.AddrPortFrom(netip.AddrFrom16(v.Nat.B).Unmap(), ntohs(v.NatPort))
		e.DSR = v.Flags&ctDSR != 0
		if e.Service == e.Dst {
			e.Service = netip.AddrPort{} // a direct flow whose tuple collided with another's
		}
	}
	return e
}

// CT implements datapath.Maps.
func (m *Maps) CT(fn func(datapath.CTEntry) bool) error {
	now, err := now()
	if err != nil {
		return fmt.Errorf("conntrack: read the clock: %w", err)
	}
	err = each(m.maps[kernelMapCt], func(k kernelCtKey, v kernelCtValue) bool {
		// Where a client's packets go is reported with their flow.
		return v.Flags&ctService != 0 || fn(fromKernelCT(k, v, now))
	})
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	return nil
}

// LastGeneration implements datapath.Maps.
func (m *Maps) LastGeneration() (uint32, error) {
	var last uint32
	rows, err := m.Endpoints()
	if err != nil {
		return 0, fmt.Errorf("endpoints: %w", err)
	}
	for _, row := range rows {
		last = max(last, row.PolicyGeneration, row.Incarnation)
	}
	err = each(m.maps[kernelMapCt], func(_ kernelCtKey, v kernelCtValue) bool {
		last = max(last, v.SrcGeneration, v.DstGeneration, v.SrcOwner, v.DstOwner)
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	return last, nil
}

// expired reports whether the programs would no longer believe an entry.
func expired(v kernelCtValue, now uint32) bool { return int32(v.Expires-now) <= 0 }

// CollectCT implements datapath.Maps. Programs treat an expired entry, and one whose owner is gone,
// as absent, so their removal only gives memory back and keeps listings honest; the counts are what
// shares go by.
func (m *Maps) CollectCT(ctx context.Context) (alive, removed int, err error) {
	now, err := now()
	if err != nil {
		return 0, 0, fmt.Errorf("conntrack: read the clock: %w", err)
	}
	ct := m.maps[kernelMapCt]
	var old []kernelCtKey
	held := map[owners]int{}
	keys := map[owners][]kernelCtKey{} // of the few whose owners are not known at first
	known, err := m.incarnations()
	if err != nil {
		return 0, 0, err
	}
	err = each(ct, func(k kernelCtKey, v kernelCtValue) bool {
		of := ownersOf(v)
		switch {
		case expired(v, now):
			old = append(old, k)
		case !of.all(known):
			keys[of] = append(keys[of], k)
		default:
			held[of]++
			alive++
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return alive, 0, fmt.Errorf("conntrack: %w", err)
	}
	// A row is there before its flows are: whose owner has none now has gone.
	if known, err = m.incarnations(); err != nil {
		return alive, 0, err
	}
	gone := func(v kernelCtValue) bool { return expired(v, now) || !ownersOf(v).all(known) }
	for of, list := range keys {
		if of.all(known) {
			held[of] += len(list)
			alive += len(list)
		} else {
			old = append(old, list...)
		}
	}
	for _, k := range old {
		if ctx.Err() != nil {
			break
		}
		// The flow may have come back to life since it was listed.
		var v kernelCtValue
		switch err := ct.Lookup(k, &v); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			continue
		case err != nil:
			return alive, removed, fmt.Errorf("conntrack: %w", err)
		}
		if !gone(v) {
			held[ownersOf(v)]++
			alive++
			continue
		}
		if err := ct.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return alive, removed, fmt.Errorf("conntrack: remove an expired flow: %w", err)
		}
		removed++
	}
	back, err := m.takeBack(ctx, held, known)
	alive, removed = alive-back, removed+back
	err = errors.Join(err, m.collectMasquerade(ctx, now), m.collectFragments(ctx, now))
	if ctx.Err() != nil {
		return alive, removed, ctx.Err()
	}
	// Also after an error: unclaimed shares lapse.
	return alive, removed, errors.Join(err, m.publishShares(held, known, now))
}

// ownersOf returns the owners of an entry. That of a service has the incarnation of its backend
// where other entries have a generation: see store_backend in bpf/lib/conntrack.h.
func ownersOf(v kernelCtValue) owners {
	if v.Flags&ctService != 0 {
		return owners{v.SrcOwner, v.DstGeneration}
	}
	return owners{v.SrcOwner, v.DstOwner}
}
