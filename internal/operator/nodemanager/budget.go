package nodemanager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The pause of all calls when the cloud says that there are too many doubles from the first to the
// second.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Budget bounds the calls of an operator to a cloud, which counts those of a whole account. Make
// one with [NewBudget].
type Budget struct {
	limiter *rate.Limiter
	// held fails if this operator does not lead: the call is another's to make then.
	held    func() error
	metrics *Metrics

	mu     sync.Mutex
	until  time.Time
	pauses int
}

// NewBudget allows qps calls a second after a burst, as long as cfg.Held says so.
func NewBudget(cfg Config, m *Metrics) *Budget {
	return &Budget{limiter: rate.NewLimiter(rate.Limit(cfg.QPS), cfg.Burst), held: cfg.Held, metrics: m}
}

// ErrNotLeading is the error of a call that another operator is to make.
var ErrNotLeading = errors.New("this operator does not lead any more")

// Do makes a call when the budget allows it.
func (b *Budget) Do(ctx context.Context, operation string, call func(context.Context) error) error {
	start := time.Now()
	if err := b.wait(ctx); err != nil {
		return err
	}
	if b.held != nil {
		if err := b.held(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotLeading, err)
		}
	}
	asked := time.Now()
	err := call(ctx)
	b.metrics.called(operation, err, asked.Sub(start), time.Since(asked))
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case kindOf(err) != Throttled:
		b.pauses = 0
	case !time.Now().Before(b.until): // one pause for all calls that were under way
		pause := min(firstPause<<min(b.pauses, 10), lastPause)
		b.pauses++
		b.until = time.Now().Add(max(jitter(pause), min(afterOf(err), lastPause)))
	}
	return err
}

// afterOf returns for how long a cloud wants to be asked nothing.
func afterOf(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.After
	}
	return 0
}

func (b *Budget) wait(ctx context.Context) error {
	for {
		if err := b.limiter.Wait(ctx); err != nil {
			if _, bounded := ctx.Deadline(); bounded && ctx.Err() == nil {
				// It does not begin to wait for what comes too late.
				return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
			}
			return err
		}
		b.mu.Lock()
		left := time.Until(b.until)
		b.mu.Unlock()
		if left <= 0 {
			return nil
		}
		if !Sleep(ctx, left) {
			return ctx.Err()
		}
	}
}

// jitter returns between a half and all of d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
