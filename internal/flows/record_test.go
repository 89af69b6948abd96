package flows_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
)

// TestFloodMemoryIsBounded: however many different flows come, of however many namespaces,
// what is remembered is bounded.
func TestFloodMemoryIsBounded(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	record, err := flows.NewRecord(1024, now)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	add := func(flood int) (heap uint64) {
		for range flood {
			f := &flow.Flow{
				Time: timestamppb.New(now), Uuid: fmt.Sprint(n), Source: &flow.Endpoint{Namespace: fmt.Sprintf("namespace-%d", n), PodName: fmt.Sprintf("pod-%d", n)},
				IP: &flow.IP{Source: fmt.Sprintf("fd00::%x:%x", n>>16, n&0xffff)},
			}
			record.Add(f, netip.Addr{}, netip.Addr{}, now)
			n++
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	full := add(20_000)
	if after := add(200_000); after > full+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes", full, after)
	}
	if known := len(record.Namespaces(now)); known == 0 || known > 8192 {
		t.Errorf("%d namespaces are remembered", known)
	}
	// After an hour without a flow of theirs they are forgotten, and others have room.
	later := now.Add(2 * time.Hour)
	record.Add(&flow.Flow{Time: timestamppb.New(later), Destination: &flow.Endpoint{Namespace: "late"}}, netip.Addr{}, netip.Addr{}, later)
	n++
	if left := record.Namespaces(later); len(left) != 1 || left[0] != "late" {
		t.Errorf("with the memory full of old ones, %d namespaces are listed", len(left))
	}
	later = later.Add(2 * time.Hour)
	if left := record.Namespaces(later); len(left) != 0 {
		t.Errorf("%d namespaces are still listed", len(left))
	}
	record.Add(&flow.Flow{Time: timestamppb.New(later), Destination: &flow.Endpoint{Namespace: "shop"}}, netip.Addr{}, netip.Addr{}, later)
	if left := record.Namespaces(later); len(left) != 1 || left[0] != "shop" {
		t.Errorf("namespaces: %v", left)
	}
	if seen, _ := record.Seen(); seen != uint64(n)+1 {
		t.Errorf("%d flows were seen of %d", seen, n+1)
	}
}

// TestRate: the rate is that of the last minute, or of the time since the beginning if that is
// less.
func TestRate(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	record, err := flows.NewRecord(8, now)
	if err != nil {
		t.Fatal(err)
	}
	for second := range 100 {
		for range 5 {
			record.Add(&flow.Flow{}, netip.Addr{}, netip.Addr{}, now.Add(time.Duration(second)*time.Second))
		}
		if rate := record.Rate(now.Add(time.Duration(second+1) * time.Second)); rate < 4.8 || rate > 5.2 {
			t.Fatalf("after %d seconds the rate is %.2f", second+1, rate)
		}
	}
	if rate := record.Rate(now.Add(time.Hour)); rate != 0 {
		t.Errorf("after an hour without flows the rate is %.2f", rate)
	}
}

// TestEventsAreBoundedBySize: events of services with very many backends displace others before
// they fill the memory.
func TestEventsAreBoundedBySize(t *testing.T) {
	record, err := flows.NewRecord(16, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range 5000 {
		up := &flow.ServiceUpsertNotification{}
		for i := range 256 {
			up.BackendAddresses = append(up.BackendAddresses, &flow.ServiceUpsertNotificationAddr{Ip: fmt.Sprint("10.0.0.", i), Port: 80})
		}
		record.AddEvent(flows.Event{Time: time.Now(), Event: &flow.AgentEvent{
			Type: flow.AgentEventType_SERVICE_UPSERTED, Notification: &flow.AgentEvent_ServiceUpsert{ServiceUpsert: up},
		}})
	}
	if grew := heap() - before; grew > 20<<20 {
		t.Errorf("the events take %d MiB", grew>>20)
	}
	if oldest, next := record.Events.Bounds(); next-oldest < 100 {
		t.Errorf("%d events are kept", next-oldest)
	}
	// Small ones are all kept.
	for range record.Events.Cap() {
		record.AddEvent(flows.Event{Time: time.Now(), Event: &flow.AgentEvent{Type: flow.AgentEventType_POLICY_UPDATED}})
	}
	if oldest, next := record.Events.Bounds(); int(next-oldest) != record.Events.Cap() {
		t.Errorf("%d small events are kept of %d", next-oldest, record.Events.Cap())
	}
}
