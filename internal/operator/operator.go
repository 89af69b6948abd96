package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/dial"
)

// Operator does its duties while [Operator.Run] runs.
type Operator struct {
	cfg     Config
	log     *slog.Logger
	version string
	metrics *metrics
	// ids is the range of this cluster's identities: others' are not collected.
	first, last identity.ID
}

// New checks the configuration. A nil logger means no log.
func New(cfg Config, log *slog.Logger, version string) (*Operator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	o := &Operator{cfg: cfg, log: log, version: version, metrics: newMetrics()}
	var err error
	o.first, o.last, err = identity.Range(cfg.ClusterID, cfg.MaxConnectedClusters)
	return o, err
}

// Run does the duties until ctx ends; then it returns nil. Its keys stay in the store until their lease ends, so that a restart, or another operator, goes
// on with them. It returns an error if an address to serve at cannot be had, or a part fails for good. An unreachable store is no such failure: the
// health check tells of it.
func (o *Operator) Run(ctx context.Context) error {
	// ---- listen first: a wrong address must be told before anything is done -------------------
	var api, prom []net.Listener
	defer func() {
		for _, l := range append(api, prom...) {
			l.Close() // closed already where it was served
		}
	}()
	var err error
	if o.cfg.APIAddr != "" {
		if api, err = listen(ctx, o.cfg.APIAddr); err != nil {
			return fmt.Errorf("--operator-api-serve-addr: %w", err)
		}
	}
	if o.cfg.EnableMetrics {
		if prom, err = listen(ctx, o.cfg.PrometheusAddr); err != nil {
			return fmt.Errorf("--operator-prometheus-serve-addr: %w", err)
		}
	}

	// ---- the store ----------------------------------------------------------------------------
	store, err := dial.Open(ctx, o.cfg.Store, o.log.With("part", "kvstore"))
	if err != nil {
		return err
	}
	defer store.Close()
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: kvstore.IdentitiesPrefix, KeyType: textKey(""), Logger: o.log.With("part", "identity-gc"),
	})
	if err != nil {
		return err
	}
	ids, err := allocator.NewAllocatorForGC(backend, allocator.WithMin(allocator.ID(o.first)), allocator.WithMax(allocator.ID(o.last)))
	if err != nil {
		return err
	}
	o.metrics.watchStore(store)

	// ---- the duties ---------------------------------------------------------------------------
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	start := func(name string, f func(context.Context) error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(ctx); err != nil && ctx.Err() == nil {
				o.log.Error("a part of the operator failed", "part", name, "error", err)
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		}()
	}
	start("heartbeat", func(ctx context.Context) error { return o.heartbeat(ctx, store) })
	start("cluster-config", func(ctx context.Context) error { return o.clusterConfig(ctx, store) })
	start("lock-gc", func(ctx context.Context) error { return o.collectLocks(ctx, ids) })
	if o.cfg.GCInterval > 0 {
		limiter := rate.NewLimiter(rate.Limit(float64(o.cfg.GCRateLimit)/o.cfg.GCRateInterval.Seconds()), min(o.cfg.GCRateLimit, gcBurst))
		start("identity-gc", func(ctx context.Context) error { return o.collectIdentities(ctx, ids, limiter) })
	}
	for _, l := range api {
		start("api", func(ctx context.Context) error { return serve(ctx, l, o.apiHandler(store)) })
	}
	for _, l := range prom {
		start("metrics", func(ctx context.Context) error { return serve(ctx, l, o.metrics.handler()) })
	}
	o.log.Info("running", "version", o.version, "cluster", o.cfg.ClusterName, "kvstore", o.cfg.Store.Kind)
	<-ctx.Done()
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	o.log.Info("stopped")
	return nil
}

// every calls f at once and then every interval, from start to start, and when kick says so, until ctx ends. After a failure it tries again sooner. It
// returns nil.
func every(ctx context.Context, interval time.Duration, kick <-chan struct{}, f func(context.Context) error) error {
	soon := min(interval, max(interval/12, time.Second))
	retry := soon
	for {
		began := time.Now()
		pause := interval
		if err := f(ctx); err != nil {
			pause = retry
			retry = min(2*retry, interval)
		} else {
			retry = soon
		}
		t := time.NewTimer(max(0, pause-time.Since(began)))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-kick:
			t.Stop()
		case <-t.C:
		}
	}
}
