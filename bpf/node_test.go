package bpf_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	stdmaps "maps"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/testenv"
)

// The world of the tests: this node with pods a and b, another node with pod r, and the rest.
var (
	router4, router6 = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00:1::1")
	node4, node6     = netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd99::1")
	a4, a6           = netip.MustParseAddr("10.1.0.10"), netip.MustParseAddr("fd00:1::10")
	b4, b6           = netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("fd00:1::11")
	r4, r6           = netip.MustParseAddr("10.2.0.20"), netip.MustParseAddr("fd00:2::20")
	w4, w6           = netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("2606::1")
	otherNode        = netip.MustParseAddr("192.168.0.2")
	aMAC, aHost      = mac("0a:00:00:00:00:0a"), mac("0a:ff:00:00:00:0a")
	bMAC, bHost      = mac("0a:00:00:00:00:0b"), mac("0a:ff:00:00:00:0b")
)

const (
	idA, idB, idR = 1000, 2000, 3000
	setA, setB    = 1, 2
	tunnelPort    = 8472
	// Actions of traffic control.
	actOK, actDrop, actRedirect = 0, 2, 7
)

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// skbContext is the beginning of struct __sk_buff, as far as a test run takes and gives it.
type skbContext struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTCI, VlanProto uint32
	Priority, IngressIfIndex, IfIndex, TCIndex                                  uint32
	CB                                                                          [5]uint32
	_                                                                           [31]uint32
}

type noFilters struct{}

func (noFilters) ReplaceFilter(int, bool, int, string) error { return nil }
func (noFilters) FilterProgram(int, bool) (int, error)       { return 0, nil }
func (noFilters) RemoveFiltersOn(int, ...string) error       { return nil }

// namespace is a thread in a network namespace of its own with two interfaces, all that test runs
// need of the world. It is shared by all tests and goes with the process.
type namespace struct {
	work     chan func()
	ifA, ifB int
}

var sharedNamespace = sync.OnceValues(func() (*namespace, error) {
	ns := &namespace{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		ready <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("new namespace: %w", err)
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "lxca"
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "lxcb"}); err != nil {
				return err
			}
			for name, to := range map[string]*int{"lxca": &ns.ifA, "lxcb": &ns.ifB} {
				link, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				*to = link.Attrs().Index
			}
			return nil
		}()
		for fn := range ns.work {
			fn()
		}
	}()
	return ns, <-ready
})

// do runs fn on the thread in the namespace.
func (ns *namespace) do(fn func() error) (err error) {
	done := make(chan struct{})
	ns.work <- func() { err = fn(); close(done) }
	<-done
	return err
}

// node is the datapath of one node, on maps of its own.
type node struct {
	t        testing.TB
	ns       *namespace
	maps     *maps.Maps
	loader   *loader.Loader
	ifA, ifB int
	a, b     datapath.Endpoint
}

func testConfig() datapath.Config {
	return datapath.Config{
		RouterIPv4: router4, RouterIPv6: router6, NodeIPv4: node4, NodeIPv6: node6,
		HostMAC: mac("0a:ee:00:00:00:01"), NetNSCookie: 1,
	}
}

func testMaps(t testing.TB, change func(*maps.Config)) *maps.Maps {
	t.Helper()
	testenv.RequireRoot(t)
	cfg := maps.Defaults()
	cfg.Dir, cfg.CTEntries, cfg.Fragments = "", 4096, 4096
	cfg.IPCacheEntries, cfg.IPCachePrefixes, cfg.PolicyEntries = 1024, 128, 4096
	if change != nil {
		change(&cfg)
	}
	m, err := maps.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// newNode returns a node with the two pods, rule sets that enforce both directions and allow
// nothing, and an ipcache that knows the other node's pod.
func newNode(t testing.TB, cfg datapath.Config, sizes ...func(*maps.Config)) *node {
	t.Helper()
	n := &node{t: t, maps: testMaps(t, func(c *maps.Config) {
		for _, size := range sizes {
			size(c)
		}
		if _, bench := t.(*testing.B); bench {
			c.PolicyEntries, c.RuleSetEntries = 262144, 131072
		}
	})}
	var err error
	n.ns, err = sharedNamespace()
	n.must(err)
	n.ifA, n.ifB = n.ns.ifA, n.ns.ifB
	n.loader = loader.New(n.maps, noFilters{}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { n.loader.Close() })
	n.configure(cfg)
	n.a = datapath.Endpoint{
		ID: 1, IfIndex: n.ifA, MAC: aMAC, HostMAC: aHost, IPv4: a4, IPv6: a6,
		Identity: idA, RuleSet: setA, PolicyGeneration: 1, Incarnation: 1,
	}
	n.b = datapath.Endpoint{
		ID: 2, IfIndex: n.ifB, MAC: bMAC, HostMAC: bHost, IPv4: b4, IPv6: b6,
		Identity: idB, RuleSet: setB, PolicyGeneration: 1, Incarnation: 2,
	}
	n.upsert(n.a)
	n.upsert(n.b)
	n.rules(setA)
	n.rules(setB)
	n.must(n.maps.UpsertIPCache([]datapath.IPCacheEntry{
		{Prefix: netip.PrefixFrom(r4, 32), Identity: idR, TunnelEndpoint: otherNode},
		{Prefix: netip.PrefixFrom(r6, 128), Identity: idR, TunnelEndpoint: otherNode},
	}))
	n.must(n.maps.UpsertTunnelPeers([]datapath.TunnelPeer{{Addr: otherNode, Node: 2, First: 256, Last: 65535, Own: true}}))
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) configure(cfg datapath.Config) { n.t.Helper(); n.must(n.loader.Configure(cfg)) }

func (n *node) upsert(ep datapath.Endpoint) { n.t.Helper(); n.must(n.maps.UpsertEndpoint(ep)) }

type entry struct {
	datapath.PolicyKey
	deny bool
}

// rules makes a rule set enforce both directions with the entries given.
func (n *node) rules(id datapath.RuleSetID, entries ...entry) {
	n.t.Helper()
	rs := datapath.RuleSet{ID: id, IngressEnforced: true, EgressEnforced: true, Entries: map[datapath.PolicyKey]datapath.PolicyEntry{}}
	for _, e := range entries {
		rs.Entries[e.PolicyKey] = datapath.PolicyEntry{Deny: e.deny, Allow: !e.deny}
	}
	n.must(n.maps.InstallRuleSet(rs))
}

// allow and deny make entries; port 0 means any port, protocol 0 any protocol.
func allow(dir datapath.Direction, identity uint32, proto uint8, port uint16) entry {
	k := datapath.PolicyKey{Direction: dir, Identity: identity, Proto: proto, Port: port}
	if port != 0 {
		k.PortBits = 16
	}
	return entry{PolicyKey: k}
}

func deny(dir datapath.Direction, identity uint32, proto uint8, port uint16) entry {
	e := allow(dir, identity, proto, port)
	e.deny = true
	return e
}

// allowAll lets both pods talk to everybody.
func (n *node) allowAll() {
	n.t.Helper()
	for _, id := range []datapath.RuleSetID{setA, setB} {
		n.rules(id, allow(datapath.Ingress, 0, 0, 0), allow(datapath.Egress, 0, 0, 0))
	}
}

type result struct {
	action uint32
	out    []byte
	ctx    skbContext
}

// minFrame is the shortest IP frame that the kernel takes for a test run: it wants a network
// header.
func minFrame(v6 bool) int {
	if v6 {
		return 14 + 40
	}
	return 14 + 20
}

// run puts a frame through a program as if it had come by the interface. What is tunnelled comes
// from the other node.
func (n *node) run(p *ebpf.Program, ifIndex int, mark uint32, in []byte) result {
	n.t.Helper()
	ctx := skbContext{IfIndex: uint32(ifIndex), Mark: mark}
	ctx.tunnelledFrom(otherNode)
	return n.runAs(p, ctx, in)
}

// tunnelledFrom says from where the outer packet has come, to overlay_with_vni.
func (c *skbContext) tunnelledFrom(a netip.Addr) {
	b := a.As16()
	for i := range 4 {
		c.CB[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	if a.Is4() {
		c.CB[0], c.CB[1], c.CB[2] = 0, 0, 0
	}
}

// runAs puts a frame through a program with what the kernel knows of it.
func (n *node) runAs(p *ebpf.Program, ctx skbContext, in []byte) result {
	n.t.Helper()
	if p == nil {
		n.t.Fatal("the program has no hook with these settings, so it is not loaded")
	}
	r := result{out: make([]byte, len(in)+64)}
	err := n.ns.do(func() error {
		opts := &ebpf.RunOptions{
			Data: in, DataOut: r.out,
			Context:    ctx,
			ContextOut: &r.ctx,
		}
		var err error
		r.action, err = p.Run(opts)
		r.out = opts.DataOut
		return err
	})
	if err != nil {
		n.t.Fatalf("run: %v", err)
	}
	return r
}

func (n *node) fromA(f frame) result {
	n.t.Helper()
	if f.ethSrc == nil {
		f.ethSrc, f.ethDst = aMAC, aHost
	}
	return n.run(n.loader.Program(loader.FromPod), n.ifA, 0, f.bytes())
}

func (n *node) fromB(f frame) result {
	n.t.Helper()
	f.ethSrc, f.ethDst = bMAC, bHost
	return n.run(n.loader.Program(loader.FromPod), n.ifB, 0, f.bytes())
}

func (n *node) toA(f frame) result {
	n.t.Helper()
	f.ethSrc, f.ethDst = aHost, aMAC
	return n.run(n.loader.Program(loader.ToPod), n.ifA, 0, f.bytes())
}

// toABy is toA for a packet that the stack had by an interface, 0 for none.
func (n *node) toABy(ifIndex int, f frame) result {
	n.t.Helper()
	f.ethSrc, f.ethDst = aHost, aMAC
	return n.runAs(n.loader.Program(loader.ToPod), skbContext{IfIndex: uint32(n.ifA), IngressIfIndex: uint32(ifIndex)}, f.bytes())
}

// count returns the packets counted under a reason and direction.
func (n *node) count(reason datapath.DropReason, dir datapath.Direction) uint64 {
	n.t.Helper()
	list, err := n.maps.Metrics()
	n.must(err)
	for _, m := range list {
		if m.Reason == reason && m.Direction == dir {
			return m.Packets
		}
	}
	return 0
}

// want is what a row expects of a packet.
type want struct {
	action uint32
	reason datapath.DropReason
	dir    datapath.Direction
}

func passes(dir datapath.Direction) want     { return want{actOK, 0, dir} }
func delivered() want                        { return want{actRedirect, 0, datapath.Ingress} }
func redirected(dir datapath.Direction) want { return want{actRedirect, 0, dir} }
func dropped(r datapath.DropReason, dir datapath.Direction) want {
	return want{actDrop, r, dir}
}

// expect runs a packet and compares the verdict and the counter that it must have moved.
func (n *node) expect(what string, w want, run func() result) result {
	n.t.Helper()
	before := n.count(w.reason, w.dir)
	r := run()
	if r.action != w.action {
		n.t.Errorf("%s: action %d, want %d (%s %s)%s", what, r.action, w.action, w.reason, w.dir, n.dump())
		return r
	}
	if after := n.count(w.reason, w.dir); after != before+1 {
		n.t.Errorf("%s: counter of %s %s went from %d to %d%s", what, w.reason, w.dir, before, after, n.dump())
	}
	return r
}

func (n *node) dump() string {
	list, err := n.maps.Metrics()
	n.must(err)
	s := "; counters:"
	for _, m := range list {
		s += fmt.Sprintf(" %s/%s=%d", m.Reason, m.Direction, m.Packets)
	}
	return s
}

func (n *node) flows() []datapath.CTEntry {
	n.t.Helper()
	var list []datapath.CTEntry
	n.must(n.maps.CT(func(e datapath.CTEntry) bool { list = append(list, e); return true }))
	return list
}

// testObject loads a program of a *_test.c file on the node's maps.
func (n *node) testObject(spec *ebpf.CollectionSpec, err error, name string, change func(*overlayTestConfig)) *ebpf.Program {
	n.t.Helper()
	n.must(err)
	for mapName, m := range n.maps.Replacements() {
		spec.Maps[mapName].MaxEntries = m.MaxEntries()
	}
	// What it is made of is a program, too, which the node has anyway.
	stdmaps.DeleteFunc(spec.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
	if v := spec.Variables["cfg"]; v != nil {
		c := overlayTestConfig{HasRouter4: 1, HasRouter6: 1, HasNode4: 1, HasNode6: 1, Tunnel: 1, TunnelIfindex: 1, TunnelPort: uint32(maps.NetworkOrder(tunnelPort)),
			TimeoutTcp: 100, TimeoutTcpSyn: 100, TimeoutTcpFin: 100, TimeoutAny: 100}
		c.Router4.B, c.Router6.B = router4.As16(), router6.As16()
		c.Node4.B, c.Node6.B = node4.As16(), node6.As16()
		if change != nil {
			change(&c)
		}
		n.must(v.Set(c))
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: n.maps.Replacements()})
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		n.t.Fatalf("%+v", ve)
	}
	n.must(err)
	n.t.Cleanup(coll.Close)
	return coll.Programs[name]
}

// waitTick waits until the programs' clock has gone on; conntrack knows no finer time.
func waitTick() { time.Sleep(2 * maps.TickNanoseconds) }

// macA returns the hardware address of the interface, for programs that look at who a frame is for.
func (n *node) macA() net.HardwareAddr {
	n.t.Helper()
	var m net.HardwareAddr
	n.must(n.ns.do(func() error {
		i, err := net.InterfaceByIndex(n.ifA)
		if err == nil {
			m = i.HardwareAddr
		}
		return err
	}))
	return m
}
