package announce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// world is a store with a node 192.0.2.1 at it.
type world struct {
	t      *testing.T
	mem    *kvstore.Memory
	client *kvstore.MemoryClient // of the node
	other  *kvstore.MemoryClient // of the rest of the world
	cache  *ipcache.Cache
	shared *Addresses
	echoes []netip.Prefix // what Observed was called with, in order
}

const addrPrefix = storekeys.IPsPrefix + "/default/"

func sharing(t *testing.T, before []ipcache.Pair, fn func(*testing.T, *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, mem: kvstore.NewMemory(), cache: ipcache.New()}
		w.client, w.other = w.mem.Client(), w.mem.Client()
		for _, p := range before {
			w.put(p)
		}
		var err error
		w.shared, err = NewAddresses(AddressesConfig{
			Hosts: []netip.Addr{ip("192.0.2.1")}, Observed: func(p netip.Prefix) { w.echoes = append(w.echoes, p) },
		}, w.client, w.cache)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		ended := make(chan error)
		go func() { ended <- w.shared.Run(ctx) }()
		fn(t, w)
		cancel(stop)
		if err := <-ended; !errors.Is(err, stop) {
			t.Errorf("Run: %v", err)
		}
		_, _ = w.client.Close(), w.other.Close()
	})
}

func pair(addr, host string, id identity.ID) ipcache.Pair {
	return ipcache.Pair{Prefix: ipcache.Single(ip(addr)), Host: ip(host), Identity: id}
}

func (w *world) put(p ipcache.Pair) {
	w.t.Helper()
	v, err := json.Marshal(p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.putRaw(p.Key(), string(v))
}

func (w *world) putRaw(key, value string) {
	w.t.Helper()
	if err := kvstore.Put(w.t.Context(), w.other, addrPrefix+key, []byte(value), kvstore.Leased); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) del(key string) {
	w.t.Helper()
	if err := kvstore.Delete(w.t.Context(), w.other, addrPrefix+key); err != nil {
		w.t.Fatal(err)
	}
}

// wantStore checks the keys and identities in the store, wantCache those in the cache.
func (w *world) wantStore(want map[string]int) {
	w.t.Helper()
	synctest.Wait()
	l, err := w.other.List(w.t.Context(), addrPrefix)
	if err != nil {
		w.t.Fatal(err)
	}
	got := map[string]int{}
	for _, kv := range l.Pairs {
		var p ipcache.Pair
		if err := json.Unmarshal(kv.Value, &p); err != nil {
			p.Identity = 0
		}
		got[kv.Key[len(addrPrefix):]] = int(p.Identity)
	}
	if !maps.Equal(got, want) {
		w.t.Errorf("store has %v, want %v", got, want)
	}
}

func (w *world) wantCache(rows map[string]string) {
	w.t.Helper()
	synctest.Wait()
	wantRows(w.t, w.cache, rows)
}

func TestRemoteAddresses(t *testing.T) {
	sharing(t, []ipcache.Pair{pair("10.0.2.1", "192.0.2.2", 300)}, func(t *testing.T, w *world) {
		if err := w.shared.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		base := map[string]string{"10.0.2.1/32": "300 via 192.0.2.2"}
		w.wantCache(base)
		w.put(pair("10.0.3.1", "192.0.2.3", 301))
		w.put(pair("192.0.2.3", "192.0.2.3", identity.Host))
		w.putRaw("10.9.0.0/16", `{"IP":"10.9.0.0","Mask":"//8AAA==","HostIP":"192.0.2.9","ID":400}`)
		base["10.0.3.1/32"], base["192.0.2.3/32"], base["10.9.0.0/16"] = "301 via 192.0.2.3", "6", "400 via 192.0.2.9"
		w.wantCache(base)

		// Nonsense neither appears nor replaces what was known.
		w.putRaw("10.0.3.1", `{`)
		w.putRaw("10.0.3.9", `{"IP":"10.0.3.8","ID":300}`)
		w.putRaw("10.0.3.8", `{"IP":"10.0.3.8","ID":16777300}`)
		w.putRaw("what", `{}`)
		w.del("what")
		w.wantCache(base)

		// A local endpoint is stronger, and what is weaker comes back when it goes.
		if _, err := w.cache.Upsert(pfx("10.0.3.1/32"), ipcache.Claim{Source: ipcache.Endpoint, Owner: "5", Identity: 999}); err != nil {
			t.Fatal(err)
		}
		base["10.0.3.1/32"] = "999"
		w.wantCache(base)
		w.cache.Delete(pfx("10.0.3.1/32"), ipcache.Endpoint, "5")
		base["10.0.3.1/32"] = "301 via 192.0.2.3"
		w.wantCache(base)

		// An address moves to another node and then goes; nothing is lost while the watch is
		// broken.
		w.client.BreakWatches()
		w.put(pair("10.0.3.1", "192.0.2.4", 301))
		w.del("10.0.2.1")
		w.mem.Compact()
		delete(base, "10.0.2.1/32")
		base["10.0.3.1/32"] = "301 via 192.0.2.4"
		time.Sleep(time.Minute)
		w.wantCache(base)
	})
}

func TestAnnouncements(t *testing.T) {
	sharing(t, nil, func(t *testing.T, w *world) {
		for name, p := range map[string]ipcache.Pair{
			"another host":       pair("10.0.1.1", "192.0.2.2", 300),
			"no host":            {Prefix: pfx("10.0.1.1/32"), Identity: 300},
			"temporary identity": pair("10.0.1.1", "192.0.2.1", identity.MinTemporary),
			"no identity":        pair("10.0.1.1", "192.0.2.1", 0),
		} {
			if _, err := w.shared.Announce(p); err == nil {
				t.Errorf("%s was announced", name)
			}
		}
		want := map[string]int{}
		announce := func(addr string, id identity.ID) {
			t.Helper()
			rev, err := w.shared.Announce(pair(addr, "192.0.2.1", id))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.shared.WaitWritten(t.Context(), ipcache.Single(ip(addr)), rev); err != nil {
				t.Fatal(err)
			}
			want[addr] = int(id)
		}
		for i := range 5 {
			announce(fmt.Sprintf("10.0.1.%d", i), identity.ID(300+i))
		}
		announce("10.0.1.0", 400)
		w.wantStore(want)
		w.wantCache(map[string]string{}) // our own change nothing

		rev := w.shared.Withdraw(pfx("10.0.1.4/32"))
		if err := w.shared.WaitWritten(t.Context(), pfx("10.0.1.4/32"), rev); err != nil {
			t.Error(err)
		}
		delete(want, "10.0.1.4")
		w.wantStore(want)
		calls := w.client.Calls()
		time.Sleep(time.Hour)
		if n := w.client.Calls(); n != calls {
			t.Errorf("%d calls for nothing", n-calls)
		}

		w.client.ExpireLeases()
		w.wantStore(want)
		w.del("10.0.1.2")
		w.wantStore(want)

		// Another node takes an address: it is not fought at once, and not deleted when we go.
		w.put(pair("10.0.1.3", "192.0.2.7", 777))
		want["10.0.1.3"] = 777
		w.wantStore(want)
		w.wantCache(map[string]string{"10.0.1.3/32": "777 via 192.0.2.7"})
		w.shared.Withdraw(pfx("10.0.1.3/32"))
		w.wantStore(want)
		// Garbage in our own key does not stay.
		w.putRaw("10.0.1.2", "garbage")
		time.Sleep(5*time.Minute + time.Second)
		w.wantStore(want)

		// Withdrawn before its last value was written: the one before must go too.
		down := errors.New("store is away")
		w.client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) { return down, nil })
		if _, err := w.shared.Announce(pair("10.0.1.1", "192.0.2.1", 500)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		rev = w.shared.Withdraw(pfx("10.0.1.1/32"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := w.shared.WaitWritten(ctx, pfx("10.0.1.1/32"), rev); !errors.Is(err, down) {
			t.Errorf("WaitWritten: %v", err)
		}
		cancel()
		if s := w.shared.Status(); s.Failed != 1 {
			t.Errorf("status %+v", s)
		}
		w.client.SetFault(nil)
		if err := w.shared.WaitWritten(t.Context(), pfx("10.0.1.1/32"), rev); err != nil {
			t.Error(err)
		}
		delete(want, "10.0.1.1")
		w.wantStore(want)
	})
}

func TestLostAnswers(t *testing.T) {
	sharing(t, nil, func(t *testing.T, w *world) {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(1, 8))
		w.client.SetFault(func(context.Context, kvstore.MemoryCall) (before, after error) {
			mu.Lock()
			defer mu.Unlock()
			switch lost := errors.New("connection lost"); r.IntN(4) {
			case 0:
				return lost, nil
			case 1:
				return nil, lost
			}
			return nil, nil
		})
		for i := range 20 {
			p := pair("10.0.1.1", "192.0.2.1", identity.ID(300+i))
			rev, err := w.shared.Announce(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.shared.WaitWritten(t.Context(), p.Prefix, rev); err != nil {
				t.Fatal(err)
			}
			w.wantStore(map[string]int{"10.0.1.1": 300 + i})
			if err := w.shared.WaitWritten(t.Context(), p.Prefix, w.shared.Withdraw(p.Prefix)); err != nil {
				t.Fatal(err)
			}
			w.wantStore(map[string]int{})
		}
	})
}

// TestBacklog has more addresses come and go, while the store is slow, than it is notified of in
// between: that costs few requests, not some for each address.
func TestBacklog(t *testing.T) {
	sharing(t, nil, func(t *testing.T, w *world) {
		slow := func(context.Context, kvstore.MemoryCall) (before, after error) {
			time.Sleep(time.Second)
			return nil, nil
		}
		ours, moved := pair("10.0.1.1", "192.0.2.1", 300), pair("10.0.1.2", "192.0.2.1", 301)
		for _, p := range []ipcache.Pair{ours, moved} {
			if _, err := w.shared.Announce(p); err != nil {
				t.Fatal(err)
			}
		}
		w.wantStore(map[string]int{"10.0.1.1": 300, "10.0.1.2": 301})
		moved.Host = ip("192.0.2.2")
		w.put(moved)
		w.client.SetFault(slow)
		if _, err := w.shared.Announce(pair("10.0.1.3", "192.0.2.1", 302)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it is being written
		for i := range 120 {
			p := pair(fmt.Sprint("10.0.2.", i), "192.0.2.1", 300)
			if _, err := w.shared.Announce(p); err != nil {
				t.Fatal(err)
			}
			w.shared.Withdraw(p.Prefix)
		}
		w.shared.Withdraw(ours.Prefix)
		began := time.Now()
		if err := w.shared.WaitWritten(t.Context(), moved.Prefix, w.shared.Withdraw(moved.Prefix)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("the store is %s behind, at a second a request", took)
		}
		w.wantStore(map[string]int{"10.0.1.2": 301, "10.0.1.3": 302})
	})
}

// TestSmallTransactions has a store that can do less at once than others, as Consul.
func TestSmallTransactions(t *testing.T) {
	var before []ipcache.Pair
	for i := range 100 {
		before = append(before, pair(fmt.Sprint("10.0.3.", i), "192.0.2.1", 300))
	}
	sharing(t, before, func(t *testing.T, w *world) {
		w.client.SetFault(func(_ context.Context, call kvstore.MemoryCall) (before, after error) {
			if call.Ops > 20 {
				return kvstore.ErrTxnTooLarge, nil
			}
			return nil, nil
		})
		w.shared.Prune()
		want := map[string]int{}
		for i := range 100 {
			if _, err := w.shared.Announce(pair(fmt.Sprint("10.0.2.", i), "192.0.2.1", identity.ID(300+i))); err != nil {
				t.Fatal(err)
			}
			want[fmt.Sprint("10.0.2.", i)] = 300 + i
		}
		w.wantStore(want)
		for i := range 100 {
			w.shared.Withdraw(ipcache.Single(ip(fmt.Sprint("10.0.2.", i))))
		}
		w.wantStore(map[string]int{})
		if n := w.shared.Status(); n.Failed > 0 {
			t.Errorf("%+v", n)
		}
	})
}

func TestSharedPrune(t *testing.T) {
	before := []ipcache.Pair{
		pair("10.0.1.1", "192.0.2.1", 300), // still there
		pair("10.0.1.2", "192.0.2.1", 301), // gone
		pair("10.0.2.1", "192.0.2.2", 302), // of another
	}
	sharing(t, before, func(t *testing.T, w *world) {
		if _, err := w.shared.Announce(before[0]); err != nil {
			t.Fatal(err)
		}
		w.shared.Prune()
		w.wantStore(map[string]int{"10.0.1.1": 300, "10.0.2.1": 302})
		w.shared.Prune()
		w.wantStore(map[string]int{"10.0.1.1": 300, "10.0.2.1": 302})
		w.wantCache(map[string]string{"10.0.2.1/32": "302 via 192.0.2.2"})
	})
}

// TestSharedPruneAfterOldCopy: a store that goes back to an old copy has addresses again that this
// node withdrew since, on a lease that it keeps alive. They must not stay.
func TestSharedPruneAfterOldCopy(t *testing.T) {
	here, gone := pair("10.0.1.1", "192.0.2.1", 300), pair("10.0.1.2", "192.0.2.1", 301)
	theirs := pair("10.0.2.1", "192.0.2.2", 302)
	sharing(t, nil, func(t *testing.T, w *world) {
		back := func() {
			w.put(gone)
			w.put(theirs)
			synctest.Wait()
			w.shared.keys.event(t.Context(), kvstore.Event{Kind: kvstore.EventListDone}) // as a watch that listed anew
		}
		if _, err := w.shared.Announce(here); err != nil {
			t.Fatal(err)
		}
		back()
		w.wantStore(map[string]int{"10.0.1.1": 300, "10.0.1.2": 301, "10.0.2.1": 302}) // not all endpoints are announced
		w.shared.Prune()
		w.wantStore(map[string]int{"10.0.1.1": 300, "10.0.2.1": 302})
		for range 2 {
			back()
			w.wantStore(map[string]int{"10.0.1.1": 300, "10.0.2.1": 302})
			w.wantCache(map[string]string{"10.0.2.1/32": "302 via 192.0.2.2"})
		}
	})
}

// TestSharedAfterOldCopy: a store that goes back to an old copy has what this node announced then,
// or nothing. What holds now is written at once: until then other nodes evaluate the pod by who it
// was.
func TestSharedAfterOldCopy(t *testing.T) {
	sharing(t, nil, func(t *testing.T, w *world) {
		announce := func(p ipcache.Pair) {
			if _, err := w.shared.Announce(p); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		announce(pair("10.0.1.1", "192.0.2.1", 299))
		back := w.mem.Snapshot()
		announce(pair("10.0.1.1", "192.0.2.1", 300))
		announce(pair("10.0.1.2", "192.0.2.1", 301))
		now := map[string]int{"10.0.1.1": 300, "10.0.1.2": 301}
		w.wantStore(now)
		back()
		w.wantStore(now)
	})
}

func TestAddressesConfig(t *testing.T) {
	t.Parallel()
	client := kvstore.NewMemory().Client()
	for _, cfg := range []AddressesConfig{
		{},
		{Hosts: []netip.Addr{{}}},
		{Hosts: []netip.Addr{ip("192.0.2.1")}, Timing: Timing{Resync: -1}},
		{Hosts: []netip.Addr{ip("192.0.2.1")}, Timing: Timing{MinBackoff: time.Hour}},
	} {
		if _, err := NewAddresses(cfg, client, ipcache.New()); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	s, err := NewAddresses(AddressesConfig{Hosts: []netip.Addr{ip("192.0.2.1")}}, client, ipcache.New())
	if err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if err := s.Run(t.Context()); !errors.Is(err, kvstore.ErrClosed) {
		t.Errorf("Run on a closed store: %v", err)
	}
}

// TestObservedAddress: what the other nodes know of this one's addresses is what came back from the
// store, and whoever asked is notified when that changes.
func TestObservedAddress(t *testing.T) {
	sharing(t, nil, func(t *testing.T, w *world) {
		mine := pair("10.0.1.1", "192.0.2.1", 300)
		expect := func(when string, want identity.ID, wantOK bool) {
			t.Helper()
			synctest.Wait()
			if id, ok := w.shared.Observed(mine.Prefix); id != want || ok != wantOK {
				t.Errorf("%s: observed %d, %v; want %d, %v", when, id, ok, want, wantOK)
			}
		}
		expect("before", 0, false)
		if _, err := w.shared.Announce(mine); err != nil {
			t.Fatal(err)
		}
		expect("announced", 300, true)
		mine.Identity = 301
		if _, err := w.shared.Announce(mine); err != nil {
			t.Fatal(err)
		}
		expect("announced again", 301, true)
		w.put(pair("10.0.1.1", "192.0.2.2", 302))
		expect("another node has it", 0, false)
		w.shared.Withdraw(mine.Prefix)
		w.del("10.0.1.1")
		expect("gone", 0, false)
		w.putRaw("10.0.1.1", "nonsense")
		expect("nonsense", 0, false)
		if len(w.echoes) < 4 {
			t.Errorf("observed %v", w.echoes)
		}
		for _, p := range w.echoes {
			if p != mine.Prefix {
				t.Errorf("observed %s", p)
			}
		}
	})
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// wantRows compares a cache's rows for the kernel, as text.
func wantRows(t *testing.T, c *ipcache.Cache, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for p, e := range c.All() {
		r := ipcache.Row(p, e, true)
		s := fmt.Sprint(r.Identity)
		if r.TunnelEndpoint.IsValid() {
			s += " via " + r.TunnelEndpoint.String()
		}
		got[p.String()] = s
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
