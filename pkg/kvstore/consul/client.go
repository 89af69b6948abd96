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
// product. Writers that do not use this package, such as consul kv put, do not touch the guards:
// against them a condition on a prefix is only as good as the moment of the reading.
//
// One transaction may have [MaxOps] operations in Consul's count, guards included; more is
// [kvstore.ErrTxnTooLarge].
//
// # Watches
//
// Consul keeps no history: of several quick changes of one key only the last may be told. A key
// that was deleted and made again in between is told as deleted and created. When a tree is deleted
// from above a watched prefix, the keys may be told to be gone a second later. Everything else is
// as package kvstore promises.
//
// # Goroutines
//
// One checks the store; one keeps each session alive; up to three serve each watch, which has two
// queries open. Close ends them all.
package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
)

// GuardPrefix is above the guard keys.
const GuardPrefix = ".hawser/guard/"

// Client is a connection to Consul.
type Client struct {
	cfg       Config
	log       *slog.Logger
	consul    *api.Client
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	slots     chan struct{}
	leases    leases.Table[string]
	observers leases.Observers
	beat      kvstore.Heartbeat

	mu     sync.Mutex
	closed bool
	status kvstore.Status
	broken chan struct{} // closed and replaced to make every watch ask anew
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
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	settings := api.DefaultNonPooledConfig()
	settings.Address, settings.Token, settings.TokenFile, settings.Datacenter = cfg.Address, cfg.Token, cfg.TokenFile, cfg.Datacenter
	settings.Transport.DisableKeepAlives = false
	settings.Transport.MaxIdleConnsPerHost = cfg.MaxInflight
	settings.Transport.IdleConnTimeout = time.Minute
	settings.TLSConfig = api.TLSConfig{CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
	if cfg.CAFile != "" || cfg.CertFile != "" {
		settings.Scheme = "https"
	}
	consul, err := api.NewClient(settings)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{
		cfg: cfg, log: log, consul: consul, ctx: ctx, cancel: cancel,
		slots: make(chan struct{}, cfg.MaxInflight), broken: make(chan struct{}),
		status: kvstore.Status{Kind: "consul", State: kvstore.StateConnecting},
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		defer settings.Transport.CloseIdleConnections()
		c.checkLoop()
	}()
	return c, nil
}

// begin waits until a request may be sent, and returns a context that also ends with the client.
// The function returned must be called when it is done.
func (c *Client) begin(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if c.ctx.Err() != nil {
		return nil, nil, kvstore.ErrClosed
	}
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("waiting for earlier requests: %w", ctx.Err())
	case <-c.ctx.Done():
		return nil, nil, kvstore.ErrClosed
	}
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return both, func() { stop(); cancel(); <-c.slots }, nil
}

// fault turns an error of the client library into one of ours.
func (c *Client) fault(ctx context.Context, doing, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case c.ctx.Err() != nil:
		err = kvstore.ErrClosed
	case errors.Is(err, kvstore.ErrClosed), ctx.Err() == nil:
	default:
		err = fmt.Errorf("%w (consul: %v)", ctx.Err(), err)
	}
	return fmt.Errorf("consul: %s %q: %w", doing, key, err)
}

func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

func pair(p *api.KVPair) kvstore.KeyValue {
	return kvstore.KeyValue{Key: p.Key, Value: p.Value, CreateRevision: int64(p.CreateIndex), ModRevision: int64(p.ModifyIndex), Lease: p.Session}
}

// Get implements [kvstore.Backend].
func (c *Client) Get(ctx context.Context, key string) (kvstore.KeyValue, error) {
	both, done, err := c.begin(ctx)
	if err != nil {
		return kvstore.KeyValue{}, c.fault(ctx, "get", key, err)
	}
	defer done()
	p, _, err := c.consul.KV().Get(key, consistent(both))
	switch {
	case err != nil:
		return kvstore.KeyValue{}, c.fault(ctx, "get", key, err)
	case p == nil:
		return kvstore.KeyValue{}, fmt.Errorf("consul: get %q: %w", key, kvstore.ErrNotFound)
	}
	return pair(p), nil
}

// List implements [kvstore.Backend].
func (c *Client) List(ctx context.Context, prefix string) (kvstore.Listing, error) {
	l, _, err := c.list(ctx, prefix)
	return l, c.fault(ctx, "list", prefix, err)
}

// list also returns the index to ask for changes after.
func (c *Client) list(ctx context.Context, prefix string) (kvstore.Listing, uint64, error) {
	both, done, err := c.begin(ctx)
	if err != nil {
		return kvstore.Listing{}, 0, err
	}
	defer done()
	// A listing comes with the index of its prefix only, a key that does not exist with that of the
	// whole store. What is listed later is no older.
	_, whole, err := c.consul.KV().Get(GuardPrefix+"nothing", consistent(both))
	if err != nil {
		return kvstore.Listing{}, 0, err
	}
	pairs, meta, err := c.consul.KV().List(prefix, consistent(both))
	if err != nil {
		return kvstore.Listing{}, 0, err
	}
	return listing(pairs, max(whole.LastIndex, meta.LastIndex)), meta.LastIndex, nil
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
	c.mu.Lock()
	c.closed = true
	c.status.State = kvstore.StateClosed
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
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
func (c *Client) Status() kvstore.Status {
	leases, keys := c.leases.Count()
	age, beats := c.beat.Age(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Leases, s.LeasedKeys = leases, keys
	found := fmt.Sprintf("consul: %d leases with %d keys", leases, keys)
	switch {
	case s.State == kvstore.StateClosed:
		s.Message = "consul: closed"
	case s.QuorumFailures > 0:
		s.Message = fmt.Sprintf("%s, no answer to %d checks in a row: %s", found, s.QuorumFailures, s.LastError)
	case s.State == kvstore.StateConnecting:
		s.Message = "consul: connecting"
	case beats && age > c.cfg.HeartbeatStaleAfter && c.cfg.HeartbeatStaleAfter > 0:
		s.State = kvstore.StateFailed
		s.LastError = fmt.Sprintf("the heartbeat (%s) has not changed for %s", c.cfg.HeartbeatKey, age.Round(time.Second))
		s.Message = found + ", quorum, but " + s.LastError
	default:
		s.Message = found + ", quorum"
	}
	return s
}

// checkLoop asks the store how it is, at once and then at the intervals of the settings, until the
// client is closed.
func (c *Client) checkLoop() {
	for {
		pause := c.cfg.CheckInterval
		if !c.check() {
			pause = c.cfg.FailingCheckInterval
		}
		if !sleep(c.ctx, pause*9/10+rand.N(pause/5+1)) {
			return
		}
	}
}

// check makes a read that needs a quorum.
func (c *Client) check() bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.CheckTimeout)
	defer cancel()
	p, _, err := c.consul.KV().Get(c.cfg.HeartbeatKey, consistent(ctx))
	if c.ctx.Err() != nil {
		return false
	}
	if err == nil {
		var revision int64
		if p != nil {
			revision = int64(p.ModifyIndex)
		}
		c.beat.Note(revision, time.Now())
	} else {
		c.beat.Miss()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	s := &c.status
	was := s.State
	if err == nil {
		s.State, s.QuorumFailures, s.LastOK, s.LastError = kvstore.StateOK, 0, time.Now(), ""
	} else {
		s.QuorumFailures++
		s.LastError = err.Error()
		switch {
		case s.QuorumFailures > c.cfg.MaxQuorumFailures:
			s.State = kvstore.StateFailed
		case !s.LastOK.IsZero():
			s.State = kvstore.StateDegraded
		}
	}
	s.Endpoints = []kvstore.EndpointStatus{{Address: c.cfg.Address, Healthy: err == nil, Message: s.LastError}}
	if s.State != was {
		c.log.Info("state of consul changed", "from", was, "to", s.State, "error", s.LastError)
	}
	return err == nil
}

// sleep waits unless ctx ends first, and says whether it waited in full.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryPause grows from 10 ms to most, doubled at each try, and is random in its upper half.
func retryPause(try int, most time.Duration) time.Duration {
	d := min(10*time.Millisecond<<min(try, 20), most)
	return d/2 + rand.N(d/2+1)
}

// gone says that Consul answered that a session does not exist.
func gone(err error) bool {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code == http.StatusNotFound || strings.Contains(status.Body, "invalid session")
	}
	return errors.Is(err, api.ErrSessionExpired)
}
