package bpf_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// runMany puts one frame through a program many times and returns the mean time of one.
func (n *node) runMany(p *ebpf.Program, ifIndex int, in []byte, times int) (mean time.Duration) {
	n.t.Helper()
	n.must(n.ns.do(func() error {
		action, took, err := benchmark(p, ifIndex, in, times)
		if err == nil && action != actOK && action != actDrop {
			err = fmt.Errorf("action %d changes the packet; it cannot be run twice", action)
		}
		mean = took
		return err
	}))
	return mean
}

func benchmark(p *ebpf.Program, ifIndex int, in []byte, times int) (uint32, time.Duration, error) {
	var out skbContext
	opts := &ebpf.RunOptions{Data: in, Repeat: uint32(times), Context: skbContext{IfIndex: uint32(ifIndex)}, ContextOut: &out}
	start := time.Now()
	action, err := p.Run(opts)
	if err != nil {
		return 0, 0, err
	}
	return action, time.Since(start) / time.Duration(times), nil
}

// BenchmarkFromPod prints what a packet costs between a pod and the world, for rule sets of many
// sizes, beside an empty program run the same way. The times include the kernel's test harness,
// which is all that the empty program measures.
func BenchmarkFromPod(b *testing.B) {
	for _, size := range []int{1, 1000, 16000, 65000} {
		for _, kind := range []string{"established", "new"} {
			for _, v6 := range []bool{false, true} {
				family, src, dst := "ipv4", a4, w4
				if v6 {
					family, src, dst = "ipv6", a6, w6
				}
				b.Run(fmt.Sprintf("rules=%d/%s/%s", size, kind, family), func(b *testing.B) {
					n := newNode(b, testConfig())
					n.fill(size)
					f := frame{src: src, dst: dst, proto: tcp, sport: 40000, dport: 443, ethSrc: aMAC, ethDst: aHost}.bytes()
					spec, err := loadPolicyTest()
					empty := n.testObject(spec, err, "empty", nil)
					spec, err = loadEncapTest()
					fromPod := n.testObject(spec, err, "from_pod", func(c *overlayTestConfig) {
						if kind == "new" {
							// As many as there are in a benchmark would be beyond anybody's share.
							n.must(n.maps.Replacements()["ct_accounts"].Put(uint32(n.a.ID), make([]byte, 20)))
							// Expired as soon as written: each packet asks policy and writes an
							// entry.
							c.TimeoutTcp, c.TimeoutTcpSyn, c.TimeoutTcpFin, c.TimeoutAny = 0, 0, 0, 0
						}
					})
					n.runMany(fromPod, n.ifA, f, 1000)
					base := n.runMany(empty, n.ifA, f, max(b.N, 100000))
					b.ResetTimer()
					mean := n.runMany(fromPod, n.ifA, f, b.N)
					b.ReportMetric(float64(mean.Nanoseconds()), "ns/packet")
					b.ReportMetric(float64(base.Nanoseconds()), "ns/empty")
				})
			}
		}
	}
}

// BenchmarkBlocks prints what a new flow costs whose rule set names blocks of addresses, by how
// many blocks there are, beside the same rule set without.
func BenchmarkBlocks(b *testing.B) {
	for _, count := range []int{0, 1, 1000, 50000} {
		b.Run(fmt.Sprintf("blocks=%d", count), func(b *testing.B) {
			n := newNode(b, testConfig())
			n.fill(1000)
			var blocks []datapath.Block
			for i := range count {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(i >> 8), byte(i), 0}), 24)
				blocks = append(blocks, datapath.Block{Prefix: p, Identity: datapath.BlockScope<<24 + uint32(i)})
			}
			n.must(n.maps.UpsertBlocks(blocks))
			if count > 0 {
				n.must(n.maps.UpdateRuleSet(datapath.RuleSetDelta{ID: setA, Upserts: map[datapath.PolicyKey]datapath.PolicyEntry{
					{Direction: out, Identity: datapath.BlockScope<<24 + 2, Proto: tcp, Port: 443, PortBits: 16}: {Allow: true},
				}}))
			}
			f := frame{src: a4, dst: w4, proto: tcp, sport: 40000, dport: 443, ethSrc: aMAC, ethDst: aHost}.bytes()
			spec, err := loadEncapTest()
			fromPod := n.testObject(spec, err, "from_pod", func(c *overlayTestConfig) {
				c.TimeoutTcp, c.TimeoutTcpSyn, c.TimeoutTcpFin, c.TimeoutAny = 0, 0, 0, 0
			})
			n.runMany(fromPod, n.ifA, f, 1000)
			b.ResetTimer()
			mean := n.runMany(fromPod, n.ifA, f, b.N)
			b.ReportMetric(float64(mean.Nanoseconds()), "ns/packet")
		})
	}
}

// fill gives pod a a rule set of the size given, of which one entry matches.
func (n *node) fill(size int) {
	rs := datapath.RuleSet{ID: setA, IngressEnforced: true, EgressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{
		{Direction: out, Identity: 2, Proto: tcp, Port: 443, PortBits: 16}: {Allow: true},
	}}
	for i := 1; len(rs.Entries) < size; i++ {
		rs.Entries[datapath.PolicyKey{Direction: out, Identity: uint32(256 + i), Proto: tcp, Port: 80, PortBits: 16}] = datapath.PolicyEntry{Allow: true}
	}
	n.must(n.maps.InstallRuleSet(rs))
}
