package identities

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// referrers returns who refers to the labels of identities, by ID.
func (tc *testCluster) referrers() map[string][]string {
	tc.Helper()
	l, err := tc.keys.List(tc.ctx, references)
	tc.inspect(err)
	out := map[string][]string{}
	for _, kv := range l.Pairs {
		out[string(kv.Value)] = append(out[string(kv.Value)], kv.Key[strings.LastIndexByte(kv.Key, '/')+1:])
	}
	return out
}

// collectElsewhere collects by references alone, as an operator does that knows no pods, until the
// test ends.
func (tc *testCluster) collectElsewhere(every time.Duration) {
	tc.Helper()
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: tc.open(), BasePath: storekeys.IdentitiesPrefix, KeyType: k8sids.Key{}})
	tc.inspect(err)
	ctx, cancel := context.WithCancel(tc.ctx)
	done := make(chan struct{})
	tc.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		var seen map[allocator.ID]int64
		r := allocator.Range{Min: allocator.ID(tc.rules.First), Max: allocator.ID(tc.rules.Last)}
		for ctx.Err() == nil {
			next, _, err := b.RunGC(ctx, nil, r, seen)
			if err != nil && ctx.Err() == nil {
				tc.Error(err)
			}
			seen = next
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	}()
}

// ended returns the IDs that were deleted so far.
func (tc *testCluster) ended() (names []string) {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	for _, s := range tc.seen {
		if s.kind == watch.Deleted {
			names = append(names, s.name)
		}
	}
	return names
}

// leader is an operator with a connection that can be made to lose its leases.
type leader struct {
	stop  func()
	store kvstore.Backend
	name  string
}

// lead starts an operator.
func (tc *testCluster) lead() *leader {
	tc.Helper()
	l := &leader{}
	l.stop = tc.operator(connection{store: func(b kvstore.Backend) kvstore.Backend { l.store = b; return b }})
	l.name = fmt.Sprint("operator-", tc.operators.Load())
	return l
}

// expire is what happens when its leases have run out.
func (l *leader) expire(tc *testCluster) { tc.inspect(l.store.RevokeLeases(context.Background())) }

// TestReferencesOfLeaders has one operator lead after the other, IDs being keys of a store that
// is collected all the time: a new leader refers to every ID in use before the lease of the
// last one ends, and so none is collected; "KVStore compatibility" of CFP-27752.
func TestReferencesOfLeaders(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, servers.Take(t), quickGC, inEtcd(kvstoretest.StartEtcd(t)))
	tc.namespace("a", nil)
	var pods []*corev1.Pod
	for i := range 12 {
		p := tc.pod("a", fmt.Sprint("p", i), map[string]string{"app": fmt.Sprint(i % 4)}, onNode)
		pods = append(pods, p)
		if i%4 > 0 {
			tc.endpoint(p)
		} // else nothing but the pod says that its ID is used
	}
	old := tc.lead()
	before := tc.waitSynced().live
	if len(before) != 4 {
		t.Fatalf("%d identities for 4 sets of labels", len(before))
	}
	tc.collectElsewhere(50 * time.Millisecond)
	for range 3 {
		next := tc.lead() // two lead at once, for a while
		tc.until(func() string {
			by := tc.referrers()
			for _, ids := range before {
				if !slices.Contains(by[ids[0]], next.name) {
					return fmt.Sprintf("%s does not refer to %s: %v", next.name, ids[0], by)
				}
			}
			return ""
		})
		old.stop()
		old.expire(tc)
		time.Sleep(6 * tc.gc.Interval)
		if s := tc.waitSynced(); len(s.objects) != len(before) || len(tc.ended()) > 0 {
			t.Fatalf("IDs in use have ended: %v; there are %d of %d", tc.ended(), len(s.objects), len(before))
		}
		old = next
	}
	tc.remove(pods)
	tc.until(func() string {
		if s := tc.state(); len(s.objects) > 0 {
			return fmt.Sprintf("%d unused identities are still there: %v", len(s.objects), tc.referrers())
		}
		return ""
	})
}

// TestWithoutLeader has all references vanish while no operator leads, and none collects then. The
// next leader, which collects from its first moment on, finds unreferenced IDs: those
// that are in use stay.
func TestWithoutLeader(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, servers.Take(t), inEtcd(kvstoretest.StartEtcd(t)), func(tc *testCluster) { tc.gc.Interval = 20 * time.Millisecond })
	tc.namespace("a", nil)
	p, q := tc.pod("a", "one", map[string]string{"app": "web"}, onNode), tc.pod("a", "two", map[string]string{"app": "db"})
	tc.endpoint(p)
	gone := tc.pod("a", "gone", map[string]string{"app": "gone"}, onNode)
	last := tc.lead()
	before := tc.waitSynced()
	last.stop()
	last.expire(tc)
	if by := tc.referrers(); len(by) > 0 {
		t.Fatalf("IDs are still referenced: %v", by)
	}
	tc.remove([]*corev1.Pod{gone})
	tc.lead()
	tc.until(func() string {
		if n := len(tc.state().objects); n != 2 {
			return fmt.Sprintf("%d identities, want the 2 that are in use", n)
		}
		return ""
	})
	time.Sleep(20 * tc.gc.Interval)
	after := tc.waitSynced()
	for _, pod := range []*corev1.Pod{p, q} {
		set, _ := tc.identityOf(pod, 0)
		if text := textOfSet(set); !slices.Equal(before.live[text], after.live[text]) {
			t.Errorf("%s had %v and has %v", text, before.live[text], after.live[text])
		}
	}
	if ended := tc.ended(); len(ended) != 1 {
		t.Errorf("%v have ended, want one", ended)
	}
}

// TestStoreIsAway has the store be away for a while in which pods come and go.
func TestStoreIsAway(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	tc := newTestCluster(t, servers.Take(t), quickGC, inEtcd(etcd))
	tc.namespace("a", nil)
	tc.lead()
	p := tc.pod("a", "one", map[string]string{"app": "web"}, onNode)
	tc.endpoint(p)
	id := tc.waitSynced().idOfPod(p)
	etcd.Stop()
	q := tc.pod("a", "two", map[string]string{"app": "db"}, onNode)
	tc.endpoint(q)
	time.Sleep(time.Second)
	etcd.Start()
	s := tc.waitSynced()
	if s.idOfPod(p) != id || s.idOfPod(q) == "" {
		t.Errorf("the pods have %s, which was %s, and %q", s.idOfPod(p), id, s.idOfPod(q))
	}
}
