package bpf_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestPolicyAgainstNaive asks random questions of random rule sets, made in one step or by deltas.
func TestPolicyAgainstNaive(t *testing.T) {
	t.Parallel()
	n := &node{t: t, maps: testMaps(t, nil)}
	spec, err := loadPolicyTest()
	ask := n.testObject(spec, err, "ask_policy", nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	identities := []uint32{0, 1, 2, 1000, 1001, 1<<24 + 1}
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
	frame := make([]byte, 14+20)
	for range 60 {
		rs := datapath.RuleSet{
			ID: datapath.RuleSetID(1 + rng.IntN(5)), IngressEnforced: rng.IntN(2) == 0, EgressEnforced: rng.IntN(2) == 0,
			Entries: map[datapath.PolicyKey]datapath.PolicyEntry{},
		}
		for range rng.IntN(40) {
			rs.Entries[randomKey()] = datapath.PolicyEntry{Deny: rng.IntN(3) == 0}
		}
		n.must(n.maps.InstallRuleSet(rs))
		for range rng.IntN(4) {
			d := datapath.RuleSetDelta{ID: rs.ID, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{}}
			for range rng.IntN(10) {
				d.Upserts[randomKey()] = datapath.PolicyEntry{Deny: rng.IntN(3) == 0}
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
			for i, v := range []uint32{uint32(rs.ID), k.Identity, uint32(k.Direction), uint32(proto), uint32(port)} {
				binary.NativeEndian.PutUint32(frame[14+4*i:], v)
			}
			got, err := ask.Run(&ebpf.RunOptions{Data: frame})
			n.must(err)
			want := rs.Judge(k.Direction, k.Identity, proto, port)
			if datapath.DropReason(got) != want {
				t.Fatalf("%s identity %d protocol %d port %d: kernel says %s, want %s\nrules %+v",
					k.Direction, k.Identity, proto, port, datapath.DropReason(got), want, rs)
			}
		}
	}
}
