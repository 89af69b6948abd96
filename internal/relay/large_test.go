package relay

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
)

// largeLabels are labels as a pod may have them.
func largeLabels() []string {
	labels := make([]string, 1000)
	for i := range labels {
		labels[i] = fmt.Sprintf("k8s:%0300d=v", i)
	}
	return labels
}

// TestLargeFlows: a pod with very many labels makes its flows large. Of these, a client that reads
// nothing has the relay hold a few; when it reads, it gets all of them.
func TestLargeFlows(t *testing.T) {
	s := newStand(t, 1, func(c *Config) { c.DialTimeout = 10 * testTimeout }, nil) // a flow may take long on a busy machine
	s.connected(1)
	labels, began := largeLabels(), time.Now().Add(-time.Minute)
	const many = 250
	for i := range many {
		at := began.Add(time.Duration(i) * time.Millisecond)
		s.nodes[0].record.Add(&flow.Flow{Uuid: fmt.Sprint(i), Time: timestamppb.New(at), NodeName: s.nodes[0].name(), Source: &flow.Endpoint{Labels: labels}},
			netip.Addr{}, netip.Addr{}, time.Now())
	}
	heap := func() uint64 {
		runtime.GC()
		var st runtime.MemStats
		runtime.ReadMemStats(&st)
		return st.HeapAlloc
	}
	before := heap()
	c := s.get(&observer.GetFlowsRequest{Since: timestamppb.New(time.Unix(1, 0))})
	// It takes what there is room for, and then nothing more.
	last := before
	for same := 0; same < 5; time.Sleep(100 * time.Millisecond) {
		now := heap()
		if same++; now > last+1<<20 {
			last, same = now, 0
		}
	}
	if grew := int64(last) - int64(before); grew > 48<<20 {
		t.Errorf("a client that reads nothing has %d MiB held", grew>>20)
	}
	if got, _, err := c.all(); err != nil || len(got) != many {
		t.Errorf("%d flows of %d, %v", len(got), many, err)
	}
	if held := s.relay.large.held.Load(); held != 0 {
		t.Errorf("%d bytes are held after the end", held)
	}
}

// TestMergeHoldsFewLargeEntries: what is large takes the room of several; of all requests together
// no more than the pool is held, and what does not fit is reported as lost, in its place.
func TestMergeHoldsFewLargeEntries(t *testing.T) {
	large := &observer.GetFlowsResponse{Time: timestamppb.New(time.Now().Add(-time.Minute)), ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{
		Source: &flow.Endpoint{Labels: []string{strings.Repeat("x", 10*entryCost)}},
	}}}
	p := &pool{most: 35 * entryCost}
	start := func() (*merge, *source) {
		m := newMerge(false, time.Now(), testTimeout, time.Second, 25, p, flowsQuestion{}.lost)
		return m, m.add("n", 1, true, func() {})
	}
	a, one := start()
	for range 2 {
		if err := a.put(t.Context(), one, large); err != nil {
			t.Fatal(err)
		}
	}
	third := make(chan error, 1)
	go func() { third <- a.put(t.Context(), one, large) }() // of which all do not fit
	b, two := start()
	for range 2 {
		if err := b.put(t.Context(), two, large); err != nil {
			t.Fatal(err)
		}
	}
	b.finish(two, nil)
	if held := p.held.Load(); held > p.most || held < 30*entryCost {
		t.Errorf("%d bytes are held of %d", held, p.most)
	}
	lost := 0
	take := func(m *merge, s *source) {
		for {
			n := m.next(time.Now(), func(each func(*source)) { each(s) })
			if n.item == nil {
				return
			}
			if l := n.item.res.(*observer.GetFlowsResponse).GetLostEvents(); l != nil {
				lost += int(l.GetNumEventsLost())
			}
		}
	}
	take(b, two)
	if n := a.next(time.Now(), func(each func(*source)) { each(one) }); n.item == nil {
		t.Fatalf("nothing is next: %+v", n)
	}
	if err := <-third; err != nil {
		t.Fatal(err)
	}
	a.finish(one, nil)
	if lost < 1 || lost > 2 {
		t.Errorf("%d are lost", lost)
	}
	a.free() // its client has gone
	if held := p.held.Load(); held != 0 {
		t.Errorf("%d bytes are held after the end", held)
	}
}
