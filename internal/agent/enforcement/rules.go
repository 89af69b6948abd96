// Package enforcement puts rules in force together with what they name: the identities of prefixes
// and blocks of addresses, and named ports. It holds rules back that select labels which identities
// lack yet.
package enforcement

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// Prefixes configures in the kernel which identity is behind a prefix that rules name.
type Prefixes interface {
	// PublishPrefixes returns when the kernel knows.
	PublishPrefixes(upserts map[netip.Prefix]identity.ID, deletes []netip.Prefix) error
}

// Blocks is the kernel's map of the blocks of addresses that rules name.
type Blocks interface {
	UpsertBlocks([]datapath.Block) error
	DeleteBlocks([]netip.Prefix) error
	Blocks() ([]datapath.Block, error)
}

// Addresses is the kernel's map of addresses, with the prefixes that rules name.
type Addresses interface {
	IPCache() ([]datapath.IPCacheEntry, error)
}

// Identities is notified of the identities of prefixes and blocks, for display.
type Identities interface {
	Add(identity.ID, labels.Set)
	Remove(identity.ID)
}

// RulesConfig gives rules what they use.
type RulesConfig struct {
	Log        *slog.Logger
	Policy     *Policy
	Identities Identities
	Prefixes   Prefixes
	Blocks     Blocks
	Addresses  Addresses
	DualStack  bool
	// NamespacePrefixes is how many prefixes the policies of one namespace may name, 0 for any
	// number. Beyond, if not nil, is called after each change with the policies, sorted, whose
	// prefixes are beyond that.
	NamespacePrefixes int
	Beyond            func([]policy.Owner)
	// Checkpoint is the file of the IDs of prefixes, so that they survive a restart of the machine
	// too; Write writes it, atomically.
	Checkpoint string
	Write      func(path string, data []byte) error
	// Changed, if not nil, is called with what was applied, as far as that was possible.
	Changed func([]policy.Change)
	// Filter is that by which labels make identities. LeftOut, if not nil, is called after each
	// change with the keys of other labels by which rules select, and must not keep the map.
	Filter  *labels.Filter
	LeftOut func(map[policy.Owner][]string)
}

// Rules puts rules in force together with the identities of the prefixes and blocks of addresses
// they name. It is the only one that changes rules, and the owner of these identities. Its methods
// may be called from any goroutine.
//
// The order of each change is what keeps every packet's verdict that of the old or that of the new
// rules: first new prefixes get their identity under the old rules (to which they are outside
// world, or part of a wider prefix, still), then the rules change, then prefixes that none names
// any more go, once no endpoint has older rules.
//
// What the kernel has of prefixes and blocks from before a restart keeps its IDs, and its meaning,
// until DropRestored: packets have these identities, whatever the rules of now name.
type Rules struct {
	cfg RulesConfig

	mu     sync.Mutex
	shares *prefixShares
	cidrs  *prefixIdentities
	blocks *prefixIdentities
	// staleBlocks are those that the kernel has from before a restart and no rule has named since.
	staleBlocks map[netip.Prefix]bool
	// servers are the addresses outside of the cluster at which the Kubernetes API is served.
	servers map[netip.Prefix]bool
	// nodeServers are those that the kernel had as nodes' at the start.
	nodeServers []datapath.IPCacheEntry
	// missingBlocks could not be written into the kernel yet, missingPrefixes not be published.
	missingBlocks, missingPrefixes map[netip.Prefix]identity.ID
	// oldPrefixes and oldBlocks are no longer named by the rules that did, once for each.
	oldPrefixes, oldBlocks []netip.Prefix
	dropsRestored          bool // DropRestored is not done yet
	unsaved                bool // the checkpoint could not be written
	// blind are the keys by which rules select although no identity has them.
	blind map[policy.Owner][]string
}

// NewRules returns rules of which none is in force. It reads the kernel's prefixes and blocks and
// the IDs of before, and has policy know what they stand for.
func NewRules(cfg RulesConfig) (*Rules, error) {
	cidrs, err := newPrefixIdentities(identity.LocalScope, policy.CIDRs, func(p netip.Prefix) labels.Set { return identity.CIDRLabels(p, cfg.DualStack) })
	if err != nil {
		return nil, err
	}
	blocks, err := newPrefixIdentities(identity.BlockScope, policy.Blocks, identity.BlockLabels)
	if err != nil {
		return nil, err
	}
	r := &Rules{
		cfg: cfg, shares: newPrefixShares(cfg.NamespacePrefixes, cfg.Log), cidrs: cidrs, blocks: blocks, staleBlocks: map[netip.Prefix]bool{}, missingBlocks: map[netip.Prefix]identity.ID{},
		missingPrefixes: map[netip.Prefix]identity.ID{}, blind: map[policy.Owner][]string{},
	}
	last := cfg.Policy.lastBefore()
	if err := errors.Join(r.restoreBlocks(last[identity.BlockScope]+1), r.restorePrefixes(last[identity.LocalScope]+1)); err != nil {
		return nil, err
	}
	known := map[identity.ID]labels.Set{}
	for _, ids := range []*prefixIdentities{cidrs, blocks} {
		for _, e := range ids.alloc.Export().Identities {
			known[e.ID] = e.Labels
			cfg.Identities.Add(e.ID, e.Labels)
		}
	}
	return r, cfg.Policy.SetIdentities(known, nil)
}

// restorePrefixes takes over the prefixes that the kernel has with their IDs, and from the
// checkpoint the IDs of others; new ones begin at first, or later. So no ID is given to a prefix
// while the kernel has another by it.
func (r *Rules) restorePrefixes(first identity.ID) error {
	rows, err := r.cfg.Addresses.IPCache()
	if err != nil {
		return fmt.Errorf("read the kernel's prefixes: %w", err)
	}
	cp := identity.Checkpoint{Scope: identity.LocalScope}
	for _, row := range rows {
		if id := identity.ID(row.Identity); id.Scope() == identity.LocalScope && !id.IsTemporary() {
			cp.Identities = append(cp.Identities, identity.CheckpointEntry{ID: id, Labels: r.cidrs.labels(row.Prefix)})
			cp.Next = max(cp.Next, id+1)
		} else if id == identity.KubeAPIServer {
			r.nodeServers = append(r.nodeServers, row)
		}
	}
	inKernel := len(cp.Identities)
	stored, err := r.readCheckpoint()
	if err != nil {
		// Other IDs than before cost a rewrite of the rule sets, nothing more.
		r.cfg.Log.Warn("cannot read the IDs of local identities; those that the kernel does not have are reallocated", "file", r.cfg.Checkpoint, "error", err)
	}
	ids, sets := map[identity.ID]bool{}, map[string]bool{}
	for _, e := range cp.Identities {
		ids[e.ID], sets[e.Labels.KVString()] = true, true
	}
	for _, e := range stored.Identities {
		if !ids[e.ID] && !sets[e.Labels.KVString()] {
			cp.Identities = append(cp.Identities, e)
		}
	}
	if inKernel == 0 || stored.Next > cp.Next {
		cp.Next = stored.Next
	}
	cp.Next = max(cp.Next, first)
	if err := r.cidrs.alloc.Import(cp); err != nil {
		r.cfg.Log.Warn("some IDs of local identities are invalid; they are reallocated", "error", err)
	}
	return nil
}

// readCheckpoint reads the IDs that the file has, none if there is no file.
func (r *Rules) readCheckpoint() (cp identity.Checkpoint, err error) {
	data, err := os.ReadFile(r.cfg.Checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return cp, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &cp)
	}
	if err == nil && cp.Scope != identity.LocalScope {
		err = fmt.Errorf("its scope is %#x, not %#x", uint32(cp.Scope), uint32(identity.LocalScope))
	}
	if err != nil {
		return identity.Checkpoint{}, err
	}
	return cp, nil
}

// restoreBlocks takes over the blocks that the kernel has, so that those which rules still name
// keep the IDs that rule sets in force know them by. New IDs begin at first, or later.
func (r *Rules) restoreBlocks(first identity.ID) error {
	list, err := r.cfg.Blocks.Blocks()
	if err != nil {
		return fmt.Errorf("read the kernel's blocks of addresses: %w", err)
	}
	cp := identity.Checkpoint{Scope: identity.BlockScope}
	for _, b := range list {
		id := identity.ID(b.Identity)
		cp.Identities = append(cp.Identities, identity.CheckpointEntry{ID: id, Labels: identity.BlockLabels(b.Prefix)})
		cp.Next = max(cp.Next, id+1)
		r.staleBlocks[b.Prefix] = true
	}
	cp.Next = max(cp.Next, first)
	if err := r.blocks.alloc.Import(cp); err != nil {
		r.cfg.Log.Warn("some blocks of addresses in the kernel are invalid; they get other IDs", "error", err)
	}
	return nil
}

// Apply puts all changes in force together. The error reports what could not be done; the rest is.
func (r *Rules) Apply(changes []policy.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changes = r.shares.limit(changes)
	if r.cfg.Beyond != nil {
		r.cfg.Beyond(r.shares.beyond())
	}
	var errs []error
	places, blocks := map[netip.Prefix]identity.ID{}, map[netip.Prefix]identity.ID{}
	var oldPlaces, oldBlocks []netip.Prefix
	for _, ch := range changes {
		old, err := r.cidrs.take(ch, places)
		oldPlaces, errs = append(oldPlaces, old...), append(errs, err...)
		old, err = r.blocks.take(ch, blocks)
		oldBlocks, errs = append(oldBlocks, old...), append(errs, err...)
	}
	errs = append(errs, r.place(places, blocks)...)
	var changed []policy.Change
	errs = append(errs, r.cfg.Policy.Change(func(e *policy.Engine) error {
		var errs []error
		for _, ch := range changes {
			if e.Has(ch.Owner, ch.Rules) {
				continue
			}
			changed = append(changed, ch)
			errs = append(errs, e.SetRules(ch.Owner, ch.Rules))
		}
		return errors.Join(errs...)
	}))
	if r.cfg.Changed != nil && len(changed) > 0 {
		r.cfg.Changed(changed)
	}
	r.noteLabels(changes)
	r.oldPrefixes, r.oldBlocks = append(r.oldPrefixes, oldPlaces...), append(r.oldBlocks, oldBlocks...)
	return errors.Join(append(errs, r.dropOld()...)...)
}

// Shares returns the policies that would not be enforced as they are written if changes were
// applied, because their prefixes are beyond the share of their namespace: beyond are those among
// the changes, and others for which that is new. Others for whose prefixes there would be room
// again are back.
func (r *Rules) Shares(changes []policy.Change) (beyond, back []policy.Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shares.after(changes)
}

// dropOld drops what rules named until they were replaced, unless rule sets in force may name it.
func (r *Rules) dropOld() []error {
	if !r.cfg.Policy.settled() {
		return nil
	}
	r.cidrs.release(r.oldPrefixes)
	r.blocks.release(r.oldBlocks)
	r.oldPrefixes, r.oldBlocks = nil, nil
	return r.removeUnused()
}

// noteLabels reports rules that select by labels which no identity has: they are in force, and mean
// something else than it seems.
func (r *Rules) noteLabels(changes []policy.Change) {
	asked := map[string]bool{} // the filter is slow, and most policies select by the same keys
	makes := func(key string) bool {
		made, known := asked[key]
		if !known {
			made = r.cfg.Filter.Identity(labels.New(labels.SourceK8s, key, ""))
			asked[key] = made
		}
		return made
	}
	for _, ch := range changes {
		keys := leftOut(ch.Rules, makes)
		if len(keys) > 0 && !slices.Equal(keys, r.blind[ch.Owner]) {
			r.cfg.Log.Warn("a policy selects by labels that make no identities (--labels, --label-prefix-file): to policies no pod has them", "policy", ch.Owner, "labels", keys)
		}
		if r.blind[ch.Owner] = keys; len(keys) == 0 {
			delete(r.blind, ch.Owner)
		}
	}
	if r.cfg.LeftOut != nil {
		r.cfg.LeftOut(r.blind)
	}
}

// leftOut returns the keys of labels by which rules select, and which no identity of a pod has:
// makes reports whether labels with a key make identities. A selector that requires such a label
// selects nothing; one with NotIn or DoesNotExist selects pods that have it, too. A rule of a
// namespace needs the namespace's.
func leftOut(rules []*policy.Rule, makes func(key string) bool) []string {
	var keys []string
	bare := make([]*policy.Rule, len(rules)) // without ports: a named one counts as a use of all labels
	for i, r := range rules {
		c := *r
		c.Clauses = slices.Clone(r.Clauses)
		for j := range c.Clauses {
			c.Clauses[j].Ports = nil
		}
		bare[i] = &c
		if r.Namespace != "" && len(keys) == 0 {
			keys = append(keys, labels.KeyNamespace)
		}
	}
	keys = append(keys, policy.LabelKeys(bare).List()...)
	return slices.DeleteFunc(keys, makes)
}

// place makes new identities known, first to the rules and then to the kernel.
func (r *Rules) place(places, blocks map[netip.Prefix]identity.ID) (errs []error) {
	if len(places)+len(blocks) == 0 {
		return nil
	}
	upserts := map[identity.ID]labels.Set{}
	for p, id := range places {
		upserts[id], r.missingPrefixes[p] = r.labels(p), id
	}
	for p, id := range blocks {
		upserts[id], r.missingBlocks[p] = r.blocks.labels(p), id
		delete(r.staleBlocks, p)
	}
	for id, set := range upserts {
		r.cfg.Identities.Add(id, set)
	}
	errs = append(errs, r.cfg.Policy.SetIdentities(upserts, nil), r.placeBlocks(), r.placePrefixes())
	if len(places) > 0 {
		errs = append(errs, r.save())
	}
	return errs
}

// placePrefixes publishes the prefixes that are not published yet.
func (r *Rules) placePrefixes() error {
	if len(r.missingPrefixes) == 0 {
		return r.cfg.Policy.SetUnplaced("unpublished prefix", nil)
	}
	if !r.cfg.Policy.isSynced() {
		known, err := r.knownPrefixes()
		list := unplaced(r.missingPrefixes, known, r.world)
		if err == nil {
			err = r.cfg.Policy.Inherit(list)
		}
		if err != nil {
			return errors.Join(err, r.cfg.Policy.SetUnplaced("unpublished prefix", list))
		}
	}
	err := r.cfg.Prefixes.PublishPrefixes(r.missingPrefixes, nil)
	clear(r.missingPrefixes)
	return errors.Join(err, r.cfg.Policy.SetUnplaced("unpublished prefix", nil))
}

// knownPrefixes returns the prefixes that the kernel has.
func (r *Rules) knownPrefixes() (map[netip.Prefix]identity.ID, error) {
	rows, err := r.cfg.Addresses.IPCache()
	known := make(map[netip.Prefix]identity.ID, len(rows))
	for _, row := range rows {
		known[row.Prefix] = identity.ID(row.Identity)
	}
	return known, err
}

// world is the identity of what the kernel does not know.
func (r *Rules) world(p netip.Prefix) identity.ID {
	return identity.WorldOf(p.Addr(), r.cfg.DualStack)
}

// placeBlocks writes the blocks that the kernel does not have yet, longer ones first: a block must
// never be there without the exceptions from it.
func (r *Rules) placeBlocks() error {
	if len(r.missingBlocks) == 0 {
		return r.reportBlocks(nil)
	}
	list := make([]datapath.Block, 0, len(r.missingBlocks))
	for p, id := range r.missingBlocks {
		list = append(list, datapath.Block{Prefix: p, Identity: uint32(id)})
	}
	slices.SortFunc(list, func(a, b datapath.Block) int {
		return cmp.Or(cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()), a.Prefix.Addr().Compare(b.Prefix.Addr()))
	})
	var err error
	if !r.cfg.Policy.isSynced() {
		var placed map[netip.Prefix]identity.ID
		if placed, err = r.placedBlocks(); err == nil {
			err = r.cfg.Policy.Inherit(unplaced(r.missingBlocks, placed, noBlock))
		}
	}
	if err == nil {
		err = r.cfg.Blocks.UpsertBlocks(list)
	}
	if err == nil {
		clear(r.missingBlocks)
		return r.reportBlocks(nil)
	}
	placed, lerr := r.placedBlocks()
	for p, id := range placed {
		if r.missingBlocks[p] == id {
			delete(r.missingBlocks, p)
		}
	}
	return errors.Join(fmt.Errorf("rules about addresses do not hold in full: %w", err), lerr, r.reportBlocks(placed))
}

// noBlock is what an address is of that is in no block.
func noBlock(netip.Prefix) identity.ID { return 0 }

// placedBlocks returns the blocks that the kernel has.
func (r *Rules) placedBlocks() (map[netip.Prefix]identity.ID, error) {
	have, err := r.cfg.Blocks.Blocks()
	placed := make(map[netip.Prefix]identity.ID, len(have))
	for _, b := range have {
		placed[b.Prefix] = identity.ID(b.Identity)
	}
	return placed, err
}

// reportBlocks reports to policy which blocks the kernel does not have, and which it finds instead
// of them.
func (r *Rules) reportBlocks(placed map[netip.Prefix]identity.ID) error {
	return r.cfg.Policy.SetUnplaced("block", unplaced(r.missingBlocks, placed, noBlock))
}

// Retry writes again what could not be written, to the kernel or to disk, and drops what had to
// stay until the policy was synced.
func (r *Rules) Retry() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errors.Join(append(r.dropOld(), r.dropRestored(), r.placeBlocks(), r.placePrefixes())...)
	if r.unsaved {
		err = errors.Join(err, r.save())
	}
	return err
}

// removeUnused removes the prefixes and blocks that no rule names any more, and gives up their
// identities. What the kernel could not be rid of keeps its identity, and is tried again.
func (r *Rules) removeUnused() (errs []error) {
	var ids []identity.ID
	if blocks := r.blocks.unused(); len(blocks) > 0 {
		for _, p := range blocks {
			delete(r.missingBlocks, p)
		}
		err := r.cfg.Blocks.DeleteBlocks(blocks)
		if err == nil {
			ids = append(ids, r.blocks.forget(blocks)...)
		}
		errs = append(errs, err, r.placeBlocks()) // there is room for others
	}
	prefixes := r.cidrs.unused()
	if len(prefixes) > 0 {
		for _, p := range prefixes {
			delete(r.missingPrefixes, p)
		}
		err := r.cfg.Prefixes.PublishPrefixes(nil, prefixes)
		if err == nil {
			ids = append(ids, r.cidrs.forget(prefixes)...)
		}
		errs = append(errs, err)
	}
	if len(ids) > 0 {
		errs = append(errs, r.cfg.Policy.SetIdentities(nil, ids))
	}
	for _, id := range ids {
		r.cfg.Identities.Remove(id)
	}
	if len(prefixes) > 0 {
		errs = append(errs, r.save())
	}
	return errs
}

// DropRestored forgets the IDs kept for prefixes and blocks that no rule names after a restart. The
// kernel must have none of these prefixes any more; the blocks are removed from it here. Retry does
// what could not be done, or had to wait for an endpoint with a rule set of before.
func (r *Rules) DropRestored() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropsRestored = true
	return r.dropRestored()
}

func (r *Rules) dropRestored() error {
	if !r.dropsRestored || !r.cfg.Policy.settled() {
		return nil
	}
	if err := r.cfg.Blocks.DeleteBlocks(slices.Collect(maps.Keys(r.staleBlocks))); err != nil {
		return err
	}
	clear(r.staleBlocks)
	r.dropsRestored = false
	prefixes := r.cidrs.alloc.DropRestored()
	ids := append(r.blocks.alloc.DropRestored(), prefixes...)
	if len(ids) == 0 {
		return nil
	}
	err := r.cfg.Policy.SetIdentities(nil, ids)
	for _, id := range ids {
		r.cfg.Identities.Remove(id)
	}
	if len(prefixes) > 0 {
		err = errors.Join(err, r.save())
	}
	return err
}

// save writes the IDs of the local identities to disk, atomically. Retry does it again if it fails.
func (r *Rules) save() error {
	data, err := json.Marshal(r.cidrs.alloc.Export())
	if err == nil {
		err = r.cfg.Write(r.cfg.Checkpoint, data)
	}
	if r.unsaved = err != nil; err != nil {
		return fmt.Errorf("the IDs of local identities are not kept for a restart: %w", err)
	}
	return nil
}
