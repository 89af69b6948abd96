package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// next reads one event or fails.
func (s *suite) next(ch <-chan kvstore.Event) kvstore.Event {
	s.Helper()
	select {
	case ev, ok := <-ch:
		if !ok {
			s.Fatal("the watch ended")
		}
		return ev
	case <-s.ctx.Done():
		s.Fatal("no event came")
		panic("unreachable")
	}
}

// show is an event in short.
func (s *suite) show(ev kvstore.Event) string {
	if ev.Kind == kvstore.EventListDone {
		return "list-done"
	}
	out := ev.Kind.String() + " " + strings.TrimPrefix(ev.Key, s.prefix)
	if ev.Kind != kvstore.EventDelete {
		out += "=" + string(ev.Value)
	}
	return out
}

func (s *suite) expect(ch <-chan kvstore.Event, want ...string) []kvstore.Event {
	s.Helper()
	var got []string
	var events []kvstore.Event
	for range want {
		ev := s.next(ch)
		events = append(events, ev)
		got = append(got, s.show(ev))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Fatalf("events (-want +got):\n%s", diff)
	}
	return events
}

func (s *suite) watch() {
	s.put(s.key("w/a"), "1")
	s.put(s.key("w/b"), "2")
	s.put(s.key("x"), "outside")
	ch := s.b.Watch(s.ctx, s.key("w/"))
	first := s.expect(ch, "create w/a=1", "create w/b=2", "list-done")
	if first[0].Revision != 0 || first[2].Revision < s.get(s.key("x")).ModRevision {
		s.Fatalf("revisions of the listing: %+v", first)
	}
	// One at a time: a store may report only the last of several changes of a key.
	s.put(s.key("w/a"), "3")
	events := s.expect(ch, "modify w/a=3")
	s.put(s.key("x"), "outside")
	s.put(s.key("w/c"), "4")
	events = append(events, s.expect(ch, "create w/c=4")...)
	s.must(kvstore.Delete(s.ctx, s.b, s.key("w/b")))
	events = append(events, s.expect(ch, "delete w/b")...)
	s.put(s.key("w/b"), "5")
	events = append(events, s.expect(ch, "create w/b=5")...)
	s.must(kvstore.DeletePrefix(s.ctx, s.b, s.key("w/")))
	last := first[2].Revision
	for _, ev := range events {
		if ev.Revision <= last {
			s.Errorf("event at %d after %d", ev.Revision, last)
		}
		if ev.Kind != kvstore.EventDelete && ev.Revision != ev.ModRevision {
			s.Errorf("event at %d of a write at %d", ev.Revision, ev.ModRevision)
		}
		last = ev.Revision
	}
	gone := map[string]bool{}
	for range 3 {
		gone[s.show(s.next(ch))] = true
	}
	if diff := cmp.Diff(map[string]bool{"delete w/a": true, "delete w/b": true, "delete w/c": true}, gone); diff != "" {
		s.Fatalf("after deleting the prefix (-want +got):\n%s", diff)
	}
	// A second watch of an empty prefix on another connection.
	ch = s.open().Watch(s.ctx, s.key("w/"))
	s.expect(ch, "list-done")
}

// watchTree deletes everything from above the watched prefix, below which a key was deleted before.
func (s *suite) watchTree() {
	for _, key := range []string{"w/a", "w/b", "w/c"} {
		s.put(s.key(key), "1")
	}
	s.must(kvstore.Delete(s.ctx, s.b, s.key("w/c")))
	ch := s.b.Watch(s.ctx, s.key("w/"))
	s.expect(ch, "create w/a=1", "create w/b=1", "list-done")
	next := func() string {
		s.Helper()
		for {
			if ev := s.next(ch); ev.Kind != kvstore.EventListDone { // it may have listed again
				return s.show(ev)
			}
		}
	}
	for range 2 { // a watch that has listed again is a watch like any other
		s.must(kvstore.DeletePrefix(s.ctx, s.open(), s.prefix))
		gone := map[string]bool{next(): true, next(): true}
		if diff := cmp.Diff(map[string]bool{"delete w/a": true, "delete w/b": true}, gone); diff != "" {
			s.Fatalf("after deleting the tree (-want +got):\n%s", diff)
		}
		for _, key := range []string{"w/a", "w/b"} {
			s.put(s.key(key), "2")
			if got := next(); got != "create "+key+"=2" {
				s.Fatalf("after writing %s: %s", key, got)
			}
		}
	}
}

func (s *suite) watchOrder() {
	const writers, each = 4, 50
	ch := s.b.Watch(s.ctx, s.prefix)
	s.expect(ch, "list-done")
	var wg sync.WaitGroup
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				if err := kvstore.Put(s.ctx, s.b, s.key(fmt.Sprint(w)), []byte(fmt.Sprint(i)), kvstore.Permanent); err != nil {
					s.Error(err)
				}
			}
		}()
	}
	seen := map[string]int{}
	var last int64
	for done := 0; done < writers; {
		ev := s.next(ch)
		value := seen[ev.Key]
		if s.h.Coalesces {
			fmt.Sscan(string(ev.Value), &value)
		}
		if want := fmt.Sprint(value); string(ev.Value) != want || value < seen[ev.Key] {
			s.Fatalf("%q: value %q, want %s and at least %d", ev.Key, ev.Value, want, seen[ev.Key])
		}
		if ev.Revision <= last {
			s.Fatalf("revision %d after %d", ev.Revision, last)
		}
		last = ev.Revision
		if seen[ev.Key] = value + 1; value+1 == each {
			done++
		}
	}
	wg.Wait()
}

func (s *suite) watchEnds() {
	ctx, cancel := context.WithCancel(s.ctx)
	ch := s.b.Watch(ctx, s.prefix)
	s.expect(ch, "list-done")
	cancel()
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-s.ctx.Done():
			s.Fatal("the watch outlives its context")
		}
	}
}

func (s *suite) watchResumes() {
	if s.h.BreakWatches == nil {
		s.Skip("the harness cannot break watches")
	}
	ch := s.b.Watch(s.ctx, s.prefix)
	s.expect(ch, "list-done")
	var want []string
	for i := range 5 {
		s.put(s.key("a"), fmt.Sprint(i))
		s.h.BreakWatches(s.T, s.b)
		s.put(s.key("b", fmt.Sprint(i)), "x")
		kind := "modify"
		if i == 0 {
			kind = "create"
		}
		want = append(want, fmt.Sprintf("%s a=%d", kind, i), fmt.Sprintf("create b/%d=x", i))
	}
	// No change is missing; a backend may have listed again, which drops what was overwritten, so
	// only the final state is compared then.
	if s.h.Coalesces {
		state := map[string]string{}
		for len(state) < 6 || state[s.key("a")] != "4" {
			ev := s.next(ch)
			if ev.Kind == kvstore.EventDelete {
				s.Errorf("got a deletion of %q", ev.Key)
			}
			state[ev.Key] = string(ev.Value)
		}
		return
	}
	var got []string
	for len(got) < len(want) {
		ev := s.next(ch)
		if ev.Kind == kvstore.EventListDone {
			s.Log("the watch listed again")
			return
		}
		got = append(got, s.show(ev))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Fatalf("events (-want +got):\n%s", diff)
	}
}

// watchResumesSlowly breaks a watch while it waits for its reader, with more to deliver than any
// channel keeps.
func (s *suite) watchResumesSlowly() {
	if s.h.BreakWatches == nil {
		s.Skip("the harness cannot break watches")
	}
	const keys = 1000
	ch := s.b.Watch(s.ctx, s.prefix)
	s.expect(ch, "list-done")
	missing := make(map[string]bool, keys)
	var txn kvstore.Txn
	for i := range keys {
		key := s.key(fmt.Sprintf("%04d", i))
		missing[key] = true
		txn.Then = append(txn.Then, kvstore.PutOp(key, nil, kvstore.Permanent))
		if len(txn.Then) == 50 {
			_, err := s.b.Txn(s.ctx, txn)
			s.must(err)
			txn.Then = nil
		}
	}
	for len(missing) > 0 {
		if len(missing)%100 == 0 {
			s.h.BreakWatches(s.T, s.b)
		}
		ev := s.next(ch)
		if ev.Kind == kvstore.EventDelete {
			s.Errorf("got a deletion of %q", ev.Key)
		}
		delete(missing, ev.Key)
	}
}

func (s *suite) watchRelists() {
	if s.h.BreakWatches == nil || s.h.Compact == nil {
		s.Skip("the harness cannot break watches and compact")
	}
	s.put(s.key("kept"), "1")
	s.put(s.key("changed"), "1")
	s.put(s.key("deleted"), "1")
	s.put(s.key("recreated"), "1")
	// The reader stops reading, so the watch falls behind while the store moves on and forgets.
	ch := s.b.Watch(s.ctx, s.prefix)
	s.expect(ch, "create changed=1", "create deleted=1", "create kept=1", "create recreated=1", "list-done")
	other := s.open()
	for range 3 {
		s.h.BreakWatches(s.T, s.b)
		s.putOn(other, s.key("changed"), "2", kvstore.Permanent)
		s.must(kvstore.Delete(s.ctx, other, s.key("deleted")))
		s.must(kvstore.Delete(s.ctx, other, s.key("recreated")))
		s.putOn(other, s.key("recreated"), "2", kvstore.Permanent)
		s.h.Compact(s.T)
		s.h.BreakWatches(s.T, s.b)
	}
	// Whether the watch resumed or listed again, the reader must end at the same state, without
	// ever getting a key's deletion twice.
	s.putOn(other, s.key("end"), "1", kvstore.Permanent)
	state := map[string]string{"kept": "1", "changed": "1", "deleted": "1", "recreated": "1"}
	for state["end"] == "" {
		ev := s.next(ch)
		key := strings.TrimPrefix(ev.Key, s.prefix)
		_, known := state[key]
		switch ev.Kind {
		case kvstore.EventCreate:
			if known {
				s.Errorf("%q was created twice", key)
			}
			state[key] = string(ev.Value)
		case kvstore.EventModify:
			if !known {
				s.Errorf("%q was modified before it was created", key)
			}
			state[key] = string(ev.Value)
		case kvstore.EventDelete:
			if !known {
				s.Errorf("%q was deleted twice", key)
			}
			delete(state, key)
		}
	}
	// A listing delivers keys in their order, so "recreated" may come after "end".
	for state["recreated"] != "2" {
		ev := s.next(ch)
		if ev.Kind == kvstore.EventDelete {
			delete(state, strings.TrimPrefix(ev.Key, s.prefix))
		} else if ev.Kind != kvstore.EventListDone {
			state[strings.TrimPrefix(ev.Key, s.prefix)] = string(ev.Value)
		}
	}
	for state["deleted"] != "" {
		if ev := s.next(ch); ev.Kind == kvstore.EventDelete {
			delete(state, strings.TrimPrefix(ev.Key, s.prefix))
		}
	}
	if diff := cmp.Diff(map[string]string{"kept": "1", "changed": "2", "recreated": "2", "end": "1"}, state); diff != "" {
		s.Fatalf("state (-want +got):\n%s", diff)
	}
}

func (s *suite) leasesShared() {
	const n = kvstore.MaxKeysPerLease + kvstore.MaxKeysPerLease/10
	for i := 0; i < n; i += 100 {
		var txn kvstore.Txn
		for j := range 100 {
			txn.Then = append(txn.Then, kvstore.PutOp(s.key(fmt.Sprintf("%05d", i+j)), []byte("x"), kvstore.Leased))
		}
		_, err := s.b.Txn(s.ctx, txn)
		s.must(err)
	}
	count := func() map[string]int {
		l, err := s.b.List(s.ctx, s.prefix)
		s.must(err)
		leases := map[string]int{}
		for _, kv := range l.Pairs {
			leases[kv.Lease]++
		}
		return leases
	}
	leases := count()
	if len(leases) != 2 || leases[""] != 0 {
		s.Fatalf("%d keys are spread over leases as %v", n, leases)
	}
	for id, keys := range leases {
		if keys > kvstore.MaxKeysPerLease {
			s.Errorf("lease %s has %d keys", id, keys)
		}
	}
	// Writing a key again neither moves it nor counts twice; a permanent write takes it off.
	for range 3 {
		s.putOn(s.b, s.key("00000"), "y", kvstore.Leased)
	}
	if again := count(); len(again) != 2 {
		s.Errorf("leases after rewriting: %v", again)
	}
	s.put(s.key("00000"), "z")
	if kv := s.get(s.key("00000")); kv.Lease != "" {
		s.Errorf("a permanent write left the key on lease %q", kv.Lease)
	}
	if st := s.b.Status(); st.Leases != 2 || st.LeasedKeys != n-1 {
		s.Errorf("status counts %d leases and %d keys", st.Leases, st.LeasedKeys)
	}
}

func (s *suite) revoke() {
	other := s.open()
	s.putOn(s.b, s.key("mine"), "1", kvstore.Leased)
	s.putOn(s.b, s.key("permanent"), "1", kvstore.Permanent)
	s.putOn(other, s.key("theirs"), "1", kvstore.Leased)
	// A key written with one client's lease and then with another's belongs to the second.
	s.putOn(s.b, s.key("taken"), "1", kvstore.Leased)
	s.putOn(other, s.key("taken"), "2", kvstore.Leased)
	ch := s.b.Watch(s.ctx, s.key("mine"))
	s.expect(ch, "create mine=1", "list-done")
	s.must(s.b.RevokeLeases(s.ctx))
	s.expect(ch, "delete mine")
	s.gone(s.key("mine"))
	s.get(s.key("permanent"))
	s.get(s.key("theirs"))
	s.get(s.key("taken"))
	s.putOn(s.b, s.key("mine"), "2", kvstore.Leased)
	if kv := s.get(s.key("mine")); kv.Lease == "" {
		s.Fatal("no lease after the first was given up")
	}
}

func (s *suite) expire() {
	if s.h.ExpireLeases == nil {
		s.Skip("the harness cannot expire leases")
	}
	lost := make(chan []string, 16)
	elsewhere := make(chan []string, 16)
	stop := s.b.ObserveLostLeases(s.key("a/"), func(keys []string) { lost <- keys })
	defer stop()
	defer s.b.ObserveLostLeases(s.key("c/"), func(keys []string) { elsewhere <- keys })()
	s.putOn(s.b, s.key("a/2"), "1", kvstore.Leased)
	s.putOn(s.b, s.key("a/1"), "1", kvstore.Leased)
	s.putOn(s.b, s.key("a/deleted"), "1", kvstore.Leased)
	s.must(kvstore.Delete(s.ctx, s.b, s.key("a/deleted")))
	s.putOn(s.b, s.key("b"), "1", kvstore.Leased)
	s.put(s.key("a/permanent"), "1")
	for round := range 2 {
		before := s.get(s.key("a/1")).Lease
		s.h.ExpireLeases(s.T, s.b)
		s.gone(s.key("a/1"))
		s.gone(s.key("b"))
		s.get(s.key("a/permanent"))
		if round == 1 {
			// Writing with a lease that is gone must work at once, before the client has found out
			// by itself.
			s.putOn(s.b, s.key("a/early"), "1", kvstore.Leased)
		}
		var got []string
		for len(got) < 2 {
			select {
			case keys := <-lost:
				got = append(got, keys...)
			case <-s.ctx.Done():
				s.Fatalf("round %d: got only %q", round, got)
			}
		}
		if diff := cmp.Diff([]string{s.key("a/1"), s.key("a/2")}, got); diff != "" {
			s.Fatalf("round %d: lost keys (-want +got):\n%s", round, diff)
		}
		for _, k := range append(got, s.key("b")) {
			s.putOn(s.b, k, "2", kvstore.Leased)
		}
		if now := s.get(s.key("a/1")).Lease; now == "" || now == before {
			s.Fatalf("round %d: lease %q after %q", round, now, before)
		}
	}
	s.get(s.key("a/early"))
	if len(elsewhere) > 0 {
		s.Errorf("an observer of another prefix got %q", <-elsewhere)
	}
	stop()
	s.h.ExpireLeases(s.T, s.b)
	s.gone(s.key("a/1"))
	select {
	case keys := <-lost:
		s.Errorf("got %q after the observation ended", keys)
	case <-time.After(20 * time.Millisecond):
	}
}

// observerWaits writes, under a mutex that the observer takes, with a lease that is gone.
func (s *suite) observerWaits() {
	if s.h.ExpireLeases == nil {
		s.Skip("the harness cannot expire leases")
	}
	var mu sync.Mutex
	lost := make(chan []string, 16)
	defer s.b.ObserveLostLeases(s.prefix, func(keys []string) {
		mu.Lock()
		defer mu.Unlock()
		lost <- keys
	})()
	for round := range 3 { // the client may also find out by itself, before it writes
		s.putOn(s.b, s.key("a"), "1", kvstore.Leased)
		s.h.ExpireLeases(s.T, s.b)
		put := make(chan error, 1)
		go func() {
			mu.Lock()
			defer mu.Unlock()
			put <- kvstore.Put(s.ctx, s.b, s.key("b"), nil, kvstore.Leased)
		}()
		for left := []string{s.key("a")}; len(left) > 0 || put != nil; {
			select {
			case err := <-put:
				s.must(err)
				put = nil
			case keys := <-lost:
				left = slices.DeleteFunc(left, func(k string) bool { return slices.Contains(keys, k) })
			case <-time.After(20 * time.Second):
				s.Fatalf("round %d: the writer and the observer wait for each other", round)
			}
		}
	}
}

func (s *suite) cancelled() {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	check := func(name string, err error) {
		s.Helper()
		if !errors.Is(err, context.Canceled) {
			s.Errorf("%s with a cancelled context: %v", name, err)
		}
	}
	_, err := s.b.Get(ctx, s.key("a"))
	check("get", err)
	_, err = s.b.List(ctx, s.prefix)
	check("list", err)
	check("put", kvstore.Put(ctx, s.b, s.key("a"), nil, kvstore.Leased))
	s.gone(s.key("a"))
}

func (s *suite) close() {
	b := s.h.Open(s.T)
	s.putOn(b, s.key("a"), "1", kvstore.Leased)
	ch := b.Watch(s.ctx, s.prefix)
	s.expect(ch, "create a=1", "list-done")
	s.must(b.Close())
	for range ch { //nolint:revive // the channel must be closed
	}
	s.get(s.key("a")) // the lease still runs
	if _, err := b.Get(s.ctx, s.key("a")); !errors.Is(err, kvstore.ErrClosed) {
		s.Errorf("get after close: %v", err)
	}
	if _, err := b.List(s.ctx, s.prefix); !errors.Is(err, kvstore.ErrClosed) {
		s.Errorf("list after close: %v", err)
	}
	if err := kvstore.Put(s.ctx, b, s.key("b"), nil, kvstore.Leased); !errors.Is(err, kvstore.ErrClosed) {
		s.Errorf("put after close: %v", err)
	}
	for ev := range b.Watch(s.ctx, s.prefix) {
		s.Errorf("event after close: %v", ev)
	}
	if st := b.Status(); st.State != kvstore.StateClosed || st.Healthy() {
		s.Errorf("status after close: %+v", st)
	}
	s.must(b.Close()) // twice is no fault
}
