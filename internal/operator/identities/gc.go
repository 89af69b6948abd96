package identities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// HeartbeatAnnotation marks an unused identity; its value is when that was found, in RFC 3339.
const HeartbeatAnnotation = k8sids.HeartbeatAnnotation

// Config defines how identities are collected.
type Config struct {
	// Interval is the time from the start of one look to that of the next; 0 for never.
	Interval time.Duration
	// Timeout is how long an identity must be unused before it is marked, where agents make
	// identities, and else before it may end, as long as IDs are plenty (see [Plenty]): periodic
	// jobs create pods with the same labels again.
	Timeout time.Duration
	// Quarantine is how long the ID of a collected identity is not given to other labels, from when
	// this process first saw it in quarantine.
	Quarantine time.Duration
	// Lost is how long it waits, from the deletion, for agents to release it; 0 for not at all.
	// Namespace is where their Leases are.
	Lost      time.Duration
	Namespace string
	// Limiter bounds how many identities end. Besides, all that is written of identities is bounded
	// by what their agents receive because of it, see [pace].
	Limiter *rate.Limiter
	// First and Last bound the IDs of this cluster: others are left alone.
	First, Last uint32
	// Agents means that agents make identities: one is marked before it is collected, so that an
	// agent which takes it into use can remove the mark.
	Agents bool
	// Pods, if not nil, makes identities for pods: one that a pod is to have is in use, even if no
	// endpoint names it yet.
	Pods *Controller
}

// Stats are what one look found.
type Stats struct {
	// Alive are the identities that exist after the look, Marked those of them that were marked in
	// it, Deleted those that ended in it.
	Alive, Marked, Deleted int
	// Unused are those of the living that end if another look finds them so.
	Unused int
	// Quarantined are the IDs in quarantine after the pass, Freed those whose quarantine ended in
	// it, Awaited those that only wait for agents.
	Quarantined, Freed, Awaited int
}

// SetupGC adds the collection of identities to m. report is called with every look.
func SetupGC(m manager.Manager, cfg Config, report func(Stats, time.Duration, error), log *slog.Logger) error {
	a, err := newAsker(m, cfg.Pods)
	if err != nil {
		return err
	}
	c := newCollector(a, cfg, log)
	// Agents confirm which identities have ended whether or not one is collected in this pass.
	if err := m.Add(manager.RunnableFunc(c.tidying)); err != nil {
		return err
	}
	if cfg.Interval == 0 {
		return nil
	}
	if err := m.Add(manager.RunnableFunc(c.removing)); err != nil {
		return err
	}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return rounds.Every(ctx, cfg.Interval, nil, func(ctx context.Context) error {
			began := time.Now()
			stats, err := c.round(ctx)
			if ctx.Err() != nil {
				return nil
			}
			report(stats, time.Since(began), err)
			if err != nil {
				log.Warn("cannot collect unused identities, trying again", "error", err, "deleted", stats.Deleted)
			} else if stats.Deleted+stats.Marked+stats.Freed > 0 {
				log.Info("looked for unused identities", "deleted", stats.Deleted, "marked", stats.Marked, "alive", stats.Alive,
					"quarantined", stats.Quarantined, "freed", stats.Freed, "awaited", stats.Awaited)
			}
			return err
		})
	}))
}

// look is what one look saw of an object.
type look struct {
	uid  types.UID // its incarnation
	rv   string
	used time.Time // when it last showed a sign of life; if it is in quarantine, when that was first seen
	dead bool      // it was to be collected, or in quarantine
	// until, if not zero, is when dead begins to count: the look that saw it first failed, so that
	// the next ones came early.
	until time.Time
	text  string // what it stands for
	// certain means that text is no edit, so that another one would be.
	certain bool
}

// same reports whether an object is as another look saw it.
func (l look) same(other look) bool { return l.uid == other.uid && l.rv == other.rv }

type collector struct {
	*asker
	cfg   Config
	log   *slog.Logger
	now   func() time.Time
	looks map[string]look
	// revision is the server's at the last look that found IDs in quarantine.
	revision uint64
	slow     []string // nodes that IDs waited for at the last look
	// needless are Leases to delete.
	needless chan []*coordinationv1.Lease
	// grace is how long an identity of the operator's is spared in this look.
	grace time.Duration
	// rate returns how many identities may be written a second in a cluster of so many agents, and
	// writes sees to it.
	rate   func(agents int) rate.Limit
	writes *rate.Limiter
}

// Plenty reports whether so many of the IDs from first to last are free that unused identities need
// not end at once.
func Plenty(taken int, first, last identity.ID) bool {
	return taken < int(last-first+1)/4*3
}

func newCollector(a *asker, cfg Config, log *slog.Logger) *collector {
	c := &collector{asker: a, cfg: cfg, log: log, now: time.Now, looks: map[string]look{}, needless: make(chan []*coordinationv1.Lease, 1),
		rate: pace, writes: rate.NewLimiter(rate.Inf, leastPerSecond)}
	if cfg.Pods != nil {
		c.writes = cfg.Pods.writes // agents receive both
	}
	return c
}

// errEmpty means that the caches are not filled yet.
var errEmpty = errors.New("the pods of the cluster are not known yet")

// round looks at all identities once.
func (c *collector) round(ctx context.Context) (Stats, error) {
	var stats Stats
	began := c.now()
	if c.cfg.Pods != nil {
		if err := c.cfg.Pods.agree(ctx, c.client); err != nil {
			c.looks = map[string]look{} // what was seen unused before that counts no more
			return stats, err
		}
	}
	used, err := c.cached(ctx)
	if err != nil {
		return stats, err
	}
	var all v2.CiliumIdentityList
	if err := c.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return stats, fmt.Errorf("list of CiliumIdentities: %w", err)
	}
	if err := c.restored(ctx, all.Items); err != nil {
		return stats, err
	}
	c.grace = 0
	if Plenty(len(all.Items), identity.ID(c.cfg.First), identity.ID(c.cfg.Last)) {
		c.grace = c.cfg.Timeout
	}
	looks := make(map[string]look, len(all.Items))
	todo := map[fate][]*v2.CiliumIdentity{}
	for i := range all.Items {
		o := &all.Items[i]
		_, _, quarantined := k8sids.Quarantined(o)
		if quarantined {
			stats.Quarantined++
		} else {
			stats.Alive++
		}
		id, ok := idOf(o.Name, identity.ID(c.cfg.First), identity.ID(c.cfg.Last))
		if !ok || !o.DeletionTimestamp.IsZero() {
			continue
		}
		l, fate := c.decide(o, used(id))
		looks[o.Name] = l
		if l.dead && !quarantined && fate == toKeep {
			stats.Unused++
		}
		todo[fate] = append(todo[fate], o)
	}
	if c.cfg.Pods != nil && len(todo[toQuarantine])+len(todo[toFree]) > 0 { // only then the server itself is asked
		if err := c.cfg.Pods.agree(ctx, c.live); err != nil {
			c.looks = map[string]look{}
			return stats, err
		}
	}
	var errs []error
	do := func(f fate, act func(*v2.CiliumIdentity) (bool, error)) int {
		n, err := eachOf(ctx, writers, todo[f], act)
		errs = append(errs, err)
		return n
	}
	agents := 0
	if err := eachNode(ctx, c.client, true, nil, func(*metav1.ObjectMeta) { agents++ }); err != nil {
		return stats, fmt.Errorf("list of CiliumNodes: %w", err)
	}
	c.writes.SetLimit(c.rate(agents))
	do(toUnmark, func(o *v2.CiliumIdentity) (bool, error) { return c.annotate(ctx, o, nil) })
	stats.Marked = do(toMark, func(o *v2.CiliumIdentity) (bool, error) {
		value := c.now().UTC().Format(time.RFC3339Nano)
		return c.annotate(ctx, o, &value)
	})
	check := c.newLiveCheck(ctx, len(todo[toQuarantine])+len(todo[toFree]))
	stats.Deleted = do(toQuarantine, func(o *v2.CiliumIdentity) (bool, error) {
		if check.over() {
			return false, nil
		}
		if err := errors.Join(c.cfg.Limiter.Wait(ctx), c.writes.Wait(ctx)); err != nil {
			return false, err
		}
		return check.unused(o, textOf(o), func() (bool, error) { return c.quarantine(ctx, o) })
	})
	if todo[toFree], stats.Awaited, err = c.releasedByAll(ctx, todo[toFree], looks); err != nil && ctx.Err() == nil {
		// It keeps nothing else from going on, and so is no failure of the round: collection would
		// not get to a second look as long as it lasts.
		c.log.Error("IDs of collected identities are not used again: whether agents have released them is unknown", "numbers", stats.Awaited, "error", err)
	}
	for _, o := range todo[toFree] { // before: if the server goes back to a copy that has them, they are new
		delete(looks, o.Name)
	}
	stats.Freed = do(toFree, func(o *v2.CiliumIdentity) (bool, error) {
		if check.over() {
			return false, nil
		}
		if err := c.writes.Wait(ctx); err != nil {
			return false, err
		}
		was, _, _ := k8sids.Quarantined(o)
		return check.unused(o, was, func() (bool, error) { return c.free(ctx, o) })
	})
	stats.Alive -= stats.Deleted
	stats.Quarantined += stats.Deleted - stats.Freed
	err = errors.Join(append(errs, ctx.Err())...)
	if err != nil { // the next look comes early: what this one saw for the first time does not count as seen twice then
		for name, l := range looks {
			if l.dead && !(c.looks[name].dead && c.looks[name].same(l)) {
				l.until = began.Add(c.cfg.Interval)
				looks[name] = l
			}
		}
	}
	c.looks = looks
	return stats, err
}

// restored forgets what other looks saw if the server has gone back to an old copy since: what is
// in quarantine there may have been in use meanwhile.
func (c *collector) restored(ctx context.Context, all []v2.CiliumIdentity) error {
	if !slices.ContainsFunc(all, func(o v2.CiliumIdentity) bool { _, _, quarantined := k8sids.Quarantined(&o); return quarantined }) {
		return nil
	}
	var now v2.CiliumIdentityList
	if err := c.live.List(ctx, &now, client.Limit(1)); err != nil { // a cache has no revision
		return fmt.Errorf("ask the server for its resource version: %w", err)
	}
	revision := version(now.ResourceVersion)
	if revision < c.revision {
		c.log.Warn("the API server has gone back to an older state; quarantines of IDs begin anew")
		c.looks = map[string]look{}
	}
	c.revision = revision
	return nil
}

const (
	// maxFaults is how many writes in a row may fail before the others wait for the next look.
	maxFaults = 100
	// maxErrors bounds how many errors of a look are reported.
	maxErrors = 5
)

// eachOf calls act for objects, for some at once, and counts those for which it returns true.
func eachOf[T any](ctx context.Context, writers int, list []*T, act func(*T) (bool, error)) (int, error) {
	var mu sync.Mutex
	var errs []error
	next, did, faults, inRow := 0, 0, 0, 0
	take := func() *T {
		mu.Lock()
		defer mu.Unlock()
		if next == len(list) || inRow >= maxFaults || ctx.Err() != nil {
			return nil
		}
		next++
		return list[next-1]
	}
	note := func(done bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		if done {
			did++
		}
		if inRow++; err == nil {
			inRow = 0
			return
		}
		if faults++; faults <= maxErrors {
			errs = append(errs, err)
		}
	}
	var wg sync.WaitGroup
	for range min(writers, len(list)) {
		wg.Go(func() {
			for o := take(); o != nil; o = take() {
				note(act(o))
			}
		})
	}
	wg.Wait()
	if more := faults - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more failed", more))
	}
	return did, errors.Join(errs...)
}

// fate is what is to become of an object.
type fate int

const (
	toKeep fate = iota
	toMark
	toUnmark
	toQuarantine
	toFree
)

// decide decides what to do with an object.
func (c *collector) decide(o *v2.CiliumIdentity, used bool) (look, fate) {
	last, known := c.looks[o.Name]
	now := look{uid: k8sids.Incarnation(o), rv: o.ResourceVersion, used: last.used}
	same := known && last.same(now)
	again := same && last.dead && !c.now().Before(last.until)
	if same && last.dead {
		now.until = last.until
	}
	if _, _, quarantined := k8sids.Quarantined(o); quarantined {
		return c.decideQuarantined(now, same && last.dead, again, used)
	}
	now.text = textOf(o)
	intact, sealed := k8sids.Intact(o)
	sure := known && last.uid == now.uid && last.text != "" && last.certain
	switch {
	case sure && last.text != now.text:
		// Nodes evaluate packets by its former labels. In quarantine only its record has these.
		c.log.Warn("an identity is not collected, because its labels were edited by hand; restore its labels", "identity", o.Name, "labels", last.text, "edited", now.text)
		now.text, now.certain, now.used = last.text, true, c.now()
		return now, toKeep
	case sealed && !intact && !sure:
		c.log.Warn("an identity is not collected, because its labels were edited by hand; restore its labels", "identity", o.Name, "edited", now.text)
		now.text, now.used = "", c.now()
		return now, toKeep
	}
	now.certain = sure || intact || !sealed && o.Generation <= 1
	_, marked := o.Annotations[HeartbeatAnnotation]
	switch {
	case used:
		now.used = c.now()
		if marked { // an agent should have done so; as it is, the identity would go at once when it is not used any more
			return now, toUnmark
		}
		return now, toKeep
	case marked || !c.cfg.Agents:
		if !same || now.used.IsZero() {
			now.used = c.now()
		}
		if now.dead = marked || c.now().Sub(now.used) >= c.grace; now.dead && again {
			return now, toQuarantine
		}
		return now, toKeep
	case !same: // new, or taken into use
		now.used = c.now()
		return now, toKeep
	case c.now().Sub(now.used) >= c.cfg.Timeout:
		return now, toMark
	}
	return now, toKeep
}

// decideQuarantined reports whether the quarantine of an ID is over: this process has seen it in
// quarantine for as long. The time in the object does not count, as clocks of machines are set, and
// the server may have gone back to an old copy. already means that it was in quarantine at the last
// pass, again that this counts.
func (c *collector) decideQuarantined(now look, already, again, used bool) (look, fate) {
	if !already || now.used.IsZero() {
		now.used = c.now()
	}
	if used { // by mistake: the writer of identities restores it
		return now, toKeep
	}
	now.dead = true
	if again && c.now().Sub(now.used) >= c.cfg.Quarantine {
		return now, toFree
	}
	return now, toKeep
}

// annotate sets or removes the mark, if the identity is still as it was read. It reports whether it
// did.
func (c *collector) annotate(ctx context.Context, o *v2.CiliumIdentity, value *string) (bool, error) {
	if err := c.writes.Wait(ctx); err != nil {
		return false, fmt.Errorf("waiting to mark CiliumIdentity %s: %w", o.Name, err)
	}
	return c.patch(ctx, o, "marking", map[string]any{"annotations": map[string]any{HeartbeatAnnotation: value}}, nil)
}

// quarantine deletes an identity and puts its ID in quarantine.
func (c *collector) quarantine(ctx context.Context, o *v2.CiliumIdentity) (bool, error) {
	text := textOf(o)
	after := &v2.CiliumIdentity{}
	k8sids.Quarantine(after, text, c.now())
	annotations := map[string]any{HeartbeatAnnotation: nil}
	for k, v := range after.Annotations {
		annotations[k] = v
	}
	gone := map[string]any{} // a merge patch removes what it names
	for k := range o.SecurityLabels {
		gone[k] = nil
	}
	done, err := c.patch(ctx, o, "retiring", map[string]any{"annotations": annotations, "labels": map[string]any{labels.KeyNamespace: nil}}, gone)
	if done {
		c.log.Info("deleted an unused identity; its ID is in quarantine", "identity", o.Name, "labels", text)
	}
	return done, err
}

// patch changes metadata and labels of an object that is still as it was read. It reports whether
// it did.
func (c *collector) patch(ctx context.Context, o *v2.CiliumIdentity, action string, metadata, security map[string]any) (bool, error) {
	metadata["resourceVersion"], metadata["uid"] = o.ResourceVersion, o.UID
	// Every agent is sent the object with it, which is half of the bytes, and drops it. An empty
	// entry has the server go without.
	metadata["managedFields"] = []any{map[string]any{}}
	content := map[string]any{"metadata": metadata}
	if security != nil {
		content["security-labels"] = security
	}
	body, err := json.Marshal(content)
	if err != nil {
		return false, fmt.Errorf("%s CiliumIdentity %s: %w", action, o.Name, err)
	}
	into := &v2.CiliumIdentity{}
	into.Name = o.Name
	err = c.client.Patch(ctx, into, client.RawPatch(types.MergePatchType, body))
	switch {
	case err == nil:
		written := version(into.ResourceVersion)
		c.waitObserved(ctx, o, func(now *v2.CiliumIdentity) bool { return version(now.ResourceVersion) >= written })
		return true, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, nil // a conflict: the next pass decides
	}
	return false, fmt.Errorf("%s CiliumIdentity %s: %w", action, o.Name, err)
}

// free deletes the record of an ID whose quarantine is over.
func (c *collector) free(ctx context.Context, o *v2.CiliumIdentity) (bool, error) {
	uid, rv := o.UID, o.ResourceVersion
	into := &v2.CiliumIdentity{}
	into.Name = o.Name
	err := c.client.Delete(ctx, into, client.Preconditions{UID: &uid, ResourceVersion: &rv})
	switch {
	case err == nil:
		c.log.Debug("the quarantine of an ID is over", "identity", o.Name)
		c.waitObserved(ctx, o, func(now *v2.CiliumIdentity) bool { return now.UID != uid })
		return true, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, nil
	}
	return false, fmt.Errorf("deleting CiliumIdentity %s: %w", o.Name, err)
}
