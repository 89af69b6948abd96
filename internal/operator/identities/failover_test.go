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

// referrers returns who refers to the labels of identities, by number.
func (tn *town) referrers() map[string][]string {
	tn.Helper()
	l, err := tn.keys.List(tn.ctx, references)
	tn.inspect(err)
	out := map[string][]string{}
	for _, kv := range l.Pairs {
		out[string(kv.Value)] = append(out[string(kv.Value)], kv.Key[strings.LastIndexByte(kv.Key, '/')+1:])
	}
	return out
}

// collectElsewhere collects by references alone, as an operator does that knows no pods, until the
// test ends.
func (tn *town) collectElsewhere(every time.Duration) {
	tn.Helper()
	b, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{Store: tn.open(), BasePath: storekeys.IdentitiesPrefix, KeyType: k8sids.Key{}})
	tn.inspect(err)
	ctx, cancel := context.WithCancel(tn.ctx)
	done := make(chan struct{})
	tn.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		var seen map[allocator.ID]int64
		r := allocator.Range{Min: allocator.ID(tn.rules.First), Max: allocator.ID(tn.rules.Last)}
		for ctx.Err() == nil {
			next, _, err := b.RunGC(ctx, nil, r, seen)
			if err != nil && ctx.Err() == nil {
				tn.Error(err)
			}
			seen = next
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	}()
}

// ended returns the numbers that were deleted so far.
func (tn *town) ended() (names []string) {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	for _, s := range tn.seen {
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
func (tn *town) lead() *leader {
	tn.Helper()
	l := &leader{}
	l.stop = tn.operator(connection{store: func(b kvstore.Backend) kvstore.Backend { l.store = b; return b }})
	l.name = fmt.Sprint("operator-", tn.operators.Load())
	return l
}

// expire is what happens when its leases have run out.
func (l *leader) expire(tn *town) { tn.inspect(l.store.RevokeLeases(context.Background())) }

// TestReferencesOfLeaders has one operator lead after the other, numbers being keys of a store that
// is collected all the time: a new leader refers to every number in use before the lease of the
// last one ends, and so none is collected; "KVStore compatibility" of CFP-27752.
func TestReferencesOfLeaders(t *testing.T) {
	t.Parallel()
	tn := newTown(t, servers.Take(t), quickGC, inEtcd(kvstoretest.StartEtcd(t)))
	tn.namespace("a", nil)
	var pods []*corev1.Pod
	for i := range 12 {
		p := tn.pod("a", fmt.Sprint("p", i), map[string]string{"app": fmt.Sprint(i % 4)}, onNode)
		pods = append(pods, p)
		if i%4 > 0 {
			tn.endpoint(p)
		} // else nothing but the pod says that its number is used
	}
	old := tn.lead()
	before := tn.settled().live
	if len(before) != 4 {
		t.Fatalf("%d identities for 4 sets of labels", len(before))
	}
	tn.collectElsewhere(50 * time.Millisecond)
	for range 3 {
		next := tn.lead() // two lead at once, for a while
		tn.until(func() string {
			by := tn.referrers()
			for _, numbers := range before {
				if !slices.Contains(by[numbers[0]], next.name) {
					return fmt.Sprintf("%s does not refer to %s: %v", next.name, numbers[0], by)
				}
			}
			return ""
		})
		old.stop()
		old.expire(tn)
		time.Sleep(6 * tn.gc.Interval)
		if s := tn.settled(); len(s.objects) != len(before) || len(tn.ended()) > 0 {
			t.Fatalf("numbers in use have ended: %v; there are %d of %d", tn.ended(), len(s.objects), len(before))
		}
		old = next
	}
	tn.remove(pods)
	tn.until(func() string {
		if s := tn.state(); len(s.objects) > 0 {
			return fmt.Sprintf("%d identities of nobody are still there: %v", len(s.objects), tn.referrers())
		}
		return ""
	})
}

// TestNobodyLeads has all references vanish while no operator leads, and nobody collects then. The
// next leader, which collects from its first moment on, finds numbers to which nobody refers: those
// that are in use stay.
func TestNobodyLeads(t *testing.T) {
	t.Parallel()
	tn := newTown(t, servers.Take(t), inEtcd(kvstoretest.StartEtcd(t)), func(tn *town) { tn.gc.Interval = 20 * time.Millisecond })
	tn.namespace("a", nil)
	p, q := tn.pod("a", "one", map[string]string{"app": "web"}, onNode), tn.pod("a", "two", map[string]string{"app": "db"})
	tn.endpoint(p)
	gone := tn.pod("a", "gone", map[string]string{"app": "gone"}, onNode)
	last := tn.lead()
	before := tn.settled()
	last.stop()
	last.expire(tn)
	if by := tn.referrers(); len(by) > 0 {
		t.Fatalf("somebody refers to numbers: %v", by)
	}
	tn.remove([]*corev1.Pod{gone})
	tn.lead()
	tn.until(func() string {
		if n := len(tn.state().objects); n != 2 {
			return fmt.Sprintf("%d identities, want the 2 that are in use", n)
		}
		return ""
	})
	time.Sleep(20 * tn.gc.Interval)
	after := tn.settled()
	for _, pod := range []*corev1.Pod{p, q} {
		set, _ := tn.identityOf(pod, 0)
		if text := textOfSet(set); !slices.Equal(before.live[text], after.live[text]) {
			t.Errorf("%s had %v and has %v", text, before.live[text], after.live[text])
		}
	}
	if ended := tn.ended(); len(ended) != 1 {
		t.Errorf("%v have ended, want one", ended)
	}
}

// TestStoreIsAway has the store be away for a while in which pods come and go.
func TestStoreIsAway(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	tn := newTown(t, servers.Take(t), quickGC, inEtcd(etcd))
	tn.namespace("a", nil)
	tn.lead()
	p := tn.pod("a", "one", map[string]string{"app": "web"}, onNode)
	tn.endpoint(p)
	number := tn.settled().numberOfPod(p)
	etcd.Stop()
	q := tn.pod("a", "two", map[string]string{"app": "db"}, onNode)
	tn.endpoint(q)
	time.Sleep(time.Second)
	etcd.Start()
	s := tn.settled()
	if s.numberOfPod(p) != number || s.numberOfPod(q) == "" {
		t.Errorf("the pods have %s, which was %s, and %q", s.numberOfPod(p), number, s.numberOfPod(q))
	}
}
