package placement

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/table"
)

// Kernel is the kernel's map of addresses.
type Kernel interface {
	ipcache.KernelMap
	// Resolve returns the identity that the kernel has for an address or prefix, 0 if none.
	Resolve(netip.Prefix) (uint32, error)
}

// Policy is notified of the prefixes that the kernel does not know as they are.
type Policy interface {
	SetUnplaced(kind string, list []enforcement.Unplaced) error
}

// AddressesConfig gives Addresses what they use.
type AddressesConfig struct {
	Log    *slog.Logger
	Cache  *ipcache.Cache
	Kernel Kernel
	// Tunnel means that other nodes' pods are reached through the tunnel.
	Tunnel bool
	// Outside is the identity of an address without a claim.
	Outside    func(netip.Addr) identity.ID
	Policy     Policy
	Components *component.Statuses
	// CheckInterval is the time between comparisons of the kernel's map with the cache, after the
	// first; 0 for none. Edited, if not nil, is called with how many entries another process had
	// changed, which are restored; it must not block.
	CheckInterval time.Duration
	Edited        func(entries int)
}

// Addresses reconciles the kernel with the address cache. What does not fit locks the endpoints
// whose rules name it. It must run.
type Addresses struct {
	*table.Reconciler[netip.Prefix, ipcache.Entry]
	cfg       AddressesConfig
	reporting sync.Mutex // the last look counts
}

// NewAddresses returns Addresses of which the kernel has nothing yet.
func NewAddresses(cfg AddressesConfig) (*Addresses, error) {
	a := &Addresses{cfg: cfg}
	var err error
	target := ipcache.NewMaps(cfg.Kernel, cfg.Tunnel)
	target.Edited = a.noteEdited
	a.Reconciler, err = table.NewReconciler(table.ReconcilerConfig{
		Name: "ipcache", Log: cfg.Log, Failing: a.reportUnplaced, PruneInterval: cfg.CheckInterval,
	}, cfg.Cache.Table(), target)
	return a, err
}

// noteEdited reports entries that another process has changed.
func (a *Addresses) noteEdited(entries int, one netip.Prefix) {
	a.cfg.Log.Warn("addresses were changed, removed or added in the kernel by another process; restoring them", "addresses", entries, "one", one)
	if a.cfg.Edited != nil {
		a.cfg.Edited(entries)
	}
}

// reportUnplaced reports to policy the addresses and prefixes for which the kernel's maps have no
// room, and the identities that the kernel sees there, so that endpoints whose rules distinguish
// the two are locked until there is room.
func (a *Addresses) reportUnplaced() {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	var list []enforcement.Unplaced
	var cause error
	for p, status := range a.Failing() {
		u := enforcement.Unplaced{Prefix: p, Identity: a.desired(p)}
		known, err := a.cfg.Kernel.Resolve(p)
		if err != nil {
			a.cfg.Log.Error("cannot find out which identity the kernel has for an address", "prefix", p, "error", err)
		}
		if u.TakenFor = identity.ID(known); known == 0 {
			u.TakenFor = a.cfg.Outside(p.Addr())
		}
		if u.TakenFor != u.Identity {
			list = append(list, u)
		}
		cause = status.Err
	}
	slices.SortFunc(list, func(x, y enforcement.Unplaced) int { return x.Prefix.Compare(y.Prefix) })
	if len(list) > 0 {
		cause = fmt.Errorf("the kernel does not know %d addresses and prefixes, as %s; endpoints whose rules name them drop all their packets (--bpf-ipcache-max, --bpf-ipcache-prefix-max): %w",
			len(list), list[0].Prefix, cause)
	}
	a.cfg.Components.Report("addresses", cause, "the kernel knows all addresses and prefixes")
	if err := a.cfg.Policy.SetUnplaced("address", list); err != nil {
		a.cfg.Log.Error("policy is not fully in force", "error", err)
	}
}

// desired is the identity that the kernel should know a prefix by.
func (a *Addresses) desired(p netip.Prefix) identity.ID {
	for bits := p.Bits(); bits >= 0; bits-- {
		around, _ := p.Addr().Prefix(bits)
		if e, ok := a.cfg.Cache.Table().Get(around); ok {
			return e.Identity
		}
	}
	return a.cfg.Outside(p.Addr())
}
