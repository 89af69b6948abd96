package groups

import (
	"context"
	"errors"
	"sync"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Provider knows the members of groups. Its methods may be called from many goroutines.
type Provider interface {
	// Members returns the addresses of all members of g, sorted; none is an answer. g names at
	// least one group. The error is errLater if it did not come to asking.
	Members(ctx context.Context, g v2.Group) (Members, error)
}

// errLater is returned for a group that was not asked for in the time of its policy.
var errLater = errors.New("is looked up later: the other groups of the policy took all its time")

// cache remembers the members of groups, so that many policies with the same group cost one look,
// and a failing provider affects no traffic.
type cache struct {
	from     Provider
	interval time.Duration
	now      func() time.Time

	mu     sync.Mutex
	groups map[string]*entry
}

// entry is one group. Its mutex is held while the group is looked up, so that others wait for the
// answer instead of asking too.
type entry struct {
	mu      sync.Mutex
	members Members
	known   bool      // members were found at least once
	looked  time.Time // when members were last found
	err     error     // of the last look
	// failures counts looks in a row that failed; there is no other before again.
	failures int
	again    time.Time
	wanted   time.Time // when it was last requested
}

func newCache(from Provider, interval time.Duration) *cache {
	return &cache{from: from, interval: interval, now: time.Now, groups: map[string]*entry{}}
}

// find returns the members of g, looked up again if the last lookup is an interval ago, or failed
// and its pause is over. With an error it returns the former ones, if any, and whether there were
// any. What fails because ctx ends is no failure of the group.
func (b *cache) find(ctx context.Context, g v2.Group) (m Members, known bool, err error) {
	k := key(g)
	b.mu.Lock()
	e := b.groups[k]
	if e == nil {
		e = &entry{}
		b.groups[k] = e
	}
	e.wanted = b.now()
	b.forget()
	b.mu.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	now := b.now()
	// A round of all policies finds what the first of them has just fetched.
	if e.known && e.err == nil && now.Sub(e.looked) < b.interval/2 || e.err != nil && now.Before(e.again) {
		return e.members, e.known, e.err
	}
	if ctx.Err() != nil {
		return e.members, e.known, errLater
	}
	found, err := b.from.Members(ctx, g)
	switch {
	case err == nil:
		e.members, e.known, e.looked, e.err, e.failures = found, true, now, nil, 0
	case ctx.Err() == nil && !errors.Is(err, errLater):
		e.err, e.again = err, b.now().Add(retry.Backoff(e.failures, b.interval/12, b.interval))
		e.failures++
	}
	return e.members, e.known, err
}

// forget drops groups that were not requested in a while. It must be called with mu held.
func (b *cache) forget() {
	for k, e := range b.groups {
		if b.now().Sub(e.wanted) > 4*b.interval {
			delete(b.groups, k)
		}
	}
}
