package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/observer"
)

// drain takes everything until the merge is done, and returns the times of what came.
func drain(t *testing.T, m *merge, all []*source) (out []time.Time) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for time.Now().Before(deadline) {
		n := m.next(time.Now(), func(each func(*source)) {
			for _, s := range all {
				each(s)
			}
		})
		switch {
		case n.item != nil:
			out = append(out, n.item.res.GetTime().AsTime())
		case n.done:
			return out
		default:
			wait := n.wait
			if wait == 0 {
				wait = testTimeout
			}
			select {
			case <-m.woken:
			case <-time.After(wait):
			}
		}
	}
	t.Fatalf("not done after %d", len(out))
	return nil
}

// TestMergeSortsThePast: sorted streams of any length and pace become one sorted stream, with a few
// entries held of each.
func TestMergeSortsThePast(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		m := newMerge(false, time.Now(), testTimeout, time.Second, 8, &pool{}, flowsQuestion{}.lost)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var all []*source
		count := 1 + rng.IntN(9)
		total := 0
		for range count {
			s := m.add("n", count, true, func() {})
			all = append(all, s)
			n := rng.IntN(200)
			total += n
			steps := make([]time.Duration, n)
			for i := range steps {
				steps[i] = time.Duration(rng.IntN(1000)) * time.Millisecond
			}
			wg.Go(func() {
				at := time.Now().Add(-time.Hour)
				for _, step := range steps {
					at = at.Add(step)
					if err := m.put(ctx, s, &observer.GetFlowsResponse{Time: timestamppb.New(at)}); err != nil {
						t.Error(err)
					}
					if len(s.room) > max(2, 8/count) {
						t.Errorf("%d entries are held", len(s.room))
					}
				}
				m.finish(s, nil)
			})
		}
		out := drain(t, m, all)
		wg.Wait()
		cancel()
		if len(out) != total {
			t.Errorf("%d entries, want %d", len(out), total)
		}
		for i := 1; i < len(out); i++ {
			if out[i].Before(out[i-1]) {
				t.Fatalf("entry %d is before the one before it", i)
			}
		}
		if m.held != 0 || m.idle != 0 || m.waiting != 0 || m.live != 0 {
			t.Errorf("held %d, idle %d, waiting %d, live %d", m.held, m.idle, m.waiting, m.live)
		}
	}
}

// TestMergeDoesNotWaitForDrips: a node that sends a little now and then does not
// hold the others for longer than one that sends nothing.
func TestMergeDoesNotWaitForDrips(t *testing.T) {
	now := time.Now()
	m := newMerge(false, now, 5*time.Second, time.Second, 1000, &pool{}, flowsQuestion{}.lost)
	slow, fast := m.add("slow", 2, true, func() {}), m.add("fast", 2, true, func() {})
	all := func(each func(*source)) { each(slow); each(fast) }
	at := now.Add(-time.Hour)
	put := func(s *source) {
		at = at.Add(time.Second)
		if err := m.put(t.Context(), s, &observer.GetFlowsResponse{Time: timestamppb.New(at)}); err != nil {
			t.Fatal(err)
		}
	}
	put(slow)
	for range 10 {
		put(fast)
	}
	m.finish(fast, nil)
	clock, waited, got := now, time.Duration(0), 0
	for {
		n := m.next(clock, all)
		if n.done {
			break
		}
		if n.item != nil {
			got++
			continue
		}
		if n.wait == 0 {
			t.Fatal("waits for ever")
		}
		step := min(n.wait, 100*time.Millisecond)
		clock, waited = clock.Add(step), waited+step
		if step < n.wait && !slow.ended {
			put(slow)
		}
	}
	if waited > 6*time.Second || got < 11 || !errors.Is(slow.err, errSilent) {
		t.Errorf("waited %v for %d entries, then %v", waited, got, slow.err)
	}
}

// TestMergeHoldsTheLatest: of flows that come, those of all nodes that are as old as hold are in
// order; a full buffer waits for no node.
func TestMergeHoldsTheLatest(t *testing.T) {
	now := time.Now()
	m := newMerge(true, now.Add(-time.Second), time.Second, time.Minute, 8, &pool{}, flowsQuestion{}.lost)
	a, b := m.add("a", 2, false, func() {}), m.add("b", 2, false, func() {})
	all := func(each func(*source)) { each(a); each(b) }
	put := func(s *source, ago time.Duration) {
		if err := m.put(t.Context(), s, &observer.GetFlowsResponse{Time: timestamppb.New(now.Add(-ago))}); err != nil {
			t.Fatal(err)
		}
	}
	put(a, 2*time.Millisecond)
	if n := m.next(now, all); n.item != nil || n.wait <= 0 {
		t.Errorf("it is not held: %+v", n)
	}
	put(b, 3*time.Millisecond)
	if n := m.next(now, all); n.source != b {
		t.Errorf("not the earlier one: %+v", n)
	}
	if n := m.next(now, all); n.item != nil {
		t.Errorf("it is not held: %+v", n)
	}
	if n := m.next(now.Add(time.Minute), all); n.source != a {
		t.Errorf("it is held for too long: %+v", n)
	}
	put(b, 5*time.Millisecond)
	put(a, 6*time.Millisecond)
	put(b, 7*time.Millisecond) // out of order
	for i, want := range []*source{b, a, b} {
		if n := m.next(now.Add(time.Minute), all); n.source != want {
			t.Errorf("entry %d: %+v", i, n)
		}
	}
	for range 4 { // as many as one node may have in here
		put(a, time.Millisecond)
	}
	if n := m.next(now, all); n.source != a {
		t.Errorf("a full buffer waits: %+v", n)
	}
}

// TestMergeClockBehind: a node whose clock is behind and that always has something to send does not
// keep the others' flows from those who follow; at first it may send the past.
func TestMergeClockBehind(t *testing.T) {
	for _, catching := range []bool{false, true} {
		start := time.Now()
		if catching {
			start = start.Add(-2 * catchUp)
		}
		m := newMerge(true, start, time.Second, time.Millisecond, 8, &pool{}, flowsQuestion{}.lost)
		behind, right := m.add("behind", 2, catching, func() {}), m.add("right", 2, false, func() {})
		all := func(each func(*source)) { each(behind); each(right) }
		put := func(s *source, at time.Time) {
			if err := m.put(t.Context(), s, &observer.GetFlowsResponse{Time: timestamppb.New(at)}); err != nil {
				t.Fatal(err)
			}
		}
		put(behind, time.Unix(0, 0))
		put(right, time.Now())
		for deadline := time.Now().Add(5 * time.Second); ; {
			put(behind, time.Unix(0, 0))
			if n := m.next(time.Now(), all); n.source == right {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("catching %v: it never comes", catching)
			}
		}
	}
	m := newMerge(true, time.Now(), time.Second, time.Millisecond, 8, &pool{}, flowsQuestion{}.lost)
	s := m.add("n", 1, true, func() {})
	past := time.Now().Add(-time.Hour)
	if err := m.put(t.Context(), s, &observer.GetFlowsResponse{Time: timestamppb.New(past)}); err != nil || !s.queue[0].key.Equal(past) {
		t.Errorf("the past is sorted by %v, want %v (%v)", s.queue[0].key, past, err)
	}
}
