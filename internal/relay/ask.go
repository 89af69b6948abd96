package relay

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
)

// askAtOnce is how many nodes are asked the same at the same time.
const askAtOnce = 64

// askEach calls ask for each place of a list of nodes, a bounded number at once, and returns when
// all have ended. What ask does must end with its context.
func askEach(nodes int, ask func(i int)) {
	var asked errgroup.Group
	asked.SetLimit(askAtOnce)
	for i := range nodes {
		asked.Go(func() error { ask(i); return nil })
	}
	_ = asked.Wait() // none fails
}

// recent caches the last answers of all nodes to a request without parameters, so that many clients
// cause few requests to nodes. The holder of turn may replace it; its content is immutable.
type recent[T any] struct {
	turn chan struct{}
	at   time.Time
	last T
}

func newRecent[T any]() recent[T] { return recent[T]{turn: make(chan struct{}, 1)} }

// get returns what ask answers, or what it answered at most age ago. An answer that ctx cut short
// is not kept.
func (r *recent[T]) get(ctx context.Context, age time.Duration, ask func(context.Context) T) (T, error) {
	var none T
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return none, status.FromContextError(ctx.Err()).Err()
	}
	if time.Since(r.at) > age {
		found := ask(ctx)
		if ctx.Err() != nil {
			return none, status.FromContextError(ctx.Err()).Err()
		}
		r.last, r.at = found, time.Now()
	}
	return r.last, nil
}
