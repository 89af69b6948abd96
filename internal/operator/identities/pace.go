package identities

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/retry"
)

// What is written of an identity is sent to every agent, which costs API servers 20 µs of a
// processor and 700 bytes each (docs/design/0015-collection.md). toldPerSecond bounds the sum of
// these: 20 processors. But identities must end faster than they are made, and more than
// mostPerSecond is never needed. The spare capacity of this cluster's servers is usually less: see
// [collector.waitObserved].
const (
	toldPerSecond  = 1_000_000
	leastPerSecond = 42
	mostPerSecond  = 300
)

// pace returns how many identities may be written a second in a cluster of so many agents.
func pace(agents int) rate.Limit {
	return rate.Limit(min(mostPerSecond, max(leastPerSecond, toldPerSecond/max(1, agents))))
}

// writers is how many identities are written at once, so how many are written at most that have not
// been observed. A server keeps ten events at least for each watch that does not take them at once,
// and ends the watch if there are more for long.
const writers = 8

// observePause is the time between two looks whether this process has observed what it has written.
const observePause = 5 * time.Millisecond

// waitObserved waits until this process's own watch shows what became of an object that was
// written: agents observe it at about the same time. So a server that has too little time for its
// watchers is given no more to send them. It waits for no longer than [catchUp]: a watch that
// stands still is found before anything else ends.
func (c *collector) waitObserved(ctx context.Context, o *v2.CiliumIdentity, shows func(*v2.CiliumIdentity) bool) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for {
		now := &v2.CiliumIdentity{}
		err := c.client.Get(ctx, client.ObjectKeyFromObject(o), now)
		if apierrors.IsNotFound(err) || err == nil && shows(now) {
			return
		}
		if !retry.Sleep(ctx, observePause) {
			return
		}
	}
}
