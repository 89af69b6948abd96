package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/operator/relevance"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Operator does its duties while [Operator.Run] runs.
type Operator struct {
	cfg     Config
	log     *slog.Logger
	version string
	metrics *metrics
	// first to last is the range of this cluster's identities: others' are not collected.
	first, last identity.ID

	started  time.Time
	problems *problems
	// cache is the leader's view of the cluster, nil while this operator does not lead.
	cache atomic.Pointer[client.Reader]
	// keys reports which labels make identities, nil while this operator does not lead or does not
	// make them.
	keys atomic.Pointer[relevance.Controller]
	// inStore makes identities in a key-value store, nil while this operator does not lead or does
	// not make them there.
	inStore atomic.Pointer[identities.Controller]
}

// New checks the configuration. A nil logger means no log.
func New(cfg Config, log *slog.Logger, version string) (*Operator, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	seen := newProblems()
	log = slog.New(seen.watch(log.Handler()))
	o := &Operator{cfg: cfg, log: log, version: version, metrics: newMetrics(), started: time.Now(), problems: seen}
	var err error
	o.first, o.last, err = identity.Range(cfg.ClusterID, cfg.MaxConnectedClusters)
	return o, err
}

// lostGrace is how long Run waits for the other parts when leadership is lost. It is short because
// the process is to end.
const lostGrace = time.Second

// Run does the duties until ctx ends; then it returns nil. Its keys stay in the store until their
// lease ends, so that a restart, or another operator, goes on with them. It returns an error if an
// address to serve at cannot be had, or a part fails for good. An unreachable store is no such
// failure: the health check reports it. If the operator led and lost that, Run returns at once an
// error that wraps [election.ErrLost], without waiting for all of its goroutines: the process must
// end.
func (o *Operator) Run(ctx context.Context) error {
	// ---- listen first: a wrong address must be reported before anything is done ---------------
	var served []*listener
	defer func() {
		for _, s := range served {
			for _, l := range s.on {
				l.Close() // closed already where it was served
			}
		}
	}()
	for _, s := range o.listeners() {
		var err error
		if s.on, err = listen(ctx, s.addr); err != nil {
			return fmt.Errorf("--%s: %w", s.flag, err)
		}
		served = append(served, s)
	}

	// ---- the store, the cluster ---------------------------------------------------------------
	var store kvstore.Backend
	var ids *allocator.Allocator
	if o.cfg.Store.Kind != "" {
		var err error
		if store, ids, err = o.openStore(ctx); err != nil {
			return err
		}
		defer store.Close()
	}
	var c *kubeSide
	if o.cfg.Kubernetes {
		var err error
		if c, err = o.newCluster(store, ids); err != nil {
			return err
		}
		defer c.prober.Close()
	}

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
	if store != nil {
		start("certificates", o.storeCertificates().Run)
		start("heartbeat", func(ctx context.Context) error { return o.heartbeat(ctx, store) })
		start("cluster-config", func(ctx context.Context) error { return o.clusterConfig(ctx, store) })
		start("lock-gc", func(ctx context.Context) error { return o.collectLocks(ctx, ids) })
		if o.cfg.GCInterval > 0 && c == nil { // with Kubernetes the leader does it
			start("identity-gc", func(ctx context.Context) error {
				return o.collectIdentities(ctx, store, ids, o.gcLimiter(storeRate), nil)
			})
		}
	}
	if c != nil {
		start("kubernetes", func(ctx context.Context) error { return o.runCluster(ctx, c) })
	}
	for _, s := range served {
		h := s.handler(store, c)
		for _, l := range s.on {
			start(s.flag, func(ctx context.Context) error { return daemon.Serve(ctx, l, h) })
		}
	}
	o.log.Info("running", "version", o.version, "cluster", o.cfg.ClusterName, "kvstore", o.cfg.Store.Kind, "kubernetes", o.cfg.Kubernetes)
	<-ctx.Done()
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	err := context.Cause(ctx)
	if errors.Is(err, election.ErrLost) {
		select {
		case <-ended:
		case <-time.After(lostGrace):
		}
		return err
	}
	<-ended
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	o.log.Info("stopped")
	return nil
}

// listener is an address to serve at.
type listener struct {
	flag, addr string
	handler    func(kvstore.Backend, *kubeSide) http.Handler
	on         []net.Listener
}

func (o *Operator) listeners() []*listener {
	var out []*listener
	if o.cfg.servesAPI() {
		out = append(out, &listener{flag: "operator-api-serve-addr", addr: o.cfg.APIAddr, handler: o.apiHandler})
	}
	if o.cfg.EnableMetrics {
		out = append(out, &listener{flag: "operator-prometheus-serve-addr", addr: o.cfg.PrometheusAddr,
			handler: func(kvstore.Backend, *kubeSide) http.Handler { return o.metrics.handler() }})
	}
	if o.cfg.Pprof {
		out = append(out, &listener{flag: "operator-pprof-address", addr: net.JoinHostPort(o.cfg.PprofAddr, strconv.Itoa(int(o.cfg.PprofPort))),
			handler: func(kvstore.Backend, *kubeSide) http.Handler { return pprofHandler() }})
	}
	return out
}

// storeCertificates warns before those end by which operator and store know each other: those that
// the store's file of settings names at the time.
func (o *Operator) storeCertificates() *flowserver.Expiry {
	e := flowserver.NewExpiryOf(o.log.With("part", "certificates"), nil, func() []flowserver.CertificateFile {
		own, authorities := o.cfg.Store.Certificates()
		return []flowserver.CertificateFile{{Name: "store", Path: own}, {Name: "store-authorities", Path: authorities, Authorities: true}}
	})
	o.metrics.registry.MustRegister(e)
	return e
}

// openStore opens the key-value store and what collects in it.
func (o *Operator) openStore(ctx context.Context) (kvstore.Backend, *allocator.Allocator, error) {
	store, err := storedial.Open(ctx, o.cfg.Store, o.log.With("part", "kvstore"))
	if err != nil {
		return nil, nil, err
	}
	backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: store, BasePath: storekeys.IdentitiesPrefix, KeyType: k8sids.Key{}, Quarantine: o.cfg.ReuseDelay, ConfirmTimeout: o.cfg.LostNodeDelay,
		Logger: o.log.With("part", "identity-gc"),
	})
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	ids, err := allocator.NewAllocatorForGC(backend, allocator.WithMin(allocator.ID(o.first)), allocator.WithMax(allocator.ID(o.last)))
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	o.metrics.watchStore(store)
	return store, ids, nil
}
