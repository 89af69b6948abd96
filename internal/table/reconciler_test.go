package table

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memTarget is a target in memory that fails on demand. Its batch calls are logged as text.
type memTarget struct {
	mu      sync.Mutex
	rows    map[string]int
	bad     map[string]error // keys that fail
	down    error            // everything fails
	rowErrs bool             // report failures by row
	calls   []string
	prunes  int
}

func (m *memTarget) each(kind string, rows []Row[string, int], do func(Row[string, int])) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	b.WriteString(kind)
	failed := RowErrors{}
	for i, r := range rows {
		b.WriteString(" " + r.Key)
		switch {
		case m.down != nil:
			failed[i] = m.down
		case m.bad[r.Key] != nil:
			failed[i] = m.bad[r.Key]
		default:
			do(r)
		}
	}
	m.calls = append(m.calls, b.String())
	if len(failed) == 0 {
		return nil
	}
	if m.rowErrs {
		return failed
	}
	return failed.Unwrap()[0]
}

func (m *memTarget) Update(_ context.Context, rows []Row[string, int]) error {
	return m.each("update", rows, func(r Row[string, int]) { m.rows[r.Key] = r.Value })
}

func (m *memTarget) Delete(_ context.Context, rows []Row[string, int]) error {
	return m.each("delete", rows, func(r Row[string, int]) { delete(m.rows, r.Key) })
}

func (m *memTarget) Prune(_ context.Context, desired iter.Seq2[string, int]) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return m.down
	}
	m.prunes++
	want := maps.Collect(desired)
	maps.DeleteFunc(m.rows, func(k string, _ int) bool { _, ok := want[k]; return !ok })
	return nil
}

func (m *memTarget) set(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn()
}

// state returns the number of Prunes and a copy of the rows.
func (m *memTarget) state() (prunes int, rows map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.prunes, maps.Clone(m.rows)
}

func (m *memTarget) takeCalls() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := strings.Join(m.calls, "; ")
	m.calls = nil
	return s
}

type fixture struct {
	table  *Table[string, int]
	target *memTarget
	rec    *Reconciler[string, int]
}

// reconciling runs fn in a bubble of fake time with a running reconciler.
func reconciling(t *testing.T, cfg ReconcilerConfig, fn func(*testing.T, *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{table: New[string](equalInts), target: &memTarget{rows: map[string]int{}, bad: map[string]error{}}}
		var err error
		if f.rec, err = NewReconciler(cfg, f.table, f.target); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stopped")
		ended := make(chan error)
		go func() { ended <- f.rec.Run(ctx) }()
		fn(t, f)
		cancel(stop)
		if err := <-ended; err != stop {
			t.Errorf("Run ended with %v", err)
		}
	})
}

func (f *fixture) wantCalls(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := f.target.takeCalls(); got != want {
		t.Errorf("calls %q, want %q", got, want)
	}
}

func (f *fixture) wantPhase(t *testing.T, key string, want Phase) Status {
	t.Helper()
	s, ok := f.rec.Status(key)
	if !ok || s.Phase != want {
		t.Errorf("status of %s: %v (found %v), want %v", key, s.Phase, ok, want)
	}
	return s
}

var errBad = errors.New("no good")

func TestReconcilerOrderAndBatches(t *testing.T) {
	t.Parallel()
	reconciling(t, ReconcilerConfig{BatchSize: 2}, func(t *testing.T, f *fixture) {
		synctest.Wait()
		f.table.Update(func(x Txn[string, int]) {
			for _, k := range []string{"a", "b", "c"} {
				x.Upsert(k, 1)
			}
		})
		f.wantCalls(t, "update a b; update c")
		f.table.Update(func(x Txn[string, int]) {
			x.Delete("a")
			x.Upsert("d", 1)
			x.Delete("b")
			x.Delete("c")
		})
		f.wantCalls(t, "delete a; update d; delete b c")
		f.wantPhase(t, "d", Done)
		if _, ok := f.rec.Status("a"); ok {
			t.Error("a deleted row has a status")
		}
		if s := f.rec.Summary(); s != (Summary{Done: 1}) {
			t.Errorf("summary %+v", s)
		}
	})
}

func TestReconcilerRetries(t *testing.T) {
	t.Parallel()
	for _, byRow := range []bool{true, false} {
		cfg := ReconcilerConfig{MinBackoff: time.Second, MaxBackoff: 8 * time.Second}
		reconciling(t, cfg, func(t *testing.T, f *fixture) {
			f.target.set(func() { f.target.rowErrs = byRow; f.target.bad["b"] = errBad })
			synctest.Wait()
			start := time.Now()
			var rev uint64
			f.table.Update(func(x Txn[string, int]) {
				x.Upsert("a", 1)
				rev = x.Upsert("b", 1)
			})
			f.wantCalls(t, "update a b")
			if byRow {
				f.wantPhase(t, "a", Done)
			} else {
				f.wantPhase(t, "a", Failed) // the batch does not say which row failed
			}
			s := f.wantPhase(t, "b", Failed)
			if !errors.Is(s.Err, errBad) || s.Attempts != 1 || !s.Since.Equal(start) || !s.Last.Equal(start) {
				t.Errorf("status %+v", s)
			}
			if d := s.Next.Sub(start); d < time.Second/2 || d > time.Second {
				t.Errorf("first retry after %v", d)
			}

			if err := f.rec.WaitTried(t.Context(), rev); err != nil {
				t.Errorf("WaitTried: %v", err)
			}

			// The error comes out of a wait that ends early.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := f.rec.WaitDone(ctx, "b", rev)
			cancel()
			if !errors.Is(err, errBad) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("WaitDone: %v", err)
			}
			s = f.wantPhase(t, "b", Failed)
			f.wantPhase(t, "a", Done)
			// 0.5-1, 1-2, 2-4, then every 4-8 s.
			if s.Attempts < 60/8 || s.Attempts > 3+60/4+1 || s.Next.Sub(s.Last) > 8*time.Second {
				t.Errorf("after a minute %d attempts, next in %v", s.Attempts, s.Next.Sub(s.Last))
			}
			if sum := f.rec.Summary(); sum.Failed != 1 || sum.Done != 1 || len(f.rec.Failing()) != 1 {
				t.Errorf("summary %+v, failing %v", sum, f.rec.Failing())
			}

			f.target.set(func() { delete(f.target.bad, "b") })
			if err := f.rec.WaitAll(t.Context(), rev); err != nil {
				t.Error(err)
			}
			f.wantPhase(t, "b", Done)
			if _, rows := f.target.state(); rows["b"] != 1 {
				t.Errorf("target has %v", rows)
			}
		})
	}
}

func TestReconcilerNewValueIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	reconciling(t, ReconcilerConfig{MinBackoff: time.Hour, MaxBackoff: time.Hour}, func(t *testing.T, f *fixture) {
		f.target.set(func() { f.target.bad["a"] = errBad })
		f.table.Upsert("a", 1)
		f.wantCalls(t, "update a")
		f.target.set(func() { delete(f.target.bad, "a") })
		rev := f.table.Upsert("a", 2)
		if err := f.rec.WaitDone(t.Context(), "a", rev); err != nil {
			t.Error(err)
		}
		f.wantCalls(t, "update a")

		// A deletion that fails outlives the row.
		f.target.set(func() { f.target.bad["a"] = errBad })
		rev, _ = f.table.Delete("a")
		f.wantCalls(t, "delete a")
		if s := f.wantPhase(t, "a", Failed); !s.Deleting {
			t.Error("status does not say that the row is being deleted")
		}
		f.target.set(func() { delete(f.target.bad, "a") })
		if err := f.rec.WaitDone(t.Context(), "a", rev); err != nil {
			t.Error(err)
		}
		if _, rows := f.target.state(); len(rows) != 0 {
			t.Errorf("target has %v", rows)
		}
	})
}

func TestReconcilerPrune(t *testing.T) {
	t.Parallel()
	cfg := ReconcilerConfig{PruneInterval: time.Minute, MinBackoff: time.Second, MaxBackoff: time.Second}
	reconciling(t, cfg, func(t *testing.T, f *fixture) {
		f.target.set(func() { f.target.rows["old"] = 1 })
		f.table.Upsert("a", 1)
		time.Sleep(time.Hour)
		if prunes, rows := f.target.state(); prunes != 0 || rows["old"] != 1 {
			t.Error("pruned before anyone asked")
		}
		f.rec.Prune()
		f.rec.Prune()
		synctest.Wait()
		if prunes, rows := f.target.state(); prunes != 1 || len(rows) != 1 {
			t.Errorf("%d prunes, rows %v", prunes, rows)
		}
		time.Sleep(10*time.Minute + time.Second)
		if prunes, _ := f.target.state(); prunes != 11 {
			t.Errorf("%d prunes after 10 minutes, want 11", prunes)
		}
		f.target.set(func() { f.target.down = errBad; f.target.rows["old"] = 1 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := f.rec.WaitPruned(ctx); !errors.Is(err, errBad) {
			t.Errorf("WaitPruned: %v", err)
		}
		cancel()
		if s := f.rec.Summary(); !errors.Is(s.PruneErr, errBad) {
			t.Errorf("summary %+v", s)
		}
		f.target.set(func() { f.target.down = nil })
		if err := f.rec.WaitPruned(t.Context()); err != nil {
			t.Error(err)
		}
		_, rows := f.target.state()
		if s := f.rec.Summary(); len(rows) != 1 || s.PruneErr != nil || s.LastPrune.IsZero() {
			t.Errorf("rows %v, summary %+v", rows, s)
		}
	})
}

// TestReconcilerConverges makes random changes to a target that fails at random and wants both
// to be equal at the end.
func TestReconcilerConverges(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		reconciling(t, ReconcilerConfig{BatchSize: 3}, func(t *testing.T, f *fixture) {
			r := rand.New(rand.NewPCG(seed, 2))
			keys := strings.Split("abcdefgh", "")
			truth := map[string]int{}
			f.target.set(func() { f.target.rowErrs = seed%2 == 0 })
			var rev uint64
			for i := range 400 {
				k := keys[r.IntN(len(keys))]
				switch r.IntN(6) {
				case 0, 1, 2:
					rev = f.table.Upsert(k, i)
					truth[k] = i
				case 3:
					rev, _ = f.table.Delete(k)
					delete(truth, k)
				case 4:
					f.target.set(func() {
						if f.target.bad[k] != nil {
							delete(f.target.bad, k)
						} else {
							f.target.bad[k] = errBad
						}
					})
				case 5:
					time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
				}
			}
			f.target.set(func() { clear(f.target.bad) })
			if err := f.rec.WaitAll(t.Context(), rev); err != nil {
				t.Error(err)
			}
			if _, rows := f.target.state(); !maps.Equal(rows, truth) {
				t.Errorf("seed %d: target has %v, want %v", seed, rows, truth)
			}
			if s := f.rec.Summary(); s.Pending != 0 || s.Failed != 0 || s.Done != len(truth) {
				t.Errorf("seed %d: summary %+v", seed, s)
			}
		})
	}
}

// TestReconcilerEnded: who waits for a row when Run ends, or afterwards, is told at once.
func TestReconcilerEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table, target := New[string](equalInts), &memTarget{rows: map[string]int{}, bad: map[string]error{"bad": errBad}}
		rec, err := NewReconciler(ReconcilerConfig{}, table, target)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- rec.Run(ctx) }()
		good, bad := table.Upsert("good", 1), table.Upsert("bad", 1)
		if err := rec.WaitDone(t.Context(), "good", good); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error)
		go func() { waiting <- rec.WaitDone(context.Background(), "bad", bad) }()
		synctest.Wait()
		cancel()
		<-ended
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		late := table.Upsert("late", 1)
		for name, err := range map[string]error{
			"a row that fails": <-waiting, "a later row": rec.WaitDone(bounded, "late", late), "a Prune": rec.WaitPruned(bounded),
		} {
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := rec.WaitDone(bounded, "good", good); err != nil {
			t.Errorf("a row that is done: %v", err)
		}
	})
}

func TestReconcilerConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]ReconcilerConfig{
		"batch":   {BatchSize: -1},
		"backoff": {MinBackoff: time.Hour},
		"prune":   {PruneInterval: -1},
	} {
		if _, err := NewReconciler(cfg, New[string](equalInts), &memTarget{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func BenchmarkUpsertToTarget(b *testing.B) {
	tb := New[string](equalInts)
	rec, err := NewReconciler(ReconcilerConfig{}, tb, &nullTarget{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = rec.Run(ctx) })
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if err := rec.WaitDone(ctx, "a", tb.Upsert("a", i)); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
}

type nullTarget struct{}

func (*nullTarget) Update(context.Context, []Row[string, int]) error    { return nil }
func (*nullTarget) Delete(context.Context, []Row[string, int]) error    { return nil }
func (*nullTarget) Prune(context.Context, iter.Seq2[string, int]) error { return nil }
