package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Load reads the endpoints that an earlier agent was responsible for, takes their addresses, and
// removes those whose interface is gone. It must be called once, before any other method. It
// changes nothing, and fails, if the records of this node's pods are not where it looks for them.
func (l *Lifecycle) Load(ctx context.Context) error {
	c := &l.cfg
	rows, damaged, err := c.Store.Load()
	if err != nil {
		// The kernel goes on as it is. Resume would cut off every pod whose record is not known.
		return err
	}
	if damaged != nil {
		// The kernel row, if there is one, goes in Resume: an endpoint without an owner must not
		// stay.
		c.Log.Error("some endpoint records are damaged; these pods lose their network and must be deleted", "error", damaged)
	}
	found, err := c.Links.EndpointLinks()
	if err != nil {
		return fmt.Errorf("list pod interfaces: %w", err)
	}
	present := map[int]string{}
	for _, link := range found {
		present[link.IfIndex] = link.Name
	}
	if damaged == nil && !c.GiveUpUnrecorded {
		if err := l.checkRecords(rows, present); err != nil {
			return err
		}
	}
	for _, row := range rows {
		if present[row.IfIndex] != row.IfName {
			c.Log.Info("an endpoint's interface is gone; removing the endpoint", "endpoint", row.ID, "interface", row.IfName)
			if err := c.Rows.DeleteEndpoint(row.IfIndex); err != nil {
				return fmt.Errorf("remove the kernel row of endpoint %d: %w", row.ID, err)
			}
			if err := l.forget(row.ID); err != nil {
				c.Log.Error("cannot remove the record of an endpoint that is gone; trying again", "endpoint", row.ID, "error", err)
			}
			continue
		}
		row.State, row.Log = "", nil
		// Temporary IDs are this node's own: their owner has restored this one for the row.
		row.Referenced = row.Identity.IsTemporary()
		row, _ = row.withState(StateRestoring, c.Now(), true, "restored from disk")
		if _, err := c.Registry.insert(row); err != nil {
			c.Log.Error("cannot restore an endpoint", "endpoint", row.ID, "error", err)
			continue
		}
		for _, ip := range row.Addresses() {
			if err := c.Addresses.Restore(ip, row.owner()); err != nil {
				c.Log.Error("cannot restore an endpoint's address", "endpoint", row.ID, "address", ip, "error", err)
			}
		}
	}
	return nil
}

// checkRecords reports that the kernel has pods, by their rows and interfaces, of which none has a
// record: Resume would cut off all of them. That is no crash, after which only some could be
// without; the records are elsewhere, or were removed.
func (l *Lifecycle) checkRecords(rows []Endpoint, present map[int]string) error {
	kernel, err := l.cfg.Rows.Endpoints()
	if err != nil {
		return fmt.Errorf("list endpoint rows: %w", err)
	}
	recorded := map[int]bool{}
	for _, row := range rows {
		if present[row.IfIndex] == row.IfName {
			recorded[row.IfIndex] = true
		}
	}
	var unrecorded []string
	for _, k := range kernel {
		if recorded[k.IfIndex] {
			return nil
		}
		if name := present[k.IfIndex]; name != "" {
			unrecorded = append(unrecorded, name)
		}
	}
	if len(unrecorded) == 0 {
		return nil
	}
	slices.Sort(unrecorded)
	return fmt.Errorf("the kernel has pods of this node (%d, such as that of %s), and %s has the record of none: it was emptied, or --state-dir is not that of the agent before. "+
		"These pods keep their network; start the agent with the directory that it had, or delete them, or have the agent take their network (--give-up-unrecorded-pods)",
		len(unrecorded), unrecorded[0], l.cfg.Store.dir)
}

// Resume takes the loaded endpoints over: it removes kernel rows without an owner, adds the others
// to policy, and attaches this agent's programs to their interfaces if they differ. It changes
// neither their rows, except for the audit mode, nor their rules: these stay in force until
// Policy.Synced. Identities are acquired again by Reacquire. It returns how many endpoints there
// are.
func (l *Lifecycle) Resume(ctx context.Context) (restored int, err error) {
	c := &l.cfg
	kernel, err := c.Rows.Endpoints()
	if err != nil {
		return 0, fmt.Errorf("list endpoint rows: %w", err)
	}
	rows := c.Registry.List()
	owned := map[int]bool{}
	for _, row := range rows {
		owned[row.IfIndex] = true
	}
	for _, k := range kernel {
		if !owned[k.IfIndex] {
			c.Log.Info("removing a kernel row that has no endpoint", "endpoint", k.ID, "ifindex", k.IfIndex)
			if err := c.Rows.DeleteEndpoint(k.IfIndex); err != nil {
				return 0, fmt.Errorf("remove the orphaned kernel row of interface %d: %w", k.IfIndex, err)
			}
		}
	}
	for _, row := range rows {
		if row.Identity == 0 {
			continue // the agent died before it had one; Reacquire completes the endpoint
		}
		if err := c.Policy.Restore(row); err != nil {
			return restored, fmt.Errorf("restore the policy of endpoint %d: %w", row.ID, err)
		}
		if err := c.Publisher.Publish(ctx, row); err != nil {
			return restored, err
		}
		if attached, err := c.Programs.Attached(row.IfIndex); err != nil || !attached {
			if err := l.attach(row); err != nil {
				c.Log.Error("cannot attach programs to a restored endpoint", "endpoint", row.ID, "error", err)
				restored++
				continue
			}
		}
		if err := c.Links.EnsureEndpoint(row.KernelRow(0, 0, false)); err != nil {
			c.Log.Error("cannot bring up a restored endpoint", "endpoint", row.ID, "error", err)
		}
		restored++
	}
	return restored, nil
}

// Reacquire gives the restored endpoints their identity references again, one after another, and
// completes those whose creation was cut off. It retries what fails until ctx ends, so that an
// agent that starts while the key-value store is away keeps all endpoints as they are. Endpoints
// with temporary identities are left to ReplaceTemporary.
func (l *Lifecycle) Reacquire(ctx context.Context) error {
	for failures := 0; ; failures++ {
		again := false
		for _, row := range l.cfg.Registry.List() {
			if row.State != StateRestoring || row.Identity.IsTemporary() {
				continue
			}
			if err := l.reacquire(ctx, row.ID); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				again = true
				l.cfg.Log.Warn("a restored endpoint waits for its identity", "endpoint", row.ID, "error", err)
			}
		}
		if !again {
			return nil
		}
		if retry.Wait(ctx, failures, 100*time.Millisecond, 10*time.Second) != nil {
			return nil
		}
	}
}

func (l *Lifecycle) reacquire(ctx context.Context, id uint16) error {
	unlock := l.lock(id)
	defer unlock()
	row, ok := l.cfg.Registry.Get(id)
	if !ok || row.State != StateRestoring {
		return nil
	}
	_, err := l.takeUp(ctx, row)
	return err
}

// takeUpFirst takes up an endpoint that is still restoring, before a change to it: a change that
// fails must have something to go back to. keeps is what the endpoint keeps on error.
func (l *Lifecycle) takeUpFirst(ctx context.Context, row Endpoint, keeps string) (Endpoint, error) {
	if row.State != StateRestoring {
		return row, nil
	}
	row, err := l.takeUp(ctx, row)
	if err != nil {
		err = fmt.Errorf("endpoint %d keeps its %s: %w", row.ID, keeps, err)
	}
	return row, err
}

// takeUp gives a restored endpoint its identity again. The caller holds the row's lock. On error
// the endpoint stays as it was.
func (l *Lifecycle) takeUp(ctx context.Context, restored Endpoint) (Endpoint, error) {
	row, id, old := restored, restored.ID, restored.Identity
	row.IdentityLabels, row.InfoLabels = l.split(row) // the filter may have changed
	got, err := l.acquire(ctx, row.IdentityLabels)
	if err != nil {
		return restored, err
	}
	row = row.become(got)
	row.Referenced = true
	if got != old {
		// The store lost the ID, or the filter changed, or there was none yet.
		l.cfg.Log.Info("a restored endpoint has another identity", "endpoint", id, "was", old, "is", got)
		row, _ = l.set(row, StateWaitingToRegenerate, "identity "+got.String())
		if row, err = l.enforce(ctx, row); err != nil {
			// There may be nothing to go back to: who takes it up tries again.
			l.release(row)
			restored, _ = l.fail(restored, StateRestoring, "not taken over: "+err.Error())
			return restored, err
		}
	} else {
		row.Kernel, row.PolicyRevision = l.cfg.Policy.Row(id)
	}
	if restored.Referenced {
		l.release(restored)
	}
	row, _ = l.set(row, StateReady, "identity "+got.String())
	return row, nil
}

// Renumber gives the endpoints with the label set another ID for it, after the key-value store
// lost the one they had.
func (l *Lifecycle) Renumber(ctx context.Context, set labels.Set, id identity.ID) {
	for _, row := range l.cfg.Registry.List() {
		if row.Identity == 0 || !row.IdentityLabels.Equal(set) {
			continue
		}
		if err := l.renumberOne(ctx, row.ID, set, id); err != nil {
			l.cfg.Log.Error("an endpoint keeps an identity that the cluster no longer has; trying again", "endpoint", row.ID, "identity", row.Identity, "error", err)
		}
	}
}

func (l *Lifecycle) renumberOne(ctx context.Context, number uint16, set labels.Set, id identity.ID) error {
	unlock := l.lock(number)
	defer unlock()
	row, ok := l.cfg.Registry.Get(number)
	if !ok || !row.IdentityLabels.Equal(set) || row.Identity == id && row.Renumbered == 0 {
		return nil
	}
	if row.Identity.IsTemporary() {
		return nil // ReplaceTemporary replaces it, and takes a reference to the other
	}
	return l.renumber(ctx, row, id)
}

// renumber gives an endpoint another ID for its labels, to which its reference is. If it fails
// Recover tries again. The caller holds the row's lock.
func (l *Lifecycle) renumber(ctx context.Context, old Endpoint, id identity.ID) error {
	row, next := old.become(id), StateReady
	if old.State == StateRestoring {
		next = StateRestoring // it has no reference yet
	}
	old.Renumbered = id
	if _, err := l.renew(ctx, old, row, next); err != nil {
		return fmt.Errorf("endpoint %d keeps %s in place of %s: %w", old.ID, old.Identity, id, err)
	}
	return nil
}

// Repair sets the interface, routes and neighbours of all endpoints again, after another process
// changed the node's network. Endpoints that are being changed are left to Recover.
func (l *Lifecycle) Repair() error {
	var errs []error
	for _, row := range l.cfg.Registry.List() {
		errs = append(errs, l.repair(row.ID))
	}
	return errors.Join(errs...)
}

// repair does so for one endpoint. It must not act on a row that is no longer in force: the
// interface may be about to go, and the address may be another endpoint's. An interface that is
// gone is left to the deletion of its endpoint.
func (l *Lifecycle) repair(id uint16) error {
	unlock, free := l.tryLock(id)
	if !free {
		l.mu.Lock()
		l.unrepaired[id] = struct{}{}
		l.mu.Unlock()
		return nil
	}
	defer unlock()
	row, ok := l.cfg.Registry.Get(id)
	if !ok || !row.inForce() {
		return nil
	}
	var err error
	if attached, aerr := l.cfg.Programs.Attached(row.IfIndex); aerr != nil || !attached {
		err = l.attach(row) // first: an interface must not be up without programs
	}
	if err == nil {
		err = l.cfg.Links.EnsureEndpoint(row.KernelRow(0, 0, false))
	}
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// attach puts the programs on the interface of an endpoint that may be up. If it cannot, it shuts
// the interface: nothing passes unfiltered.
func (l *Lifecycle) attach(row Endpoint) error {
	err := l.cfg.Programs.AttachEndpoint(row.IfIndex)
	if err == nil || errors.Is(err, unix.ENODEV) {
		return err
	}
	err = fmt.Errorf("endpoint %d on %s is shut, for its programs cannot be attached: %w", row.ID, row.IfName, err)
	if serr := l.cfg.Links.ShutEndpoint(row.IfIndex); serr != nil {
		err = fmt.Errorf("endpoint %d on %s HAS NO PROGRAMS AND CANNOT BE SHUT: %w", row.ID, row.IfName, errors.Join(err, serr))
	}
	return err
}

// Reattach reattaches the programs to an endpoint's interface at once, and brings up one that was
// set down without them. If they cannot be attached it sets the interface down. It ignores an
// interface without an endpoint: that is down. With 0 it checks all endpoints, and repairs those
// that lack something. It returns how many it repaired.
func (l *Lifecycle) Reattach(ifIndex int) (restored int, err error) {
	var errs []error
	for _, row := range l.cfg.Registry.List() {
		if ifIndex != 0 && row.IfIndex != ifIndex {
			continue
		}
		if ifIndex == 0 {
			if attached, err := l.cfg.Programs.Attached(row.IfIndex); err == nil && attached {
				continue
			}
		}
		if row.State == StateDisconnecting || row.State == StateDisconnected {
			continue
		}
		err := l.attach(row)
		if err == nil {
			err = l.repair(row.ID) // one that is only being made comes up when its row and rules are there
		}
		switch {
		case errors.Is(err, unix.ENODEV): // it has just gone; its endpoint follows
		case err != nil:
			errs = append(errs, err)
		default:
			restored++
		}
	}
	return restored, errors.Join(errs...)
}

// Sweep removes pod interfaces that have had no endpoint for the grace period: leftovers of a
// plugin that was killed between creating an interface and requesting an endpoint. Those of other
// network plugins, whose pods may run still, stay. Call it periodically.
func (l *Lifecycle) Sweep() error {
	found, err := l.cfg.Links.EndpointLinks()
	if err != nil {
		return fmt.Errorf("list pod interfaces: %w", err)
	}
	owned := map[int]bool{}
	for _, row := range l.cfg.Registry.List() {
		owned[row.IfIndex] = true
	}
	var errs []error
	seen := map[string]time.Time{}
	for _, link := range found {
		if owned[link.IfIndex] || !link.Ours {
			continue
		}
		key := fmt.Sprintf("%s/%d", link.Name, link.IfIndex)
		since, known := l.orphans[key]
		if !known {
			since = l.cfg.Now()
		}
		if l.cfg.Now().Sub(since) < l.cfg.OrphanGrace {
			seen[key] = since
			continue
		}
		l.cfg.Log.Info("removing a pod interface that has no endpoint", "interface", link.Name)
		errs = append(errs, l.cfg.Links.DeleteEndpoint(link.Name, link.IfIndex))
	}
	l.orphans = seen
	return errors.Join(errs...)
}
