package flows_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/flows"
)

func TestRingKeepsTheLast(t *testing.T) {
	for _, bad := range []int{-1, 0, flows.MaxCapacity + 1} {
		if _, err := flows.NewRing[int](bad); err == nil {
			t.Errorf("a ring of %d entries was made", bad)
		}
	}
	for _, capacity := range []int{1, 2, 7, 64} {
		ring, err := flows.NewRing[int](capacity)
		if err != nil {
			t.Fatal(err)
		}
		var all []int // the oracle
		for i := range 200 {
			ring.Add(i)
			all = append(all, i)
			want := all[len(all)-min(len(all), capacity):]
			oldest, next := ring.Bounds()
			if int(next) != len(all) || int(next-oldest) != len(want) {
				t.Fatalf("capacity %d: bounds are %d to %d after %d entries", capacity, oldest, next, len(all))
			}
			from := rand.IntN(len(all))
			buf := make([]int, 1+rand.IntN(capacity+3))
			n, missed, wait := ring.Read(uint64(from), buf)
			expect := all[max(from, len(all)-capacity):]
			expect = expect[:min(len(expect), len(buf))]
			if !slices.Equal(buf[:n], expect) || int(missed) != max(0, len(all)-capacity-from) || wait != nil {
				t.Fatalf("capacity %d, %d entries: read from %d is %v and %d missed, want %v", capacity, len(all), from, buf[:n], missed, expect)
			}
		}
	}
}

// TestRingReadersDoNotBlock: readers of every pace get in order what they get, and every entry is
// either read or counted as missed.
func TestRingReadersDoNotBlock(t *testing.T) {
	const entries = 20000
	ring, err := flows.NewRing[int](128)
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	for pace := range 8 {
		readers.Go(func() {
			buf := make([]int, 1+pace*9)
			var next, read, missed uint64
			before := -1
			for next < entries {
				n, m, wait := ring.Read(next, buf)
				next += m + uint64(n)
				read, missed = read+uint64(n), missed+m
				for _, e := range buf[:n] {
					if e <= before {
						t.Errorf("%d after %d", e, before)
					}
					before = e
				}
				if wait != nil {
					select {
					case <-wait:
					case <-time.After(time.Minute):
						t.Error("the reader is not woken")
						return
					}
				}
				if pace%3 == 2 {
					time.Sleep(time.Millisecond) // slow
				}
			}
			if read+missed != entries {
				t.Errorf("%d read and %d missed of %d", read, missed, entries)
			}
		})
	}
	for i := range entries {
		ring.Add(i)
	}
	readers.Wait()
}

// TestRingLimitsWakeups: however fast entries come, a waiting reader is woken only so often.
func TestRingLimitsWakeups(t *testing.T) {
	ring, err := flows.NewRing[int](128)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; time.Since(began) < 20*flows.WakeEvery; i++ {
			ring.Add(i)
		}
		ring.Add(-1)
	}()
	wakes := 0
	for waiting := true; waiting; {
		_, next := ring.Bounds() // it has read all there is
		if _, _, wait := ring.Read(next, make([]int, 1)); wait != nil {
			select {
			case <-wait:
				wakes++
			case <-done:
				waiting = false
			}
		}
	}
	if most := int(time.Since(began)/flows.WakeEvery) + 1; wakes > most {
		t.Errorf("woken %d times in %v", wakes, time.Since(began))
	}
}

// BenchmarkAddWithReaders measures what waiting readers cost the one who adds.
func BenchmarkAddWithReaders(b *testing.B) {
	for _, readers := range []int{0, 512} {
		b.Run(fmt.Sprint(readers), func(b *testing.B) {
			ring, err := flows.NewRing[int](4095)
			if err != nil {
				b.Fatal(err)
			}
			var all sync.WaitGroup
			stop, ready := make(chan struct{}), make(chan struct{})
			close(ready)
			for range readers {
				all.Go(func() {
					buf := make([]int, 64)
					for next := uint64(0); ; {
						n, missed, wait := ring.Read(next, buf)
						next += missed + uint64(n)
						if wait == nil {
							wait = ready
						}
						select {
						case <-stop:
							return
						case <-wait:
						}
					}
				})
			}
			for b.Loop() {
				ring.Add(1)
			}
			close(stop)
			all.Wait()
		})
	}
}

// TestRingIsBoundedBySize: while all entries together are too large, the oldest are dropped, and
// count as missed; the last one stays, however large it is.
func TestRingIsBoundedBySize(t *testing.T) {
	const capacity, most = 16, 100
	ring, err := flows.NewRing[int](capacity)
	if err != nil {
		t.Fatal(err)
	}
	ring.Bound(most, func(e int) int { return e })
	var all []int
	first := 0 // of those that are kept
	for range 5000 {
		e := rand.IntN(1 + rand.IntN(2*most))
		ring.Add(e)
		all = append(all, e)
		first = max(first, len(all)-capacity)
		for first < len(all)-1 && sum(all[first:]) > most {
			first++
		}
		if oldest, next := ring.Bounds(); int(oldest) != first || int(next) != len(all) {
			t.Fatalf("the bounds are %d to %d, want %d to %d", oldest, next, first, len(all))
		}
		buf := make([]int, capacity)
		if n, missed, _ := ring.Read(0, buf); !slices.Equal(buf[:n], all[first:]) || int(missed) != first {
			t.Fatalf("of %d entries %v are read and %d missed, want %v", len(all), buf[:n], missed, all[first:])
		}
	}
}

func sum(list []int) (n int) {
	for _, e := range list {
		n += e
	}
	return n
}
