package cni

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// BenchmarkAdd measures what the plugin itself costs: exec to exit of ADD and DEL against an agent
// that does next to nothing, each beside what the kernel takes for a bare pair made and configured
// in-process.
func BenchmarkAdd(b *testing.B) {
	f := setUp(b)
	addrs, err := benchAddrs()
	if err != nil {
		b.Fatal(err)
	}
	var bare, version, add, del []time.Duration
	n := 0
	for b.Loop() {
		n++
		container := fmt.Sprintf("CNI_CONTAINERID=c%d", n)

		start := time.Now()
		_, err := createVeth(f.node.h, f.pod, "cilium", "bare0", "eth0", rest.DaemonConfigurationStatus{DeviceMTU: 1500}, func(string) error { return nil })
		if err == nil {
			err = configurePod(f.pod, "eth0", addrs, rest.DaemonConfigurationStatus{})
		}
		if err != nil {
			b.Fatal(err)
		}
		bare = append(bare, time.Since(start))
		link, err := f.node.h.LinkByName("bare0")
		if err == nil {
			err = f.node.h.LinkDel(link)
		}
		if err != nil {
			b.Fatal(err)
		}
		measure := func(into *[]time.Duration, command string) {
			start := time.Now()
			f.must(command, nil, container)
			*into = append(*into, time.Since(start))
		}
		measure(&version, "VERSION")
		measure(&add, "ADD")
		measure(&del, "DEL")
	}
	for name, all := range map[string][]time.Duration{"bare": bare, "version": version, "add": add, "del": del} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, name+"-p99-ms")
	}
	b.ReportMetric(float64(add[len(add)/2])/float64(bare[len(bare)/2]), "add/bare")
	b.ReportMetric(0, "ns/op")
}

func benchAddrs() ([]address, error) {
	var out []address
	for _, s := range [][2]string{{"fd00:1::5", "fd00:1::1"}, {"10.1.0.5", "10.1.0.1"}} {
		ip, err := parseIP(s[0], s[0][0] == 'f')
		if err != nil {
			return nil, err
		}
		router, err := parseIP(s[1], s[1][0] == 'f')
		if err != nil {
			return nil, err
		}
		out = append(out, address{ip: ip, router: router})
	}
	return out, nil
}
