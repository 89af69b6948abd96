package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
)

// observe measures what flows cost: a packet, by who wants to know of it, and the agent that makes
// flows of events.
func (b *bencher) observe(ctx context.Context) error {
	return errors.Join(b.observedPackets(ctx), onTestbed(1, (*bencher).observingAgent)(b, ctx))
}

// observedPackets measures the program of a pod's packets without a reader of events, and with one
// for each aggregation level.
func (b *bencher) observedPackets(ctx context.Context) (err error) {
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
	n, err := newBPFNode(ifA, ifB)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.install(1000); err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() { read <- n.maps.Events(reading, func(datapath.Event) {}) }()
	defer func() { stop(); err = errors.Join(err, <-read) }()
	return ns.do(func() error { return b.measureObserved(ctx, n) })
}

func (b *bencher) measureObserved(ctx context.Context, n *bpfNode) error {
	from := n.loader.Program(loader.FromPod)
	send := func(sport uint16, flags byte) error {
		return run(from, n.ifA, segment(addrA, addrB, macA, hostA, sport, 80, flags), actionRedirect)
	}
	const mine = 9 // the source port of the connection that goes on
	if err := errors.Join(send(mine, tcpSyn), run(from, n.ifB, segment(addrB, addrA, macB, hostB, 80, mine, tcpSyn|tcpAck), actionRedirect)); err != nil {
		return err
	}
	const verdicts = datapath.MonitorDrops | datapath.MonitorVerdicts
	levels := []struct {
		name   string
		wanted datapath.MonitorFlags
	}{
		{"followed, drops and verdicts alone", verdicts},
		{"followed, aggregation medium", verdicts | datapath.MonitorFlowUpdates},
		{"followed, aggregation none", verdicts | datapath.MonitorTraces},
	}
	each := pick(b, 20_000, 3000)
	fresh := uint16(1000)
	established := func() (float64, error) { return cost(from, each, func(int) error { return send(mine, tcpAck) }) }
	opening := func() (float64, error) {
		return cost(from, 1000, func(int) error { fresh++; return send(fresh, tcpSyn) })
	}
	for _, kind := range []struct {
		name string
		run  func() (float64, error)
	}{{"established", established}, {"new flow", opening}} {
		for _, level := range levels {
			var p pairs
			for range pick(b, 5, 2) {
				if err := ctx.Err(); err != nil {
					return err
				}
				if err := n.maps.SetMonitor(0); err != nil {
					return err
				}
				unfollowed, err := kind.run()
				if err != nil {
					return err
				}
				if err := n.maps.SetMonitor(level.wanted); err != nil {
					return err
				}
				followed, err := kind.run()
				if err != nil {
					return err
				}
				p.add(followed, unfollowed)
			}
			b.add(p.fill(Figure{Row: "observe", Name: kind.name + " packet, " + level.name, Unit: "ns", BaselineName: "the same without a follower"}))
		}
	}
	return n.maps.SetMonitor(0)
}

// observingAgent measures the processor that an agent takes to make flows of events, each packet
// being one or as aggregated, against one that makes none of the same packets. At the highest rate
// the machine may send fewer; the figure's note says how many.
func (b *bencher) observingAgent(ctx context.Context, r *testbed) (err error) {
	n := r.nodes[0]
	socket := n.path("run") + "/hubble.sock"
	options := func(more ...string) []string {
		return append([]string{"--enable-hubble", "--hubble-socket-path", socket}, more...)
	}
	if err := errors.Join(n.start(options("--hubble-event-buffer-capacity", "0")...), n.waitReady(ctx)); err != nil {
		return err
	}
	from, err := n.addPod("from", "client")
	if err != nil {
		return err
	}
	to, err := n.addPod("to", "server")
	if err != nil {
		return err
	}
	var in *net.UDPConn // that is not read: the kernel drops what overflows, silently
	var out *net.UDPConn
	at := &net.UDPAddr{IP: to.ipv4.AsSlice(), Port: flowPort}
	if err := to.ns.do(func() (err error) { in, err = net.ListenUDP("udp4", at); return err }); err != nil {
		return err
	}
	defer in.Close()
	if err := from.ns.do(func() (err error) { out, err = net.DialUDP("udp4", nil, at); return err }); err != nil {
		return err
	}
	defer out.Close()
	rates := []int{1, 100_000, 1_000_000}
	each := pick(b, 10*time.Second, 2*time.Second)
	idle := make([]float64, len(rates))
	for i, rate := range rates {
		if idle[i], _, err = whileSending(ctx, n.agent, out, rate, each); err != nil {
			return err
		}
	}
	for _, level := range []string{"none", "medium"} {
		if err := errors.Join(n.agent.Stop(15*time.Second), n.start(options("--monitor-aggregation", level)...), n.waitReady(ctx)); err != nil {
			return err
		}
		for i, rate := range rates {
			before, err := seenFlows(ctx, socket)
			if err != nil {
				return err
			}
			used, sent, err := whileSending(ctx, n.agent, out, rate, each)
			if err != nil {
				return err
			}
			after, err := seenFlows(ctx, socket)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("agent, %d events/s", rate)
			if level != "none" {
				name = fmt.Sprintf("agent, %d packets/s, aggregation %s", rate, level)
			}
			b.add(Figure{Row: "observe", Name: name, Unit: "% of a processor", Value: used, Samples: 1,
				Baseline: idle[i], BaselineName: "the same packets without a follower",
				Note: fmt.Sprintf("%.0f packets/s sent, %.0f flows/s recorded", sent/each.Seconds(), (after-before)/each.Seconds())})
		}
	}
	return nil
}

// seenFlows asks an agent how many flows it has recorded.
func seenFlows(ctx context.Context, socket string) (float64, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	st, err := observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
	return float64(st.GetSeenFlows()), err
}

// datagramsAtOnce is how many datagrams one system call sends.
const datagramsAtOnce = 64

// whileSending sends datagrams at a rate a second for a while, or as many as the machine can, and
// returns how much of a processor the process has used meanwhile, in percent, and how many were
// sent.
func whileSending(ctx context.Context, p *child.Process, out *net.UDPConn, rate int, d time.Duration) (percent, sent float64, err error) {
	batch := make([]ipv4.Message, datagramsAtOnce)
	for i := range batch {
		batch[i].Buffers = [][]byte{[]byte("x")}
	}
	sender := ipv4.NewPacketConn(out)
	before, err := p.Usage()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ; time.Since(start) < d; <-tick.C {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		for time.Since(start) < d {
			due := time.Since(start).Seconds()*float64(rate) - sent
			if due <= 0 {
				break
			}
			n, err := sender.WriteBatch(batch[:min(int(math.Ceil(due)), len(batch))], 0)
			if err != nil {
				return 0, 0, err
			}
			sent += float64(n)
		}
	}
	took := time.Since(start)
	after, err := p.Usage()
	return 100 * (after.CPU - before.CPU).Seconds() / took.Seconds(), sent, err
}
