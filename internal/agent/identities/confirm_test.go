package identities

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestWords: what a node says of endings, and how often.
func TestWords(t *testing.T) {
	t.Parallel()
	start := time.Now()
	w := newSchedule(func() time.Duration { return 10 * time.Second })
	var said []string
	// play has an ID end every so often for some time, and returns how often that was said.
	now, applied := start, int64(100)
	play := func(span, every time.Duration) (n int) {
		for end := now.Add(span); now.Before(end); now = now.Add(time.Second) {
			ended := int64(100)
			if every > 0 {
				ended += int64(now.Sub(start)/every) + 1
			} else {
				ended = applied
			}
			applied = max(applied, ended)
			what := w.next(now, applied, ended)
			w.done(now, what, applied)
			switch what {
			case confirmAction:
				n++
				said = append(said, "up to")
			case repeatAction:
				said = append(said, "again")
			case withdrawAction:
				said = append(said, "back")
			case nothing:
			}
		}
		return n
	}
	if n := play(11*time.Second, time.Hour); n != 1 {
		t.Errorf("the first ending was said %d times within 11 s", n)
	}
	if n := play(time.Hour, 5*time.Second); n < 12 || n > 15 {
		t.Errorf("endings all the time were said %d times in an hour", n)
	}
	// The last of them, too, is said in the end; and then nothing but that, now and then.
	play(confirmEvery+20*time.Second, 0)
	if w.confirmed != applied {
		t.Errorf("said up to %d, observed up to %d", w.confirmed, applied)
	}
	said, w.at = nil, now
	play(3*confirmRepeat-time.Minute, 0)
	if got := strings.Join(said, " "); got != "again again" {
		t.Errorf("without an ending a node says: %s", got)
	}
	// The store goes back: that is said before anything else, and again after a failure, however
	// often something was said.
	said, applied = nil, 50
	if what := w.next(now, applied, 50); what != nothing {
		t.Errorf("all nodes at once say %d", what)
	}
	now = now.Add(11 * time.Second)
	if what := w.next(now, applied, 50); what != withdrawAction {
		t.Errorf("first it says %d", what)
	}
	w.failed(now)
	if what := w.next(now.Add(time.Second), applied, 50); what != nothing {
		t.Errorf("right after a failure it says %d", what)
	}
	now = now.Add(2 * confirmRetry)
	play(confirmEvery+time.Minute, 0)
	if got := strings.Join(said, " "); got != "back up to" {
		t.Errorf("after the store went back it says: %s", got)
	}
	// It goes back to one that is still newer than what was said: IDs may have been in use since.
	applied += 100
	play(time.Second, 0)
	said, applied = nil, applied-50
	play(confirmEvery+time.Minute, 0)
	if got := strings.Join(said, " "); got != "back up to" {
		t.Errorf("after the store went back a little it says: %s", got)
	}
	// As long as the node uses an ID that has ended it can say no more, and repeats the last.
	repeats := 0
	for end := now.Add(confirmRepeat + time.Minute); now.Before(end); now = now.Add(time.Second) {
		if what := w.next(now, applied, applied+1); what == repeatAction {
			repeats++
			w.done(now, what, applied)
		}
	}
	if repeats != 1 {
		t.Errorf("while it cannot confirm the newest it repeats the last %d times", repeats)
	}
	w.repeat = true
	said = nil
	play(3*time.Second, 0)
	if got := strings.Join(said, " "); got != "again" {
		t.Errorf("when its confirmation was lost it says: %s", got)
	}
}

// TestHeldUp: that confirmations are held up for long is said once each time.
func TestHeldUp(t *testing.T) {
	t.Parallel()
	var said []time.Duration
	now := time.Now()
	for range 2 {
		var h hold
		for d := time.Duration(0); d < time.Hour; d += time.Second {
			if h.long(now.Add(d)) {
				said = append(said, d)
			}
		}
	}
	if want := []time.Duration{confirmHeld, confirmHeld}; !slices.Equal(said, want) {
		t.Errorf("said after %v, want %v", said, want)
	}
}

// noTarget is a kernel that has everything at once.
type noTarget struct{}

func (noTarget) Update(context.Context, []table.Row[netip.Prefix, ipcache.Entry]) error { return nil }
func (noTarget) Delete(context.Context, []table.Row[netip.Prefix, ipcache.Entry]) error { return nil }
func (noTarget) Prune(context.Context, iter.Seq2[netip.Prefix, ipcache.Entry]) error    { return nil }

// noRules is policy without rules.
type noRules struct{ engine *policy.Engine }

func (r noRules) View(f func(*policy.Engine)) { f(r.engine) }

// TestConfirmationWithOtherClusters: an identity of another cluster that ends while an address has
// it holds up nothing; one of this cluster does.
func TestConfirmationWithOtherClusters(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	cfg := etcd.Defaults()
	cfg.Endpoints = []string{server.Endpoint()}
	client, err := etcd.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := newSeekerOn(t, client, 65535)
	defer ids.stop()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	cache := ipcache.New()
	kernel, err := table.NewReconciler(table.ReconcilerConfig{}, cache.Table(), noTarget{})
	if err != nil {
		t.Fatal(err)
	}
	open := make(chan struct{})
	close(open)
	confirmer := NewConfirmer(ConfirmerConfig{
		Identities: ids.Identities, InForce: open, Addresses: cache, Kernel: kernel, Endpoints: endpoint.NewRegistry(), Policy: noRules{engine},
		Nodes: func() int { return 1 }, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = kernel.Run(ctx) })
	wg.Go(func() { _ = confirmer.Run(ctx) })
	raw := server.Client()
	// confirms reports whether the node confirms a revision in time.
	confirms := func(after int64, within time.Duration) bool {
		t.Helper()
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			r, err := raw.Get(t.Context(), storekeys.IdentitiesPrefix+"/confirmed/192.0.2.1")
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Kvs) == 1 {
				if n, err := strconv.ParseInt(string(r.Kvs[0].Value), 10, 64); err == nil && n >= after {
					return true
				}
			}
		}
		return false
	}
	ends := func(id identity.ID) (revision int64) {
		t.Helper()
		key := fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, id)
		if _, err := raw.Put(t.Context(), key, k8sids.Key{Set: app(id.String())}.GetKey()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); !ids.assigned(id); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("ID %d is not observed", id)
			}
		}
		r, err := raw.Delete(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return r.Header.Revision
	}
	none := sinkFunc(func(map[identity.ID]labels.Set, []identity.ID) error { return nil })
	const theirs = identity.ID(2<<16 + 5)
	if err := ids.Apply(none, map[identity.ID]labels.Set{theirs: app("theirs")}, nil); err != nil {
		t.Fatal(err)
	}
	claim := func(p string, id identity.ID) {
		t.Helper()
		if _, err := cache.Upsert(netip.MustParsePrefix(p), ipcache.Claim{Source: ipcache.ClusterMesh, Owner: "b", Identity: id}); err != nil {
			t.Fatal(err)
		}
	}
	claim("10.2.0.5/32", theirs)
	if err := ids.Apply(none, nil, []identity.ID{theirs}); err != nil {
		t.Fatal(err)
	}
	if !confirms(ends(300), 30*time.Second) {
		t.Error("an address of another cluster holds up confirmations")
	}
	claim("10.1.0.5/32", 301)
	if confirms(ends(301), 5*time.Second) {
		t.Error("an ID that an address has is confirmed to have ended")
	}
}
