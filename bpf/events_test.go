package bpf_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
)

// TestEvents: what happens to packets is reported, each kind in order, if and only if a client
// asked.
func TestEvents(t *testing.T) {
	n := newNode(t, testConfig())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events := map[datapath.EventType]chan datapath.Event{}
	for _, kind := range []datapath.EventType{datapath.EventDrop, datapath.EventVerdict, datapath.EventTrace} {
		events[kind] = make(chan datapath.Event, 100)
	}
	done := make(chan error)
	go func() { done <- n.maps.Events(ctx, func(e datapath.Event) { events[e.Type] <- e }) }()
	next := func(kind datapath.EventType) datapath.Event {
		t.Helper()
		select {
		case e := <-events[kind]:
			return e
		case <-ctx.Done():
			t.Fatal("no event")
			return datapath.Event{}
		}
	}

	f := frame{src: a4, dst: b4, proto: tcp, sport: 1000, dport: 80, tcpFlags: syn, payload: make([]byte, 200)}
	n.fromA(f) // dropped, while no monitor is on
	n.must(n.maps.SetMonitor(datapath.MonitorDrops))
	n.fromA(f)
	e := next(datapath.EventDrop)
	if e.Reason != datapath.ReasonPolicyDenied || e.Direction != datapath.Egress || e.Program != datapath.ProgramFromPod ||
		e.Endpoint != 1 || e.SrcIdentity != idA || e.DstIdentity != idB || e.IfIndex != n.ifA || e.Length != 254 || len(e.Data) != 128 ||
		e.Packet.Src != a4 || e.Packet.Dst != b4 || e.Packet.SrcPort != 1000 || e.Packet.DstPort != 80 || e.Packet.TCPFlags != "SYN" || e.Lost != 0 {
		t.Errorf("drop: %+v", e)
	}
	if age := time.Since(e.Time); age < -time.Second || age > time.Minute {
		t.Errorf("the event happened %s ago", age)
	}
	n.must(n.maps.SetMonitor(datapath.MonitorVerdicts | datapath.MonitorTraces))
	n.rules(setA, allow(out, idB, tcp, 80))
	n.rules(setB, allow(in, idA, tcp, 80))
	n.fromA(f)
	for _, want := range []datapath.Event{
		{Type: datapath.EventVerdict, Direction: datapath.Egress, Endpoint: 1, CTState: datapath.CTNew},
		{Type: datapath.EventVerdict, Direction: datapath.Ingress, Endpoint: 2, CTState: datapath.CTNew},
		{Type: datapath.EventTrace, Direction: datapath.Ingress, Endpoint: 2, CTState: datapath.CTNew, Outcome: datapath.OutcomeEndpoint},
	} {
		e := next(want.Type)
		if e.Type != want.Type || e.Direction != want.Direction || e.Endpoint != want.Endpoint || e.CTState != want.CTState || e.Outcome != want.Outcome || e.Reason != 0 {
			t.Errorf("got %s, want %+v", e, want)
		}
	}
	n.fromB(f.reply())
	if e := next(datapath.EventTrace); e.CTState != datapath.CTReply {
		t.Errorf("reply: %s", e)
	}
	// Short frames are captured whole.
	n.must(n.maps.SetMonitor(datapath.MonitorDrops))
	n.run(n.loader.Program("from_pod"), n.ifA, 0, arp(aMAC, aMAC, 1, a4, b4))
	if e := next(datapath.EventDrop); len(e.Data) != 42 || e.Packet.L3 != "arp" || e.Packet.Dst != b4 {
		t.Errorf("ARP: %s", e)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, kind := range events {
		if len(kind) > 0 {
			t.Errorf("unwanted: %s", <-kind)
		}
	}
}

// What one sender may have of a buffer of events, while no client reads: half, and a share a tick,
// of which a loaded machine may see some go by.
const (
	eventRoom      = 1 << 20
	eventSize      = 168 + 8 // with the buffer's own header
	eventsOfOne    = eventRoom / eventSize / 2
	eventShare     = 64
	eventsOfOneMax = eventsOfOne + 60*eventShare
)

// TestEventsLost: a full buffer loses events, never packets, and says how many.
func TestEventsLost(t *testing.T) {
	n := newNode(t, testConfig())
	n.must(n.maps.SetMonitor(datapath.MonitorDrops))
	f := frame{src: a4, dst: b4, proto: udp, sport: 1, dport: 2, ethSrc: aMAC, ethDst: aHost}
	const total = 2 * eventsOfOneMax
	n.runMany(n.loader.Program("from_pod"), n.ifA, f.bytes(), total)
	lost, err := n.maps.EventsLost(datapath.EventDrop)
	n.must(err)
	if kept := total - lost; kept < eventsOfOne || kept > eventsOfOneMax {
		t.Errorf("%d of %d events lost", lost, total)
	}
	if got := n.count(datapath.ReasonPolicyDenied, out); got != total {
		t.Errorf("%d packets counted, want %d", got, total)
	}
}

// TestFloodLosesOnlyItsOwnEvents: a pod that sends as much as it can, which is refused, or allowed
// and so evaluated and traced, takes no room for what is reported of others. No client reads
// meanwhile.
func TestFloodLosesOnlyItsOwnEvents(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.must(n.maps.SetMonitor(datapath.MonitorDrops | datapath.MonitorVerdicts | datapath.MonitorFlowUpdates | datapath.MonitorTraces))
		n.rules(setA, allow(out, 0, udp, 2))
		refused := frame{src: a, dst: w, proto: udp, sport: 1, dport: 1, ethSrc: aMAC, ethDst: aHost}
		allowed := frame{src: a, dst: w, proto: udp, sport: 1, dport: 2, ethSrc: aMAC, ethDst: aHost}
		const flood = 2 * eventsOfOneMax
		n.runMany(n.loader.Program("from_pod"), n.ifA, refused.bytes(), flood)
		n.runMany(n.loader.Program("from_pod"), n.ifA, allowed.bytes(), flood)
		lost := func(kind datapath.EventType) uint64 {
			n, err := n.maps.EventsLost(kind)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := map[datapath.EventType]uint64{}
		for _, kind := range []datapath.EventType{datapath.EventDrop, datapath.EventVerdict, datapath.EventTrace} {
			before[kind] = lost(kind)
		}
		if before[datapath.EventDrop] == 0 || before[datapath.EventTrace] == 0 || before[datapath.EventVerdict] == 0 {
			t.Fatalf("the flood was none: %v", before)
		}
		n.rules(setB, allow(out, 0, udp, 4))
		for i := range uint16(10) {
			n.fromB(frame{src: b, dst: w, proto: udp, sport: 100 + i, dport: 3}) // refused
			n.fromB(frame{src: b, dst: w, proto: udp, sport: 100 + i, dport: 4})
		}
		for kind, was := range before {
			if now := lost(kind); now != was {
				t.Errorf("%d events of kind %s of the other pod are lost", now-was, kind)
			}
		}
		seen := map[datapath.EventType]map[uint16]bool{datapath.EventDrop: {}, datapath.EventVerdict: {}, datapath.EventTrace: {}}
		var mu sync.Mutex
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n.must(n.maps.Events(ctx, func(e datapath.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Packet.Src == b {
				seen[e.Type][e.Packet.SrcPort] = true
			}
			if len(seen[datapath.EventDrop]) == 10 && len(seen[datapath.EventVerdict]) == 10 && len(seen[datapath.EventTrace]) == 10 {
				cancel()
			}
		}))
		for kind, ports := range seen {
			if len(ports) != 10 {
				t.Errorf("of the other pod's ten packets, events of kind %s report %d", kind, len(ports))
			}
		}
	})
}

// TestEventsReportLoss: a slow reader gets the number of all lost events.
func TestEventsReportLoss(t *testing.T) {
	n := newNode(t, testConfig())
	n.must(n.maps.SetMonitor(datapath.MonitorDrops))
	first, gate := make(chan struct{}), make(chan struct{})
	var known atomic.Uint64 // read, or reported as lost
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- n.maps.Events(ctx, func(e datapath.Event) {
			if known.Load() == 0 {
				close(first)
				<-gate
			}
			known.Add(1 + e.Lost)
		})
	}()
	f := frame{src: a4, dst: b4, proto: udp, sport: 1, dport: 2, ethSrc: aMAC, ethDst: aHost}
	sent := uint64(1)
	n.runMany(n.loader.Program("from_pod"), n.ifA, f.bytes(), 1)
	select {
	case <-first:
	case <-time.After(time.Minute):
		t.Fatal("no event came")
	}
	flood := 2 * eventsOfOneMax
	n.runMany(n.loader.Program("from_pod"), n.ifA, f.bytes(), flood)
	sent += uint64(flood)
	close(gate)
	for deadline := time.Now().Add(time.Minute); known.Load() != sent; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events are known of", known.Load(), sent)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEventsForgotten: events without a subscriber, because the agent was killed, end by
// themselves.
func TestEventsForgotten(t *testing.T) {
	const room = 4096 // less than a sender's share
	n := newNode(t, testConfig(), func(c *maps.Config) { c.EventBytes = room })
	n.must(n.maps.SetMonitor(datapath.MonitorDrops))
	cell := n.maps.Replacements()["monitor"]
	var request uint32
	n.must(cell.Lookup(uint32(0), &request))
	const bits = 4
	const flags = 1<<bits - 1
	f := frame{src: a4, dst: b4, proto: udp, sport: 1, dport: 2}
	lost := func() uint64 { // every event is lost in a full buffer
		t.Helper()
		before, err := n.maps.EventsLost(datapath.EventDrop)
		n.must(err)
		n.fromA(f)
		after, err := n.maps.EventsLost(datapath.EventDrop)
		n.must(err)
		return after - before
	}
	n.runMany(n.loader.Program("from_pod"), n.ifA, frame{src: a4, dst: b4, proto: udp, ethSrc: aMAC, ethDst: aHost}.bytes(), room/eventSize+eventShare)
	lifetime := uint32(datapath.MonitorLifetime / maps.TickNanoseconds)
	for _, row := range []struct {
		what string
		back uint32 // ticks since the request was renewed last
		want uint64
	}{{"just now", 0, 1}, {"before half its time", lifetime / 2, 1}, {"too long ago", lifetime + 2, 0}, {"long ago", 1 << 27, 0}} {
		n.must(cell.Put(uint32(0), (request&^flags-row.back<<bits)|request&flags))
		if got := lost(); got != row.want {
			t.Errorf("repeated %s: %d events, want %d", row.what, got, row.want)
		}
	}
}
