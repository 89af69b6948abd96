package link

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
)

// BenchmarkEndpoint measures bringing endpoints up and removing twenty at once, beside removing
// bare pairs one by one.
func BenchmarkEndpoint(b *testing.B) {
	n := newNode(b)
	if _, err := n.SetNode(tunnelNode()); err != nil {
		b.Fatal(err)
	}
	const crowd = 20
	prog := loadProgram(b)
	ns := newNS(b)
	var ensure, filter, group, single time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		make20 := func() (eps []datapath.Endpoint) {
			for i := range crowd {
				eps = append(eps, n.podIn(b, i+2, ns))
			}
			return eps
		}
		eps := make20()
		start := time.Now()
		for _, ep := range eps {
			must(b, n.ReplaceFilter(ep.IfIndex, true, prog, "bench"))
			must(b, n.ReplaceFilter(ep.IfIndex, false, prog, "bench"))
		}
		filter += time.Since(start)
		start = time.Now()
		for _, ep := range eps {
			must(b, n.EnsureEndpoint(ep))
		}
		ensure += time.Since(start)
		start = time.Now()
		for _, ep := range eps {
			must(b, n.DeleteEndpoint(ep.IfName, ep.IfIndex))
		}
		must(b, n.Flush())
		group += time.Since(start)

		eps = make20()
		start = time.Now()
		for _, ep := range eps {
			must(b, n.h.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: ep.IfIndex}}))
		}
		single += time.Since(start)
	}
	ms := func(d time.Duration, per int) float64 { return d.Seconds() * 1000 / float64(rounds*per) }
	b.ReportMetric(ms(filter, crowd), "two-filters-ms")
	b.ReportMetric(ms(ensure, crowd), "ensure-ms")
	b.ReportMetric(ms(group, 1), "delete-20-ms")
	b.ReportMetric(ms(single, 1), "delete-20-singly-ms")
	b.ReportMetric(0, "ns/op")
}
