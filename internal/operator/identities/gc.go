// Package identities looks after CiliumIdentities, for the whole cluster.
//
// # Collection
//
// An identity is in use if a CiliumEndpoint or a CiliumEndpointSlice names it. One that was not for the heartbeat timeout is marked by an annotation; agents
// remove the annotation before they use the identity again, which gives the object another resource version. An identity that two looks, an interval apart,
// found marked and unused at the same resource version is deleted, if the server itself still shows nobody who uses it, and on the condition of that very
// resource version. So an identity that is in use, or is being taken into use, is not deleted, whatever any cache says.
//
// The mark is in the object: another leader goes on where the last one was, one look later.
package identities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// HeartbeatAnnotation marks an identity that nobody uses; its value is when that was found, in RFC 3339.
const HeartbeatAnnotation = "io.cilium.heartbeat"

// pageSize is how many objects one request reads from the server itself.
const pageSize = 500

// Config says how identities are collected.
type Config struct {
	// Interval is the time from the start of one look to that of the next; 0 for never.
	Interval time.Duration
	// Timeout is how long an identity must be unused before it is marked.
	Timeout time.Duration
	// Limiter bounds writes.
	Limiter *rate.Limiter
	// First and Last bound the numbers of this cluster: others are left alone.
	First, Last uint32
}

// Stats are what one look found.
type Stats struct {
	// Alive are those that exist after the look, Marked those of them that were marked in it, Deleted those that are gone.
	Alive, Marked, Deleted int
}

// SetupGC adds the collection of identities to m. report is told of every look.
func SetupGC(m manager.Manager, cfg Config, report func(Stats, time.Duration, error), log *slog.Logger) error {
	if cfg.Interval == 0 {
		return nil
	}
	c := newCollector(m.GetClient(), m.GetAPIReader(), cfg, log)
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
			} else if stats.Deleted+stats.Marked > 0 {
				log.Info("looked for unused identities", "deleted", stats.Deleted, "marked", stats.Marked, "alive", stats.Alive)
			}
			return err
		})
	}))
}

// look is what one look saw of an identity.
type look struct {
	uid  types.UID
	rv   string
	used time.Time // when it last showed a sign of life
	dead bool      // it was marked and unused
}

type collector struct {
	client client.Client
	live   client.Reader
	cfg    Config
	log    *slog.Logger
	now    func() time.Time
	looks  map[string]look
}

func newCollector(c client.Client, live client.Reader, cfg Config, log *slog.Logger) *collector {
	return &collector{client: c, live: live, cfg: cfg, log: log, now: time.Now, looks: map[string]look{}}
}

// round looks at all identities once.
func (c *collector) round(ctx context.Context) (Stats, error) {
	var stats Stats
	var all v2.CiliumIdentityList
	if err := c.client.List(ctx, &all); err != nil {
		return stats, fmt.Errorf("list of CiliumIdentities: %w", err)
	}
	used, err := inUse(ctx, c.client, 0)
	if err != nil {
		return stats, err
	}
	looks := make(map[string]look, len(all.Items))
	var dead, unmark, mark []*v2.CiliumIdentity
	for i := range all.Items {
		id := &all.Items[i]
		number, err := strconv.ParseUint(id.Name, 10, 32)
		if err != nil || uint32(number) < c.cfg.First || uint32(number) > c.cfg.Last || !id.DeletionTimestamp.IsZero() {
			continue
		}
		l, fate := c.judge(id, used[int64(number)])
		looks[id.Name] = l
		switch fate {
		case toDelete:
			dead = append(dead, id)
		case toMark:
			mark = append(mark, id)
		case toUnmark:
			unmark = append(unmark, id)
		}
	}
	stats.Alive = len(all.Items)
	var errs []error
	for _, id := range unmark {
		errs = append(errs, c.annotate(ctx, id, nil))
	}
	for _, id := range mark {
		value := c.now().UTC().Format(time.RFC3339Nano)
		err := c.annotate(ctx, id, &value)
		if err == nil {
			stats.Marked++
		}
		errs = append(errs, err)
	}
	n, err := c.deleteAll(ctx, dead)
	stats.Deleted, stats.Alive = n, stats.Alive-n
	err = errors.Join(append(errs, err)...)
	if err != nil { // the next look comes early: what this one saw for the first time does not count as seen twice then
		for name, l := range looks {
			if l.dead && !c.looks[name].dead {
				l.dead = false
				looks[name] = l
			}
		}
	}
	c.looks = looks
	return stats, err
}

type fate int

const (
	toKeep fate = iota
	toMark
	toUnmark
	toDelete
)

// judge says what is to become of an identity.
func (c *collector) judge(id *v2.CiliumIdentity, used bool) (look, fate) {
	last, known := c.looks[id.Name]
	now := look{uid: id.UID, rv: id.ResourceVersion, used: last.used}
	_, marked := id.Annotations[HeartbeatAnnotation]
	same := known && last.uid == id.UID && last.rv == id.ResourceVersion
	switch {
	case used:
		now.used = c.now()
		if marked { // an agent should have done so; as it is, the identity would go at once when it is not used any more
			return now, toUnmark
		}
		return now, toKeep
	case marked:
		now.dead = true
		if same && last.dead {
			return now, toDelete
		}
		return now, toKeep
	case !same: // new, or somebody took it into use
		now.used = c.now()
		return now, toKeep
	case c.now().Sub(now.used) >= c.cfg.Timeout:
		return now, toMark
	}
	return now, toKeep
}

// annotate sets or removes the mark, if the identity is still as it was read.
func (c *collector) annotate(ctx context.Context, id *v2.CiliumIdentity, value *string) error {
	if err := c.cfg.Limiter.Wait(ctx); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": id.ResourceVersion, "uid": id.UID, "annotations": map[string]any{HeartbeatAnnotation: value},
	}})
	if err != nil {
		return fmt.Errorf("marking CiliumIdentity %s: %w", id.Name, err)
	}
	err = c.client.Patch(ctx, id.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // somebody wrote it: the next look sees
	}
	return fmt.Errorf("marking CiliumIdentity %s: %w", id.Name, err)
}

// deleteAll deletes identities that the server itself shows nobody to use. It returns how many.
func (c *collector) deleteAll(ctx context.Context, dead []*v2.CiliumIdentity) (int, error) {
	if len(dead) == 0 {
		return 0, nil
	}
	used, err := inUse(ctx, c.live, pageSize)
	if err != nil {
		return 0, err
	}
	n := 0
	var errs []error
	for _, id := range dead {
		if number, err := strconv.ParseInt(id.Name, 10, 64); err != nil || used[number] {
			continue
		}
		if err := c.cfg.Limiter.Wait(ctx); err != nil {
			return n, errors.Join(append(errs, err)...)
		}
		err := c.client.Delete(ctx, id, client.Preconditions{UID: &id.UID, ResourceVersion: &id.ResourceVersion})
		switch {
		case err == nil:
			n++
			c.log.Info("deleted an identity that nobody uses", "identity", id.Name, "labels", id.SecurityLabels)
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			errs = append(errs, fmt.Errorf("deleting CiliumIdentity %s: %w", id.Name, err))
		}
	}
	return n, errors.Join(errs...)
}

// inUse returns the numbers that endpoints and slices name. limit is the size of a page; 0 for everything at once, which a cache can do only.
func inUse(ctx context.Context, from client.Reader, limit int64) (map[int64]bool, error) {
	used := map[int64]bool{}
	var endpoints v2.CiliumEndpointList
	err := eachPage(ctx, from, limit, &endpoints, func() {
		for i := range endpoints.Items {
			if id := endpoints.Items[i].Status.Identity; id != nil {
				used[id.ID] = true
			}
		}
		endpoints = v2.CiliumEndpointList{} // what the next page does not say must not remain of this one
	})
	if err != nil {
		return nil, fmt.Errorf("list of CiliumEndpoints: %w", err)
	}
	var slices v2alpha1.CiliumEndpointSliceList
	err = eachPage(ctx, from, limit, &slices, func() {
		for i := range slices.Items {
			for _, ep := range slices.Items[i].Endpoints {
				used[ep.IdentityID] = true
			}
		}
		slices = v2alpha1.CiliumEndpointSliceList{}
	})
	if err != nil {
		return nil, fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	return used, nil
}

// eachPage fills list page by page and calls f for each.
func eachPage(ctx context.Context, from client.Reader, limit int64, list client.ObjectList, f func()) error {
	opts := &client.ListOptions{Limit: limit}
	for {
		if err := from.List(ctx, list, opts); err != nil {
			return err
		}
		opts.Continue = list.GetContinue()
		f()
		if limit == 0 || opts.Continue == "" {
			return nil
		}
	}
}
