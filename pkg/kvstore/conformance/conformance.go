// Package conformance checks that a [kvstore.Backend] keeps the promises of package kvstore. Every
// backend runs it in its tests, against a real store.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Harness opens connections to one store and can do to it what no connection can. Functions left
// nil skip the tests that need them.
type Harness struct {
	// Open makes a new connection to the same store. The suite closes it.
	Open func(t *testing.T) kvstore.Backend
	// ExpireLeases ends the leases of a connection behind its back, as if it had been silent for
	// too long.
	ExpireLeases func(t *testing.T, b kvstore.Backend)
	// Compact makes the store forget its history.
	Compact func(t *testing.T)
	// BreakWatches cuts the streams of a connection's watches; they may come back by themselves.
	BreakWatches func(t *testing.T, b kvstore.Backend)
	// Coalesces is set for a store without history: of several quick changes of one key its watches
	// may deliver only the last.
	Coalesces bool
}

// Run runs the suite. Each test uses a prefix of its own, so the store may hold other keys.
func Run(t *testing.T, h Harness) {
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"GetAndPut", (*suite).getAndPut},
		{"GetOfNothing", (*suite).getOfNothing},
		{"ValuesAreCopies", (*suite).valuesAreCopies},
		{"ListIsSortedAndAtOneRevision", (*suite).list},
		{"ListOfManyPages", (*suite).listMany},
		{"CreateIfAbsent", (*suite).createIfAbsent},
		{"CompareAndSwap", (*suite).compareAndSwap},
		{"DeleteAndDeletePrefix", (*suite).deletes},
		{"TxnConditions", (*suite).txnConditions},
		{"TxnReads", (*suite).txnReads},
		{"TxnRefusesNonsense", (*suite).txnRefuses},
		{"TxnIsAtomic", (*suite).txnAtomic},
		{"OneWinner", (*suite).oneWinner},
		{"WatchListsThenFollows", (*suite).watch},
		{"WatchHearsOfADeletedTreeAbove", (*suite).watchTree},
		{"WatchSeesEveryWriteInOrder", (*suite).watchOrder},
		{"WatchEndsWithContext", (*suite).watchEnds},
		{"WatchResumes", (*suite).watchResumes},
		{"WatchResumesForASlowReader", (*suite).watchResumesSlowly},
		{"WatchRelistsAfterCompaction", (*suite).watchRelists},
		{"LeasesAreSharedOut", (*suite).leasesShared},
		{"RevokeLeases", (*suite).revoke},
		{"ExpiredLeaseIsToldAndReplaced", (*suite).expire},
		{"ObserverMayWaitForAWriter", (*suite).observerWaits},
		{"CancelledContext", (*suite).cancelled},
		{"Close", (*suite).close},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s := &suite{T: t, ctx: ctx, h: h, prefix: fmt.Sprintf("conformance/%s/%d/", tt.name, time.Now().UnixNano())}
			s.b = s.open()
			tt.run(s)
		})
	}
}

type suite struct {
	*testing.T
	ctx    context.Context
	h      Harness
	prefix string
	b      kvstore.Backend
}

func (s *suite) open() kvstore.Backend {
	s.Helper()
	b := s.h.Open(s.T)
	s.Cleanup(func() {
		if err := b.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
	})
	return b
}

func (s *suite) key(parts ...string) string { return s.prefix + strings.Join(parts, "/") }

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) put(key, value string) { s.Helper(); s.putOn(s.b, key, value, kvstore.Permanent) }

func (s *suite) putOn(b kvstore.Backend, key, value string, l kvstore.Lifetime) {
	s.Helper()
	s.must(kvstore.Put(s.ctx, b, key, []byte(value), l))
}

func (s *suite) get(key string) kvstore.KeyValue {
	s.Helper()
	kv, err := s.b.Get(s.ctx, key)
	s.must(err)
	return kv
}

func (s *suite) gone(key string) {
	s.Helper()
	if kv, err := s.b.Get(s.ctx, key); !errors.Is(err, kvstore.ErrNotFound) {
		s.Fatalf("get %q = %+v, %v; want ErrNotFound", key, kv, err)
	}
}

func (s *suite) getAndPut() {
	k := s.key("a")
	s.put(k, "1")
	first := s.get(k)
	if first.Key != k || string(first.Value) != "1" || first.Lease != "" || first.CreateRevision == 0 || first.CreateRevision != first.ModRevision {
		s.Fatalf("fresh key: %+v", first)
	}
	s.put(k, "2")
	second := s.get(k)
	if string(second.Value) != "2" || second.CreateRevision != first.CreateRevision || second.ModRevision <= first.ModRevision {
		s.Fatalf("rewritten key: %+v after %+v", second, first)
	}
	s.put(k, "")
	if kv := s.get(k); len(kv.Value) != 0 {
		s.Fatalf("empty value read as %q", kv.Value)
	}
}

func (s *suite) getOfNothing() { s.gone(s.key("nothing")) }

func (s *suite) valuesAreCopies() {
	v := []byte("abc")
	k := s.key("a")
	s.must(kvstore.Put(s.ctx, s.b, k, v, kvstore.Permanent))
	v[0] = 'X'
	kv := s.get(k)
	if string(kv.Value) != "abc" {
		s.Fatalf("the store kept the caller's bytes: %q", kv.Value)
	}
	kv.Value[0] = 'Y'
	if kv := s.get(k); string(kv.Value) != "abc" {
		s.Fatalf("the store gave out its own bytes: %q", kv.Value)
	}
}

func (s *suite) list() {
	for _, k := range []string{"b", "a/2", "a/1", "ab"} {
		s.put(s.key(k), k)
	}
	l, err := s.b.List(s.ctx, s.key("a"))
	s.must(err)
	var got []string
	for _, kv := range l.Pairs {
		got = append(got, strings.TrimPrefix(kv.Key, s.prefix)+"="+string(kv.Value))
		if kv.ModRevision > l.Revision {
			s.Errorf("%q was written at %d, after the listing at %d", kv.Key, kv.ModRevision, l.Revision)
		}
	}
	if diff := cmp.Diff([]string{"a/1=a/1", "a/2=a/2", "ab=ab"}, got); diff != "" {
		s.Fatalf("listing (-want +got):\n%s", diff)
	}
	l, err = s.b.List(s.ctx, s.key("zzz"))
	s.must(err)
	if len(l.Pairs) != 0 || l.Revision == 0 {
		s.Fatalf("empty listing: %+v", l)
	}
}

func (s *suite) listMany() {
	const n = 700
	for from := 0; from < n; from += 100 {
		var txn kvstore.Txn
		for i := from; i < from+100; i++ {
			txn.Then = append(txn.Then, kvstore.PutOp(s.key(fmt.Sprintf("%04d", i)), []byte("x"), kvstore.Permanent))
		}
		_, err := s.b.Txn(s.ctx, txn)
		s.must(err)
	}
	// A writer changes one pair of far-apart keys together all the time: a listing must never show
	// one new and one old.
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	wg.Add(1)
	other := s.open()
	go func() {
		defer wg.Done()
		for i := 0; ctx.Err() == nil; i++ {
			v := []byte(fmt.Sprint(i))
			_, _ = other.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{
				kvstore.PutOp(s.key("0000"), v, kvstore.Permanent), kvstore.PutOp(s.key("0699"), v, kvstore.Permanent),
			}})
		}
	}()
	defer wg.Wait()
	defer cancel()
	for range 10 {
		l, err := s.b.List(s.ctx, s.prefix)
		s.must(err)
		if len(l.Pairs) != n {
			s.Fatalf("%d keys, want %d", len(l.Pairs), n)
		}
		if a, b := l.Pairs[0], l.Pairs[n-1]; string(a.Value) != string(b.Value) {
			s.Fatalf("the listing mixes revisions: %+v and %+v", a, b)
		}
		for i := 1; i < n; i++ {
			if l.Pairs[i-1].Key >= l.Pairs[i].Key {
				s.Fatalf("not sorted: %q before %q", l.Pairs[i-1].Key, l.Pairs[i].Key)
			}
		}
	}
}

func (s *suite) createIfAbsent() {
	k := s.key("a")
	for i, want := range []bool{true, false} {
		created, err := kvstore.CreateIfAbsent(s.ctx, s.b, k, []byte(fmt.Sprint(i)), kvstore.Permanent)
		s.must(err)
		if created != want {
			s.Fatalf("try %d: created = %v", i, created)
		}
	}
	if kv := s.get(k); string(kv.Value) != "0" {
		s.Fatalf("the second create wrote %q", kv.Value)
	}
}

func (s *suite) compareAndSwap() {
	k := s.key("a")
	swap := func(rev int64, v string, want bool) {
		s.Helper()
		ok, err := kvstore.CompareAndSwap(s.ctx, s.b, k, rev, []byte(v), kvstore.Permanent)
		s.must(err)
		if ok != want {
			s.Fatalf("swap from %d to %q = %v", rev, v, ok)
		}
	}
	swap(1, "a", false)
	swap(0, "b", true)
	swap(0, "c", false)
	rev := s.get(k).ModRevision
	swap(rev, "d", true)
	swap(rev, "e", false)
	deleted, err := kvstore.CompareAndDelete(s.ctx, s.b, k, rev)
	s.must(err)
	if deleted {
		s.Fatal("deleted at an old revision")
	}
	deleted, err = kvstore.CompareAndDelete(s.ctx, s.b, k, s.get(k).ModRevision)
	s.must(err)
	if !deleted {
		s.Fatal("not deleted at its revision")
	}
	s.gone(k)
	if deleted, err = kvstore.CompareAndDelete(s.ctx, s.b, k, 0); err != nil || deleted {
		s.Fatalf("a key that does not exist was deleted at revision 0: %v, %v", deleted, err)
	}
}

func (s *suite) deletes() {
	s.must(kvstore.Delete(s.ctx, s.b, s.key("nothing")))
	for _, k := range []string{"a", "b/1", "b/2", "ba"} {
		s.put(s.key(k), "x")
	}
	s.must(kvstore.Delete(s.ctx, s.b, s.key("a")))
	s.gone(s.key("a"))
	s.must(kvstore.DeletePrefix(s.ctx, s.b, s.key("b/")))
	s.gone(s.key("b/1"))
	s.gone(s.key("b/2"))
	s.get(s.key("ba"))
}

func (s *suite) txnConditions() {
	s.put(s.key("one"), "1")
	s.put(s.key("dir/a"), "5")
	s.put(s.key("dir/b"), "5")
	s.put(s.key("mixed/a"), "5")
	s.put(s.key("mixed/b"), "6")
	s.must(kvstore.Put(s.ctx, s.b, s.key("leased"), nil, kvstore.Leased))
	one, last := s.get(s.key("one")), s.get(s.key("dir/b")).ModRevision
	s.put(s.key("one"), "1")
	now := s.get(s.key("one"))
	tests := []struct {
		name string
		cond kvstore.Cond
		want bool
	}{
		{"absent key is absent", kvstore.Absent(s.key("none")), true},
		{"present key is absent", kvstore.Absent(s.key("one")), false},
		{"present key exists", kvstore.Exists(s.key("one")), true},
		{"absent key exists", kvstore.Exists(s.key("none")), false},
		{"value", kvstore.ValueIs(s.key("one"), []byte("1")), true},
		{"other value", kvstore.ValueIs(s.key("one"), []byte("2")), false},
		{"empty value of an absent key", kvstore.ValueIs(s.key("none"), nil), false},
		{"mod revision", kvstore.ModRevisionIs(s.key("one"), now.ModRevision), true},
		{"old mod revision", kvstore.ModRevisionIs(s.key("one"), one.ModRevision), false},
		{"mod revision 0", kvstore.ModRevisionIs(s.key("one"), 0), false},
		{"mod revision 0 of an absent key", kvstore.ModRevisionIs(s.key("none"), 0), false},
		{"create revision", kvstore.CreateRevisionIs(s.key("one"), one.CreateRevision), true},
		{"wrong create revision", kvstore.CreateRevisionIs(s.key("one"), now.ModRevision), false},
		{"create revision 0", kvstore.CreateRevisionIs(s.key("one"), 0), false},
		{"create revision 0 of an absent key", kvstore.CreateRevisionIs(s.key("none"), 0), false},
		{"unleased key is unleased", kvstore.Unleased(s.key("one")), true},
		{"absent key is unleased", kvstore.Unleased(s.key("none")), true},
		{"leased key is unleased", kvstore.Unleased(s.key("leased")), false},
		{"empty prefix is absent", kvstore.PrefixAbsent(s.key("none/")), true},
		{"prefix with keys is absent", kvstore.PrefixAbsent(s.key("dir/")), false},
		{"a prefix is not a directory", kvstore.PrefixAbsent(s.key("di")), false},
		{"all values", kvstore.PrefixValuesAre(s.key("dir/"), []byte("5")), true},
		{"not all values", kvstore.PrefixValuesAre(s.key("mixed/"), []byte("5")), false},
		{"all values of none", kvstore.PrefixValuesAre(s.key("none/"), []byte("5")), true},
		{"unchanged", kvstore.PrefixUnchangedSince(s.key("dir/"), last), true},
		{"changed", kvstore.PrefixUnchangedSince(s.key("dir/"), last-1), false},
	}
	for _, tt := range tests {
		for _, extra := range []bool{true, false} {
			conds, want := []kvstore.Cond{tt.cond}, tt.want
			if !extra { // one condition that fails is enough
				conds, want = append(conds, kvstore.Exists(s.key("none"))), false
			}
			r, err := s.b.Txn(s.ctx, kvstore.Txn{If: conds, Then: []kvstore.Op{kvstore.GetOp(s.key("one"))}})
			s.must(err)
			if r.Succeeded != want {
				s.Errorf("%s (alone: %v): %v, want %v", tt.name, extra, r.Succeeded, want)
			}
		}
	}
}

func (s *suite) txnReads() {
	s.put(s.key("d/a"), "1")
	s.put(s.key("d/b"), "2")
	r, err := s.b.Txn(s.ctx, kvstore.Txn{
		If:   []kvstore.Cond{kvstore.Absent(s.key("d/a"))},
		Then: []kvstore.Op{kvstore.PutOp(s.key("wrong"), nil, kvstore.Permanent)},
		Else: []kvstore.Op{
			kvstore.ListOp(s.key("d/")), kvstore.GetOp(s.key("none")), kvstore.GetOp(s.key("d/b")),
			kvstore.PutOp(s.key("right"), []byte("x"), kvstore.Permanent),
		},
	})
	s.must(err)
	if r.Succeeded || len(r.Results) != 4 || len(r.Results[0]) != 2 || len(r.Results[1]) != 0 || len(r.Results[2]) != 1 || r.Results[3] != nil {
		s.Fatalf("result: %+v", r)
	}
	if kv := r.Results[2][0]; kv.Key != s.key("d/b") || string(kv.Value) != "2" || kv.ModRevision == 0 {
		s.Fatalf("read %+v", kv)
	}
	s.gone(s.key("wrong"))
	if kv := s.get(s.key("right")); kv.ModRevision != r.Revision {
		s.Fatalf("written at %d, transaction says %d", kv.ModRevision, r.Revision)
	}
}

func (s *suite) txnRefuses() {
	many := make([]kvstore.Op, kvstore.MaxTxnOps+1)
	for i := range many {
		many[i] = kvstore.PutOp(s.key(fmt.Sprint(i)), nil, kvstore.Permanent)
	}
	for name, txn := range map[string]kvstore.Txn{
		"empty key":      {Then: []kvstore.Op{kvstore.PutOp("", nil, kvstore.Permanent)}},
		"empty cond key": {If: []kvstore.Cond{kvstore.Absent("")}},
		"twice":          {Then: []kvstore.Op{kvstore.PutOp(s.key("a"), nil, kvstore.Permanent), kvstore.PutOp(s.key("a"), nil, kvstore.Permanent)}},
		"too many":       {Then: many},
		"unknown op":     {Then: []kvstore.Op{{Kind: 99, Key: s.key("a")}}},
		"unknown cond":   {If: []kvstore.Cond{{Kind: 99, Key: s.key("a")}}},
	} {
		if _, err := s.b.Txn(s.ctx, txn); err == nil {
			s.Errorf("%s: accepted", name)
		}
	}
	s.gone(s.key("a"))
}

func (s *suite) txnAtomic() {
	a, b := s.key("a"), s.key("b")
	s.put(a, "50")
	s.put(b, "50")
	const writers, rounds = 4, 15
	var wg sync.WaitGroup
	for w := range writers {
		c := s.open()
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range rounds {
				for {
					l, err := c.List(s.ctx, s.prefix)
					if err != nil {
						s.Error(err)
						return
					}
					var x, y int
					fmt.Sscan(string(l.Pairs[0].Value), &x)
					fmt.Sscan(string(l.Pairs[1].Value), &y)
					if x+y != 100 {
						s.Errorf("saw %d + %d", x, y)
						return
					}
					x, y = x+1+w, y-1-w
					r, err := c.Txn(s.ctx, kvstore.Txn{
						If: []kvstore.Cond{kvstore.ModRevisionIs(a, l.Pairs[0].ModRevision), kvstore.ModRevisionIs(b, l.Pairs[1].ModRevision)},
						Then: []kvstore.Op{
							kvstore.PutOp(a, []byte(fmt.Sprint(x)), kvstore.Permanent), kvstore.PutOp(b, []byte(fmt.Sprint(y)), kvstore.Permanent),
						},
					})
					if err != nil {
						s.Error(err)
						return
					}
					if r.Succeeded {
						break
					}
				}
			}
		}()
	}
	wg.Wait()
	want := 50
	for w := range writers {
		want += rounds * (1 + w)
	}
	if got := string(s.get(a).Value); got != fmt.Sprint(want) {
		s.Fatalf("a = %s, want %d: an update was lost", got, want)
	}
}

func (s *suite) oneWinner() {
	const racers, keys = 8, 20
	var wins [keys]atomic.Int32
	var wg sync.WaitGroup
	for r := range racers {
		c := s.open()
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := range keys {
				dir := s.key(fmt.Sprint(k)) + "/"
				res, err := c.Txn(s.ctx, kvstore.Txn{
					If:   []kvstore.Cond{kvstore.PrefixAbsent(dir)},
					Then: []kvstore.Op{kvstore.PutOp(dir+fmt.Sprint(r), nil, kvstore.Leased)},
				})
				if err != nil {
					s.Error(err)
				} else if res.Succeeded {
					wins[k].Add(1)
				}
			}
		}()
	}
	wg.Wait()
	for k := range wins {
		if n := wins[k].Load(); n != 1 {
			s.Errorf("prefix %d has %d winners", k, n)
		}
	}
}
