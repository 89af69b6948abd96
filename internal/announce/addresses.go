package announce

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// AddressesConfig is what [Addresses] is made from.
type AddressesConfig struct {
	Timing
	// Hosts are the addresses that this node's announcements have as their host: pairs with one
	// of them are its own.
	Hosts []netip.Addr
	// Prefix is where addresses are found in the store, that of the default address space by
	// default.
	Prefix string
	// Observed, if not nil, is notified of each change that the store reports for an address that
	// is or was announced here; see [Addresses.Observed]. It must neither block nor call back.
	Observed func(netip.Prefix)
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Validate reports all invalid settings.
func (c *AddressesConfig) Validate() error {
	var errs validate.Errors
	errs.If(len(c.Hosts) == 0, "the node has no address")
	for _, h := range c.Hosts {
		errs.If(!h.IsValid() || h.IsUnspecified() || h.Is4In6(), "%v is no address of the node", h)
	}
	return errs.Err()
}

// Addresses shares addresses with the other nodes: it writes those that are announced, each under a
// key of its own, and claims in the cache those that other nodes announce. An address that moved to
// another node is left alone. All methods are safe for concurrent use.
type Addresses struct {
	cfg   AddressesConfig
	cache *ipcache.Cache
	keys  *Keys
}

// NewAddresses returns Addresses that fill a cache. The caller must call Run.
func NewAddresses(cfg AddressesConfig, store kvstore.Backend, cache *ipcache.Cache) (*Addresses, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("announce addresses: %w", err)
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace))
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Addresses{cfg: cfg, cache: cache}
	keys := KeysConfig{
		Timing: cfg.Timing, Prefix: cfg.Prefix, What: "addresses", Log: cfg.Log,
		Owned: func(name string, value []byte) bool {
			pair, err := ipcache.ParsePair(name, value)
			return err == nil && slices.Contains(cfg.Hosts, pair.Host)
		},
		Put: s.put,
		Delete: func(_ context.Context, name string) {
			if p, err := ipcache.ParseKey(name); err == nil {
				cache.Delete(p, ipcache.KVStore, "")
			}
		},
	}
	if cfg.Observed != nil {
		keys.Observed = func(name string) {
			if p, err := ipcache.ParseKey(name); err == nil {
				cfg.Observed(p)
			}
		}
	}
	var err error
	s.keys, err = NewKeys(keys, store)
	return s, err
}

// put takes what the store has of an address.
func (s *Addresses) put(_ context.Context, name string, value []byte) {
	pair, err := ipcache.ParsePair(name, value)
	if err == nil && slices.Contains(s.cfg.Hosts, pair.Host) {
		// This node knows better; and the address may have been another node's until now.
		s.cache.Delete(pair.Prefix, ipcache.KVStore, "")
		return
	}
	if err == nil {
		_, err = s.cache.Upsert(pair.Prefix, pair.Claim(ipcache.KVStore, ""))
	}
	if err != nil {
		// The key's former value may be outdated, but there is none better.
		s.cfg.Log.Warn("ignored an invalid address; its last valid version stays", "key", name, "error", err)
	}
}

// Announce publishes an address to the other nodes until it is withdrawn, and returns a revision
// for [Addresses.WaitWritten]. Announcing a prefix again replaces what was announced before. The
// host must be one of this node's.
func (s *Addresses) Announce(p ipcache.Pair) (revision uint64, err error) {
	err = p.Validate()
	if err == nil && !slices.Contains(s.cfg.Hosts, p.Host) {
		err = fmt.Errorf("host %v is not this node", p.Host)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot announce %v: %w", p.Prefix, err)
	}
	value, err := json.Marshal(p)
	if err != nil {
		return 0, fmt.Errorf("cannot announce %v: %w", p.Prefix, err)
	}
	return s.keys.Announce(p.Key(), value), nil
}

func name(p netip.Prefix) string { return ipcache.Pair{Prefix: p}.Key() }

// Withdraw ends the announcement of a prefix. One that is not announced is no error.
func (s *Addresses) Withdraw(p netip.Prefix) (revision uint64) { return s.keys.Withdraw(name(p)) }

// WaitWritten waits until an Announce or Withdraw has reached the store.
func (s *Addresses) WaitWritten(ctx context.Context, p netip.Prefix, revision uint64) error {
	return s.keys.WaitWritten(ctx, name(p), revision)
}

// Observed returns the identity under which other nodes observe an address that this one announces:
// the store has it, and its watch delivered it. ok is false if it does not, or if it has it as
// another node's.
func (s *Addresses) Observed(p netip.Prefix) (id identity.ID, ok bool) {
	value, seen := s.keys.Seen(name(p))
	if !seen {
		return 0, false
	}
	pair, err := ipcache.ParsePair(name(p), value)
	if err != nil || !slices.Contains(s.cfg.Hosts, pair.Host) {
		return 0, false
	}
	return pair.Identity, true
}

// WaitSynced waits until the cache holds the addresses that the store held when Run began.
func (s *Addresses) WaitSynced(ctx context.Context) error { return s.keys.WaitSynced(ctx) }

// Prune removes from the store the addresses of this node that are not announced: those of
// endpoints that went while no agent ran. See [Keys.Prune] for when.
func (s *Addresses) Prune() { s.keys.Prune() }

// Status counts the announcements by how far they have come.
func (s *Addresses) Status() table.Summary { return s.keys.Status() }

// Run watches and writes until ctx ends, and returns its cause. It is called once. The keys are
// left in the store: they go with the lease.
func (s *Addresses) Run(ctx context.Context) error { return s.keys.Run(ctx) }
