package identities

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// few is up to how many identities the server is asked about one by one, by requests that it answers
// with next to nothing. To read all pods and endpoints once is cheaper for more.
const few = 64

// numberField is the field of CiliumEndpoints by which the server finds those that name a number.
const numberField = "status.identity.id"

// errNotSelectable says that the server cannot find endpoints by number: its definition of them is older.
var errNotSelectable = errors.New("the server cannot select CiliumEndpoints by " + numberField)

// usersOf asks the server who uses one number, or is to use what it stands for. c.cfg.Pods is asked by
// whoever calls this, and so are slices, see [collector.caughtUp].
func (c *collector) usersOf(ctx context.Context, number identity.ID, text string) (use, error) {
	now := use{named: map[int64]bool{}, texts: map[string]bool{}}
	var naming v2.CiliumEndpointList
	err := c.live.List(ctx, &naming, client.MatchingFields{numberField: decimal(number)}, client.Limit(1))
	if apierrors.IsBadRequest(err) {
		return now, errNotSelectable
	}
	if err != nil {
		return now, fmt.Errorf("list of CiliumEndpoints with identity %d: %w", number, err)
	}
	now.named[int64(number)] = len(naming.Items) > 0
	if c.cfg.Pods == nil || now.named[int64(number)] {
		return now, nil
	}
	now.texts[text], err = podsWant(ctx, c.live, c.cfg.Pods.book.rules, text)
	return now, err
}

// podsWant asks the server whether a pod is to have an identity for these labels.
func podsWant(ctx context.Context, live client.Reader, rules *Rules, text string) (bool, error) {
	k, err := parseKey(text)
	if err != nil {
		return false, nil // no pod has labels that cannot be read
	}
	namespace, own := "", client.MatchingLabels{}
	for _, l := range k.Set {
		switch {
		case l.Source != labels.SourceK8s:
		case l.Key == labels.KeyNamespace:
			namespace = l.Value
		case !strings.HasPrefix(l.Key, labels.PrefixOwned):
			own[l.Key] = l.Value
		}
	}
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
	err = eachPage(ctx, live, pageSize, func() client.ObjectList { return &corev1.PodList{} }, func(page client.ObjectList) {
		for i := range page.(*corev1.PodList).Items {
			p := &page.(*corev1.PodList).Items[i]
			if !counts(p) {
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

// caughtUp returns nil if the caches show what the server has of what uses identities, else an error
// that wraps [errBehind]. It reads little: a watch from where the caches are tells what they have
// missed, and slices are few.
func (c *collector) caughtUp(ctx context.Context) error {
	have, err := c.heard(ctx)
	if err != nil {
		return err
	}
	newest := versions{}
	follow := map[string]client.ObjectList{kindEndpoints: &v2.CiliumEndpointList{}}
	if c.cfg.Pods != nil {
		follow[kindPods], follow[kindNamespaces] = &corev1.PodList{}, &corev1.NamespaceList{}
	}
	type answer struct {
		kind   string
		newest uint64
		err    error
	}
	answers := make(chan answer, len(follow))
	for kind, list := range follow {
		go func() {
			v, err := c.missed(ctx, kind, list, have[kind])
			answers <- answer{kind, v, err}
		}()
	}
	for range follow {
		a := <-answers
		newest[a.kind] = a.newest
		err = errors.Join(err, a.err)
	}
	if err != nil {
		return err
	}
	slices := metadataOf(v2alpha1.SchemeGroupVersion().WithKind(v2alpha1.KindEndpointSlice))
	err = eachPage(ctx, c.live, pageSize, slices, func(page client.ObjectList) {
		items := page.(*metav1.PartialObjectMetadataList).Items
		for i := range items {
			newest.note(kindSlices, &items[i])
		}
	})
	if err != nil {
		return fmt.Errorf("list of CiliumEndpointSlices: %w", err)
	}
	return settled(ctx, newest, c.heard)
}

// errTooOld says that the server does not know any more what has happened since a version.
var errTooOld = errors.New("the server does not remember what the operator has not heard")

// missed returns the highest version of objects of a kind that the server has written after another and
// that are still there.
func (c *collector) missed(ctx context.Context, kind string, list client.ObjectList, since uint64) (uint64, error) {
	second := int64(1) // all that has happened comes at once
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	w, err := c.watch.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{
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
	if ctx.Err() != nil { // what keeps this watch from telling may keep the caches' from it, too
		return 0, fmt.Errorf("%w: a watch of %s tells nothing, not even its end", errBehind, kind)
	}
	var newest uint64
	for _, v := range written {
		newest = max(newest, v)
	}
	return newest, nil
}
