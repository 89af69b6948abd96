package maps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Flags of an ipcache value, as in bpf/lib/maps.h.
const (
	ipcacheTunnel4 = 1 << 0
	ipcacheTunnel6 = 1 << 1
)

// familyBits is the length of the family in front of the address in a prefix key.
const familyBits = 32

func toKernelPrefix(p netip.Prefix) (k kernelPrefix) {
	k.Bits = familyBits + uint32(p.Bits())
	k.Family = 6
	b := p.Addr().AsSlice()
	if p.Addr().Is4() {
		k.Family = 4
	}
	for i := 0; i < len(b); i += 4 {
		k.Addr[i/4] = binary.NativeEndian.Uint32(b[i:])
	}
	return k
}

func fromKernelPrefix(k kernelPrefix) netip.Prefix {
	var b [16]byte
	for i, w := range k.Addr {
		binary.NativeEndian.PutUint32(b[i*4:], w)
	}
	addr := netip.AddrFrom16(b)
	if k.Family == 4 {
		addr = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.PrefixFrom(addr, int(k.Bits)-familyBits)
}

func toKernelIPCache(e datapath.IPCacheEntry) kernelIpcacheValue {
	v := kernelIpcacheValue{Identity: e.Identity, Tunnel: toKernelAddr(e.TunnelEndpoint)}
	switch t := e.TunnelEndpoint.Unmap(); {
	case !t.IsValid():
	case t.Is4():
		v.Flags = ipcacheTunnel4
	default:
		v.Flags = ipcacheTunnel6
	}
	return v
}

func fromKernelIPCache(p netip.Prefix, v kernelIpcacheValue) datapath.IPCacheEntry {
	e := datapath.IPCacheEntry{Prefix: p, Identity: v.Identity}
	if v.Flags&(ipcacheTunnel4|ipcacheTunnel6) != 0 {
		e.TunnelEndpoint = fromKernelAddr(v.Tunnel)
	}
	return e
}

// UpsertIPCache implements datapath.Maps. Single addresses and prefixes live in maps of their own,
// because a hash answers in a third of a trie's time and nearly all entries are single addresses.
func (m *Maps) UpsertIPCache(entries []datapath.IPCacheEntry) error {
	var (
		addrs        []kernelAddr
		addrValues   []kernelIpcacheValue
		prefixes     []kernelPrefix
		prefixValues []kernelIpcacheValue
	)
	for _, e := range entries {
		p, err := datapath.CanonicalPrefix(e.Prefix)
		if err != nil {
			return err
		}
		if p.IsSingleIP() {
			addrs = append(addrs, toKernelAddr(p.Addr()))
			addrValues = append(addrValues, toKernelIPCache(e))
		} else {
			prefixes = append(prefixes, toKernelPrefix(p))
			prefixValues = append(prefixValues, toKernelIPCache(e))
		}
	}
	if _, err := putAll(m.maps[kernelMapIpcache], addrs, addrValues); err != nil {
		return fmt.Errorf("ipcache: write %d addresses: %w", len(addrs), err)
	}
	for i := range prefixes {
		if err := m.maps[kernelMapIpcachePrefix].Put(prefixes[i], prefixValues[i]); err != nil {
			return fmt.Errorf("ipcache: write %s: %w", fromKernelPrefix(prefixes[i]), classify(err))
		}
	}
	return nil
}

// DeleteIPCache implements datapath.Maps.
func (m *Maps) DeleteIPCache(list []netip.Prefix) error {
	var addrs []kernelAddr
	var prefixes []kernelPrefix
	for _, p := range list {
		p, err := datapath.CanonicalPrefix(p)
		if err != nil {
			return err
		}
		if p.IsSingleIP() {
			addrs = append(addrs, toKernelAddr(p.Addr()))
		} else {
			prefixes = append(prefixes, toKernelPrefix(p))
		}
	}
	if err := deleteAll(m.maps[kernelMapIpcache], addrs); err != nil {
		return fmt.Errorf("ipcache: remove %d addresses: %w", len(addrs), err)
	}
	if err := deleteAll(m.maps[kernelMapIpcachePrefix], prefixes); err != nil {
		return fmt.Errorf("ipcache: remove %d prefixes: %w", len(prefixes), err)
	}
	return nil
}

// IPCache implements datapath.Maps.
func (m *Maps) IPCache() ([]datapath.IPCacheEntry, error) {
	var list []datapath.IPCacheEntry
	err := each(m.maps[kernelMapIpcache], func(k kernelAddr, v kernelIpcacheValue) bool {
		a := netip.AddrFrom16(k.B).Unmap()
		list = append(list, fromKernelIPCache(netip.PrefixFrom(a, a.BitLen()), v))
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("ipcache: %w", err)
	}
	err = each(m.maps[kernelMapIpcachePrefix], func(k kernelPrefix, v kernelIpcacheValue) bool {
		list = append(list, fromKernelIPCache(fromKernelPrefix(k), v))
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("ipcache: %w", err)
	}
	return list, nil
}

// Resolve returns the identity by which the programs know the addresses of a prefix that no longer
// prefix has: its own, or that of the longest prefix around it. It is 0 if there is none.
func (m *Maps) Resolve(p netip.Prefix) (identity uint32, err error) {
	p, err = datapath.CanonicalPrefix(p)
	if err != nil {
		return 0, err
	}
	var v kernelIpcacheValue
	if p.IsSingleIP() {
		err := m.maps[kernelMapIpcache].Lookup(toKernelAddr(p.Addr()), &v)
		if err == nil {
			return v.Identity, nil
		}
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return 0, fmt.Errorf("ipcache: look up %s: %w", p, err)
		}
	}
	err = m.maps[kernelMapIpcachePrefix].Lookup(toKernelPrefix(p), &v)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("ipcache: look up %s: %w", p, err)
	}
	return v.Identity, nil
}
