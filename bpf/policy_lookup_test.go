package bpf_test

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestPolicyAgainstNaive asks random questions of random rule sets, made in one step or by deltas.
// In the second half there are peers whose identity is not known: these count as not observed.
func TestPolicyAgainstNaive(t *testing.T) {
	t.Parallel()
	n := &node{t: t, maps: testMaps(t, nil)}
	spec, err := loadPolicyTest()
	ask := n.testObject(spec, err, "ask_policy", nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const block = datapath.BlockScope << 24
	const unknown, last = 1001, datapath.MaxPodIdentity
	identities := []uint32{0, 1, 2, datapath.UnobservedIdentity, 1000, unknown, last, 1<<24 + 1, block + 1, block + 2, block + 3, block + 4}
	blocks := []datapath.Block{
		{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Identity: block + 1},
		{Prefix: netip.MustParsePrefix("10.1.2.3/32"), Identity: block + 2},
		{Prefix: netip.MustParsePrefix("fd00::/8"), Identity: block + 3},
		{Prefix: netip.MustParsePrefix("::/0"), Identity: block + 4},
	}
	n.must(n.maps.UpsertBlocks(blocks))
	// By longest prefix; the family of an address that is in no block has one around others.
	peers := map[netip.Addr]uint32{
		netip.MustParseAddr("10.9.9.9"): block + 1, netip.MustParseAddr("10.1.2.3"): block + 2, netip.MustParseAddr("11.0.0.1"): 0,
		netip.MustParseAddr("fd00::1"): block + 3, netip.MustParseAddr("2001:db8::1"): block + 4,
	}
	addrs := slices.Collect(maps.Keys(peers))
	protos := []uint8{0, 1, 6, 17, 58, 132}
	randomKey := func() datapath.PolicyKey {
		k := datapath.PolicyKey{
			Direction: datapath.Direction(rng.IntN(2)),
			Identity:  identities[rng.IntN(len(identities))],
			Proto:     protos[rng.IntN(len(protos))],
		}
		if k.Proto != 0 {
			k.PortBits = uint8([]int{0, 16, 16, rng.IntN(17), 13}[rng.IntN(5)])
			// Few ports, so that prefixes nest.
			k.Port = uint16(rng.IntN(64)) << rng.IntN(10) & datapath.PortMask(k.PortBits)
		}
		return k
	}
	frame := make([]byte, 14+24+16)
	seen := func(id uint32) uint32 { return id }
	for i := range 60 {
		if i == 30 {
			n.must(n.maps.SetKnownIdentities([]uint32{1000, unknown}))
			n.must(n.maps.UpdateKnownIdentities([]uint32{last}, []uint32{unknown}))
			seen = func(id uint32) uint32 {
				if id == unknown {
					return datapath.UnobservedIdentity
				}
				return id
			}
		}
		rs := datapath.RuleSet{
			ID: datapath.RuleSetID(1 + rng.IntN(5)), IngressEnforced: rng.IntN(2) == 0, EgressEnforced: rng.IntN(2) == 0,
			Entries: map[datapath.PolicyKey]datapath.PolicyEntry{},
		}
		for range rng.IntN(40) {
			rs.Entries[randomKey()] = randomEntry(rng)
		}
		n.must(n.maps.InstallRuleSet(rs))
		for range rng.IntN(4) {
			d := datapath.RuleSetDelta{ID: rs.ID, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{}}
			for range rng.IntN(10) {
				d.Upserts[randomKey()] = randomEntry(rng)
			}
			for k := range rs.Entries {
				if rng.IntN(4) == 0 {
					d.Deletes = append(d.Deletes, k)
				}
			}
			n.must(n.maps.UpdateRuleSet(d))
			for k, e := range d.Upserts {
				rs.Entries[k] = e
			}
			for _, k := range d.Deletes {
				delete(rs.Entries, k)
			}
		}
		for range 100 {
			k := randomKey()
			port := uint16(rng.IntN(64)) << rng.IntN(10)
			proto := protos[1+rng.IntN(len(protos)-1)]
			peer := addrs[rng.IntN(len(addrs))]
			v6 := uint32(0)
			if peer.Is6() {
				v6 = 1
			}
			if k.IsBlock() {
				k.Identity = 1000 // no packet is a block's
			}
			for i, v := range []uint32{uint32(rs.ID), k.Identity, uint32(k.Direction), uint32(proto), uint32(port), v6} {
				binary.NativeEndian.PutUint32(frame[14+4*i:], v)
			}
			*(*[16]byte)(frame[14+24:]) = peer.As16()
			got, err := ask.Run(&ebpf.RunOptions{Data: frame})
			n.must(err)
			k.Identity = seen(k.Identity)
			want := rs.Verdict(k.Direction, k.Identity, peers[peer], proto, port)
			if datapath.DropReason(got&0xff) != want {
				t.Fatalf("%s identity %d at %s protocol %d port %d: kernel says %s, want %s\nrules %+v",
					k.Direction, k.Identity, peer, proto, port, datapath.DropReason(got&0xff), want, rs)
			}
			if by, may := datapath.PolicyMatch(got>>8), deciders(rs, k.Direction, k.Identity, peers[peer], proto, port); !slices.Contains(may, by) {
				t.Fatalf("%s identity %d at %s protocol %d port %d: kernel says that it matched %d, want one of %d\nrules %+v",
					k.Direction, k.Identity, peer, proto, port, by, may, rs)
			}
		}
	}
}

// deciders is what the entries of a rule set match each of which decides about a packet.
func deciders(rs datapath.RuleSet, dir datapath.Direction, identity, block uint32, proto uint8, port uint16) (out []datapath.PolicyMatch) {
	found := map[datapath.PolicyKey]datapath.PolicyEntry{}
	for _, who := range []uint32{identity, 0, block} {
		var best datapath.PolicyKey
		bits := -2
		for k := range rs.Entries {
			is := -1
			if k.Proto != 0 {
				is = int(k.PortBits)
			}
			matches := k.Proto == 0 || k.Proto == proto && port&datapath.PortMask(k.PortBits) == k.Port
			if k.Direction == dir && k.Identity == who && matches && is > bits {
				best, bits = k, is
			}
		}
		if bits > -2 {
			found[best] = rs.Entries[best]
		}
	}
	those := func(say func(datapath.PolicyEntry) bool) bool {
		for k, e := range found {
			if !say(e) {
				continue
			}
			switch peer := k.Identity != 0; {
			case k.Proto == 0 && peer:
				out = append(out, datapath.MatchL3Only)
			case k.Proto == 0:
				out = append(out, datapath.MatchAll)
			case k.PortBits == 0 && peer:
				out = append(out, datapath.MatchL3Proto)
			case k.PortBits == 0:
				out = append(out, datapath.MatchProtoOnly)
			case peer:
				out = append(out, datapath.MatchL3L4)
			default:
				out = append(out, datapath.MatchL4Only)
			}
		}
		return len(out) > 0
	}
	tier := func(of func(datapath.PolicyEntry) datapath.TierRule) bool {
		var first datapath.TierRule
		for _, e := range found {
			if r := of(e); r != 0 && (first == 0 || r < first) {
				first = r
			}
		}
		return first != 0 && first.Action() != datapath.TierPass && those(func(e datapath.PolicyEntry) bool { return of(e) == first })
	}
	if tier(func(e datapath.PolicyEntry) datapath.TierRule { return e.Admin }) ||
		those(func(e datapath.PolicyEntry) bool { return e.Deny }) || those(func(e datapath.PolicyEntry) bool { return e.Allow }) ||
		tier(func(e datapath.PolicyEntry) datapath.TierRule { return e.Baseline }) {
		return out
	}
	return []datapath.PolicyMatch{datapath.MatchNone}
}

// randomEntry is one that says something in each tier as likely as not, with few places, so that
// some meet.
func randomEntry(rng *rand.Rand) datapath.PolicyEntry {
	var e datapath.PolicyEntry
	switch rng.IntN(4) {
	case 0:
		e.Deny = true
	case 1, 2:
		e.Allow = true
	}
	rule := func() datapath.TierRule {
		if rng.IntN(2) == 0 {
			return 0
		}
		place := []int{1, 2, 3, 4, 1<<14 - 1}[rng.IntN(5)]
		return datapath.TierRule(place<<2 | 1 + rng.IntN(3))
	}
	e.Admin, e.Baseline = rule(), rule()
	return e
}
