package identities

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/labels"
)

// few is up to how many identities the server is asked about one by one, by requests that it
// answers with next to nothing. To read all pods and endpoints once is cheaper for more.
const few = 64

// idField is the field of CiliumEndpoints by which the server finds those that name an ID.
const idField = "status.identity.id"

// errNotSelectable means that the server cannot find endpoints by ID: its definition of them is
// older.
var errNotSelectable = errors.New("the server cannot select CiliumEndpoints by " + idField)

// usersOf reads from the server the users of one ID, present and future. The caller checks the
// caches, those of slices too, see [asker.caughtUp].
func (a *asker) usersOf(ctx context.Context, id identity.ID, text string) (use, error) {
	now := use{named: map[int64]bool{}, texts: map[string]bool{}}
	var naming v2.CiliumEndpointList
	err := a.live.List(ctx, &naming, client.MatchingFields{idField: decimal(id)}, client.Limit(1))
	if apierrors.IsBadRequest(err) {
		return now, errNotSelectable
	}
	if err != nil {
		return now, fmt.Errorf("list of CiliumEndpoints with identity %d: %w", id, err)
	}
	now.named[int64(id)] = len(naming.Items) > 0
	if a.pods == nil || now.named[int64(id)] {
		return now, nil
	}
	now.texts[text], err = podsWant(ctx, a.live, a.pods.index.rules, text)
	return now, err
}

// podsWant asks the server whether a pod is to have an identity for these labels.
func podsWant(ctx context.Context, live client.Reader, rules *Rules, text string) (bool, error) {
	namespace, own, ok := selectorOf(text)
	if !ok {
		return false, nil
	}
	var err error
	namespaces := map[string]map[string]string{}
	if namespace != "" {
		var ns corev1.Namespace
		err := live.Get(ctx, client.ObjectKey{Name: namespace}, &ns)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read Namespace %s: %w", namespace, err)
		}
		namespaces[namespace] = ns.Labels
	} else if namespaces, err = namespaceLabels(ctx, live, nil); err != nil {
		return false, err
	}
	want := false
	err = eachPage(ctx, live, pageSize, func() client.ObjectList { return &corev1.PodList{} }, nil, func(page client.ObjectList) {
		for i := range page.(*corev1.PodList).Items {
			p := &page.(*corev1.PodList).Items[i]
			if !k8s.Networked(p) {
				continue
			}
			t, err := rules.target(p, namespaces[p.Namespace])
			want = want || err == nil && t.text == text
		}
	}, client.InNamespace(namespace), own)
	if err != nil {
		return false, fmt.Errorf("list of Pods with the labels of an identity: %w", err)
	}
	return want, nil
}

// selectorOf returns by what the server finds the pods that may be to have an identity for these
// labels: their namespace, "" for any, and labels of their own. ok is false if no pod can: the
// labels cannot be read, or are none that Kubernetes allows, so the server would refuse to look for
// them.
func selectorOf(text string) (namespace string, own client.MatchingLabels, ok bool) {
	k, err := parseKey(text)
	if err != nil || len(k.Set) == 0 {
		return "", nil, false
	}
	own = client.MatchingLabels{}
	for _, l := range k.Set {
		switch {
		case l.Source != labels.SourceK8s:
		case l.Key == labels.KeyNamespace:
			if namespace = l.Value; len(validation.IsDNS1123Label(namespace)) > 0 {
				return "", nil, false
			}
		case strings.HasPrefix(l.Key, labels.PrefixOwned):
		case len(validation.IsQualifiedName(l.Key)) > 0 || len(validation.IsValidLabelValue(l.Value)) > 0:
			return "", nil, false
		default:
			own[l.Key] = l.Value
		}
	}
	return namespace, own, true
}

// caughtUp returns nil if the caches show what the server has of what uses identities, else an
// error that wraps [errBehind]. It reads next to nothing: watches from where the caches are show
// what they have missed.
func (a *asker) caughtUp(ctx context.Context) error {
	have, err := a.observed(ctx)
	if err != nil {
		return err
	}
	newest := versions{}
	kinds := []string{kindEndpoints, kindSlices}
	if a.pods != nil {
		kinds = append(kinds, kindPods, kindNamespaces)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	for _, kind := range kinds {
		wg.Go(func() {
			v, err := a.missed(ctx, kind, have[kind])
			mu.Lock()
			defer mu.Unlock()
			newest[kind], errs = v, append(errs, err)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return waitCaughtUp(ctx, newest, a.observed)
}

// listOf returns an empty object and an empty list of a kind.
func listOf(kind string) (client.Object, client.ObjectList) {
	switch kind {
	case kindPods:
		return &corev1.Pod{}, &corev1.PodList{}
	case kindNamespaces:
		return &corev1.Namespace{}, &corev1.NamespaceList{}
	case kindSlices:
		return &v2alpha1.CiliumEndpointSlice{}, &v2alpha1.CiliumEndpointSliceList{}
	}
	return &v2.CiliumEndpoint{}, &v2.CiliumEndpointList{}
}

// missed returns the highest version of objects of a kind that the server has written after since,
// that are still there, and that may not have been observed.
//
// The version of what was observed last may be older than the server remembers: nothing of the kind
// was written for long, or the server was restarted. Then a watch begins where the cache itself is,
// which is periodically notified of its progress; a cache whose version the server does not
// remember either is behind.
func (a *asker) missed(ctx context.Context, kind string, since uint64) (uint64, error) {
	if since > 0 {
		v, err := a.written(ctx, kind, since)
		if !errors.Is(err, errTooOld) {
			return v, err
		}
	}
	since, newest, err := a.reached(ctx, kind)
	if err != nil {
		return 0, err
	}
	v, err := a.written(ctx, kind, since)
	return max(v, newest), err
}

// reached returns the version up to which a cache has everything of a kind, and the highest of what
// it has.
func (a *asker) reached(ctx context.Context, kind string) (all, newest uint64, err error) {
	object, list := listOf(kind)
	informer, err := a.caches.GetInformer(ctx, object)
	if err != nil {
		return 0, 0, fmt.Errorf("cache of %s: %w", kind, err)
	}
	store, ok := informer.(interface{ GetStore() toolscache.Store })
	if !ok {
		return 0, 0, fmt.Errorf("cache of %s: %T does not report its progress", kind, informer)
	}
	if all = version(store.GetStore().LastStoreSyncResourceVersion()); all == 0 {
		return 0, 0, fmt.Errorf("%w: nothing was observed of %s", errBehind, kind)
	}
	if err := a.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, 0, fmt.Errorf("list of %s: %w", kind, err)
	}
	shown := versions{}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		shown.note(kind, o.(client.Object))
		return nil
	})
	return all, shown[kind], err
}

// errTooOld means that the server does not know any more what has happened since a version.
var errTooOld = fmt.Errorf("%w: the server does not remember what the operator has not observed", errBehind)

// written returns the highest version of objects of a kind that the server has written after since
// and that are still there.
func (a *asker) written(ctx context.Context, kind string, since uint64) (uint64, error) {
	_, list := listOf(kind)
	second := int64(1) // all that has happened comes at once
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	w, err := a.watch.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{
		ResourceVersion: strconv.FormatUint(since, 10), TimeoutSeconds: &second,
	}})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return 0, errTooOld
	}
	if err != nil {
		return 0, fmt.Errorf("watch of %s: %w", kind, err)
	}
	defer w.Stop()
	written := map[key]uint64{}
	for e := range w.ResultChan() {
		switch e.Type {
		case watch.Added, watch.Modified:
			if o, ok := e.Object.(client.Object); ok {
				written[client.ObjectKeyFromObject(o)] = version(o.GetResourceVersion())
			}
		case watch.Deleted: // a cache without it shows no version of it
			if o, ok := e.Object.(client.Object); ok {
				delete(written, client.ObjectKeyFromObject(o))
			}
		case watch.Error:
			if err := apierrors.FromObject(e.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				return 0, fmt.Errorf("watch of %s: %w", kind, err)
			}
			return 0, errTooOld
		case watch.Bookmark:
		}
	}
	if ctx.Err() != nil { // what keeps this watch from delivering may keep the caches' from it, too
		return 0, fmt.Errorf("%w: a watch of %s sends nothing, not even its end", errBehind, kind)
	}
	var newest uint64
	for _, v := range written {
		newest = max(newest, v)
	}
	return newest, nil
}
