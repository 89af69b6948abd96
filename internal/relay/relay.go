package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	nodehealth "github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Relay asks all nodes for clients. Make it with New and run it once.
type Relay struct {
	observer.UnimplementedObserverServer
	cfg     Config
	log     *slog.Logger
	version string

	roster  *roster
	nodes   context.Context // of what looks after nodes
	running sync.WaitGroup
	dialing chan struct{} // holds a token for each connection that is being made
	local   credentials.TransportCredentials

	requests   requests
	upstreams  atomic.Int64 // streams from nodes
	kept       atomic.Int64 // what flows cost that are held for the last of all nodes
	large      pool         // of entries that are large
	namespaces recent[[]*observer.Namespace]
	health     *health.Server
	metrics    *metrics
	expiry     *flowserver.Expiry
}

// New returns a relay that does nothing until Run.
func New(cfg Config, log *slog.Logger, version string) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Relay{
		cfg: cfg, log: log, version: version, roster: newRoster(cfg.nodes), dialing: make(chan struct{}, dialing),
		local: insecure.NewCredentials(), large: pool{most: cfg.large}, requests: requests{stopping: make(chan struct{})}, namespaces: newRecent[[]*observer.Namespace](), health: health.NewServer(),
	}
	var files []flowserver.CertificateFile
	if !cfg.NoClientTLS {
		files = append(files, cfg.ClientTLS.files()...)
	}
	if !cfg.NoServerTLS {
		files = append(files, cfg.ServerTLS.Files("")...)
	}
	r.expiry = flowserver.NewExpiry(log, nil, files...)
	r.cfg.ClientTLS.expiry, r.cfg.ServerTLS.Expiry = r.expiry, r.expiry
	r.metrics = newMetrics(r)
	r.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	return r, nil
}

func (r *Relay) setHealth(st healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range flowserver.HealthNames() {
		r.health.SetServingStatus(name, st)
	}
}

// Run serves until ctx ends, lets requests that have an end come to it for a few seconds, and
// returns nil then.
func (r *Relay) Run(ctx context.Context) error {
	listener, creds, err := r.listen(ctx)
	if err != nil {
		return err
	}
	defer listener.Close()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer r.requests.wait()
	defer r.running.Wait()
	defer stop()
	r.nodes = serving
	failed := make(chan error, 3)
	serve := func(what string, f func() error) {
		r.running.Go(func() {
			if err := f(); err != nil {
				failed <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	clients := make(chan *grpc.Server, 1)
	serve("--listen-address", func() error {
		return flowserver.Serve(serving, listener, creds, r.cfg.Streams, func(s flowserver.Registrar) {
			clients <- s.Server
			observer.RegisterObserverServer(s, r)
			policypb.RegisterPolicyServer(s, newPolicies(r))
			nodehealth.RegisterNodeHealthServer(s, newNodeHealth(r))
			healthpb.RegisterHealthServer(s, r.health)
		})
	})
	if serves(r.cfg.HealthAddress) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", r.cfg.HealthAddress)
		if err != nil {
			return fmt.Errorf("--health-listen-address: %w", err)
		}
		serve("--health-listen-address", func() error {
			return flowserver.Serve(serving, l, nil, 16, func(s flowserver.Registrar) { healthpb.RegisterHealthServer(s, r.health) })
		})
	}
	if serves(r.cfg.MetricsAddress) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", r.cfg.MetricsAddress)
		if err != nil {
			return fmt.Errorf("--metrics-listen-address: %w", err)
		}
		serve("--metrics-listen-address", func() error {
			return daemon.ServeWith(serving, l, &http.Server{Handler: r.metrics.handler(), ReadHeaderTimeout: 5 * time.Second,
				ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10})
		})
	}
	r.running.Go(func() { r.followPeers(serving) })
	r.running.Go(func() { r.watchHealth(serving) })
	r.running.Go(func() { _ = r.expiry.Run(serving) })
	r.log.Info("relay serves flows", "address", listener.Addr(), "peers", r.cfg.PeerService, "version", r.version)
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	r.health.Shutdown() // no client is sent here any more
	r.requests.stop()
	stopped := make(chan struct{})
	go func() { (<-clients).GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(r.cfg.grace):
		stop()
		<-stopped
	}
	return err
}

// listen opens the address of clients.
func (r *Relay) listen(ctx context.Context) (net.Listener, credentials.TransportCredentials, error) {
	if path, ok := socketPath(r.cfg.ListenAddress); ok {
		// What an earlier process left.
		if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
			if err := os.Remove(path); err != nil {
				return nil, nil, fmt.Errorf("--listen-address: %w", err)
			}
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
		if err != nil {
			return nil, nil, fmt.Errorf("--listen-address: %w", err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			l.Close()
			return nil, nil, fmt.Errorf("--listen-address: %w", err)
		}
		return l, nil, nil
	}
	var creds credentials.TransportCredentials
	if !r.cfg.NoServerTLS {
		cfg, err := r.cfg.ServerTLS.Config()
		if err != nil {
			return nil, nil, err
		}
		creds = credentials.NewTLS(cfg)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", r.cfg.ListenAddress)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen-address: %w", err)
	}
	return l, creds, nil
}

// watchHealth has the relay be well for clients while it is connected to any node.
func (r *Relay) watchHealth(ctx context.Context) {
	for {
		views, changed := r.roster.nodes()
		st := healthpb.HealthCheckResponse_NOT_SERVING
		for _, v := range views {
			if v.conn != nil {
				st = healthpb.HealthCheckResponse_SERVING
				break
			}
		}
		r.setHealth(st)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if !retry.Sleep(ctx, lookEvery) { // thousands may change at once
			return
		}
	}
}

// requests counts the requests for flows that are being served.
type requests struct {
	mu       sync.Mutex
	stopped  bool
	stopping chan struct{}
	all      sync.WaitGroup
}

// add adds one, which ends with a call of what it returns; nil if there may be no more.
func (q *requests) add() (done func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return nil
	}
	q.all.Add(1)
	return q.all.Done
}

// stop lets no more in, and ends those that have no end of their own.
func (q *requests) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	close(q.stopping)
}

// wait waits until all have ended.
func (q *requests) wait() { q.all.Wait() }
