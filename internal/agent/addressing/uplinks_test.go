package addressing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/ipam"
)

// kernel is a node's network interfaces, which come and go. It keeps what it is given.
type kernel struct {
	mu      sync.Mutex
	plugged map[string]bool // by hardware address; the others are not there
	want    []datapath.Interface
	sets    int
	broken  error                      // of all interfaces
	before  func([]datapath.Interface) // is called with what is to be set
}

func (k *kernel) Set(want []datapath.Interface) (states []datapath.InterfaceState, err error) {
	if k.before != nil {
		k.before(want)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.want = want
	k.sets++
	for _, i := range want {
		if err := i.Validate(); err != nil {
			panic(err)
		}
		state := datapath.InterfaceState{MAC: i.MAC, Err: k.broken}
		if !k.plugged[i.MAC.String()] {
			state.Err = datapath.ErrNoInterface
		}
		states = append(states, state)
	}
	return states, k.broken
}

func (k *kernel) plug(mac string, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugged[mac] = on
}

func (k *kernel) has(mac string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plugged[mac]
}

// leads reports whether packets of an address pass.
func (k *kernel) leads(ip netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.want, func(i datapath.Interface) bool { return k.plugged[i.MAC.String()] && leadsTo(i.Pods, ip) })
}

// given reports whether an address is among those that were given last.
func (k *kernel) given(ip netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.want, func(i datapath.Interface) bool { return leadsTo(i.Pods, ip) })
}

// leadsTo reports whether an address is of one of some prefixes.
func leadsTo(list []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func macOf(n int) string { return fmt.Sprintf("02:00:00:00:00:%02x", n+1) }

// eniNode is the node's object on AWS: interfaces by number, with their addresses.
func eniNode(generation int64, interfaces map[int][]string) *v2.CiliumNode {
	o := ciliumNode(generation)
	o.Spec.IPAM.Pool, o.Status.ENI.ENIs = v2.AllocationMap{}, map[string]v2.ENI{}
	for n, ips := range interfaces {
		id := fmt.Sprint("eni-", n)
		o.Status.ENI.ENIs[id] = v2.ENI{ID: id, MAC: macOf(n), Number: n, Subnet: v2.ENISubnet{CIDR: fmt.Sprintf("10.0.%d.0/24", n)},
			VPC: v2.ENIVPC{ID: "vpc-1", PrimaryCIDR: "10.0.0.0/16", CIDRs: []string{"100.64.0.0/16"}}}
		for _, ip := range ips {
			o.Spec.IPAM.Pool[ip] = v2.AllocationIP{Resource: id}
		}
	}
	return o
}

// prefixAt is the IPv6 prefix of interface n.
func prefixAt(n int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd00:98:0:1:%d::/80", n+1))
}

// withPrefixes gives interfaces of a node their prefixes.
func withPrefixes(o *v2.CiliumNode, numbers ...int) *v2.CiliumNode {
	o.Spec.IPAM.IPv6Pool = v2.AllocationMap{}
	for _, n := range numbers {
		id, p := fmt.Sprint("eni-", n), prefixAt(n).String()
		if e, ok := o.Status.ENI.ENIs[id]; ok {
			e.IPv6Prefixes = append(e.IPv6Prefixes, p)
			o.Status.ENI.ENIs[id] = e
		}
		o.Spec.IPAM.IPv6Pool[p] = v2.AllocationIP{Resource: id}
	}
	return o
}

// eniSingles are the addresses of a node on AWS whose state is in dir.
func eniSingles(t *testing.T, dir string) (*Singles, *ipam.IPAM) {
	return eniSinglesOf(t, dir, ipam.IPv4)
}

// eniSinglesOf is eniSingles for a node whose pods have addresses of some families.
func eniSinglesOf(t *testing.T, dir string, families ipam.Families) (*Singles, *ipam.IPAM) {
	t.Helper()
	cfg := singlesConfig(dir)
	cfg.Mode, cfg.UpdateInterval, cfg.Families = ENI, 15*time.Second, families
	s, err := newSingles(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ipam.New(ipam.Config{Assigned: families})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(pool); err != nil {
		t.Fatal(err)
	}
	return s, pool
}

// TestInterfacesOf reads the status that each cloud's operator writes.
func TestInterfacesOf(t *testing.T) {
	t.Parallel()
	o := eniNode(1, map[int][]string{0: nil, 2: {"10.0.2.9"}})
	o.Status.Azure.Interfaces = []v2.AzureInterface{
		{ID: "/b", MAC: "02:00:00:00:00:02", Gateway: "10.1.1.9", CIDR: "10.1.1.0/24"},
		{ID: "/a", MAC: "02-00-00-00-00-01", Subnet: v2.AzureSubnet{CIDR: "10.1.0.0/24"}},
	}
	o.Status.AlibabaCloud.ENIs = map[string]v2.AlibabaENI{
		"eni-p": {MACAddress: "02:00:00:00:00:03", Type: "Primary", VSwitch: v2.AlibabaVSwitch{CIDR: "172.16.0.0/20"}, VPC: v2.AlibabaVPC{CIDR: "172.16.0.0/12"}},
		"eni-s": {MACAddress: "02:00:00:00:00:04", Type: "Secondary", Tags: map[string]string{"cilium-eni-index": "3"}, VSwitch: v2.AlibabaVSwitch{CIDR: "172.16.16.0/24"},
			VPC: v2.AlibabaVPC{CIDR: "172.16.0.0/12", SecondaryCIDRs: []string{"192.168.0.0/16"}}},
	}
	for mode, want := range map[string]string{
		ENI:   "eni-0 02:00:00:00:00:01 0 10.0.0.0/24 10.0.0.1 [10.0.0.0/16 10.0.0.0/24 100.64.0.0/16], eni-2 02:00:00:00:00:03 2 10.0.2.0/24 10.0.2.1 [10.0.0.0/16 10.0.2.0/24 100.64.0.0/16]",
		Azure: "/a 02:00:00:00:00:01 0 10.1.0.0/24 10.1.0.1 [10.1.0.0/24], /b 02:00:00:00:00:02 1 10.1.1.0/24 10.1.1.9 [10.1.1.0/24]",
		AlibabaCloud: "eni-p 02:00:00:00:00:03 0 172.16.0.0/20 172.16.15.253 [172.16.0.0/12 172.16.0.0/20], " +
			"eni-s 02:00:00:00:00:04 3 172.16.16.0/24 172.16.16.253 [172.16.0.0/12 172.16.16.0/24 192.168.0.0/16]",
		CRD: "",
	} {
		list, err := interfacesOf(mode, ipam.Both, o, nil)
		var got []string
		for _, i := range list {
			got = append(got, fmt.Sprint(i.ID, " ", i.MAC, " ", i.Number, " ", i.Subnet, " ", i.Gateway, " ", i.Networks))
		}
		if strings.Join(got, ", ") != want || err != nil {
			t.Errorf("%s: %s, %v\nwant %s", mode, strings.Join(got, ", "), err, want)
		}
	}
}

// TestInterfacesOfInvalidStatus: what is invalid in a status is said and left out, and whatever it
// says, what the kernel is given is valid and bounded.
func TestInterfacesOfInvalidStatus(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*v2.ENI){
		"no hardware address":       func(e *v2.ENI) { e.MAC = "eth0" },
		"one of InfiniBand":         func(e *v2.ENI) { e.MAC = strings.Repeat("02:", 19) + "02" },
		"of a group":                func(e *v2.ENI) { e.MAC = "ff:ff:ff:ff:ff:ff" },
		"of all zeros":              func(e *v2.ENI) { e.MAC = "00:00:00:00:00:00" },
		"another's":                 func(e *v2.ENI) { e.MAC = macOf(0) },
		"a number that is taken":    func(e *v2.ENI) { e.Number = 0; e.ID = "eni-9" },
		"a number below all":        func(e *v2.ENI) { e.Number = -1 },
		"a table of the kernel":     func(e *v2.ENI) { e.Number = 244 },
		"no subnet":                 func(e *v2.ENI) { e.Subnet.CIDR = "" },
		"a subnet without a router": func(e *v2.ENI) { e.Subnet.CIDR = "10.0.1.1/32" },
		"the world":                 func(e *v2.ENI) { e.VPC.CIDRs = []string{"0.0.0.0/0"} },
		"half of the world":         func(e *v2.ENI) { e.VPC.PrimaryCIDR = "128.0.0.0/1" },
		"this machine":              func(e *v2.ENI) { e.VPC.CIDRs = []string{"127.0.0.0/8"} },
		"the metadata service":      func(e *v2.ENI) { e.VPC.CIDRs = []string{"169.254.0.0/16"} },
		"groups":                    func(e *v2.ENI) { e.VPC.CIDRs = []string{"224.0.0.0/8"} },
		"a mapped address":          func(e *v2.ENI) { e.Subnet.CIDR = "::ffff:10.0.1.0/120" },
		"networks without end": func(e *v2.ENI) {
			for n := range 300 {
				e.VPC.CIDRs = append(e.VPC.CIDRs, fmt.Sprintf("10.%d.0.0/16", n%250))
			}
		},
	} {
		o := eniNode(1, map[int][]string{0: {"10.0.0.9"}, 1: {"10.0.1.9"}})
		e := o.Status.ENI.ENIs["eni-1"]
		spoil(&e)
		o.Status.ENI.ENIs["eni-1"] = e
		list, err := interfacesOf(ENI, ipam.Both, o, nil)
		if err == nil || len(list) != 1 || list[0].ID != "eni-0" {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
	// Many of them are as little trouble as one.
	o := ciliumNode(1)
	o.Status.ENI.ENIs = map[string]v2.ENI{}
	for n := range 5000 {
		o.Status.ENI.ENIs[fmt.Sprint("eni-", strings.Repeat("x", 500), n)] = v2.ENI{MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", n/256, n%256), Number: n, Subnet: v2.ENISubnet{CIDR: "10.0.0.0/24"}}
	}
	list, err := interfacesOf(ENI, ipam.Both, o, nil)
	if len(list) > datapath.MaxInterfaces || err == nil || len(err.Error()) > 4096 {
		t.Errorf("%d interfaces, an error of %d bytes", len(list), len(fmt.Sprint(err)))
	}
}

// TestUplinks: an address is given only when packets of its interface pass, also when that comes
// later, goes, or comes again; what pods have keeps its interface.
func TestUplinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, pool := eniSingles(t, dir)
		s.Observe(eniNode(1, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.10"}}))
		net1 := &kernel{plugged: map[string]bool{macOf(0): true}}
		native := netip.MustParsePrefix("172.20.0.0/16")
		s.Connect(Uplinks{Network: net1, MTU: 9001, Masquerade: ipam.IPv4, NativeCIDRs: []netip.Prefix{native}})
		pool.Open()
		agent := runSingles(t, s)
		if w := net1.want; len(w) != 2 || w[1].Number != 1 || w[1].MTU != 9001 || w[1].Subnets[0].Router().String() != "10.0.1.1" || !slices.Contains(w[1].VPCCIDRs, native) ||
			!slices.Contains(w[1].VPCCIDRs, netip.MustParsePrefix("100.64.0.0/16")) {
			t.Errorf("the kernel side gets %+v", w)
		}
		give := func(want string) {
			t.Helper()
			r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false)
			switch {
			case want == "" && err == nil:
				t.Errorf("%s is given", r.IPv4.IP)
			case want != "" && (err != nil || r.IPv4.IP.String() != want):
				t.Errorf("%+v, %v; want %s", r.IPv4, err, want)
			}
		}
		give("10.0.0.10")
		give("")
		net1.plug(macOf(1), true)
		s.InterfacesChanged(nil, nil)
		synctest.Wait()
		give("10.0.1.10")

		// It goes, and new addresses with it; the pod's own are the kernel's to lead again.
		s.Observe(eniNode(2, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.10", "10.0.1.11"}}))
		synctest.Wait()
		net1.plug(macOf(1), false)
		s.InterfacesChanged(nil, nil)
		synctest.Wait()
		give("")
		if fault, _, _ := agent.seen(); fault != "" {
			t.Errorf("at once: %s", fault)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if fault, _, _ := agent.seen(); !strings.Contains(fault, "eni-1") || !strings.Contains(fault, datapath.ErrNoInterface.Error()) {
			t.Errorf("after a minute: %q", fault)
		}
		if !net1.given(netip.MustParseAddr("10.0.1.10")) {
			t.Error("the kernel side does not get a pod's address any more")
		}
		net1.plug(macOf(1), true)
		s.InterfacesChanged(nil, nil)
		synctest.Wait()
		if fault, _, _ := agent.seen(); fault != "" {
			t.Errorf("when it is there again: %s", fault)
		}
		give("10.0.1.11")

		// An address in use is taken out of the pool: it stays with its interface until it is
		// free.
		s.Observe(eniNode(3, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.11"}}))
		synctest.Wait()
		ip := netip.MustParseAddr("10.0.1.10")
		if i, ok := s.InterfaceOf(ip); !ok || i.ID != "eni-1" || !net1.given(ip) {
			t.Errorf("of an address that was taken away: %+v, %v", i, ok)
		}
		pool.FreeOf(ip, "ns/p")
		time.Sleep(time.Second)
		synctest.Wait()
		if _, ok := s.InterfaceOf(ip); ok || net1.given(ip) {
			t.Error("the kernel side still gets it after it was freed")
		}
		sets := net1.sets
		time.Sleep(time.Hour)
		synctest.Wait()
		if net1.sets != sets {
			t.Errorf("at rest the interfaces are set %d times an hour", net1.sets-sets)
		}

		// The next agent knows them without the server.
		next, nextSingles := eniSingles(t, dir)
		next.before = []netip.Addr{netip.MustParseAddr("10.0.1.11")}
		for ip, pod := range map[string]string{"10.0.0.10": "ns/p", "10.0.1.11": "ns/p"} {
			if err := nextSingles.Restore(netip.MustParseAddr(ip), pod); err != nil {
				t.Fatal(err)
			}
		}
		net2 := &kernel{plugged: net1.plugged}
		next.Connect(Uplinks{Network: net2})
		if len(net2.want) != 2 || len(net2.want[0].VPCCIDRs) != 0 || !net2.given(netip.MustParseAddr("10.0.1.11")) || !net2.given(netip.MustParseAddr("10.0.0.10")) {
			t.Errorf("after a restart: %+v", net2.want)
		}
	})
}

// TestUplinksFaults: the reason why addresses are given to no pod is reported, and who does not set
// up interfaces for want of something gives none.
func TestUplinksFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, pool := eniSingles(t, t.TempDir())
		o := eniNode(1, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.10"}})
		delete(o.Status.ENI.ENIs, "eni-1")
		s.Observe(o)
		k := &kernel{plugged: map[string]bool{macOf(0): true, macOf(1): true}, broken: errors.New("no room for rules")}
		s.Connect(Uplinks{Network: k})
		pool.Open()
		agent := runSingles(t, s)
		synctest.Wait()
		for _, want := range []string{"no room for rules", `of network interface "eni-1", which its status does not show`} {
			if fault, _, _ := agent.seen(); !strings.Contains(fault, want) {
				t.Errorf("%q is not said: %q", want, fault)
			}
		}
		if r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false); err == nil {
			t.Errorf("%s is given", r.IPv4.IP)
		}
		k.mu.Lock()
		k.broken = nil
		k.mu.Unlock()
		s.InterfacesChanged(nil, nil)
		o = eniNode(1, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.10"}}) // the status alone has changed
		s.Observe(o)
		synctest.Wait()
		if fault, _, _ := agent.seen(); fault != "" {
			t.Errorf("in the end: %q", fault)
		}
		for range 2 {
			if _, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestUplinksModel has addresses, prefixes, interfaces and pods come and go at random. No address
// is given whose packets do not pass at that moment, and none is free or taken away while the
// kernel still leads its packets here for long.
func TestUplinksModel(t *testing.T) {
	t.Parallel()
	for range 60 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			dir := t.TempDir()
			k := &kernel{plugged: map[string]bool{}}
			given := map[int][]string{0: {"10.0.0.10"}}
			pods := map[netip.Addr]string{}
			prefixes := map[int]bool{}
			numbers := func() (out []int) {
				for n, is := range prefixes {
					if _, there := given[n]; is && there {
						out = append(out, n)
					}
				}
				return out
			}
			had := func(n int) bool { // a pod has an address of the prefix
				for ip := range pods {
					if prefixAt(n).Contains(ip) {
						return true
					}
				}
				return false
			}
			hidden := map[int]bool{} // interfaces that the status does not show for a while
			var s *Singles
			var pool *ipam.IPAM
			var generation int64
			var served atomic.Pointer[v2.CiliumNode]
			var stop func()
			start := func() {
				s, pool = eniSinglesOf(t, dir, ipam.Both)
				for ip := range pods {
					s.before = append(s.before, ip)
				}
				pool.AssignAddresses(s.want())
				for ip, pod := range pods {
					if err := pool.Restore(ip, pod); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
				s.Connect(Uplinks{Network: k})
				for ip := range pods {
					if i, ok := s.InterfaceOf(ip); ok && k.has(i.MAC) && !k.leads(ip) {
						t.Fatalf("seed %d: %s of %s lost its interface over a restart", seed, ip, pods[ip])
					}
				}
				pool.Open()
				ctx, cancel := context.WithCancel(t.Context())
				s.patch = func(_ context.Context, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error) {
					return patched(t, o, status), nil
				}
				s.live = func(context.Context) (*v2.CiliumNode, error) { return served.Load(), nil }
				ended := make(chan struct{})
				running := s
				go func() { defer close(ended); _ = running.Run(ctx, &recorder{}) }()
				stop = func() { cancel(); <-ended }
			}
			observe := func() {
				generation++
				o := withPrefixes(eniNode(generation, given), numbers()...)
				for n, is := range hidden {
					if is {
						delete(o.Status.ENI.ENIs, fmt.Sprint("eni-", n))
					}
				}
				served.Store(o)
				s.Observe(served.Load())
			}
			s, pool = eniSinglesOf(t, dir, ipam.Both)
			observe()
			start()
			defer func() { stop() }()
			for step := range 120 {
				n := rng.IntN(4)
				switch rng.IntN(10) {
				case 9: // a prefix comes, or goes with pods or without
					prefixes[n] = !prefixes[n] || had(n) && rng.IntN(4) > 0
					observe()
				case 0, 1: // an address more
					if _, ok := given[n]; ok || rng.IntN(2) == 0 {
						given[n] = append(slices.Clone(given[n]), fmt.Sprintf("10.0.%d.%d", n, 10+step))
						observe()
					}
				case 2: // one that no pod has is released
					for n, ips := range given {
						given[n] = slices.DeleteFunc(slices.Clone(ips), func(ip string) bool {
							_, used := pods[netip.MustParseAddr(ip)]
							return !used && rng.IntN(3) == 0
						})
					}
					observe()
				case 3:
					k.plug(macOf(n), rng.IntN(3) > 0)
					s.InterfacesChanged(nil, nil)
				case 4, 5:
					name := fmt.Sprint("ns/p-", step)
					families := []ipam.Families{ipam.IPv4, ipam.IPv6, ipam.Both}[rng.IntN(3)]
					r, err := pool.AllocateNext(families, name, "", false)
					if err != nil {
						break
					}
					for _, a := range []*ipam.Allocation{r.IPv4, r.IPv6} {
						if a == nil {
							continue
						}
						if pods[a.IP] = name; !k.given(a.IP) {
							t.Fatalf("seed %d: %s is given and nothing leads its packets", seed, a.IP)
						}
					}
				case 6:
					for ip, pod := range maps.Clone(pods) {
						if rng.IntN(2) == 0 {
							pool.FreeOf(ip, pod)
							delete(pods, ip)
						}
					}
				case 7:
					stop()
					start()
				case 8:
					hidden[n] = !hidden[n]
					observe()
				}
				if rng.IntN(2) == 0 {
					synctest.Wait()
					for ip, pod := range pods {
						if !k.given(ip) {
							t.Fatalf("seed %d: %s of %s lost its interface", seed, ip, pod)
						}
					}
				}
				if rng.IntN(8) == 0 {
					time.Sleep(time.Minute)
				}
			}
			clear(hidden)
			observe()
			time.Sleep(time.Hour)
			synctest.Wait()
			atRest(t, fmt.Sprint("seed ", seed), k, pool, pods, given, numbers())
		})
	}
}

// atRest checks that all that is plugged can be given, and nothing else: addresses by interface,
// and the prefixes of some.
func atRest(t *testing.T, name string, k *kernel, pool *ipam.IPAM, pods map[netip.Addr]string, given map[int][]string, prefixes []int) {
	t.Helper()
	want, have := 0, map[netip.Prefix]bool{}
	for n, ips := range given {
		for _, text := range ips {
			ip := netip.MustParseAddr(text)
			have[single(ip)] = true
			if _, used := pods[ip]; !used && k.has(macOf(n)) {
				want++
			}
			if !k.given(ip) {
				t.Errorf("%s: the kernel side does not get %s", name, ip)
			}
		}
	}
	passing := false
	for _, n := range prefixes {
		have[prefixAt(n)] = true
		passing = passing || k.has(macOf(n))
	}
	got := 0
	for {
		r, err := pool.AllocateNext(ipam.IPv4, "ns/last", "", false)
		if err != nil {
			break
		}
		got++
		if !k.leads(r.IPv4.IP) {
			t.Errorf("%s: %s is given and its packets do not pass", name, r.IPv4.IP)
		}
	}
	if got != want {
		t.Errorf("%s: %d addresses are given at rest, want %d", name, got, want)
	}
	r, err := pool.AllocateNext(ipam.IPv6, "ns/last", "", false)
	if (err == nil) != passing || err == nil && !k.leads(r.IPv6.IP) {
		t.Errorf("%s: prefixes of %v at rest: %+v, %v", name, prefixes, r.IPv6, err)
	}
	for _, i := range k.want {
		for _, p := range i.Pods {
			if !have[p] && !slices.ContainsFunc(slices.Collect(maps.Keys(pods)), p.Contains) {
				t.Errorf("%s: the kernel still leads %s, which is not the node's", name, p)
			}
		}
	}
}

// TestThrough: what an ADD is answered of the interface of its address.
func TestThrough(t *testing.T) {
	t.Parallel()
	native := netip.MustParsePrefix("172.20.0.0/16")
	s, pool := eniSingles(t, t.TempDir())
	s.Observe(eniNode(1, map[int][]string{1: {"10.0.1.10"}}))
	b := &Allocator{IPAM: pool, Node: "n1", InterfaceOf: s.InterfaceOf, NativeCIDRs: []netip.Prefix{native, netip.MustParsePrefix("fd00::/8")}}
	i, ok, err := b.Through(netip.MustParseAddr("10.0.1.10"))
	mac, _ := net.ParseMAC(i.MAC)
	if err != nil || !ok || i.Number != 1 || mac.String() != macOf(1) || i.Gateway.String() != "10.0.1.1" || len(i.Networks) != 4 || !slices.Contains(i.Networks, native) {
		t.Errorf("%+v, %v, %v", i, ok, err)
	}
	if again, _, _ := b.Through(netip.MustParseAddr("10.0.1.10")); len(again.Networks) != 4 || len(s.state.Interfaces[0].Networks) != 3 {
		t.Errorf("asking changes the answer: %+v", again)
	}
	if _, _, err := b.Through(netip.MustParseAddr("10.0.9.9")); err == nil || !strings.Contains(err.Error(), "CiliumNode n1") {
		t.Errorf("an address that is not the node's: %v", err)
	}
	if _, ok, err := (&Allocator{IPAM: pool}).Through(netip.MustParseAddr("10.0.1.10")); ok || err != nil {
		t.Errorf("where there are no interfaces: %v, %v", ok, err)
	}
}

// TestMisplacedAddresses: an address that cannot be a pod's on the interface that the pool names is
// given to no pod, not set up, and reported; one that a pod has already keeps its way.
func TestMisplacedAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, pool := eniSingles(t, t.TempDir())
		s.cfg.Hosts = []netip.Addr{netip.MustParseAddr("10.0.1.4")}
		faulty := map[string]string{"10.0.1.1": "the cloud's router", "10.0.1.4": "the node's own", "10.0.2.9": "not within its subnet", "10.0.1.0": "the subnet itself", "10.0.1.255": "the subnet itself", "fd00::9": "not within its subnet"}
		given := append(slices.Collect(maps.Keys(faulty)), "10.0.1.10")
		had := netip.MustParseAddr("192.0.2.7") // of a subnet that has been rewritten since
		given = append(given, had.String())
		s.Observe(eniNode(1, map[int][]string{1: given}))
		if err := pool.Restore(had, "ns/had"); err != nil {
			t.Fatal(err)
		}
		k := &kernel{plugged: map[string]bool{macOf(1): true}}
		s.Connect(Uplinks{Network: k, Masquerade: ipam.IPv4})
		pool.Open()
		agent := runSingles(t, s)
		synctest.Wait()
		if r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false); err != nil || r.IPv4.IP.String() != "10.0.1.10" {
			t.Errorf("%+v, %v", r.IPv4, err)
		}
		for range faulty {
			if r, err := pool.AllocateNext(ipam.IPv4, "ns/none", "", false); err == nil {
				t.Errorf("%s is given", r.IPv4.IP)
			}
		}
		for text, why := range faulty {
			if err := pool.Allocate(netip.MustParseAddr(text), "ns/none", ""); err == nil {
				t.Errorf("%s is given to who asks for it", text)
			}
			if k.given(netip.MustParseAddr(text)) {
				t.Errorf("%s is led to an interface", text)
			}
			if got := s.misplaced()[single(netip.MustParseAddr(text))]; !strings.Contains(got, why) {
				t.Errorf("%s is %q", text, got)
			}
		}
		if !k.given(had) {
			t.Error("a pod's address has no way any more")
		}
		if fault, _, _ := agent.seen(); !strings.Contains(fault, "10.0.1.0 in spec.ipam.pool of CiliumNode n1 is given to no pod") || !strings.Contains(fault, "and 3 more") {
			t.Errorf("it is said: %q", fault)
		}
		pool.FreeOf(had, "ns/had")
		time.Sleep(time.Second)
		synctest.Wait()
		if k.given(had) {
			t.Error("it is led after it was freed")
		}
		if r, err := pool.AllocateNext(ipam.IPv4, "ns/next", "", false); err == nil {
			t.Errorf("%s is given again", r.IPv4.IP)
		}
	})
}

// TestObjectIsBounded: whatever a CiliumNode has, the kernel is not given more than it bears;
// what pods have comes first, the rest is reported and given to no pod.
func TestObjectIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, pool := eniSingles(t, t.TempDir())
		o := eniNode(1, map[int][]string{0: nil, 1: nil})
		for n := range 20000 {
			o.Spec.IPAM.Pool[netip.AddrFrom4([4]byte{10, 1, byte(n / 250), byte(n%250 + 2)}).String()] = v2.AllocationIP{Resource: "eni-1"}
		}
		e := o.Status.ENI.ENIs["eni-1"]
		e.Subnet.CIDR = "10.1.0.0/16"
		for n := range 59 {
			e.VPC.CIDRs = append(e.VPC.CIDRs, fmt.Sprintf("10.%d.0.0/16", n+2))
		}
		o.Status.ENI.ENIs["eni-1"] = e
		s.Observe(o)
		last := netip.MustParseAddr("10.1.79.251")
		if err := pool.Restore(last, "ns/last"); err != nil {
			t.Fatal(err)
		}
		k := &kernel{plugged: map[string]bool{macOf(0): true, macOf(1): true}}
		s.Connect(Uplinks{Network: k, Masquerade: ipam.IPv4})
		pool.Open()
		agent := runSingles(t, s)
		synctest.Wait()
		rules := 0
		for _, i := range k.want {
			rules += len(i.Pods) * (1 + len(i.VPCCIDRs))
		}
		if rules > maxRules || rules < maxRules/2 {
			t.Errorf("%d rules", rules)
		}
		if !k.given(last) {
			t.Error("a pod's address is not led")
		}
		for n := 0; ; n++ {
			r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false)
			if err != nil {
				if n < 200 || n > maxRules {
					t.Errorf("%d addresses are given, then %v", n, err)
				}
				break
			}
			if !k.given(r.IPv4.IP) {
				t.Fatalf("%s is given and has no way", r.IPv4.IP)
			}
		}
		if fault, _, _ := agent.seen(); !strings.Contains(fault, "addresses in spec.ipam.pool of CiliumNode n1 are given to no pod: the kernel would have more than 16384 rules") || len(fault) > 4096 {
			t.Errorf("it is said: %.4000q", fault)
		}
	})
	// Each interface for itself is within its bound.
	o := ciliumNode(1)
	o.Status.ENI.ENIs = map[string]v2.ENI{}
	for n := range 100 {
		e := v2.ENI{MAC: macOf(n), Number: n, Subnet: v2.ENISubnet{CIDR: fmt.Sprintf("10.0.%d.0/24", n)}}
		for k := range 60 {
			e.VPC.CIDRs = append(e.VPC.CIDRs, fmt.Sprintf("11.%d.%d.0/24", n, k))
		}
		o.Status.ENI.ENIs[fmt.Sprint("eni-", n)] = e
	}
	list, err := interfacesOf(ENI, ipam.Both, o, nil)
	networks := map[netip.Prefix]bool{}
	for _, i := range list {
		for _, p := range i.Networks {
			networks[p] = true
		}
	}
	if len(list) == 0 || len(networks) > maxAllNetworks || err == nil || !strings.Contains(err.Error(), "all interfaces have more than 256 networks") {
		t.Errorf("%d interfaces with %d networks: %v", len(list), len(networks), err)
	}

	// Nor if pods have addresses of them, and the status shows more of all than before.
	small := ciliumNode(1)
	small.Status.ENI.ENIs = map[string]v2.ENI{}
	for id, e := range o.Status.ENI.ENIs {
		e.VPC.CIDRs = e.VPC.CIDRs[:1]
		small.Status.ENI.ENIs[id] = e
	}
	needed, err := interfacesOf(ENI, ipam.Both, small, nil)
	if err != nil || len(needed) != 100 {
		t.Fatalf("%d interfaces, %v", len(needed), err)
	}
	list, err = interfacesOf(ENI, ipam.Both, o, needed)
	for n := range needed {
		needed[n].Kept = true // no other address of it is given
	}
	if !reflect.DeepEqual(needed, list) {
		t.Errorf("%d interfaces with %d networks, want those of before", len(list), len(networksOf(list)))
	}
	if err == nil || !strings.Contains(err.Error(), "more than 256 networks") {
		t.Errorf("it is said: %v", err)
	}
	// One that alone has more than before is as it is shown, while there is room.
	one := small.Status.ENI.ENIs["eni-7"]
	one.VPC.CIDRs = o.Status.ENI.ENIs["eni-7"].VPC.CIDRs[:56]
	small.Status.ENI.ENIs["eni-7"] = one
	if list, err = interfacesOf(ENI, ipam.Both, small, needed); err != nil || len(networksOf(list)) != 255 || slices.ContainsFunc(list, func(i Interface) bool { return i.Kept }) {
		t.Errorf("%d networks, %v", len(networksOf(list)), err)
	}
}

// TestGivenOnlyWhileLed: where the kernel would have too many rules by now, no pod gets an address
// while its rules go.
func TestGivenOnlyWhileLed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, pool := eniSingles(t, t.TempDir())
		object := func(generation int64, networks int) *v2.CiliumNode {
			o := eniNode(generation, map[int][]string{0: nil})
			for n := range 1000 {
				o.Spec.IPAM.Pool[netip.AddrFrom4([4]byte{10, 1, byte(n / 250), byte(n%250 + 2)}).String()] = v2.AllocationIP{Resource: "eni-0"}
			}
			e := o.Status.ENI.ENIs["eni-0"]
			e.Subnet.CIDR = "10.1.0.0/16"
			for n := range networks {
				e.VPC.CIDRs = append(e.VPC.CIDRs, fmt.Sprintf("10.%d.0.0/16", n+2))
			}
			o.Status.ENI.ENIs["eni-0"] = e
			return o
		}
		s.Observe(object(1, 0))
		k := &kernel{plugged: map[string]bool{macOf(0): true}}
		s.Connect(Uplinks{Network: k, Masquerade: ipam.IPv4})
		pool.Open()
		runSingles(t, s)
		synctest.Wait()
		if !k.given(netip.MustParseAddr("10.1.3.251")) {
			t.Fatal("not all addresses are led at first")
		}
		given := 0
		k.before = func(want []datapath.Interface) {
			led := map[netip.Prefix]bool{}
			for _, i := range want {
				for _, p := range i.Pods {
					led[p] = true
				}
			}
			for {
				r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false)
				if err != nil {
					return
				}
				if given++; !led[single(r.IPv4.IP)] {
					t.Errorf("%s is given while its rules go", r.IPv4.IP)
					return
				}
			}
		}
		s.Observe(object(2, 55))
		synctest.Wait()
		if given == 0 || given == 1000 {
			t.Errorf("%d addresses are given", given)
		}
	})
}
