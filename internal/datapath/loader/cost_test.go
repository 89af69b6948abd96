package loader

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/testenv"
)

// modes are the settings that make programs differ, each as a node has it that uses everything.
func modes() map[string]datapath.Config {
	native := datapath.Config{
		RouterIPv4: netip.MustParseAddr("10.1.0.1"), RouterIPv6: netip.MustParseAddr("fd00:1::1"), NodeIPv4: netip.MustParseAddr("192.168.0.1"),
		NodeIPv6: netip.MustParseAddr("fd99::1"), HostMAC: []byte{2, 0, 0, 0, 0, 1}, NativeMAC: []byte{2, 0, 0, 0, 0, 2}, NetNSCookie: 1,
		HostIfIndex: 3, NativeIfIndex: 4, NativeMTU: 1500, CgroupRoot: "/sys/fs/cgroup",
	}
	tunnel := native
	tunnel.Tunnel, tunnel.TunnelIfIndex, tunnel.TunnelPort = true, 5, 8472
	balanced := native
	balanced.NodePort = true
	all := tunnel
	all.NodePort, all.OtherIfIndexes, all.DualStackWorld = true, []int{6}, true
	cloud := balanced
	cloud.Interfaces = true
	for n := byte(1); n <= 4; n++ {
		cloud.NotForPods = append(cloud.NotForPods, netip.AddrFrom4([4]byte{169, 254, 169, n}))
	}
	return map[string]datapath.Config{"native": native, "tunnel": tunnel, "native, services outside": balanced, "all": all, "a cloud": cloud}
}

// TestVerifierCost: what the verifier has to look at is bounded, in every mode. That is most of
// what a node's first start and each upgrade take, and of the time of the tests. The kernel's own
// limit is a million instructions a program; others than this one may count more of them.
func TestVerifierCost(t *testing.T) {
	testenv.RequireRoot(t)
	const programMost, nodeMost = 90_000, 350_000
	size := maps.Defaults()
	size.Dir, size.CTEntries, size.PolicyEntries, size.IPCacheEntries, size.IPCachePrefixes = "", 4096, 4096, 1024, 128
	m, err := maps.Open(size)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for mode, cfg := range modes() {
		rodata, err := settings(cfg)
		if err != nil {
			t.Fatal(err)
		}
		rodata.FragmentBits, rodata.FragmentNodeBits = m.FragmentPlaces()
		rodata.MasqueradeShare = m.MasqueradeShare()
		l := New(m, nil, nil)
		programs, err := l.load(objectsFor(cfg), rodata)
		if err != nil {
			var refused *ebpf.VerifierError
			if errors.As(err, &refused) {
				t.Logf("%+v", refused)
			}
			t.Fatalf("%s: %v", mode, err)
		}
		total := 0
		for name, p := range programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, _ := info.VerifiedInstructions()
			t.Logf("%s: %s %d instructions", mode, name, n)
			if n == 0 || n > programMost {
				t.Errorf("%s: the verifier looked at %d instructions of %s, want 1 to %d", mode, n, name, programMost)
			}
			total += int(n)
		}
		if err := closeAll(programs); err != nil {
			t.Error(err)
		}
		t.Logf("%s: %d programs, %d instructions", mode, len(programs), total)
		if total > nodeMost {
			t.Errorf("%s: the verifier looked at %d instructions, want at most %d", mode, total, nodeMost)
		}
	}
}

// TestUnusedProgramsStayOut: a node has the programs that it has hooks for, and no others.
func TestUnusedProgramsStayOut(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		cfg  datapath.Config
		want int // beside those of pods
	}{
		"pods alone":                      {datapath.Config{}, 0},
		"the node's device":               {datapath.Config{NativeIfIndex: 4}, 2},
		"a tunnel":                        {datapath.Config{Tunnel: true, TunnelIfIndex: 5, HostIfIndex: 3, NativeIfIndex: 4}, 4},
		"more devices":                    {datapath.Config{NativeIfIndex: 4, OtherIfIndexes: []int{6}}, 4},
		"processes of the node, a cgroup": {datapath.Config{CgroupRoot: "/sys/fs/cgroup"}, len(cgroupHooks())},
	} {
		if got := programNames(objectsFor(tt.cfg)); len(got) != 2+tt.want {
			t.Errorf("%s: programs %v, want %d", what, got, 2+tt.want)
		}
	}
}
