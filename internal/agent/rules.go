package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"sync"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// prefixPlacer tells the kernel which identity is behind a prefix that rules name.
type prefixPlacer interface {
	// PlacePrefixes returns when the kernel knows.
	PlacePrefixes(upserts map[netip.Prefix]identity.ID, deletes []netip.Prefix) error
}

// rules puts rules in force together with the identities of the prefixes they name. It is the
// only one that changes rules, and the owner of the prefixes' identities.
//
// The order of each change is what keeps every packet's verdict that of the old or that of the
// new rules: first new prefixes get their identity under the old rules (to which they are outside
// world still), then the rules change, then prefixes that none names any more go.
type rules struct {
	log        *slog.Logger
	policy     *endpoint.Policy
	alloc      *identity.LocalAllocator
	identities *identities
	placer     prefixPlacer
	dualStack  bool
	checkpoint string // file of the identities' numbers, so that they survive a restart

	mu       sync.Mutex
	byOwner  map[policy.Owner][]netip.Prefix
	users    map[netip.Prefix]int
	prefixes map[netip.Prefix]identity.ID
}

func newRules(log *slog.Logger, p *endpoint.Policy, ids *identities, placer prefixPlacer, dualStack bool, checkpoint string) (*rules, error) {
	alloc, err := identity.NewLocalAllocator(identity.LocalScope)
	if err != nil {
		return nil, err
	}
	r := &rules{
		log: log, policy: p, alloc: alloc, identities: ids, placer: placer, dualStack: dualStack, checkpoint: checkpoint,
		byOwner: map[policy.Owner][]netip.Prefix{}, users: map[netip.Prefix]int{}, prefixes: map[netip.Prefix]identity.ID{},
	}
	data, err := os.ReadFile(checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var cp identity.Checkpoint
	if err == nil {
		err = json.Unmarshal(data, &cp)
	}
	if err == nil {
		err = alloc.Import(cp)
	}
	if err != nil {
		// Other numbers than before cost a rewrite of the rule sets, nothing more.
		log.Warn("cannot read the numbers of local identities; they are given out anew", "file", checkpoint, "error", err)
	}
	return r, nil
}

// apply puts all changes in force together. The error tells what could not be done; the rest is.
func (r *rules) apply(changes []policy.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	upserts := map[identity.ID]labels.Set{}
	places := map[netip.Prefix]identity.ID{}
	var previous []netip.Prefix
	for _, ch := range changes {
		next := policy.CIDRs(ch.Rules)
		for _, p := range next {
			r.users[p]++
			if _, known := r.prefixes[p]; known {
				continue
			}
			set := identity.CIDRLabels(p, r.dualStack)
			id, _, err := r.alloc.Allocate(set)
			if err != nil {
				// Without an identity of its own the prefix is matched by no rule that names it.
				errs = append(errs, fmt.Errorf("get an identity for %s: %w", p, err))
				continue
			}
			r.prefixes[p], places[p], upserts[id] = id, id, set
			r.identities.learn(id, set)
		}
		previous = append(previous, r.byOwner[ch.Owner]...)
		if r.byOwner[ch.Owner] = next; len(next) == 0 {
			delete(r.byOwner, ch.Owner)
		}
	}
	if len(places) > 0 {
		errs = append(errs, r.policy.SetIdentities(upserts, nil), r.placer.PlacePrefixes(places, nil), r.save())
	}
	errs = append(errs, r.policy.Change(func(e *policy.Engine) error {
		var errs []error
		for _, ch := range changes {
			errs = append(errs, e.SetRules(ch.Owner, ch.Rules))
		}
		return errors.Join(errs...)
	}))
	errs = append(errs, r.drop(previous))
	return errors.Join(errs...)
}

// drop takes a user from each prefix and gives up the identities of those that have none left.
func (r *rules) drop(list []netip.Prefix) error {
	var gone []netip.Prefix
	var ids []identity.ID
	for _, p := range list {
		if r.users[p]--; r.users[p] > 0 {
			continue
		}
		delete(r.users, p)
		id, known := r.prefixes[p]
		if !known {
			continue
		}
		delete(r.prefixes, p)
		gone = append(gone, p)
		if r.alloc.Release(id) {
			ids = append(ids, id)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	errs := []error{r.placer.PlacePrefixes(nil, gone), r.policy.SetIdentities(nil, ids)}
	for _, id := range ids {
		r.identities.forget(id)
	}
	return errors.Join(append(errs, r.save())...)
}

// settled forgets the numbers kept for prefixes that no rule names after a restart.
func (r *rules) settled() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.alloc.DropRestored()) > 0 {
		return r.save()
	}
	return nil
}

// save writes the numbers of the local identities to disk, atomically.
func (r *rules) save() error {
	data, err := json.Marshal(r.alloc.Export())
	if err != nil {
		return err
	}
	return writeState(r.checkpoint, data)
}
