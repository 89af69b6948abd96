package table

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func equalInts(a, b int) bool { return a == b }

func TestTable(t *testing.T) {
	t.Parallel()
	tb := New[string](equalInts)
	if rev := tb.Upsert("a", 1); rev != 1 {
		t.Errorf("first upsert: revision %d, want 1", rev)
	}
	if rev := tb.Upsert("b", 2); rev != 2 {
		t.Errorf("second upsert: revision %d, want 2", rev)
	}
	if rev := tb.Upsert("a", 1); rev != 1 {
		t.Errorf("equal upsert: revision %d, want that of the row, 1", rev)
	}
	if rev := tb.Upsert("a", 3); rev != 3 {
		t.Errorf("changing upsert: revision %d, want 3", rev)
	}
	if v, ok := tb.Get("a"); v != 3 || !ok {
		t.Errorf("Get(a) = %d, %v", v, ok)
	}
	if row, ok := tb.GetRow("b"); row != (Row[string, int]{"b", 2, 2}) || !ok {
		t.Errorf("GetRow(b) = %v, %v", row, ok)
	}
	rows, rev := tb.Snapshot()
	if diff := cmp.Diff([]Row[string, int]{{"b", 2, 2}, {"a", 3, 3}}, rows); diff != "" || rev != 3 {
		t.Errorf("snapshot at %d: %s", rev, diff)
	}
	if rev, ok := tb.Delete("b"); rev != 4 || !ok {
		t.Errorf("Delete(b) = %d, %v", rev, ok)
	}
	if rev, ok := tb.Delete("b"); rev != 4 || ok {
		t.Errorf("second Delete(b) = %d, %v", rev, ok)
	}
	if got := maps.Collect(tb.All()); !maps.Equal(got, map[string]int{"a": 3}) {
		t.Errorf("All = %v", got)
	}
	for k := range tb.All() {
		tb.Upsert(k+"x", 1) // a loop may write
		break
	}
	if tb.Len() != 2 || tb.Revision() != 5 {
		t.Errorf("Len = %d, Revision = %d", tb.Len(), tb.Revision())
	}
}

func poll(t *testing.T, o *Observer[string, int]) []Change[string, int] {
	t.Helper()
	c, err := o.Poll()
	if err != nil {
		t.Fatal(err)
	}
	return append([]Change[string, int](nil), c...)
}

func up(k string, v int, rev uint64) Change[string, int] {
	return Change[string, int]{Row: Row[string, int]{k, v, rev}}
}

func del(k string, v int, rev uint64) Change[string, int] {
	return Change[string, int]{Row: Row[string, int]{k, v, rev}, Deleted: true}
}

func TestObserver(t *testing.T) {
	t.Parallel()
	tb := New[string](equalInts)
	tb.Upsert("a", 1)
	tb.Upsert("b", 1)
	first := tb.Watch()
	second := tb.Watch()
	check := func(name string, got, want []Change[string, int]) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	check("present rows come first", poll(t, first), []Change[string, int]{up("a", 1, 1), up("b", 1, 2)})
	check("to each observer", poll(t, second), []Change[string, int]{up("a", 1, 1), up("b", 1, 2)})

	tb.Upsert("a", 2)
	tb.Upsert("a", 3)
	tb.Delete("b")
	check("changes are coalesced", poll(t, first), []Change[string, int]{up("a", 3, 4), del("b", 1, 5)})
	tb.Upsert("b", 9)
	check("gone and back is an update", poll(t, second), []Change[string, int]{up("a", 3, 4), up("b", 9, 6)})
	check("also for who saw it go", poll(t, first), []Change[string, int]{up("b", 9, 6)})

	tb.Upsert("c", 1)
	tb.Delete("c")
	check("come and gone is a deletion", poll(t, first), []Change[string, int]{del("c", 1, 8)})
	late := tb.Watch()
	check("who came later does not see it", poll(t, late), []Change[string, int]{up("a", 3, 4), up("b", 9, 6)})
	if _, ok := tb.Touch("c"); ok {
		t.Error("touched a row that is gone")
	}
	if first.Revision() != 8 || late.Revision() != 8 {
		t.Errorf("revisions %d, %d, want 8", first.Revision(), late.Revision())
	}
	if n := len(tb.rows); n != 3 {
		t.Errorf("%d rows and tombstones, want 3 until the second observer looks", n)
	}
	second.Close()
	second.Close()
	if n := len(tb.rows); n != 2 {
		t.Errorf("%d rows and tombstones after the last waiting observer left, want 2", n)
	}
	if _, err := second.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Next after Close: %v", err)
	}
	first.Close()
	if rev, ok := tb.Touch("a"); rev != 9 || !ok {
		t.Errorf("Touch = %d, %v", rev, ok)
	}
	check("touched is changed", poll(t, late), []Change[string, int]{up("a", 3, 9)})
	late.Close()
	if tb.root.next.kind != live || tb.root.prev.kind != live || len(tb.observers) != 0 {
		t.Error("observers left something behind")
	}
}

// Whoever waits for Changed and polls once each time sees everything, also if no write follows.
func TestChangedAfterABatch(t *testing.T) {
	t.Parallel()
	tb := New[int](equalInts)
	obs := tb.Watch()
	defer obs.Close()
	const rows = 3*maxBatch + 1
	tb.Update(func(x Txn[int, int]) {
		for i := range rows {
			x.Upsert(i, i)
		}
	})
	seen := 0
	for {
		select {
		case <-obs.Changed():
			changes, err := obs.Poll()
			if err != nil {
				t.Fatal(err)
			}
			seen += len(changes)
			continue
		default:
		}
		break
	}
	if seen != rows {
		t.Errorf("%d rows are reported, want %d", seen, rows)
	}
}

func TestNextWaits(t *testing.T) {
	t.Parallel()
	tb := New[string](equalInts)
	o := tb.Watch()
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan Change[string, int])
	end := make(chan error)
	go func() {
		for {
			changes, err := o.Next(ctx)
			if err != nil {
				end <- err
				return
			}
			for _, c := range changes {
				got <- c
			}
		}
	}()
	tb.Upsert("a", 1)
	if c := <-got; c != up("a", 1, 1) {
		t.Errorf("got %v", c)
	}
	tb.Update(func(x Txn[string, int]) {
		x.Upsert("b", 1)
		x.Upsert("c", 1)
		x.Delete("a")
		for _, k := range []string{"b", "c"} {
			v, _ := x.Get(k)
			x.Upsert(k, v+1)
		}
	})
	want := map[Change[string, int]]bool{del("a", 1, 4): true, up("b", 2, 5): true, up("c", 2, 6): true}
	for range 3 {
		if c := <-got; !want[c] {
			t.Errorf("got %v", c)
		}
	}
	cause := errors.New("enough")
	cancel(cause)
	if err := <-end; err != cause {
		t.Errorf("Next ended with %v", err)
	}
	go func() {
		_, err := o.Next(context.Background())
		end <- err
	}()
	o.Close()
	if err := <-end; !errors.Is(err, ErrClosed) {
		t.Errorf("Next ended with %v", err)
	}
}

// model is the naive table: every observer keeps what it was given and must end up with the table's
// content.
type model struct {
	t     *testing.T
	tb    *Table[uint8, int]
	truth map[uint8]int
	obs   []*Observer[uint8, int]
	seen  []map[uint8]int
}

func (m *model) step(op, key uint8, val int) {
	switch op % 8 {
	case 0, 1, 2:
		m.tb.Upsert(key, val)
		m.truth[key] = val
	case 3, 4:
		_, had := m.truth[key]
		if _, ok := m.tb.Delete(key); ok != had {
			m.t.Fatalf("Delete(%d) found %v, want %v", key, ok, had)
		}
		delete(m.truth, key)
	case 5:
		if len(m.obs) < 4 {
			m.obs = append(m.obs, m.tb.Watch())
			m.seen = append(m.seen, map[uint8]int{})
		}
	case 6:
		if len(m.obs) > 0 {
			m.pull(int(key) % len(m.obs))
		}
	case 7:
		if len(m.obs) > 0 && val%4 == 0 {
			i := int(key) % len(m.obs)
			m.obs[i].Close()
			m.obs = append(m.obs[:i], m.obs[i+1:]...)
			m.seen = append(m.seen[:i], m.seen[i+1:]...)
		}
	}
	if m.tb.Len() != len(m.truth) {
		m.t.Fatalf("Len = %d, want %d", m.tb.Len(), len(m.truth))
	}
}

func (m *model) pull(i int) {
	changes, err := m.obs[i].Poll()
	if err != nil {
		m.t.Fatal(err)
	}
	last := uint64(0)
	for _, c := range changes {
		if c.Revision <= last {
			m.t.Fatalf("revision %d after %d", c.Revision, last)
		}
		last = c.Revision
		if c.Deleted {
			delete(m.seen[i], c.Key)
		} else {
			m.seen[i][c.Key] = c.Value
		}
	}
	if !maps.Equal(m.seen[i], m.truth) {
		m.t.Fatalf("observer %d has %v, want %v", i, m.seen[i], m.truth)
	}
}

func (m *model) finish() {
	for i := range m.obs {
		m.pull(i)
		m.obs[i].Close()
	}
	if got := maps.Collect(m.tb.All()); !maps.Equal(got, m.truth) {
		m.t.Fatalf("table has %v, want %v", got, m.truth)
	}
	n := 0
	for e := m.tb.root.next; e != &m.tb.root; e = e.next {
		n++
	}
	if n != len(m.truth) || len(m.tb.rows) != n {
		m.t.Fatalf("%d list entries and %d map entries for %d rows", n, len(m.tb.rows), len(m.truth))
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte{0, 1, 5, 0, 3, 1, 6, 0, 0, 1, 6, 0, 7, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &model{t: t, tb: New[uint8](equalInts), truth: map[uint8]int{}}
		for i := 0; i+1 < len(data); i += 2 {
			m.step(data[i], data[i+1]%16, i)
		}
		m.finish()
	})
}

func TestTableModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := &model{t: t, tb: New[uint8](equalInts), truth: map[uint8]int{}}
		for range 500 {
			m.step(uint8(r.Uint32()), uint8(r.Uint32()%12), r.IntN(5))
		}
		m.finish()
	}
}

// TestConcurrent has several writers and observers at once; each observer ends with the truth.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	const writers, keys, rounds = 4, 20, 500
	tb := New[string](equalInts)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var obs, wr sync.WaitGroup
	for range 3 {
		o := tb.Watch()
		obs.Go(func() {
			defer o.Close()
			seen := map[string]int{}
			for len(seen) != writers*keys || !allAre(seen, rounds) {
				changes, err := o.Next(ctx)
				if err != nil {
					t.Errorf("observer: %v with %d rows", err, len(seen))
					return
				}
				for _, c := range changes {
					if c.Deleted {
						delete(seen, c.Key)
					} else {
						seen[c.Key] = c.Value
					}
				}
			}
		})
	}
	for w := range writers {
		wr.Go(func() {
			for i := 1; i <= rounds; i++ {
				for k := range keys {
					key := fmt.Sprintf("%d/%d", w, k)
					if (i+k)%7 == 0 {
						tb.Delete(key)
					}
					tb.Upsert(key, i)
				}
			}
		})
	}
	wr.Wait()
	obs.Wait()
}

func allAre(m map[string]int, v int) bool {
	for _, x := range m {
		if x != v {
			return false
		}
	}
	return true
}

func BenchmarkUpsertToObserver(b *testing.B) {
	tb := New[uint64, uint64](nil)
	for i := range uint64(100_000) {
		tb.Upsert(i, i)
	}
	o := tb.Watch()
	defer o.Close()
	for {
		if present, err := o.Poll(); err != nil {
			b.Fatal(err)
		} else if len(present) == 0 {
			break
		}
	}
	seen := make(chan uint64)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			changes, err := o.Next(ctx)
			if err != nil {
				return
			}
			seen <- changes[len(changes)-1].Value
		}
	})
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i++
		tb.Upsert(i%100_000, i)
		<-seen
	}
	cancel()
	wg.Wait()
}

func BenchmarkUpsert(b *testing.B) {
	tb := New[uint64, uint64](nil)
	o := tb.Watch()
	defer o.Close()
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i++
		tb.Upsert(i%100_000, i)
	}
}

// BenchmarkMemory reports the heap that one row costs, above the size of its key and value.
func BenchmarkMemory(b *testing.B) {
	const rows = 100_000
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		tb := New[uint64, uint64](nil)
		for i := range uint64(rows) {
			tb.Upsert(i, i)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(tb)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/rows-16, "overhead-B/row")
}
