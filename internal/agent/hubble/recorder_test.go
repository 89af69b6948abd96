package hubble

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
)

// emitted is a kernel that has emitted some events and emits no more.
type emitted []datapath.Event

func (list emitted) Events(_ context.Context, fn func(datapath.Event)) error {
	for _, ev := range list {
		fn(ev)
	}
	return nil
}

// TestFlowsLostAlone: that events were lost is recorded, and once, also when no event waits that
// came after them.
func TestFlowsLostAlone(t *testing.T) {
	t.Parallel()
	m := monitor.New(slog.New(slog.DiscardHandler), fake.New().Maps)
	record, err := flows.NewRecord(16, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{monitor: m, record: record}
	sub, stop := m.Subscribe(datapath.MonitorFlowUpdates)
	defer stop()
	if err := m.Run(t.Context(), emitted{{Type: datapath.EventTrace, Lost: 7}}); err != nil { // itself not wanted
		t.Fatal(err)
	}
	r.take(t.Context(), sub)
	r.take(t.Context(), sub)
	entries := make([]flows.Entry, 2)
	n, _, _ := record.Flows.Read(0, entries)
	if n != 1 || entries[0].Lost.GetNumEventsLost() != 7 || entries[0].Time.IsZero() {
		t.Errorf("%d entries, %v", n, entries[:n])
	}
}

// twoPods is a directory of the pods victim, endpoint 7 with 10.1.0.7, and evil, endpoint 8.
type twoPods struct{}

func (twoPods) Endpoint(number uint16) flows.Party {
	return map[uint16]flows.Party{
		7: {Endpoint: 7, Identity: 1007, Namespace: "shop", Pod: "victim"}, 8: {Endpoint: 8, Identity: 1008, Namespace: "shop", Pod: "evil"},
	}[number]
}

func (d twoPods) Party(addr netip.Addr) flows.Party {
	switch addr.String() {
	case "10.1.0.7":
		return d.Endpoint(7)
	case "10.1.0.8":
		return d.Endpoint(8)
	}
	return flows.Party{}
}

func (twoPods) Labels(uint32) ([]string, string, string)          { return nil, "", "" }
func (twoPods) Interface(int) string                              { return "" }
func (twoPods) Service(netip.Addr, uint16, uint8) *flowpb.Service { return nil }
func (twoPods) Policies(datapath.Event) []*flowpb.Policy          { return nil }

// TestSpooferInMetrics: a pod that sends from another's address is counted without it.
func TestSpooferInMetrics(t *testing.T) {
	t.Parallel()
	m := monitor.New(slog.New(slog.DiscardHandler), fake.New().Maps)
	record, err := flows.NewRecord(16, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	asked, err := flowmetrics.Parse("drop:sourceContext=ip")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{monitor: m, record: record, maker: flows.Maker{Directory: twoPods{}}, metrics: flowmetrics.New(asked)}
	sub, stop := m.Subscribe(datapath.MonitorDrops)
	defer stop()
	drop := func(endpoint uint16, src string) datapath.Event {
		return datapath.Event{
			Type: datapath.EventDrop, Reason: datapath.ReasonInvalidSourceIP, Direction: datapath.Egress, Endpoint: endpoint, SrcIdentity: 1000 + uint32(endpoint),
			Packet: datapath.Packet{L3: "ipv4", Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("192.0.2.1"), Proto: datapath.ProtoUDP},
		}
	}
	own := drop(7, "10.1.0.7")
	own.Reason = datapath.ReasonPolicyDenied
	if err := m.Run(t.Context(), emitted{own, drop(8, "10.1.0.7"), drop(8, "192.0.2.7"), own}); err != nil {
		t.Fatal(err)
	}
	r.take(t.Context(), sub)
	registry := prometheus.NewRegistry()
	registry.MustRegister(r.metrics)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "hubble_drop_total" {
			continue
		}
		for _, s := range f.GetMetric() {
			var values []string
			for _, l := range s.GetLabel() {
				values = append(values, l.GetValue())
			}
			got[strings.Join(values, " ")] = s.GetCounter().GetValue()
		}
	}
	if len(got) != 2 || got["UDP POLICY_DENIED 10.1.0.7"] != 2 || got["UDP INVALID_SOURCE_IP "] != 2 {
		t.Errorf("counted are %v", got)
	}
}
