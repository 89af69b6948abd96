package bpf_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// reported starts to read the events of a node and returns a function that returns those that came
// since it was called last, as text. It lets a packet through of which there is an event for sure,
// so that it knows when it has read all.
func (n *node) reported() func() []string {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan datapath.Event, 1000), make(chan error, 1)
	go func() { done <- n.maps.Events(ctx, func(e datapath.Event) { events <- e }) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	mark := uint16(0)
	return func() (texts []string) {
		n.t.Helper()
		mark++
		n.fromA(frame{src: a4, dst: b4, proto: udp, sport: 9, dport: mark})
		for {
			select {
			case e := <-events:
				if e.Packet.SrcPort == 9 && e.Packet.DstPort == mark {
					return texts
				}
				texts = append(texts, fmt.Sprint(e.Packet.SrcPort, " ", e.Packet.TCPFlags, " ", e.CTState))
			case <-time.After(time.Minute):
				n.t.Fatalf("no event of a packet that opens a flow; before: %v", texts)
			}
		}
	}
}

// TestFlowUpdates: of a flow, the packets that bring something new to it are reported, and no
// others, however many there are: its opening, the first answer, and the flags that end it, once in
// each direction.
func TestFlowUpdates(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		cfg := testConfig()
		cfg.Aggregation.TCPFlags = fin | syn | rst
		// So long that the time that the test takes is none, and no packet is a sample: not even
		// one that changes how long its flow lives.
		cfg.Aggregation.Interval = 60_000 * maps.TickNanoseconds * time.Nanosecond
		cfg.CTTimeouts.TCP = 3 * cfg.Aggregation.Interval
		n := newNode(t, cfg)
		n.allowAll()
		n.must(n.maps.SetMonitor(datapath.MonitorFlowUpdates))
		reported := n.reported()
		f := frame{src: a, dst: b, proto: tcp, sport: 1000, dport: 80}
		send := func(flags uint8) { f := f; f.tcpFlags = flags; n.fromA(f) }
		answer := func(flags uint8) { f := f.reply(); f.tcpFlags = flags; n.fromB(f) }
		for _, row := range []struct {
			what string
			do   func()
			want []string
		}{
			{"opening", func() { send(syn); send(syn) }, []string{"1000 SYN new"}},
			{"handshake", func() { answer(syn | ack); answer(syn | ack); send(ack) }, []string{"80 SYN,ACK reply"}},
			{"data", func() {
				for range 100 {
					send(ack)
					answer(ack)
				}
			}, nil},
			{"one side ends", func() { send(fin | ack); send(fin | ack); answer(ack) }, []string{"1000 FIN,ACK established"}},
			{"the other ends", func() { answer(fin | ack); answer(fin | ack); send(ack) }, []string{"80 FIN,ACK reply"}},
			{"opened again", func() { send(syn); answer(syn | ack); send(ack) }, []string{"1000 SYN new", "80 SYN,ACK reply"}},
			{"reset", func() { answer(rst); answer(rst) }, []string{"80 RST reply"}},
			{"a reset that was none", func() { send(ack); answer(ack); answer(rst) }, []string{"80 RST reply"}},
			{"another protocol", func() {
				f := frame{src: a, dst: b, proto: udp, sport: 2000, dport: 53}
				for range 10 {
					n.fromA(f)
					n.fromB(f.reply())
				}
			}, []string{"2000  new", "53  reply"}},
		} {
			row.do()
			if got := reported(); !slices.Equal(got, row.want) {
				t.Errorf("%s: reported %q, want %q", row.what, got, row.want)
			}
		}
		// Who wants every packet gets it, and knows which are new.
		n.must(n.maps.SetMonitor(datapath.MonitorFlowUpdates | datapath.MonitorTraces))
		send(ack)
		if got := reported(); len(got) != 1 {
			t.Errorf("of one packet: %q", got)
		}
		n.must(n.maps.SetMonitor(datapath.MonitorFlowUpdates))
		n.rules(setA)
		f.sport = 3000
		send(syn)
		n.allowAll()
		if got := reported(); len(got) > 0 {
			t.Errorf("of one that was dropped: %q", got)
		}
	})
}

// TestSamples: of a flow that has packets one is reported in each interval, whichever way it goes,
// and of one that has none nothing is. Not all flows are reported at the same time.
func TestSamples(t *testing.T) {
	cfg := testConfig()
	// So long that the time that the test takes is none.
	const every = 60_000 * maps.TickNanoseconds * time.Nanosecond
	cfg.Aggregation.Interval = every
	cfg.CTTimeouts.Any = 3 * every
	n := newNode(t, cfg)
	n.allowAll()
	n.must(n.maps.SetMonitor(datapath.MonitorFlowUpdates))
	reported := n.reported()
	const flows = 64
	f := frame{src: a4, dst: b4, proto: udp, dport: 53}
	packets := func() {
		for i := range uint16(flows) {
			f.sport = 1000 + i
			for range 3 {
				n.fromA(f)
				n.fromB(f.reply())
			}
		}
	}
	packets()
	if got := reported(); len(got) != 2*flows {
		t.Fatalf("%d openings and answers are reported, want %d", len(got), 2*flows)
	}
	for _, row := range []struct {
		what     string
		since    time.Duration // the last packet
		from, to int
	}{
		{"at once", 0, 0, 0},
		{"after half an interval", every / 2, flows / 4, flows * 3 / 4},
		{"after an interval", every, flows, flows},
		{"after more", 5 * every / 2, flows, flows},
	} {
		table := n.maps.Replacements()["ct"]
		var key overlayTestCtKey
		var value overlayTestCtValue
		earlier := map[overlayTestCtKey]overlayTestCtValue{}
		rows := table.Iterate()
		for rows.Next(&key, &value) {
			value.Expires -= uint32(row.since / maps.TickNanoseconds)
			earlier[key] = value
		}
		n.must(rows.Err())
		for k, v := range earlier {
			n.must(table.Put(k, v))
		}
		if got := reported(); len(got) > 0 {
			t.Errorf("%s: without a packet, %q are reported", row.what, got)
		}
		packets()
		if got := reported(); len(got) < row.from || len(got) > row.to {
			t.Errorf("%s: %d of %d flows are reported, want %d to %d", row.what, len(got), flows, row.from, row.to)
		}
	}
}
