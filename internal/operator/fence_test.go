package operator

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestFencedStore: a leader that goes on after another has begun to lead changes nothing, whatever
// its clock says.
func TestFencedStore(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	ctx := t.Context()
	open := func() kvstore.Backend {
		t.Helper()
		cfg := storedial.Defaults()
		cfg.Kind, cfg.Options = "etcd", map[string]string{"etcd.address": server.Endpoint()}
		b, err := storedial.Open(ctx, cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	var lost error
	held := func() error { return lost }
	ended := map[string]int{}
	leader := func(name string) *fencedStore {
		return &fencedStore{Backend: open(), held: held, name: name, lost: func() { ended[name]++ }}
	}
	one, two := leader("one"), leader("two")
	read := open()
	has := func(key, want string) {
		t.Helper()
		kv, err := read.Get(ctx, key)
		if want == "" && errors.Is(err, kvstore.ErrNotFound) {
			return
		}
		if string(kv.Value) != want {
			t.Errorf("%s is %q, %v; want %q", key, kv.Value, err, want)
		}
	}
	put := func(s kvstore.Backend, key, value string) error {
		return kvstore.Put(ctx, s, key, []byte(value), kvstore.Leased)
	}
	if err := put(one, "k", "1"); err != nil {
		t.Fatal(err)
	}
	has(leaderKey, "one")
	// Conditions and branches are as without a fence.
	r, err := one.Txn(ctx, kvstore.Txn{If: []kvstore.Cond{kvstore.Absent("k")}, Then: []kvstore.Op{kvstore.PutOp("k", []byte("2"), kvstore.Leased)}, Else: []kvstore.Op{kvstore.GetOp("k")}})
	if err != nil || r.Succeeded || len(r.Results) != 1 || string(r.Results[0][0].Value) != "1" {
		t.Errorf("a condition that does not hold: %+v, %v", r, err)
	}
	if deleted, err := kvstore.CompareAndDelete(ctx, one, "k", 1); err != nil || deleted {
		t.Errorf("a deletion whose condition does not hold: %t, %v", deleted, err)
	}
	if err := put(two, "k", "3"); err != nil {
		t.Fatal(err)
	}
	has(leaderKey, "two")
	// The first one was frozen meanwhile, and its clock does not show it yet.
	if err := put(one, "k", "4"); !errors.Is(err, election.ErrLost) {
		t.Errorf("a write of the former leader: %v", err)
	}
	if err := kvstore.Delete(ctx, one, "k"); !errors.Is(err, election.ErrLost) {
		t.Errorf("a deletion of the former leader: %v", err)
	}
	has("k", "3")
	if ended["one"] != 2 || ended["two"] != 0 {
		t.Errorf("which operators were notified that another leads, and how often: %v", ended)
	}
	if kv, err := one.Get(ctx, "k"); err != nil || string(kv.Value) != "3" {
		t.Errorf("the former leader reads %q, %v", kv.Value, err)
	}
	if err := put(two, "k", "5"); err != nil {
		t.Errorf("a write of the leader: %v", err)
	}
	// One that was frozen before its first write.
	late := leader("late")
	lost = election.ErrLost
	if err := put(late, "k", "6"); !errors.Is(err, election.ErrLost) {
		t.Errorf("a write without the lease: %v", err)
	}
	has(leaderKey, "two")
	has("k", "5")
	n := 0
	lost = nil
	late.held = func() error { // it is frozen between the look at the clock and the write
		if n++; n > 1 {
			return election.ErrLost
		}
		return nil
	}
	if err := put(late, "k", "7"); !errors.Is(err, election.ErrLost) {
		t.Errorf("a write of one that was frozen before it: %v", err)
	}
	has("k", "5")
	// It has written the key of the leader all the same. The leader ends and stands again: then it
	// writes again.
	if err := put(two, "k", "8"); !errors.Is(err, election.ErrLost) || ended["two"] != 1 {
		t.Errorf("a write of a leader after another one's: %v, %v", err, ended)
	}
	three := leader("three")
	if err := put(three, "k", "9"); err != nil {
		t.Errorf("a write of the next leader: %v", err)
	}
	has("k", "9")
	// No other operator leads, and the store has lost what was in it, or was put back to an old
	// copy.
	if err := kvstore.Delete(ctx, read, leaderKey); err != nil {
		t.Fatal(err)
	}
	if err := put(three, "k", "10"); err != nil {
		t.Errorf("a write after the store has lost the key of the leader: %v", err)
	}
	has("k", "10")
	three.revision += 1000
	if err := put(three, "k", "11"); err != nil {
		t.Errorf("a write after the store was put back to an old copy: %v", err)
	}
	has("k", "11")
	if ended["three"] != 0 {
		t.Error("a leader was notified that another leads, and none does")
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	lost = nil
	if err := put(leader("away"), "k", "8"); err == nil || errors.Is(err, election.ErrLost) {
		t.Errorf("a store that cannot be reached: %v", err)
	}
}
