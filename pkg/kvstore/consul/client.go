// Package consul implements [kvstore.Backend] on Consul, 1.15 or later: leases are sessions that
// delete their keys, watches are blocking queries.
//
// # Transactions
//
// Consul's transactions have no else branch and no conditions on ranges. A transaction here is
// therefore done in two steps: one request reads, at one index, everything that the conditions and
// both branches look at; the branch is chosen by that. If it only reads, that was all. If it
// writes, a second request writes under the condition that nothing of what was read has changed,
// and the whole is tried again if something has. So a reading transaction costs one round trip and
// a writing one two.
//
// That no key has appeared under a prefix cannot be asked of Consul. It is made sure by guard keys:
// every write through this package also writes the guards of the folders above its keys, and a
// condition on a prefix holds on to the guard of the folder that the prefix is in. Guards are named
// by a hash and limited in number; they stand under [GuardPrefix], outside of any prefix of the
// product. The token's policy must allow to write there, besides the keys and sessions. Writers
// that do not use this package, such as consul kv put, do not touch the guards: against them a
// condition on a prefix is only as good as the moment of the reading.
//
// One transaction may have [MaxOps] operations in Consul's count, guards included; more is
// [kvstore.ErrTxnTooLarge].
//
// # Watches
//
// Consul keeps no history: of several quick changes of one key only the last may be delivered. A
// key that was deleted and made again in between is delivered as deleted and created. When a tree
// is deleted from above a watched prefix, the keys may be reported gone a second later. Everything
// else is as package kvstore promises.
//
// # Goroutines
//
// One checks the store; one keeps each session alive; up to three serve each watch, which has two
// queries open; one calls the observers of lost leases. Close ends them all.
package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/health"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
	"github.com/hawser-net/hawser/pkg/retry"
)

// GuardPrefix is above the guard keys.
const GuardPrefix = ".hawser/guard/"

// Client is a connection to Consul.
type Client struct {
	cfg       Config
	log       *slog.Logger
	consul    *api.Client
	conn      *driver.Conn
	leases    leases.Table[string]
	observers leases.Observers
	health    *health.Monitor
}

var _ kvstore.Backend = (*Client)(nil)

// New validates the settings and starts to check the store. The context bounds nothing but New
// itself; use Close. A nil logger means no log.
func New(_ context.Context, cfg Config, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newClient(cfg, log)
}

func newClient(cfg Config, log *slog.Logger) (*Client, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	settings := api.DefaultNonPooledConfig()
	settings.Address, settings.Token, settings.TokenFile, settings.Datacenter = cfg.Address, cfg.Token, cfg.TokenFile, cfg.Datacenter
	settings.Transport.DisableKeepAlives = false
	settings.Transport.MaxIdleConnsPerHost = cfg.MaxInflight
	settings.Transport.IdleConnTimeout = time.Minute
	settings.TLSConfig = api.TLSConfig{CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
	if cfg.CAFile != "" || cfg.CertFile != "" {
		settings.Scheme = "https"
	}
	var err error
	if settings.Scheme == "https" {
		settings.Transport.DialTLSContext = freshTLS(settings.TLSConfig)
	}
	if settings.HttpClient, err = api.NewHttpClient(settings.Transport, settings.TLSConfig); err == nil && cfg.TokenFile != "" {
		settings.HttpClient.Transport = freshToken{settings.HttpClient.Transport, cfg.TokenFile}
	}
	var consul *api.Client
	if err == nil {
		consul, err = api.NewClient(settings)
	}
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	c := &Client{cfg: cfg, log: log, consul: consul, conn: driver.New("consul", cfg.MaxInflight)}
	c.health = health.New(health.Config{
		Kind: "consul", Interval: cfg.CheckInterval, FailingInterval: cfg.FailingCheckInterval, MaxQuorumFailures: cfg.MaxQuorumFailures,
		HeartbeatKey: cfg.HeartbeatKey, HeartbeatStaleAfter: cfg.HeartbeatStaleAfter, Leases: c.leases.Count, Log: log,
	})
	c.conn.Go(func() {
		defer settings.Transport.CloseIdleConnections()
		c.health.Run(c.conn.Context(), c.check)
	})
	return c, nil
}

func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func pair(p *api.KVPair) kvstore.KeyValue {
	return kvstore.KeyValue{Key: p.Key, Value: p.Value, CreateRevision: int64(p.CreateIndex), ModRevision: int64(p.ModifyIndex), Lease: p.Session}
}

// Get implements [kvstore.Backend].
func (c *Client) Get(ctx context.Context, key string) (kvstore.KeyValue, error) {
	both, done, err := c.conn.Begin(ctx)
	if err != nil {
		return kvstore.KeyValue{}, c.conn.Fault(ctx, "get", key, err)
	}
	defer done()
	p, _, err := c.consul.KV().Get(key, consistent(both))
	switch {
	case err != nil:
		return kvstore.KeyValue{}, c.conn.Fault(ctx, "get", key, err)
	case p == nil:
		return kvstore.KeyValue{}, fmt.Errorf("consul: get %q: %w", key, kvstore.ErrNotFound)
	}
	return pair(p), nil
}

// List implements [kvstore.Backend].
func (c *Client) List(ctx context.Context, prefix string) (kvstore.Listing, error) {
	l, _, err := c.list(ctx, prefix)
	return l, c.conn.Fault(ctx, "list", prefix, err)
}

// list also returns the index to ask for changes after.
func (c *Client) list(ctx context.Context, prefix string) (kvstore.Listing, uint64, error) {
	both, done, err := c.conn.Begin(ctx)
	if err != nil {
		return kvstore.Listing{}, 0, err
	}
	defer done()
	// A listing comes with the index of its prefix only, a key that does not exist with that of the
	// whole store. What is listed later is no older.
	whole, err := c.readable(both, prefix)
	if err != nil {
		return kvstore.Listing{}, 0, err
	}
	pairs, meta, err := c.consul.KV().List(prefix, consistent(both))
	if err == nil {
		err = all(meta)
	}
	if err == nil { // nor may it have been hidden since
		_, err = c.readable(both, prefix)
	}
	if err != nil {
		return kvstore.Listing{}, 0, err
	}
	return listing(pairs, max(whole.LastIndex, meta.LastIndex)), meta.LastIndex, nil
}

// readable fails if what is under a prefix may not be read: Consul refuses to read a single key,
// and a listing it gives without. It returns the answer for a key that does not exist.
func (c *Client) readable(ctx context.Context, prefix string) (*api.QueryMeta, error) {
	_, meta, err := c.consul.KV().Get(prefix+".nothing", consistent(ctx))
	return meta, err
}

func listing(pairs api.KVPairs, index uint64) kvstore.Listing {
	l := kvstore.Listing{Pairs: make([]kvstore.KeyValue, len(pairs)), Revision: int64(index)}
	for i, p := range pairs {
		l.Pairs[i] = pair(p)
	}
	return l
}

// Close implements [kvstore.Backend].
func (c *Client) Close() error {
	c.health.Close()
	c.conn.Shut()
	c.conn.Wait()
	return nil
}

// Layout implements [kvstore.Backend].
func (c *Client) Layout() kvstore.Layout {
	if c.cfg.PlainKeys {
		return kvstore.LayoutConsulPlain
	}
	return kvstore.LayoutConsul
}

// Status implements [kvstore.Backend].
func (c *Client) Status() kvstore.Status { return c.health.Status() }

// check makes a read that needs a quorum.
func (c *Client) check() bool {
	ctx, cancel := context.WithTimeout(c.conn.Context(), c.cfg.CheckTimeout)
	defer cancel()
	p, _, err := c.consul.KV().Get(c.cfg.HeartbeatKey, consistent(ctx))
	if c.conn.Closed() {
		return false
	}
	var revision int64
	if p != nil {
		revision = int64(p.ModifyIndex)
	}
	c.health.Heartbeat(revision, err)
	server := kvstore.EndpointStatus{Address: c.cfg.Address, Healthy: err == nil}
	if err != nil {
		server.Message = err.Error()
	}
	return c.health.Checked([]kvstore.EndpointStatus{server}, false, err)
}

// retryPause is how long to wait after so many failures.
func retryPause(failures int, most time.Duration) time.Duration {
	return retry.Backoff(failures, 10*time.Millisecond, most)
}

// gone reports that Consul answered that a session does not exist.
func gone(err error) bool {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code == http.StatusNotFound || strings.Contains(status.Body, "invalid session")
	}
	return errors.Is(err, api.ErrSessionExpired)
}
