package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// somePods use a number, from some time on, and until some time.
type somePods struct {
	mu    sync.Mutex
	known bool
	used  identity.ID
}

func (p *somePods) Users(context.Context, []identity.ID) (func(identity.ID) bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := p.used
	if !p.known {
		return nil, errors.New("not known yet")
	}
	return func(id identity.ID) bool { return id == used }, nil
}

func (p *somePods) set(known bool, used identity.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.used = known, used
}

// TestUsedWithoutReference collects in a store where nobody refers to any number: what pods use, or an address has, stays, and so does everything as long as the pods
// are not known.
func TestUsedWithoutReference(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.HeartbeatTimeout = 0
	o, err := New(cfg, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	store, ids, err := o.openStore(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pod, address, free := o.first, o.first+1, o.first+2
	for _, id := range []identity.ID{pod, address, free} {
		c.must(kvstore.Put(c.ctx, store, fmt.Sprintf("%s/id/%d", kvstore.IdentitiesPrefix, id), fmt.Appendf(nil, "k8s:app=%d;", id), kvstore.Permanent))
	}
	place := kvstore.JoinKey(kvstore.IPsPrefix, kvstore.DefaultAddressSpace, "10.0.0.1")
	c.must(kvstore.Put(c.ctx, store, place, fmt.Appendf(nil, `{"IP":"10.0.0.1","HostIP":"192.0.2.1","ID":%d}`, address), kvstore.Permanent))

	pods := &somePods{used: pod}
	looked := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = o.collectIdentities(ctx, ids, rate.NewLimiter(rate.Inf, 1), func(ctx context.Context, numbers []allocator.ID) (func(allocator.ID) bool, error) {
			looked <- struct{}{}
			return usersOfKeys(ctx, store, pods, numbers)
		})
	}()
	defer func() { cancel(); <-done }()
	look := func(n int) {
		for range n {
			select {
			case <-looked:
			case <-c.ctx.Done():
				t.Fatal("nobody looks")
			}
		}
	}
	left := func() (out []string) {
		l, err := store.List(c.ctx, kvstore.IdentitiesPrefix+"/id/")
		c.must(err)
		for _, kv := range l.Pairs {
			out = append(out, kv.Key[len(kvstore.IdentitiesPrefix+"/id/"):])
		}
		return out
	}
	want := func(when string, ids ...identity.ID) {
		t.Helper()
		var names []string
		for _, id := range ids {
			names = append(names, fmt.Sprint(uint32(id)))
		}
		if got := left(); fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("%s there are %v, want %v", when, got, names)
		}
	}
	look(4)
	want("while pods are not known", pod, address, free)
	pods.set(true, pod)
	c.eventually(func() string {
		if n := len(left()); n != 2 {
			return fmt.Sprintf("%d identities", n)
		}
		return ""
	})
	want("when pods are known", pod, address)
	for len(looked) > 0 {
		<-looked
	}
	look(5)
	want("five looks later", pod, address)
	pods.set(true, 0)
	c.must(kvstore.Delete(c.ctx, store, place))
	c.eventually(func() string {
		if n := len(left()); n != 0 {
			return fmt.Sprintf("%d identities that nobody uses", n)
		}
		return ""
	})
}

// TestUnusedKeysAreSpared collects where the operator makes identities: what nobody uses goes when it was unused for the heartbeat timeout, at once if hardly
// any number is free.
func TestUnusedKeysAreSpared(t *testing.T) {
	c := newCluster(t)
	cfg := c.config()
	cfg.HeartbeatTimeout = time.Hour
	o, err := New(cfg, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	store, ids, err := o.openStore(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	c.must(kvstore.Put(c.ctx, store, fmt.Sprintf("%s/id/%d", kvstore.IdentitiesPrefix, o.first), []byte("k8s:app=job;"), kvstore.Permanent))
	there := func() bool {
		_, err := store.Get(c.ctx, fmt.Sprintf("%s/id/%d", kvstore.IdentitiesPrefix, o.first))
		return err == nil
	}
	// rounds has some rounds go by, or waits until the number is gone.
	rounds := func(n int) {
		ctx, cancel := context.WithCancel(c.ctx)
		done, looked := make(chan struct{}), make(chan struct{}, 100)
		go func() {
			defer close(done)
			_ = o.collectIdentities(ctx, ids, rate.NewLimiter(rate.Inf, 1), func(context.Context, []allocator.ID) (func(allocator.ID) bool, error) {
				looked <- struct{}{}
				return func(allocator.ID) bool { return false }, nil
			})
		}()
		defer func() { cancel(); <-done }()
		for range n {
			select {
			case <-looked:
			case <-c.ctx.Done():
				t.Fatal("nobody looks")
			}
		}
	}
	if rounds(4); !there() {
		t.Error("it was collected within the timeout")
	}
	o.last = o.first // all numbers are taken
	if rounds(4); there() {
		t.Error("it was not collected though no number is free")
	}
	c.must(kvstore.Put(c.ctx, store, fmt.Sprintf("%s/id/%d", kvstore.IdentitiesPrefix, o.first), []byte("k8s:app=job;"), kvstore.Permanent))
	o.last, o.cfg.HeartbeatTimeout = o.first+1000, 2*time.Second
	if rounds(6); there() {
		t.Error("it was not collected after the timeout")
	}
}
