package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// thing is a shared object: its name and some text. The text "bad" cannot be read, and "liar" says
// another name.
type thing struct{ name, text string }

func (k thing) GetKeyName() string { return k.name }

func (k thing) Marshal() ([]byte, error) {
	if k.text == "unwritable" {
		return nil, errors.New("it cannot be written")
	}
	return []byte(k.text), nil
}

func readThing(name string, value []byte) (thing, error) {
	switch string(value) {
	case "bad":
		return thing{}, errors.New("it cannot be read")
	case "liar":
		name = "another"
	}
	return thing{name, string(value)}, nil
}

// watcher records what a shared store says.
type watcher struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func (w *watcher) add(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) observer() kvstore.SharedObserver[thing] {
	return kvstore.SharedObserver[thing]{
		OnUpdate: func(k thing) { w.add("update " + k.name + "=" + k.text) },
		OnDelete: func(k thing) { w.add("delete " + k.name + "=" + k.text) },
		OnSync:   func() { w.add("sync") },
	}
}

// expect waits for exactly these lines, the next ones.
func (w *watcher) expect(t *testing.T, ctx context.Context, want ...string) {
	t.Helper()
	for {
		w.mu.Lock()
		if len(w.lines) >= len(want) {
			got := w.lines[:len(want)]
			w.lines = w.lines[len(want):]
			w.mu.Unlock()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("observed (-want +got):\n%s", diff)
			}
			return
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-ctx.Done():
			t.Fatalf("observed only %q, want %q", w.lines, want)
		}
	}
}

type sharedTest struct {
	*testing.T
	ctx    context.Context
	store  *kvstore.Memory
	client *kvstore.MemoryClient
	other  *kvstore.MemoryClient
	seen   *watcher
	shared *kvstore.SharedStore[thing]
}

func newSharedTest(t *testing.T, change func(*kvstore.SharedConfig[thing])) *sharedTest {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	store := kvstore.NewMemory()
	s := &sharedTest{T: t, ctx: ctx, store: store, client: store.Client(), other: store.Client(), seen: &watcher{more: make(chan struct{}, 1)}}
	t.Cleanup(func() { s.client.Close(); s.other.Close() })
	s.put("there", "1")
	cfg := kvstore.SharedConfig[thing]{Backend: s.client, Prefix: "things/v1", Unmarshal: readThing, Observer: s.seen.observer(), SyncInterval: time.Hour}
	if change != nil {
		change(&cfg)
	}
	shared, err := kvstore.JoinSharedStore(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shared.Close)
	s.shared = shared
	s.seen.expect(t, ctx, "update there=1", "sync")
	return s
}

func (s *sharedTest) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *sharedTest) put(name, value string) {
	s.Helper()
	s.must(kvstore.Put(s.ctx, s.other, "things/v1/"+name, []byte(value), kvstore.Permanent))
}

func (s *sharedTest) delete(name string) {
	s.Helper()
	s.must(kvstore.Delete(s.ctx, s.other, "things/v1/"+name))
}

// eventually waits until the store holds value under name; "" means nothing.
func (s *sharedTest) eventually(name, value string) kvstore.KeyValue {
	s.Helper()
	for {
		kv, err := s.other.Get(s.ctx, "things/v1/"+name)
		if err == nil && string(kv.Value) == value || errors.Is(err, kvstore.ErrNotFound) && value == "" {
			return kv
		}
		select {
		case <-s.ctx.Done():
			s.Fatalf("%s is %q (%v), want %q", name, kv.Value, err, value)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestSharedStoreFollows(t *testing.T) {
	s := newSharedTest(t, nil)
	s.put("a/b", "2")
	s.put("a/b", "3")
	s.put("unread", "bad")
	s.put("a/b", "bad") // the last good form stays
	s.put("liar", "liar")
	s.must(kvstore.Put(s.ctx, s.other, "things/v10/x", nil, kvstore.Permanent)) // beside the prefix
	s.delete("there")
	s.delete("unread")
	s.seen.expect(t, s.ctx, "update a/b=2", "update a/b=3", "delete there=1")
	if diff := cmp.Diff(map[string]thing{"a/b": {"a/b", "3"}}, s.shared.SharedKeysMap(), cmp.AllowUnexported(thing{})); diff != "" {
		t.Errorf("shared keys (-want +got):\n%s", diff)
	}
	if _, ok := s.shared.Get("there"); ok {
		t.Error("a deleted key is still known")
	}
	// What vanishes while the watch is broken is told too.
	s.client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return errors.New("away"), nil })
	s.client.BreakWatches()
	s.delete("a/b")
	s.store.Compact()
	s.client.SetFault(nil)
	s.seen.expect(t, s.ctx, "delete a/b=3")
}

func TestSharedStoreLocalKeys(t *testing.T) {
	s := newSharedTest(t, nil)
	s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{"mine", "1"}))
	if kv := s.eventually("mine", "1"); kv.Lease == "" {
		t.Error("the key has no lease")
	}
	s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{"mine", "2"}))
	s.eventually("mine", "2")
	s.seen.expect(t, s.ctx, "update mine=1", "update mine=2")

	s.delete("mine") // by somebody else: it comes back, and nobody is told that it was away
	s.eventually("mine", "2")
	s.seen.expect(t, s.ctx, "update mine=2")

	s.client.ExpireLeases()
	if kv := s.eventually("mine", "2"); kv.Lease == "" {
		t.Error("the key has no lease after the first was lost")
	}
	s.seen.expect(t, s.ctx, "update mine=2")

	s.must(s.shared.DeleteLocalKey(s.ctx, "mine"))
	s.eventually("mine", "")
	s.seen.expect(t, s.ctx, "delete mine=2")
	s.must(s.shared.DeleteLocalKey(s.ctx, "mine")) // twice is no fault

	s.must(s.shared.DeleteLocalKey(s.ctx, "there")) // that of another
	s.seen.expect(t, s.ctx, "delete there=1")
	s.client.ExpireLeases() // nothing of ours is left to come back
	if keys := s.shared.SharedKeysMap(); len(keys) != 0 {
		t.Errorf("keys left: %v", keys)
	}
}

func TestSharedStoreTellsOfAKeyGivenUpWhileAway(t *testing.T) {
	s := newSharedTest(t, nil)
	s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{"mine", "1"}))
	s.seen.expect(t, s.ctx, "update mine=1")
	s.client.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Op == "txn" {
			return errors.New("away"), nil
		}
		return nil, nil
	})
	s.delete("mine")
	if err := s.shared.DeleteLocalKey(s.ctx, "mine"); err == nil {
		t.Fatal("deleted while the store is away")
	}
	s.client.SetFault(nil)
	s.seen.expect(t, s.ctx, "delete mine=1")
	s.eventually("mine", "")
}

func TestSharedStoreComparesFromTimeToTime(t *testing.T) {
	for _, permanent := range []bool{false, true} {
		t.Run(fmt.Sprintf("permanent=%v", permanent), func(t *testing.T) {
			s := newSharedTest(t, func(c *kvstore.SharedConfig[thing]) {
				c.SyncInterval = 5 * time.Millisecond
				c.Permanent = permanent
			})
			const n = 2*kvstore.MaxTxnOps + 7
			for i := range n {
				s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{fmt.Sprint(i), "mine"}))
			}
			for i := range n {
				s.put(fmt.Sprint(i), "stolen")
			}
			for i := range n {
				if kv := s.eventually(fmt.Sprint(i), "mine"); (kv.Lease != "") == permanent {
					t.Errorf("lease %q", kv.Lease)
				}
			}
		})
	}
}

// TestSharedStoreAfterOldCopy: a store that goes back to an old copy has local keys as they were
// then. They do not wait for the next comparison.
func TestSharedStoreAfterOldCopy(t *testing.T) {
	s := newSharedTest(t, func(c *kvstore.SharedConfig[thing]) { c.SyncInterval = time.Hour })
	s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{"a", "old"}))
	back := s.store.Save()
	s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{"a", "new"}))
	s.must(s.shared.UpdateLocalKeySync(s.ctx, thing{"b", "new"}))
	back()
	s.eventually("a", "new")
	s.eventually("b", "new")
}

// TestSharedStoreApply: many keys in one transaction are like each of them alone.
func TestSharedStoreApply(t *testing.T) {
	s := newSharedTest(t, nil)
	s.must(s.shared.Apply(s.ctx, []thing{{"one", "1"}}, nil))
	s.eventually("one", "1")
	var many []thing
	for i := range kvstore.MaxTxnOps - 1 {
		many = append(many, thing{fmt.Sprint(i), "1"})
	}
	before := s.client.Calls()
	s.must(s.shared.Apply(s.ctx, many, []string{"one"}))
	if n := s.client.Calls() - before; n != 1 {
		t.Errorf("%d requests for one transaction", n)
	}
	s.eventually("one", "")
	for _, k := range many {
		s.eventually(k.name, "1")
	}
	s.must(s.shared.Apply(s.ctx, nil, []string{"0"}))
	s.eventually("0", "")
	s.must(s.shared.Apply(s.ctx, nil, nil))
	for what, err := range map[string]error{
		"too many":      s.shared.Apply(s.ctx, many, []string{"a", "b"}),
		"one twice":     s.shared.Apply(s.ctx, []thing{{"a", "1"}}, []string{"a"}),
		"without name":  s.shared.Apply(s.ctx, nil, []string{""}),
		"no good name":  s.shared.Apply(s.ctx, []thing{{"a//b", "1"}}, nil),
		"no good value": s.shared.Apply(s.ctx, []thing{{"b", "1"}, {"a", "unwritable"}}, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if n := s.shared.Pending(); n != 0 {
		t.Errorf("%d keys wait after refused calls", n)
	}
	// The store refuses one of them: the others are written in the end, and it is written when it
	// can be.
	s.client.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if call.Key == "things/v1/a-refused" {
			return errors.New("it is too large"), nil
		}
		return nil, nil
	})
	if err := s.shared.Apply(s.ctx, []thing{{"x", "1"}, {"a-refused", "1"}, {"y", "1"}}, nil); err == nil {
		t.Error("refused, and no error")
	}
	s.eventually("x", "1")
	s.eventually("y", "1")
	if n := s.shared.Pending(); n != 1 {
		t.Errorf("%d keys wait, want the one that is refused", n)
	}
	s.client.SetFault(nil)
	s.eventually("a-refused", "1")
}

func TestSharedStoreRetriesWrites(t *testing.T) {
	s := newSharedTest(t, nil)
	s.client.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if strings.HasPrefix(call.Key, "things/v1/refused") {
			return errors.New("it is too large"), nil
		}
		if call.Op == "txn" {
			return nil, errors.New("the answer was lost")
		}
		return nil, nil
	})
	for i := range 20 {
		if err := s.shared.UpdateLocalKeySync(s.ctx, thing{fmt.Sprintf("%02d", i), "1"}); err == nil {
			t.Fatal("a write without an answer is no success")
		}
	}
	if err := s.shared.UpdateLocalKeySync(s.ctx, thing{"refused", "1"}); err == nil {
		t.Fatal("refused, and no error")
	}
	s.client.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
		if strings.HasPrefix(call.Key, "things/v1/refused") {
			return errors.New("it is too large"), nil
		}
		return nil, nil
	})
	for i := range 20 {
		s.eventually(fmt.Sprintf("%02d", i), "1")
	}
	s.client.SetFault(nil)
	s.eventually("refused", "1")
}

func TestSharedStoreRefuses(t *testing.T) {
	t.Parallel()
	if _, err := kvstore.NewSharedStore(kvstore.SharedConfig[thing]{Prefix: "/", SyncInterval: -1}); err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("settings without anything: %v", err)
	}
	client := kvstore.NewMemory().Client()
	shared, err := kvstore.NewSharedStore(kvstore.SharedConfig[thing]{Backend: client, Prefix: "p", Unmarshal: readThing})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, k := range []thing{{"", "1"}, {"/a", "1"}, {"a/", "1"}, {"a//b", "1"}, {"a", "unwritable"}} {
		if err := shared.UpdateLocalKeySync(ctx, k); err == nil {
			t.Errorf("%+v was taken", k)
		}
	}
	if err := shared.DeleteLocalKey(ctx, ""); err == nil {
		t.Error("the empty name was deleted")
	}
	client.Close()
	if err := shared.Run(ctx); !errors.Is(err, kvstore.ErrClosed) {
		t.Errorf("run on a closed store: %v", err)
	}
	if err := shared.WaitForSync(ctx); err == nil {
		t.Error("a store that ended is in sync")
	}
	if err := shared.Run(ctx); err == nil {
		t.Error("run a second time")
	}
}

// TestSharedStoresConverge lets several writers change their keys at random under faults; in the
// end all must show the same, which is what was asked for last.
func TestSharedStoresConverge(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store := kvstore.NewMemory()
	const nodes, rounds = 4, 300
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var stores []*kvstore.SharedStore[thing]
	want := make([]map[string]string, nodes)
	var wg sync.WaitGroup
	for n := range nodes {
		client := store.Client()
		defer client.Close()
		shared, err := kvstore.JoinSharedStore(ctx, kvstore.SharedConfig[thing]{
			Backend: client, Prefix: "things", Unmarshal: readThing, SyncInterval: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer shared.Close()
		stores = append(stores, shared)
		want[n] = map[string]string{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := range rounds {
				name := fmt.Sprintf("%d/%d", n, rng.IntN(10))
				switch rng.IntN(10) {
				case 0:
					client.ExpireLeases()
				case 1:
					client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) {
						return nil, errors.New("the answer was lost")
					})
				case 2:
					client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return errors.New("away"), nil })
				case 3:
					client.BreakWatches()
					store.Compact()
				case 4:
					_ = kvstore.Delete(ctx, client, "things/"+name)
				case 5, 6:
					_ = shared.DeleteLocalKey(ctx, name)
					delete(want[n], name)
				default:
					text := fmt.Sprint(i)
					_ = shared.UpdateLocalKeySync(ctx, thing{name, text})
					want[n][name] = text
				}
				if rng.IntN(3) == 0 {
					client.SetFault(nil)
				}
			}
			client.SetFault(nil)
		}()
	}
	wg.Wait()
	all := map[string]string{}
	for _, m := range want {
		for k, v := range m {
			all[k] = v
		}
	}
	for {
		var diff string
		for n, s := range stores {
			got := map[string]string{}
			for name, k := range s.SharedKeysMap() {
				got[name] = k.text
			}
			if d := cmp.Diff(all, got); d != "" {
				diff = fmt.Sprintf("store %d (-want +got):\n%s", n, d)
			}
		}
		if diff == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(diff)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
