package maps_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/testenv"
)

func benchMaps(b *testing.B) *maps.Maps {
	b.Helper()
	testenv.RequireRoot(b)
	c := maps.Defaults()
	c.Dir, c.CTEntries = "", 4096
	m, err := maps.Open(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	return m
}

func rules(n int) map[datapath.PolicyKey]datapath.PolicyEntry {
	e := make(map[datapath.PolicyKey]datapath.PolicyEntry, n)
	for i := range n {
		e[datapath.PolicyKey{Identity: uint32(1 + i), Proto: 6, Port: 80, PortBits: 16}] = datapath.PolicyEntry{Allow: true}
	}
	return e
}

// BenchmarkInstallRuleSet writes a rule set of many entries under a new number and removes it.
func BenchmarkInstallRuleSet(b *testing.B) {
	for _, n := range []int{10, 1000, 16000, 65000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, e := benchMaps(b), rules(n)
			for b.Loop() {
				if err := m.InstallRuleSet(datapath.RuleSet{ID: 1, IngressEnforced: true, Entries: e}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := m.DeleteRuleSet(1); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkUpdateRuleSet adds and removes one peer of a rule set of 16,000 entries.
func BenchmarkUpdateRuleSet(b *testing.B) {
	m := benchMaps(b)
	if err := m.InstallRuleSet(datapath.RuleSet{ID: 1, Entries: rules(16000)}); err != nil {
		b.Fatal(err)
	}
	k := datapath.PolicyKey{Identity: 1 << 20, Proto: 6, Port: 80, PortBits: 16}
	for b.Loop() {
		add := datapath.RuleSetDelta{ID: 1, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{k: {Allow: true}}}
		if err := m.UpdateRuleSet(add); err != nil {
			b.Fatal(err)
		}
		if err := m.UpdateRuleSet(datapath.RuleSetDelta{ID: 1, Deletes: []datapath.PolicyKey{k}}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUpsertIPCache writes 1,000 addresses.
func BenchmarkUpsertIPCache(b *testing.B) {
	m := benchMaps(b)
	var list []datapath.IPCacheEntry
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		list = append(list, datapath.IPCacheEntry{Prefix: netip.PrefixFrom(a, 32), Identity: uint32(i)})
	}
	for b.Loop() {
		if err := m.UpsertIPCache(list); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRecheckServices compares a full table of services with what was written.
func BenchmarkRecheckServices(b *testing.B) {
	c := maps.Defaults()
	c.Dir, c.Services, c.ServiceBackends = "", 1<<16, 1<<16
	m, err := maps.Open(c)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for i := range 1 << 16 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 443)
		if err := m.UpsertService(datapath.Service{
			ServiceFrontend: datapath.ServiceFrontend{Addr: a, Proto: 6}, ID: uint32(i), Backends: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6443")},
		}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, changed, err := m.RecheckServices(); err != nil || len(changed) != 0 {
			b.Fatal(changed, err)
		}
	}
}
