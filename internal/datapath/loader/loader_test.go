package loader_test

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/testenv"
)

func programDirs(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "programs-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestRestartAndUpgrade: the same build and settings find their programs again and touch nothing;
// other settings replace them everywhere and leave no pins behind.
func TestRestartAndUpgrade(t *testing.T) {
	testenv.RequireRoot(t)
	dir := filepath.Join(t.TempDir(), "bpf")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	ns := testenv.NewNetNS(t)
	h := ns.Netlink(t)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: named("lxc1"), PeerName: "hawser_host"}))
	lxc, host := byName(t, h, "lxc1").Attrs().Index, byName(t, h, "hawser_host").Attrs().Index
	m := smallMaps(t, dir)
	cfg := datapath.Config{RouterIPv4: ip("10.1.0.1"), HostIfIndex: host}

	filters := &tcFilters{h: h}
	start := func() *loader.Loader {
		t.Helper()
		filters.replaced = 0
		l := loader.New(m, filters, slog.New(slog.DiscardHandler))
		t.Cleanup(func() { l.Close() })
		return l
	}
	current := func(ingress bool) int {
		t.Helper()
		id, err := filters.FilterProgram(lxc, ingress)
		must(t, err)
		return id
	}

	first := start()
	if err := first.AttachEndpoint(lxc); err == nil {
		t.Error("attached programs before they were loaded")
	}
	must(t, first.Configure(cfg))
	if ok, err := first.Attached(lxc); ok || err != nil {
		t.Errorf("attached before anything was: %t, %v", ok, err)
	}
	must(t, first.AttachEndpoint(lxc))
	if ok, err := first.Attached(lxc); !ok || err != nil {
		t.Errorf("not attached: %t, %v", ok, err)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	must(t, m.UpsertEndpoint(datapath.Endpoint{ID: 1, Incarnation: 1, IfIndex: lxc, MAC: mac, HostMAC: mac, IPv4: ip("10.1.0.9")}))
	// A row without its interface, as a pod leaves it that went while no agent ran.
	must(t, m.UpsertEndpoint(datapath.Endpoint{ID: 2, Incarnation: 2, IfIndex: 9999, MAC: mac, HostMAC: mac, IPv4: ip("10.1.0.10")}))
	in, out := current(true), current(false)
	pins := programDirs(t, dir)

	again := start()
	must(t, again.Configure(cfg))
	if filters.replaced != 0 || current(true) != in || current(false) != out {
		t.Errorf("a restart replaced %d programs", filters.replaced)
	}
	if now := programDirs(t, dir); len(now) != 1 || now[0] != pins[0] {
		t.Errorf("a restart changed the pins from %v to %v", pins, now)
	}

	// A program that was detached from a node's device is put back, and nothing else is touched.
	reattach := func(ifIndex, want int) {
		t.Helper()
		if n, err := again.ReattachNode(ifIndex); n != want || err != nil {
			t.Errorf("interface %d: %d put back, %v, want %d", ifIndex, n, err, want)
		}
	}
	reattach(0, 0)
	for _, ifIndex := range []int{host, 0} {
		must(t, h.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: host, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}))
		reattach(lxc, 0)
		reattach(ifIndex, 1)
		reattach(ifIndex, 0)
	}
	if n, err := loader.New(m, filters, slog.New(slog.DiscardHandler)).ReattachNode(0); n != 0 || err != nil {
		t.Errorf("before Configure: %d put back, %v", n, err)
	}

	// Half of a set, as a crash could leave it, is no set.
	must(t, os.Remove(filepath.Join(dir, pins[0], "to_pod")))
	must(t, os.Mkdir(filepath.Join(dir, "programs-0000-new"), 0o700))
	must(t, os.Mkdir(filepath.Join(dir, "maps-v0"), 0o700))
	repaired := start()
	must(t, repaired.Configure(cfg))
	if ok, err := repaired.Attached(lxc); !ok || err != nil {
		t.Errorf("after repair: %t, %v", ok, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "maps-v0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("maps of an older layout: %v", err)
	}

	cfg.RouterIPv6 = ip("fd00::1")
	upgraded := start()
	must(t, upgraded.Configure(cfg))
	if ok, err := upgraded.Attached(lxc); !ok || err != nil {
		t.Errorf("after other settings: %t, %v", ok, err)
	}
	if ok, err := again.Attached(lxc); ok || err != nil {
		t.Errorf("the old programs claim to be attached: %t, %v", ok, err)
	}
	if now := programDirs(t, dir); len(now) != 1 || now[0] == pins[0] {
		t.Errorf("pins after other settings: %v", now)
	}
	if current(true) == in || current(false) == out || current(true) == 0 {
		t.Error("old programs are still on the interface")
	}
}

// TestConfigErrors: settings that are invalid are refused by name, all at once, and change
// nothing.
func TestConfigErrors(t *testing.T) {
	m := smallMaps(t, "")
	l := loader.New(m, &tcFilters{}, slog.New(slog.DiscardHandler))
	err := l.Configure(datapath.Config{
		Tunnel: true, RouterIPv4: netip.MustParseAddr("fd00::1"), NodeIPv6: netip.MustParseAddr("1.2.3.4"),
		HostMAC: []byte{1}, CTTimeouts: datapath.CTTimeouts{TCP: -1}, NativeIfIndex: -1,
		NotForPods: make([]netip.Addr, 5),
	})
	for _, want := range []string{"tunnel device", "router IPv4", "node IPv6", "hardware address", "lifetime of TCP", "negative", "5 addresses are not for pods", "ID of its network namespace"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not speak of %q: %v", want, err)
		}
	}
	if l.Program(loader.FromPod) != nil {
		t.Error("programs were loaded")
	}
}

// TestReplaceUnderTraffic: programs are exchanged under a stream of packets, of which none is lost.
func TestReplaceUnderTraffic(t *testing.T) {
	n := newTestNode(t, 1, false)
	must(t, n.loader.Configure(n.cfg))
	a, b := n.pod(t, 1001), n.pod(t, 1002)
	n.enforce(t, b, 1001)
	serve(t, b.ns)
	var c net.Conn
	must(t, a.ns.Do(func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(b.ep.IPv4, service).String())
		return err
	}))
	defer c.Close()
	stop, done := make(chan struct{}), make(chan error)
	sent := 0
	go func() {
		buf := make([]byte, 100)
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			_, err := c.Write(buf)
			if err == nil {
				_, err = c.Read(buf)
			}
			if err != nil {
				done <- err
				return
			}
			sent++
		}
	}()
	var errs []error
	for i := range 10 {
		n.cfg.CTTimeouts.Any = time.Duration(60+i) * time.Second
		errs = append(errs, n.loader.Configure(n.cfg))
	}
	close(stop)
	if err := errors.Join(append(errs, <-done)...); err != nil {
		t.Error(err)
	}
	t.Logf("%d packets there and back", sent)
	if sent < 100 {
		t.Errorf("only %d packets went there and back", sent)
	}
}

// orderedFilters remembers what was attached, in order.
type orderedFilters struct {
	tcFilters
	order []string
}

func (f *orderedFilters) ReplaceFilter(ifIndex int, ingress bool, progFD int, name string) error {
	f.order = append(f.order, name)
	return f.tcFilters.ReplaceFilter(ifIndex, ingress, progFD, name)
}

// TestExitAfterOthers: what drops that goes through the tunnel unless a program of the same make
// has put it there comes after all that put something there, and not at all while others' are kept.
func TestExitAfterOthers(t *testing.T) {
	ns := testenv.NewNetNS(t)
	h := ns.Netlink(t)
	for name, peer := range map[string]string{"eth0": "lxc1", "hawser_host": "hawser_vxlan"} {
		must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: peer}))
	}
	index := func(name string) int { return byName(t, h, name).Attrs().Index }
	cfg := datapath.Config{
		Tunnel: true, TunnelPort: 8472, RouterIPv4: ip("10.1.0.1"), NativeIfIndex: index("eth0"), HostIfIndex: index("hawser_host"),
		TunnelIfIndex: index("hawser_vxlan"), NetNSCookie: 1,
	}
	filters := &orderedFilters{tcFilters: tcFilters{h: h}}
	take := func() (order string) {
		order, filters.order = strings.Join(filters.order, " "), nil
		return order
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	start := func(keep bool) *loader.Loader {
		t.Helper()
		m := smallMaps(t, "")
		must(t, m.UpsertEndpoint(datapath.Endpoint{ID: 1, Incarnation: 1, IfIndex: index("lxc1"), MAC: mac, HostMAC: mac, IPv4: ip("10.1.0.9")}))
		l := loader.New(m, filters, slog.New(slog.DiscardHandler))
		t.Cleanup(func() { l.Close() })
		kept, err := l.KeepOthers([]int{index("lxc1")})
		if must(t, err); kept != keep {
			t.Fatalf("others' programs are kept: %t, want %t", kept, keep)
		}
		must(t, l.Configure(cfg))
		return l
	}
	start(false)
	if got, want := take(), "from_overlay from_host from_netdev to_pod from_pod to_netdev"; got != want {
		t.Errorf("attached %s, want %s", got, want)
	}
	// As an earlier version leaves it, which has none there.
	must(t, h.FilterDel(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: index("eth0"), Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
	}}))
	next := start(true)
	if n, err := next.ReattachNode(0); n != 0 || err != nil {
		t.Errorf("put back while others' programs are kept: %d, %v", n, err)
	}
	if got := take(); got != "" {
		t.Errorf("attached %s while others' programs are kept", got)
	}
	must(t, next.ReplaceOthers())
	if got, want := take(), "from_overlay from_host from_netdev to_pod from_pod to_netdev"; got != want {
		t.Errorf("attached %s, want %s", got, want)
	}
	must(t, h.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index("eth0"), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}))
	if n, err := next.ReattachNode(index("eth0")); n != 2 || err != nil {
		t.Errorf("put back: %d, %v", n, err)
	}
}
