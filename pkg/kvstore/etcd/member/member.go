// Package member runs a member of etcd inside this process, for sandboxes, measurements and tests.
package member

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Member describes a member of etcd that is alone and runs in this process.
type Member struct {
	Name string
	// Dir has its data, PeerSocket is the path of the socket that other members would use.
	Dir, PeerSocket string
	// Listen is where clients are served, with the certificates of TLS.
	Listen []url.URL
	TLS    transport.TLSInfo
	// LogLevel is what goes to standard error: error, warn and so on; empty for nothing.
	LogLevel string
	// Durable has it sync to disk, and take the time that members of a cluster take. Otherwise a
	// power cut may lose what was written, passwords are hashed weakly, and it is ready at once.
	Durable bool
	// Quota bounds its data in bytes; 0 for etcd's own bound.
	Quota int64
}

// startTimeout bounds how long a member may take to be ready.
const startTimeout = time.Minute

// Start starts the member and returns when it is ready. The caller closes it.
func (e Member) Start(ctx context.Context) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.ClientTLSInfo, cfg.QuotaBackendBytes = e.Name, e.Dir, e.TLS, e.Quota
	cfg.EnableGRPCGateway = false
	if cfg.LogLevel = e.LogLevel; e.LogLevel == "" {
		cfg.LogLevel = "error"
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	}
	if !e.Durable {
		cfg.UnsafeNoFsync = true
		// One member elects itself: no reason to wait a second for votes that do not come.
		cfg.TickMs, cfg.ElectionMs = 10, 100
		cfg.BcryptCost = 4 // passwords of what does not last are no secrets
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = e.Listen, e.Listen
	peer := []url.URL{{Scheme: "unix", Path: e.PeerSocket}}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err = <-server.Err():
		err = fmt.Errorf("etcd: %w", err)
	case <-time.After(startTimeout):
		err = errors.New("etcd is not ready after a minute")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	server.Close()
	return nil, err
}

// Wait waits until a member fails, or ctx ends, then it closes it. The end of ctx is no error.
func Wait(ctx context.Context, server *embed.Etcd) error {
	defer server.Close()
	select {
	case err := <-server.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return nil
	}
}
