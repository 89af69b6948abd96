package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// The kernel's own count of run time is used, not the repetition of test runs: a program changes
// the packet it is given, so that the second run of a repetition would see another one. Each packet
// costs a system call, which pushes our data out of the nearest caches as real traffic does.

// runContext is the beginning of struct __sk_buff as a test run takes it.
type runContext struct {
	_       [10]uint32
	IfIndex uint32
	_       [37]uint32
}

// noFilters is a loader's interface to links when nothing is to be attached.
type noFilters struct{}

func (noFilters) ReplaceFilter(int, bool, int, string) error { return nil }
func (noFilters) FilterProgram(int, bool) (int, error)       { return 0, nil }
func (noFilters) RemoveFiltersOn(int, ...string) error       { return nil }

// bpfNode is the datapath of a node with two pods, on maps of its own.
type bpfNode struct {
	maps     *maps.Maps
	loader   *loader.Loader
	empty    *ebpf.Program
	ifA, ifB int
}

const (
	ruleSetA, ruleSetB   = 1, 2
	identityA, identityB = 1000, 2000
	actionRedirect       = 7 // TC_ACT_REDIRECT
	tcpFin, tcpSyn       = 0x01, 0x02
	tcpRst, tcpAck       = 0x04, 0x10
)

var (
	addrA, addrB = netip.MustParseAddr("10.1.0.10"), netip.MustParseAddr("10.1.0.11")
	macA, macB   = net.HardwareAddr{2, 0, 0, 0, 0, 0xa}, net.HardwareAddr{2, 0, 0, 0, 0, 0xb}
	hostA, hostB = net.HardwareAddr{2, 0, 0, 0, 1, 0xa}, net.HardwareAddr{2, 0, 0, 0, 1, 0xb}
)

func newBPFNode(ifA, ifB int) (n *bpfNode, err error) {
	cfg := maps.Defaults()
	cfg.RuleSetEntries = cfg.PolicyEntries // one rule set of 65,000 is more than its share
	cfg.Dir = ""
	n = &bpfNode{ifA: ifA, ifB: ifB}
	if n.maps, err = maps.Open(cfg); err != nil {
		return nil, err
	}
	n.loader = loader.New(n.maps, noFilters{}, slog.New(slog.DiscardHandler))
	err = n.loader.Configure(datapath.Config{
		RouterIPv4: netip.MustParseAddr("10.1.0.1"), NodeIPv4: netip.MustParseAddr("192.0.2.1"), HostMAC: hostA,
		Aggregation: datapath.Aggregation{Interval: 5 * time.Second, TCPFlags: tcpFin | tcpSyn | tcpRst}, // as the agent's defaults
	})
	if err == nil {
		n.empty, err = ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "empty", Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
	}
	if err == nil {
		err = errors.Join(
			n.maps.UpsertEndpoint(datapath.Endpoint{ID: 1, IfIndex: ifA, MAC: macA, HostMAC: hostA, IPv4: addrA, Identity: identityA, RuleSet: ruleSetA, PolicyGeneration: 1, Incarnation: 1}),
			n.maps.UpsertEndpoint(datapath.Endpoint{ID: 2, IfIndex: ifB, MAC: macB, HostMAC: hostB, IPv4: addrB, Identity: identityB, RuleSet: ruleSetB, PolicyGeneration: 1, Incarnation: 2}))
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *bpfNode) close() error {
	var errs []error
	if n.empty != nil {
		errs = append(errs, n.empty.Close())
	}
	return errors.Join(append(errs, n.loader.Close(), n.maps.Close())...)
}

// install gives both pods rule sets of count entries of the usual forms, of which one lets the flow
// of the measurement pass.
func (n *bpfNode) install(count int) error {
	for _, side := range []struct {
		set  datapath.RuleSetID
		dir  datapath.Direction
		peer uint32
	}{{ruleSetA, datapath.Egress, identityB}, {ruleSetB, datapath.Ingress, identityA}} {
		entries := map[datapath.PolicyKey]datapath.PolicyEntry{
			{Direction: side.dir, Identity: side.peer, Proto: unix.IPPROTO_TCP, Port: 80, PortBits: 16}: {Allow: true},
		}
		for i := 0; len(entries) < count; i++ {
			k := datapath.PolicyKey{Direction: side.dir, Identity: uint32(10_000 + i), Proto: unix.IPPROTO_TCP, Port: uint16(1000 + i%5000), PortBits: 16}
			switch i % 10 {
			case 8: // everything from a peer
				k.Proto, k.Port, k.PortBits = 0, 0, 0
			case 9: // a port open to all
				k.Identity, k.Port = 0, uint16(2000+i%40_000)
			}
			entries[k] = datapath.PolicyEntry{Allow: true}
		}
		err := n.maps.InstallRuleSet(datapath.RuleSet{ID: side.set, IngressEnforced: true, EgressEnforced: true, Entries: entries})
		if err != nil {
			return err
		}
	}
	return nil
}

// segment builds a TCP segment over IPv4 as a pod sends it.
func segment(from, to netip.Addr, fromMAC, toMAC net.HardwareAddr, sport, dport uint16, flags byte) []byte {
	b := make([]byte, 14+20+20+8)
	copy(b, toMAC)
	copy(b[6:], fromMAC)
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	ip, tcp := b[14:34], b[34:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-14))
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(tcp, sport)
	binary.BigEndian.PutUint16(tcp[2:], dport)
	tcp[12], tcp[13] = 5<<4, flags
	return b
}

// run gives one packet to a program; it must come out with the action wanted.
func run(p *ebpf.Program, ifIndex int, frame []byte, action uint32) error {
	got, err := p.Run(&ebpf.RunOptions{Data: frame, Context: runContext{IfIndex: uint32(ifIndex)}})
	if err == nil && got != action {
		err = fmt.Errorf("the program returned %d, not %d", got, action)
	}
	return err
}

// cost returns nanoseconds a run of count runs.
func cost(p *ebpf.Program, count int, each func(i int) error) (float64, error) {
	before, err := p.Stats()
	if err != nil {
		return 0, err
	}
	for i := range count {
		if err := each(i); err != nil {
			return 0, err
		}
	}
	after, err := p.Stats()
	if err != nil {
		return 0, err
	}
	runs := after.RunCount - before.RunCount
	if runs == 0 {
		return 0, errors.New("the kernel counted no run of the program")
	}
	return float64(after.Runtime-before.Runtime) / float64(runs), nil
}

// podInterfaces makes a namespace with the host's sides of two pods' interfaces.
func (b *bencher) podInterfaces() (ns *namespace, ifA, ifB int, err error) {
	ns, err = b.newNamespace("bpf")
	if err != nil {
		return nil, 0, 0, err
	}
	err = veth(ns, "lxca", ns, "lxcb")
	for name, index := range map[string]*int{"lxca": &ifA, "lxcb": &ifB} {
		if err != nil {
			break
		}
		var link netlink.Link
		if link, err = ns.h.LinkByName(name); err == nil {
			*index = link.Attrs().Index
		}
	}
	if err != nil {
		return nil, 0, 0, errors.Join(err, ns.remove())
	}
	return ns, ifA, ifB, nil
}

func (b *bencher) programs(ctx context.Context) (err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("statistics of BPF programs: %w", err)
	}
	defer stats.Close()
	ns, ifA, ifB, err := b.podInterfaces()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.remove()) }()
	sizes := pick(b, []int{1, 1000, 16_000, 65_000}, []int{1, 1000, 65_000})
	for _, size := range sizes {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := newBPFNode(ifA, ifB)
		if err != nil {
			return err
		}
		err = n.install(size)
		if err == nil {
			err = ns.do(func() error { return b.measurePrograms(n, size) })
		}
		if err = errors.Join(err, n.close()); err != nil {
			return fmt.Errorf("%d rules: %w", size, err)
		}
	}
	return nil
}

func (b *bencher) measurePrograms(n *bpfNode, size int) error {
	const actionOK = 0
	from := n.loader.Program(loader.FromPod)
	send := func(sport uint16, flags byte) error {
		return run(from, n.ifA, segment(addrA, addrB, macA, hostA, sport, 80, flags), actionRedirect)
	}
	answer := func(sport uint16, flags byte) error {
		return run(from, n.ifB, segment(addrB, addrA, macB, hostB, 80, sport, flags), actionRedirect)
	}
	const flows = 50_000
	each := pick(b, 20_000, 5000)
	var one, many, fresh pairs
	for round := range pick(b, 5, 3) {
		first := uint16(1000 * (round + 1))
		empty, err := cost(n.empty, each, func(int) error {
			return run(n.empty, n.ifA, segment(addrA, addrB, macA, hostA, 1, 80, tcpAck), actionOK)
		})
		if err != nil {
			return err
		}
		if err := errors.Join(send(first, tcpSyn), answer(first, tcpSyn|tcpAck), send(first, tcpAck)); err != nil {
			return err
		}
		v, err := cost(from, each, func(int) error { return send(first, tcpAck) })
		if err != nil {
			return err
		}
		one.add(v, empty)
		// New flows: there are too few source ports, but the map was recreated.
		count := min(each, 10_000)
		base := 10_000 + round*10_000
		v, err = cost(from, count, func(i int) error { return send(uint16(base+i), tcpSyn) })
		if err != nil {
			return err
		}
		fresh.add(v, empty)
	}
	for i := range flows {
		if err := errors.Join(send(uint16(10_000+i), tcpSyn), answer(uint16(10_000+i), tcpSyn|tcpAck)); err != nil {
			return err
		}
		if (i+1)%10_000 == 0 {
			// The pod's share of the table grows while there is room, as the agent counts.
			if _, _, err := n.maps.CollectCT(context.Background()); err != nil {
				return err
			}
		}
	}
	for range pick(b, 5, 3) {
		empty, err := cost(n.empty, each, func(int) error {
			return run(n.empty, n.ifA, segment(addrA, addrB, macA, hostA, 1, 80, tcpAck), actionOK)
		})
		if err != nil {
			return err
		}
		v, err := cost(from, each, func(int) error { return send(uint16(10_000+rand.IntN(flows)), tcpAck) })
		if err != nil {
			return err
		}
		many.add(v, empty)
	}
	const baseline = "an empty program, by the same count of the kernel"
	name := fmt.Sprintf("%d rules", size)
	b.add(one.fill(Figure{Row: "bpf", Name: name + ", established", Unit: "ns", BaselineName: baseline, First: 300, Far: 150}))
	b.add(fresh.fill(Figure{Row: "bpf", Name: name + ", new flow", Unit: "ns", BaselineName: baseline, First: 900, Far: 350}))
	b.add(many.fill(Figure{Row: "bpf", Name: name + ", established, 50k flows at random", Unit: "ns", BaselineName: baseline, First: 350}))
	return nil
}
