package nodemanager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/pkg/retry"
)

// The pause of all calls when the cloud throttles them doubles from the first to the second.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
	// readAttempts is how often a call that changes nothing is made before its refusals count.
	readAttempts = 5
	// slowest is the fewest calls a second to which refusals bring the rate, if it is not below
	// that anyway; the pauses see to less.
	slowest = 0.5
	// callTimeout is how long a cloud may take to answer a call. Change that takes longer goes on
	// there, and is asked about by other calls.
	callTimeout = 30 * time.Second
	// faster is what a call that is not refused multiplies the rate with, until it is again what
	// is configured.
	faster = 1.05
)

// Budget bounds the calls of an operator to a cloud, which counts those of a whole account. Make
// one with [NewBudget].
type Budget struct {
	// limiter allows what is configured, and less after the cloud has refused: what an account may
	// ask is not known, and others ask with it.
	limiter *rate.Limiter
	qps     rate.Limit
	burst   int
	// held fails if this operator does not lead: the call is another's to make then.
	held    func() error
	timeout time.Duration
	metrics *Metrics

	// asking is held by who waits for the limiter, which knows no priorities.
	asking priorityLock

	mu     sync.Mutex
	until  time.Time
	pauses int
}

// NewBudget allows qps calls a second after a burst, as long as cfg.Held permits.
func NewBudget(cfg Config, m *Metrics) *Budget {
	qps := rate.Limit(cfg.QPS)
	return &Budget{limiter: rate.NewLimiter(qps, cfg.Burst), qps: qps, burst: cfg.Burst, held: cfg.Held, timeout: cfg.Timeout, metrics: m}
}

// ErrNotLeading is the error of a call that another operator is to make.
var ErrNotLeading = errors.New("this operator does not lead any more")

// Do makes a call once, when the budget allows it. One that is not answered in time fails: no SDK
// has such a limit, and who waits is a worker, or the only reader of the whole cloud.
func (b *Budget) Do(ctx context.Context, operation string, call func(context.Context) error) error {
	start := time.Now()
	if err := b.wait(ctx); err != nil {
		return err
	}
	// The deadline counts from before the leadership check: a process that is stopped for longer
	// after that sends nothing when it continues.
	bounded, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if b.held != nil {
		if err := b.held(); err != nil {
			return fmt.Errorf("%w: %w", ErrNotLeading, err)
		}
	}
	asked := time.Now()
	err := call(bounded)
	b.metrics.called(operation, err, asked.Sub(start), time.Since(asked))
	b.mu.Lock()
	defer b.mu.Unlock()
	switch limit := b.limiter.Limit(); {
	case kindOf(err) != Throttled:
		b.pauses = 0
		if limit < b.qps {
			limit = min(limit*faster, b.qps)
			b.limiter.SetLimit(limit)
		}
		if limit == b.qps {
			b.limiter.SetBurst(b.burst)
		}
	case !time.Now().Before(b.until): // one pause for all calls that were under way
		pause := retry.Backoff(b.pauses, firstPause, lastPause)
		b.pauses++
		b.until = time.Now().Add(max(pause, min(afterOf(err), lastPause)))
		b.limiter.SetLimit(max(limit/2, min(slowest, b.qps)))
		b.limiter.SetBurst(1)
	}
	return err
}

// Read makes a read-only call, and retries it if the cloud throttles. Without that a caller that
// reads page by page, or follows a change, would have to start over: if the cloud allows fewer
// calls at once than it takes, each attempt would exhaust the limit, and none would succeed.
func (b *Budget) Read(ctx context.Context, operation string, call func(context.Context) error) (err error) {
	for range readAttempts {
		if err = b.Do(ctx, operation, call); kindOf(err) != Throttled {
			return err
		}
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
	if err := b.asking.lock(ctx); err != nil {
		return err
	}
	defer b.asking.unlock()
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
		if !retry.Sleep(ctx, left) {
			return ctx.Err()
		}
	}
}
