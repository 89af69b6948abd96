package identities

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/pkg/retry"
)

// pageSize is how many objects one request reads from the server itself.
const pageSize = k8s.PageSize

// recheck is how long the server's answer about the users of identities is valid, or recheckShare
// times as long as the request took, if that is longer: so requests take only a part of the time of
// a pass that ends many.
const (
	recheck      = time.Second
	recheckShare = 4
)

// The caches are given catchUp to show what the server has; they are asked every catchUpPause.
const (
	catchUp      = 5 * time.Second
	catchUpPause = 50 * time.Millisecond
)

// asker asks who uses identities: the caches, and the server itself. Its methods may be called from
// many goroutines.
type asker struct {
	client client.Client // reads from the caches
	live   client.Reader
	// watch and caches, if not nil, let it ask about a few identities one by one; else everything
	// is read.
	watch  client.WithWatch
	caches cache.Cache
	pods   *Controller // if not nil, identities are made for pods: one that a pod is to have is in use
}

// newAsker returns one with the clients of a manager.
func newAsker(m manager.Manager, pods *Controller) (*asker, error) {
	a := &asker{client: m.GetClient(), live: m.GetAPIReader(), caches: m.GetCache(), pods: pods}
	var err error
	a.watch, err = client.NewWithWatch(m.GetConfig(), client.Options{HTTPClient: m.GetHTTPClient(), Scheme: m.GetScheme(), Mapper: m.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("a client that watches: %w", err)
	}
	return a, nil
}

// cached returns the use of IDs according to the caches.
func (a *asker) cached(ctx context.Context) (func(identity.ID) bool, error) {
	if a.pods != nil {
		used, ok := a.pods.InUse()
		if !ok {
			return nil, errEmpty
		}
		return used, nil
	}
	named, err := inUse(ctx, a.client, 0, nil)
	return func(id identity.ID) bool { return named[int64(id)] }, err
}

// use is who uses identities, as a reader showed it.
type use struct {
	named map[int64]bool  // IDs that endpoints and slices name
	texts map[string]bool // labels of pods, if identities are made for them
	// newest are the highest resource versions that were shown, by kind.
	newest versions
}

// versions are resource versions by kind of object.
type versions map[string]uint64

// Kinds of objects that use identities.
const (
	kindPods       = "Pods"
	kindNamespaces = "Namespaces"
	kindEndpoints  = "CiliumEndpoints"
	kindSlices     = "CiliumEndpointSlices"
)

// note takes in the version of an object. A nil map takes in nothing.
func (v versions) note(kind string, o client.Object) {
	if v != nil {
		v[kind] = max(v[kind], version(o.GetResourceVersion()))
	}
}

// errBehind means that the caches do not show what the server has. Then they do not show either who
// uses an identity.
var errBehind = errors.New("the operator's view of the cluster is behind the API server's, so no identity is collected")

// behind returns an error if have does not reach what the server showed.
func (v versions) behind(have versions) error {
	for _, kind := range slices.Sorted(maps.Keys(v)) {
		if have[kind] < v[kind] {
			return fmt.Errorf("%w: %s are known up to version %d, the server has %d", errBehind, kind, have[kind], v[kind])
		}
	}
	return nil
}

// liveCheck asks the server itself who uses identities: of a few one by one, else of all at once.
// Its method may be called from many goroutines.
type liveCheck struct {
	*asker
	ctx context.Context

	mu     sync.Mutex             // held while the server is asked: the others need the same answer
	single bool                   // ask of one by one
	until  time.Time              // how long use and known count
	use    use                    // if not single
	known  func(identity.ID) bool // what the caches show, if single
	failed bool
}

// newLiveCheck returns one for as many identities as may end.
func (a *asker) newLiveCheck(ctx context.Context, candidates int) *liveCheck {
	return &liveCheck{asker: a, ctx: ctx, single: a.watch != nil && candidates <= few}
}

// unused calls f if neither the server nor the caches, which may be newer by now, show a present or
// future user of the ID of o. It does not call f while the caches are behind the server.
func (l *liveCheck) unused(o *v2.CiliumIdentity, text string, f func() (bool, error)) (bool, error) {
	id, ok := idOf(o.Name, 1, ^identity.ID(0))
	if !ok {
		return false, nil
	}
	now, err := l.current(id, text)
	if err != nil || now == nil {
		return false, err
	}
	switch {
	case l.inUse(now, id, text):
		return false, nil
	case l.pods == nil:
		return f()
	}
	return l.pods.hold(id, f)
}

// inUse reports whether an ID has a present or future user. Its labels alone are none if they have
// another ID.
func (l *liveCheck) inUse(now *use, id identity.ID, text string) bool {
	return now.named[int64(id)] || l.pods != nil && now.texts[text] && !l.pods.spare(id)
}

// current returns the server's recent answer about an ID. It is nil, and fails the first time, if
// the request failed: the next pass asks again, this one cannot decide.
func (l *liveCheck) current(id identity.ID, text string) (*use, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed {
		return nil, nil
	}
	if !time.Now().Before(l.until) {
		if err := l.refresh(); err != nil {
			l.failed = true
			return nil, err
		}
	}
	now := l.use
	if !l.single {
		return &now, nil
	}
	known := l.known
	l.mu.Unlock() // others may ask meanwhile
	now, err := l.usersOf(l.ctx, id, text)
	if known(id) {
		now.named[int64(id)] = true
	}
	l.mu.Lock()
	switch {
	case errors.Is(err, errNotSelectable):
		if l.single {
			l.single, l.until = false, time.Time{}
		}
		if time.Now().Before(l.until) {
			break
		}
		if err := l.refresh(); err != nil {
			l.failed = true
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		return &now, nil
	}
	now = l.use
	return &now, nil
}

// over reports whether nothing can be known any more in this look.
func (l *liveCheck) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// refresh makes sure that the caches show what the server does. The caller holds mu.
func (l *liveCheck) refresh() error {
	began := time.Now()
	if l.single {
		err := l.caughtUp(l.ctx)
		if err == nil {
			l.known, err = l.cached(l.ctx)
		}
		l.counts(began)
		return err
	}
	if err := l.ask(); err != nil {
		return err
	}
	l.counts(began)
	return nil
}

// counts has what was read since then count for a while.
func (l *liveCheck) counts(began time.Time) {
	took := time.Since(began)
	l.until = began.Add(took + max(recheck, recheckShare*took))
}

// ask reads everything that uses identities, and waits until the caches show that too.
func (l *liveCheck) ask() error {
	var rules *Rules
	if l.pods != nil {
		rules = l.pods.index.rules
	}
	now, err := liveUse(l.ctx, l.live, rules)
	if err != nil {
		return err
	}
	if err := waitCaughtUp(l.ctx, now.newest, l.observed); err != nil {
		return err
	}
	l.use = now
	return nil
}

// observed returns up to which versions the caches know what uses identities.
func (a *asker) observed(ctx context.Context) (versions, error) {
	if a.pods != nil {
		return a.pods.observed(), nil
	}
	have := versions{}
	_, err := inUse(ctx, a.client, 0, have)
	return have, err
}

// waitCaughtUp waits until observed reaches newest. After a while it gives up, with an error that
// wraps [errBehind]. What was deleted meanwhile may never be observed again at its version: then a
// later look finds the server without it.
func waitCaughtUp(ctx context.Context, newest versions, observed func(context.Context) (versions, error)) error {
	for end := time.Now().Add(catchUp); ; {
		have, err := observed(ctx)
		if err != nil {
			return err
		}
		err = newest.behind(have)
		if err == nil || time.Now().After(end) {
			return err
		}
		if !retry.Sleep(ctx, catchUpPause) {
			return ctx.Err()
		}
	}
}

// liveUse reads everything that uses identities. With rules that is also the pods for which
// identities are made by them.
func liveUse(ctx context.Context, from client.Reader, rules *Rules) (use, error) {
	now := use{newest: versions{}}
	var err error
	if now.named, err = inUse(ctx, from, pageSize, now.newest); err == nil && rules != nil {
		now.texts, err = wanted(ctx, from, rules, now.newest)
	}
	return now, err
}

// inUse returns the IDs that endpoints and slices name. limit is the size of a page; 0 for
// everything at once, which a cache can do only. newest, if not nil, receives the versions.
func inUse(ctx context.Context, from client.Reader, limit int64, newest versions) (map[int64]bool, error) {
	used := map[int64]bool{}
	err := eachPage(ctx, from, limit, func() client.ObjectList { return &v2.CiliumEndpointList{} }, nil, func(page client.ObjectList) {
		items := page.(*v2.CiliumEndpointList).Items
		for i := range items {
			newest.note(kindEndpoints, &items[i])
			if id := items[i].Status.Identity; id != nil {
				used[id.ID] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of CiliumEndpoints: %w", err)
	}
	err = eachPage(ctx, from, limit, func() client.ObjectList { return &v2alpha1.CiliumEndpointSliceList{} }, nil, func(page client.ObjectList) {
		items := page.(*v2alpha1.CiliumEndpointSliceList).Items
		for i := range items {
			newest.note(kindSlices, &items[i])
			for _, e := range items[i].Endpoints {
				used[e.IdentityID] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	return used, nil
}

// wanted returns the labels that pods are to have an identity for, as the server has them. newest
// receives the versions.
func wanted(ctx context.Context, from client.Reader, rules *Rules, newest versions) (map[string]bool, error) {
	namespaces, err := namespaceLabels(ctx, from, newest)
	if err != nil {
		return nil, err
	}
	texts := map[string]bool{}
	err = eachPage(ctx, from, pageSize, func() client.ObjectList { return &corev1.PodList{} }, nil, func(page client.ObjectList) {
		for i := range page.(*corev1.PodList).Items {
			p := &page.(*corev1.PodList).Items[i]
			newest.note(kindPods, p)
			if !k8s.Networked(p) {
				continue
			}
			if t, err := rules.target(p, namespaces[p.Namespace]); err == nil {
				texts[t.text] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of Pods: %w", err)
	}
	return texts, nil
}

// namespaceLabels returns the labels of all namespaces. newest receives the versions.
func namespaceLabels(ctx context.Context, from client.Reader, newest versions) (map[string]map[string]string, error) {
	namespaces := map[string]map[string]string{}
	err := eachPage(ctx, from, pageSize, func() client.ObjectList { return &corev1.NamespaceList{} }, nil, func(page client.ObjectList) {
		items := page.(*corev1.NamespaceList).Items
		for i := range items {
			newest.note(kindNamespaces, &items[i])
			namespaces[items[i].Name] = items[i].Labels
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of Namespaces: %w", err)
	}
	return namespaces, nil
}

// eachPage calls f for all objects, page by page; see [k8s.EachPage] for begin. With a limit of 0
// they are those of a cache, and only read.
func eachPage(
	ctx context.Context, from client.Reader, limit int64, list func() client.ObjectList, begin func(), f func(client.ObjectList), more ...client.ListOption,
) error {
	if limit == 0 {
		page := list()
		if err := from.List(ctx, page, append(slices.Clip(more), client.UnsafeDisableDeepCopy)...); err != nil {
			return err
		}
		f(page)
		return nil
	}
	return kube.EachPage(ctx, from, list, begin, func(page client.ObjectList) error {
		f(page)
		return nil
	}, more...)
}
