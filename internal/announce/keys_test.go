package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// writer is a writer of keys under "things", at a store with another one.
type writer struct {
	*testing.T
	*Keys
	mem    *kvstore.Memory
	client *kvstore.MemoryClient
	other  *kvstore.MemoryClient
	mu     sync.Mutex
	view   map[string]string // what Put and Delete have reported
	refuse string            // a key, with the prefix, that the store does not take
	most   int               // writes of the largest transaction
}

// refusing is a store that does not take one of a writer's keys.
type refusing struct {
	kvstore.Backend
	w *writer
}

func (r refusing) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	r.w.mu.Lock()
	refuse := r.w.refuse
	r.w.most = max(r.w.most, len(txn.Then))
	r.w.mu.Unlock()
	for _, op := range txn.Then {
		if op.Key == refuse {
			return kvstore.TxnResult{}, errors.New("it is too large")
		}
	}
	return r.Backend.Txn(ctx, txn)
}

func start(t *testing.T, mem *kvstore.Memory, change func(*KeysConfig)) *writer {
	t.Helper()
	w := &writer{T: t, mem: mem, client: mem.Client(), other: mem.Client(), view: map[string]string{}}
	cfg := KeysConfig{
		Prefix: "things", What: "things", Owned: func(string, []byte) bool { return true },
		Put: func(_ context.Context, name string, value []byte) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.view[name] = string(value)
		},
		Delete: func(_ context.Context, name string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.view, name)
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if w.Keys, err = NewKeys(cfg, refusing{w.client, w}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Keys.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		_, _ = w.client.Close(), w.other.Close()
	})
	return w
}

// thingsTest runs f in a bubble of its own time, with leased and with permanent keys.
func thingsTest(t *testing.T, f func(t *testing.T, permanent bool)) {
	for _, permanent := range []bool{false, true} {
		t.Run(fmt.Sprintf("permanent=%v", permanent), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, permanent) })
		})
	}
}

func (w *writer) put(name, value string) {
	w.Helper()
	if err := kvstore.Put(w.Context(), w.other, "things/"+name, []byte(value), kvstore.Permanent); err != nil {
		w.Fatal(err)
	}
}

func (w *writer) pairs() []kvstore.KeyValue {
	w.Helper()
	synctest.Wait()
	l, err := w.other.List(w.Context(), "things/")
	if err != nil {
		w.Fatal(err)
	}
	return l.Pairs
}

func (w *writer) want(want map[string]string) {
	w.Helper()
	got := map[string]string{}
	for _, kv := range w.pairs() {
		got[strings.TrimPrefix(kv.Key, "things/")] = string(kv.Value)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		w.Errorf("the store (-want +got):\n%s", diff)
	}
}

// TestKeysInsist: what others change, delete or lose comes back at once, with the lifetime that it
// should have.
func TestKeysInsist(t *testing.T) {
	thingsTest(t, func(t *testing.T, permanent bool) {
		w := start(t, kvstore.NewMemory(), func(c *KeysConfig) { c.Insist, c.Permanent, c.Resync = true, permanent, 24*time.Hour })
		want := map[string]string{}
		for i := range 2*kvstore.MaxTxnOps + 7 {
			want[fmt.Sprint(i)] = "mine"
			w.Announce(fmt.Sprint(i), []byte("mine"))
		}
		w.want(want)
		for name := range want {
			w.put(name, "stolen")
		}
		w.want(want)
		if err := kvstore.DeletePrefix(t.Context(), w.other, "things/1"); err != nil {
			t.Fatal(err)
		}
		w.want(want)
		w.client.ExpireLeases()
		w.want(want)
		for _, kv := range w.pairs() {
			if leased := kv.Lease != ""; leased == permanent {
				t.Errorf("%s has lease %q", kv.Key, kv.Lease)
			}
		}
	})
}

// TestKeysForeign: a key that another writer keeps is neither overwritten nor removed, and is taken
// over when that writer has removed it.
func TestKeysForeign(t *testing.T) {
	thingsTest(t, func(t *testing.T, permanent bool) {
		w := start(t, kvstore.NewMemory(), func(c *KeysConfig) {
			c.Insist, c.Permanent = true, permanent
			c.Foreign = func(_ string, value []byte) bool { return bytes.HasPrefix(value, []byte("theirs")) }
		})
		w.put("a", "theirs")
		w.put("b", "theirs")
		synctest.Wait()
		w.Announce("a", []byte("mine"))
		w.Announce("c", []byte("mine"))
		if err := w.WaitComplete(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.want(map[string]string{"a": "theirs", "b": "theirs", "c": "mine"})
		w.put("a", "theirs too")
		w.want(map[string]string{"a": "theirs too", "b": "theirs", "c": "mine"})
		w.put("a", "not theirs")
		w.want(map[string]string{"a": "mine", "b": "theirs", "c": "mine"})
		w.put("a", "theirs")
		if err := kvstore.Delete(t.Context(), w.other, "things/a"); err != nil {
			t.Fatal(err)
		}
		w.want(map[string]string{"a": "mine", "b": "theirs", "c": "mine"})
		w.put("a", "theirs")
		w.Withdraw("a")
		w.want(map[string]string{"a": "theirs", "b": "theirs", "c": "mine"})
	})
}

// TestKeysComplete: after WaitComplete the store has what is announced, and nothing else of this
// writer's. Permanent keys that were as they should be are not written, leased ones are.
func TestKeysComplete(t *testing.T) {
	thingsTest(t, func(t *testing.T, permanent bool) {
		w := start(t, kvstore.NewMemory(), func(c *KeysConfig) {
			c.Permanent, c.Batch = permanent, 60
			c.Owned = func(name string, _ []byte) bool { return !strings.HasPrefix(name, "other") }
		})
		for i := range 200 {
			w.put(fmt.Sprint("gone", i), "mine")
		}
		w.put("other", "other's")
		w.put("odd//name", "mine") // no store removes it by this name
		w.put("here", "mine")
		before := map[string]int64{}
		for _, kv := range w.pairs() {
			before[kv.Key] = kv.ModRevision
		}
		w.Announce("here", []byte("mine"))
		w.Announce("new", []byte("mine"))
		if err := w.WaitComplete(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.want(map[string]string{"other": "other's", "odd//name": "mine", "here": "mine", "new": "mine"})
		for _, kv := range w.pairs() {
			if kv.Key == "things/here" && (kv.ModRevision == before[kv.Key]) != permanent {
				t.Errorf("%s was written at %d, and is at %d", kv.Key, before[kv.Key], kv.ModRevision)
			}
		}
	})
}

// TestKeysRefused: a key that the store refuses keeps no other from being written, and is written
// when it can be; and neither transactions of too many bytes are tried.
func TestKeysRefused(t *testing.T) {
	thingsTest(t, func(t *testing.T, permanent bool) {
		w := start(t, kvstore.NewMemory(), func(c *KeysConfig) { c.Permanent = permanent })
		set := func(refuse string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refuse = refuse
		}
		set("things/refused")
		want := map[string]string{}
		w.Announce("refused", []byte("1"))
		for i := range 20 {
			want[fmt.Sprint(i)] = strings.Repeat("x", 100_000)
			w.Announce(fmt.Sprint(i), []byte(want[fmt.Sprint(i)]))
		}
		time.Sleep(time.Second)
		w.want(want)
		if s := w.Status(); s.Failed != 1 {
			t.Errorf("%+v, want the one that is refused", s)
		}
		w.mu.Lock()
		if w.most > 3 {
			t.Errorf("a transaction had %d keys of 100 kB", w.most)
		}
		w.mu.Unlock()
		set("")
		want["refused"] = "1"
		time.Sleep(time.Minute)
		w.want(want)
	})
}

// TestKeysCompleteRefused: a key that the store refuses keeps nothing from being removed, and the
// store is not said to be complete before it has that key.
func TestKeysCompleteRefused(t *testing.T) {
	thingsTest(t, func(t *testing.T, permanent bool) {
		w := start(t, kvstore.NewMemory(), func(c *KeysConfig) { c.Permanent = permanent })
		w.put("gone", "mine")
		w.mu.Lock()
		w.refuse = "things/refused"
		w.mu.Unlock()
		w.Announce("refused", []byte("1"))
		w.Announce("here", []byte("1"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.WaitComplete(ctx); err == nil || !strings.Contains(err.Error(), "too large") {
			t.Errorf("WaitComplete: %v, want what the store said", err)
		}
		w.want(map[string]string{"here": "1"})
		w.mu.Lock()
		w.refuse = ""
		w.mu.Unlock()
		if err := w.WaitComplete(t.Context()); err != nil {
			t.Error(err)
		}
		w.want(map[string]string{"here": "1", "refused": "1"})
	})
}

// TestKeysConverge: several writers announce and withdraw at random under faults; in the end the
// store, and what each has of it, is what was announced last.
func TestKeysConverge(t *testing.T) {
	thingsTest(t, func(t *testing.T, permanent bool) {
		mem := kvstore.NewMemory()
		const writers, steps = 4, 300
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		var all []*writer
		want := make([]map[string]string, writers)
		var wg sync.WaitGroup
		for n := range writers {
			w := start(t, mem, func(c *KeysConfig) {
				c.Permanent, c.Insist, c.Resync = permanent, true, time.Minute
				c.Owned = func(name string, _ []byte) bool { return strings.HasPrefix(name, fmt.Sprint(n, "/")) }
			})
			all, want[n] = append(all, w), map[string]string{}
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				for range steps {
					name := fmt.Sprintf("%d/%d", n, rng.IntN(10))
					switch rng.IntN(10) {
					case 0:
						w.client.ExpireLeases()
					case 1:
						w.client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) {
							return nil, errors.New("the answer was lost")
						})
					case 2:
						w.client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return errors.New("away"), nil })
					case 3:
						w.client.BreakWatches()
						mem.Compact()
					case 4:
						_ = kvstore.Delete(t.Context(), w.other, "things/"+name)
					case 5, 6:
						w.Withdraw(name)
						delete(want[n], name)
					default:
						want[n][name] = fmt.Sprint(rng.IntN(3))
						w.Announce(name, []byte(want[n][name]))
					}
					if rng.IntN(3) == 0 {
						w.client.SetFault(nil)
					}
					time.Sleep(rand.N(200 * time.Millisecond))
				}
				w.client.SetFault(nil)
				if err := w.WaitComplete(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		time.Sleep(5 * time.Minute)
		total := map[string]string{}
		for _, m := range want {
			maps.Copy(total, m)
		}
		all[0].want(total)
		for n, w := range all {
			w.mu.Lock()
			if diff := gocmp.Diff(total, w.view); diff != "" {
				t.Errorf("writer %d observed (-want +got):\n%s", n, diff)
			}
			w.mu.Unlock()
		}
	})
}
