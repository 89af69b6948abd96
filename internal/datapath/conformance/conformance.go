// Package conformance tests the contracts of package datapath, for every implementation of its
// interfaces: the fake and the kernel's. It is linked by tests only.
package conformance

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Maps runs the suite for datapath.Maps. open returns empty maps with room for policyRoom policy
// entries in all; they are closed by the test's cleanup.
func Maps(t *testing.T, policyRoom int, open func(t *testing.T) datapath.Maps) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, datapath.Maps){
		"Endpoints":  testEndpoints,
		"Readdress":  testReaddress,
		"Takeover":   testTakeover,
		"RuleSets":   testRuleSets,
		"Deltas":     testDeltas,
		"IPCache":    testIPCache,
		"Blocks":     testBlocks,
		"Identities": testKnownIdentities,
		"Peers":      testTunnelPeers,
		"Conntrack":  testConntrack,
		"Invalid":    testInvalid,
		"Concurrent": testConcurrent,
		"Full":       func(t *testing.T, m datapath.Maps) { testFull(t, m, policyRoom) },
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

var comparers = gocmp.Options{
	gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func same[T any](t *testing.T, what string, less func(a, b T) int, want []T, list func() ([]T, error)) {
	t.Helper()
	got, err := list()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	want = slices.Clone(want)
	slices.SortFunc(got, less)
	slices.SortFunc(want, less)
	if diff := gocmp.Diff(want, got, comparers); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func sameEndpoints(t *testing.T, m datapath.Maps, want ...datapath.Endpoint) {
	t.Helper()
	same(t, "endpoints", func(a, b datapath.Endpoint) int { return cmp.Compare(a.IfIndex, b.IfIndex) }, want, m.Endpoints)
}

func sameRuleSets(t *testing.T, m datapath.Maps, want ...datapath.RuleSet) {
	t.Helper()
	same(t, "rule sets", func(a, b datapath.RuleSet) int { return cmp.Compare(a.ID, b.ID) }, want, m.RuleSets)
}

func sameIPCache(t *testing.T, m datapath.Maps, want ...datapath.IPCacheEntry) {
	t.Helper()
	same(t, "ipcache", func(a, b datapath.IPCacheEntry) int { return cmp.Compare(a.Prefix.String(), b.Prefix.String()) }, want, m.IPCache)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func endpoint(n byte) datapath.Endpoint {
	return datapath.Endpoint{
		ID: uint16(n), IfIndex: 1000 + int(n),
		MAC: net.HardwareAddr{2, 0, 0, 0, 0, n}, HostMAC: net.HardwareAddr{2, 0, 0, 0, 1, n},
		IPv4: netip.AddrFrom4([4]byte{10, 0, 0, n}), IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 15: n}),
		Identity: 70000 + uint32(n), RuleSet: datapath.RuleSetID(n), PolicyGeneration: 3, Incarnation: uint32(n),
	}
}

func testEndpoints(t *testing.T, m datapath.Maps) {
	sameEndpoints(t, m)
	one, two := endpoint(1), endpoint(2)
	two.IPv6, two.Locked, two.Audit = netip.Addr{}, true, true
	for range 2 { // writing twice is writing once
		must(t, m.UpsertEndpoint(one))
		must(t, m.UpsertEndpoint(two))
	}
	sameEndpoints(t, m, one, two)
	one.PolicyGeneration, one.RuleSet = 4, 0
	must(t, m.UpsertEndpoint(one))
	sameEndpoints(t, m, one, two)
	for range 2 {
		must(t, m.DeleteEndpoint(one.IfIndex))
	}
	sameEndpoints(t, m, two)
	named := two
	named.IfName = "lxc2"
	must(t, m.UpsertEndpoint(named))
	sameEndpoints(t, m, two)
}

func testReaddress(t *testing.T, m datapath.Maps) {
	ep := endpoint(1)
	must(t, m.UpsertEndpoint(ep))
	ep.IPv4, ep.IPv6 = netip.MustParseAddr("10.0.0.200"), netip.Addr{}
	must(t, m.UpsertEndpoint(ep))
	sameEndpoints(t, m, ep)
}

// A new endpoint may get an address while the old owner's row is still to be deleted.
func testTakeover(t *testing.T, m datapath.Maps) {
	old, heir := endpoint(1), endpoint(2)
	must(t, m.UpsertEndpoint(old))
	heir.IPv4 = old.IPv4
	must(t, m.UpsertEndpoint(heir))
	must(t, m.DeleteEndpoint(old.IfIndex))
	sameEndpoints(t, m, heir)
}

func entries(n int) map[datapath.PolicyKey]datapath.PolicyEntry {
	e := make(map[datapath.PolicyKey]datapath.PolicyEntry, n)
	for i := range n {
		k := datapath.PolicyKey{Direction: datapath.Direction(i % 2), Identity: uint32(i / 2), Proto: 6, Port: 80, PortBits: 16}
		switch i % 5 {
		case 0:
			k.Proto, k.Port, k.PortBits = 0, 0, 0
		case 1:
			k.Port, k.PortBits = 0, 0
		case 2:
			k.Port, k.PortBits = 1024, 6
		}
		e[k] = datapath.PolicyEntry{Deny: i%7 == 0, Allow: i%7 > 1, Admin: datapath.TierRule(i % 9), Baseline: datapath.TierRule(i % 5 * 1000)}
	}
	return e
}

func testRuleSets(t *testing.T, m datapath.Maps) {
	sameRuleSets(t, m)
	one := datapath.RuleSet{ID: 1, IngressEnforced: true, Entries: entries(50)}
	two := datapath.RuleSet{ID: 2, EgressEnforced: true, Entries: entries(9)}
	empty := datapath.RuleSet{ID: 3}
	for _, rs := range []datapath.RuleSet{one, two, empty, one} {
		must(t, m.InstallRuleSet(rs))
	}
	sameRuleSets(t, m, one, two, empty)
	// Content of a number in use is replaced exactly.
	one.Entries, one.EgressEnforced = entries(20), true
	for k, e := range one.Entries {
		one.Entries[k] = datapath.PolicyEntry{Deny: !e.Deny, Allow: e.Deny}
		break
	}
	must(t, m.InstallRuleSet(one))
	sameRuleSets(t, m, one, two, empty)
	for range 2 {
		must(t, m.DeleteRuleSet(2))
	}
	must(t, m.DeleteRuleSet(3))
	sameRuleSets(t, m, one)
	// The caller's map stays the caller's.
	want := maps.Clone(one.Entries)
	clear(one.Entries)
	one.Entries = want
	sameRuleSets(t, m, one)
}

func testDeltas(t *testing.T, m datapath.Maps) {
	if err := m.UpdateRuleSet(datapath.RuleSetDelta{ID: 1}); err == nil {
		t.Error("a delta to a rule set that is not there succeeded")
	}
	rs := datapath.RuleSet{ID: 1, IngressEnforced: true, Entries: entries(10)}
	must(t, m.InstallRuleSet(rs))
	added := datapath.PolicyKey{Direction: datapath.Egress, Identity: 9999, Proto: 17, Port: 53, PortBits: 16}
	var gone, changed datapath.PolicyKey
	for k := range rs.Entries {
		gone, changed = changed, k
	}
	must(t, m.UpdateRuleSet(datapath.RuleSetDelta{
		ID:      1,
		Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{added: {Allow: true}, changed: {Deny: true}},
		Deletes: []datapath.PolicyKey{gone, {Direction: datapath.Ingress, Identity: 424242}},
	}))
	want := maps.Clone(rs.Entries)
	want[added], want[changed] = datapath.PolicyEntry{Allow: true}, datapath.PolicyEntry{Deny: true}
	delete(want, gone)
	sameRuleSets(t, m, datapath.RuleSet{ID: 1, IngressEnforced: true, Entries: want})
}

func testFull(t *testing.T, m datapath.Maps, room int) {
	one := datapath.RuleSet{ID: 1, Entries: entries(room / 2)}
	must(t, m.InstallRuleSet(one))
	err := m.InstallRuleSet(datapath.RuleSet{ID: 2, Entries: entries(room)})
	if !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a rule set too large: %v", err)
	}
	sameRuleSets(t, m, one) // nothing is left behind
	if err := m.InstallRuleSet(datapath.RuleSet{ID: 1, Entries: entries(room + 1)}); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("growing too large: %v", err)
	}
	sameRuleSets(t, m, one)
	two := datapath.RuleSet{ID: 2, Entries: entries(room - room/2)}
	must(t, m.InstallRuleSet(two))
	more := datapath.PolicyKey{Direction: datapath.Egress, Identity: 9999, Proto: 17, Port: 53, PortBits: 16}
	delta := datapath.RuleSetDelta{ID: 1, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{more: {Allow: true}}}
	if err := m.UpdateRuleSet(delta); !errors.Is(err, datapath.ErrFull) {
		t.Errorf("a delta too large: %v", err)
	}
	must(t, m.DeleteRuleSet(2))
	must(t, m.UpdateRuleSet(delta))
}

func testIPCache(t *testing.T, m datapath.Maps) {
	sameIPCache(t, m)
	p := netip.MustParsePrefix
	list := []datapath.IPCacheEntry{
		{Prefix: p("10.0.0.1/32"), Identity: 1000, TunnelEndpoint: netip.MustParseAddr("192.168.0.1")},
		{Prefix: p("10.0.0.0/24"), Identity: 2, TunnelEndpoint: netip.MustParseAddr("192.168.0.1")},
		{Prefix: p("0.0.0.0/0"), Identity: 1<<24 + 1},
		{Prefix: p("fd00::1/128"), Identity: 1001, TunnelEndpoint: netip.MustParseAddr("fd99::1")},
		{Prefix: p("fd00::/64"), Identity: 2},
		{Prefix: p("::/0"), Identity: 1<<24 + 2},
	}
	for range 2 {
		must(t, m.UpsertIPCache(list))
	}
	sameIPCache(t, m, list...)
	// Prefixes are taken as meant, not as written.
	must(t, m.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: p("10.0.0.77/24"), Identity: 5}, {Prefix: p("::ffff:10.0.0.1/128"), Identity: 6}}))
	list[0] = datapath.IPCacheEntry{Prefix: list[0].Prefix, Identity: 6}
	list[1] = datapath.IPCacheEntry{Prefix: list[1].Prefix, Identity: 5}
	sameIPCache(t, m, list...)
	for range 2 {
		must(t, m.DeleteIPCache([]netip.Prefix{p("10.0.0.1/32"), p("10.0.0.9/24"), p("::/0"), p("172.16.0.0/12")}))
	}
	sameIPCache(t, m, list[2], list[3], list[4])
	must(t, m.UpsertIPCache(nil))
	must(t, m.DeleteIPCache(nil))

	// Many at once.
	var many []datapath.IPCacheEntry
	var prefixes []netip.Prefix
	for i := range 5000 {
		e := datapath.IPCacheEntry{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), 32), Identity: uint32(i)}
		many, prefixes = append(many, e), append(prefixes, e.Prefix)
	}
	must(t, m.UpsertIPCache(many))
	sameIPCache(t, m, append(many, list[2], list[3], list[4])...)
	must(t, m.DeleteIPCache(append([]netip.Prefix{p("99.9.9.9/32")}, prefixes...)))
	sameIPCache(t, m, list[2], list[3], list[4])
}

func sameBlocks(t *testing.T, m datapath.Maps, want ...datapath.Block) {
	t.Helper()
	same(t, "blocks", func(a, b datapath.Block) int { return a.Prefix.Compare(b.Prefix) }, want, m.Blocks)
}

func testTunnelPeers(t *testing.T, m datapath.Maps) {
	one := datapath.TunnelPeer{Addr: netip.MustParseAddr("192.0.2.1"), Node: 7, First: 256, Last: 65535, Own: true}
	two := datapath.TunnelPeer{Addr: netip.MustParseAddr("2001:db8::2"), Node: 8, First: 3 << 16, Last: 4<<16 - 1}
	want := func(peers ...datapath.TunnelPeer) {
		t.Helper()
		same(t, "tunnel peers", func(a, b datapath.TunnelPeer) int { return a.Addr.Compare(b.Addr) }, peers, m.TunnelPeers)
	}
	want()
	for range 2 {
		must(t, m.UpsertTunnelPeers([]datapath.TunnelPeer{one, two}))
	}
	want(one, two)
	one.Node, one.Own = 9, false
	must(t, m.UpsertTunnelPeers([]datapath.TunnelPeer{one}))
	want(one, two)
	for range 2 {
		must(t, m.DeleteTunnelPeers([]netip.Addr{one.Addr}))
	}
	want(two)
	for _, bad := range []datapath.TunnelPeer{
		{Node: 1, First: 256, Last: 65535},
		{Addr: netip.IPv4Unspecified(), Node: 1, First: 256, Last: 65535},
		{Addr: netip.MustParseAddr("::ffff:192.0.2.1"), Node: 1, First: 256, Last: 65535},
		{Addr: one.Addr, Node: 1, First: 1, Last: 65535},
		{Addr: one.Addr, Node: 1, First: 300, Last: 299},
		{Addr: one.Addr, Node: 1, First: 256, Last: 1 << 24},
	} {
		if err := m.UpsertTunnelPeers([]datapath.TunnelPeer{bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	want(two)
}

func testKnownIdentities(t *testing.T, m datapath.Maps) {
	want := func(all bool, ids ...uint32) {
		t.Helper()
		got, isAll, err := m.KnownIdentities()
		if err != nil || isAll != all || !slices.Equal(got, ids) {
			t.Fatalf("known identities: %d, all %t, %v; want %d, all %t", got, isAll, err, ids, all)
		}
	}
	want(true)
	const last = datapath.MaxPodIdentity
	must(t, m.SetKnownIdentities([]uint32{last, 300, 256, 319, 320}))
	want(false, 256, 300, 319, 320, last)
	must(t, m.UpdateKnownIdentities([]uint32{301, 300, 70000}, []uint32{319, 4000, last}))
	want(false, 256, 300, 301, 320, 70000)
	must(t, m.UpdateKnownIdentities([]uint32{301}, []uint32{301}))
	want(false, 256, 300, 301, 320, 70000)
	for _, bad := range []uint32{0, datapath.UnobservedIdentity, 255, last + 1} {
		if m.SetKnownIdentities([]uint32{bad}) == nil || m.UpdateKnownIdentities([]uint32{bad}, nil) == nil || m.UpdateKnownIdentities(nil, []uint32{bad}) == nil {
			t.Errorf("identity %d was accepted as a pod's", bad)
		}
	}
	want(false, 256, 300, 301, 320, 70000)
	must(t, m.SetKnownIdentities(nil))
	want(false)
}

func testBlocks(t *testing.T, m datapath.Maps) {
	sameBlocks(t, m)
	const first = uint32(datapath.BlockScope << 24)
	p := netip.MustParsePrefix
	list := []datapath.Block{
		{Prefix: p("0.0.0.0/0"), Identity: first + 1},
		{Prefix: p("10.0.0.0/8"), Identity: first + 2},
		{Prefix: p("10.0.0.1/32"), Identity: first + 3},
		{Prefix: p("::/0"), Identity: first + 4},
		{Prefix: p("fd00::1/128"), Identity: first + 5},
	}
	for range 2 {
		must(t, m.UpsertBlocks(list))
	}
	sameBlocks(t, m, list...)
	sameIPCache(t, m) // a matter of its own
	must(t, m.UpsertBlocks([]datapath.Block{{Prefix: p("10.9.9.9/8"), Identity: first + 6}}))
	list[1].Identity = first + 6
	sameBlocks(t, m, list...)
	if err := m.UpsertBlocks([]datapath.Block{{Prefix: p("11.0.0.0/8"), Identity: first + 7}, {Prefix: p("12.0.0.0/8"), Identity: 1000}}); err == nil {
		t.Error("a block with an identity that endpoints can have accepted")
	}
	if err := m.UpsertBlocks([]datapath.Block{{Identity: first}}); err == nil {
		t.Error("a block without a prefix accepted")
	}
	if err := m.DeleteBlocks([]netip.Prefix{{}}); err == nil {
		t.Error("removal of no prefix accepted")
	}
	sameBlocks(t, m, list...)
	for range 2 {
		must(t, m.DeleteBlocks([]netip.Prefix{p("0.0.0.0/0"), p("10.1.1.1/8"), p("9.0.0.0/8")}))
	}
	sameBlocks(t, m, list[2:]...)
}

func testConntrack(t *testing.T, m datapath.Maps) {
	must(t, m.CT(func(datapath.CTEntry) bool { t.Error("a flow in a new map"); return true }))
	alive, removed, err := m.CollectCT(t.Context())
	if alive != 0 || removed != 0 || err != nil {
		t.Errorf("collected from nothing: %d, %d, %v", alive, removed, err)
	}
	list, err := m.Metrics()
	if len(list) != 0 || err != nil {
		t.Errorf("metrics of a new map: %v, %v", list, err)
	}
	last := func(want uint32) {
		t.Helper()
		if got, err := m.LastGeneration(); got != want || err != nil {
			t.Errorf("last generation %d, %v; want %d", got, err, want)
		}
	}
	last(0)
	ep := endpoint(1)
	ep.PolicyGeneration, ep.Incarnation = 7, 5
	must(t, m.UpsertEndpoint(ep))
	last(7)
	ep.Incarnation = 9
	must(t, m.UpsertEndpoint(ep))
	last(9)
	must(t, m.SetMonitor(datapath.MonitorDrops|datapath.MonitorTraces))
}

func testInvalid(t *testing.T, m datapath.Maps) {
	for name, change := range map[string]func(*datapath.Endpoint){
		"no id":         func(e *datapath.Endpoint) { e.ID = 0 },
		"no owner":      func(e *datapath.Endpoint) { e.Incarnation = 0 },
		"no interface":  func(e *datapath.Endpoint) { e.IfIndex = 0 },
		"no MAC":        func(e *datapath.Endpoint) { e.MAC = nil },
		"long host MAC": func(e *datapath.Endpoint) { e.HostMAC = make([]byte, 8) },
		"no address":    func(e *datapath.Endpoint) { e.IPv4, e.IPv6 = netip.Addr{}, netip.Addr{} },
		"IPv6 as IPv4":  func(e *datapath.Endpoint) { e.IPv4 = e.IPv6 },
		"mapped":        func(e *datapath.Endpoint) { e.IPv6 = netip.AddrFrom16(e.IPv4.As16()) },
	} {
		ep := endpoint(1)
		change(&ep)
		if err := m.UpsertEndpoint(ep); err == nil {
			t.Errorf("endpoint with %s accepted", name)
		}
	}
	for name, rs := range map[string]datapath.RuleSet{
		"number 0":              {},
		"port of any protocol":  {ID: 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Port: 80, PortBits: 16}: {}}},
		"bits beyond":           {ID: 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Proto: 6, Port: 81, PortBits: 15}: {}}},
		"17 bits":               {ID: 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Proto: 6, Port: 81, PortBits: 17}: {}}},
		"direction of its own":  {ID: 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Direction: 2}: {}}},
		"port 80 and no bits":   {ID: 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Proto: 6, Port: 80}: {}}},
		"several of one's keys": {ID: 1, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{{Proto: 6}: {}, {PortBits: 1}: {}}},
	} {
		if err := m.InstallRuleSet(rs); err == nil {
			t.Errorf("rule set with %s accepted", name)
		}
	}
	if err := m.UpsertIPCache([]datapath.IPCacheEntry{{}}); err == nil {
		t.Error("ipcache entry without a prefix accepted")
	}
	if err := m.UpsertIPCache([]datapath.IPCacheEntry{{Prefix: netip.MustParsePrefix("::ffff:0:0/90")}}); err == nil {
		t.Error("prefix of both families accepted")
	}
	sameEndpoints(t, m)
	sameRuleSets(t, m)
	sameIPCache(t, m)
}

// Writers of different rows at once leave all rows.
func testConcurrent(t *testing.T, m datapath.Maps) {
	done := make(chan error)
	for w := range 4 {
		go func() {
			for i := range 20 {
				ep := endpoint(byte(1 + w))
				ep.PolicyGeneration = uint32(i)
				rs := datapath.RuleSet{ID: datapath.RuleSetID(1 + w), Entries: entries(i)}
				e := datapath.IPCacheEntry{Prefix: netip.PrefixFrom(ep.IPv4, 32), Identity: uint32(i)}
				if err := errors.Join(m.InstallRuleSet(rs), m.UpsertEndpoint(ep), m.UpsertIPCache([]datapath.IPCacheEntry{e})); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 4 {
		must(t, <-done)
	}
	var eps []datapath.Endpoint
	var sets []datapath.RuleSet
	for w := range 4 {
		ep := endpoint(byte(1 + w))
		ep.PolicyGeneration = 19
		eps = append(eps, ep)
		sets = append(sets, datapath.RuleSet{ID: datapath.RuleSetID(1 + w), Entries: entries(19)})
	}
	sameEndpoints(t, m, eps...)
	sameRuleSets(t, m, sets...)
}
