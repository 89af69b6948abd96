package scale

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
)

// world is what the API server has, read by itself and not by watches.
type world struct {
	namespaces map[string]map[string]string
	pods       map[k8s.Key]*corev1.Pod
	identities []v2.CiliumIdentity
	endpoints  map[k8s.Key]*v2.CiliumEndpoint
	slices     []v2alpha1.CiliumEndpointSlice
}

// pageSize is how many objects one request reads.
const pageSize = 2000

// pages lists a kind page by page.
func pages[L interface {
	runtime.Object
	metav1.ListInterface
}](ctx context.Context, src k8s.Source, f func(L)) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := src.List(ctx, opts)
		if err != nil {
			return err
		}
		page, ok := list.(L)
		if !ok {
			return fmt.Errorf("a list is %T", list)
		}
		f(page)
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

// world reads everything.
func (c *cluster) world(ctx context.Context) (*world, error) {
	w := &world{namespaces: map[string]map[string]string{}, pods: map[k8s.Key]*corev1.Pod{}, endpoints: map[k8s.Key]*v2.CiliumEndpoint{}}
	core := c.client.Urgent.CoreV1().RESTClient()
	if err := pages(ctx, k8s.Kind(core, "namespaces", ""), func(l *corev1.NamespaceList) {
		for i := range l.Items {
			w.namespaces[l.Items[i].Name] = l.Items[i].Labels
		}
	}); err != nil {
		return nil, err
	}
	if err := pages(ctx, k8s.Kind(core, "pods", ""), func(l *corev1.PodList) {
		for i := range l.Items {
			w.pods[k8s.KeyOf(&l.Items[i])] = &l.Items[i]
		}
	}); err != nil {
		return nil, err
	}
	if err := pages(ctx, k8s.Kind(c.client.UrgentV2, v2.ResourceIdentities, ""), func(l *v2.CiliumIdentityList) {
		w.identities = append(w.identities, l.Items...)
	}); err != nil {
		return nil, err
	}
	if err := pages(ctx, k8s.Kind(c.client.UrgentV2, v2.ResourceEndpoints, ""), func(l *v2.CiliumEndpointList) {
		for i := range l.Items {
			w.endpoints[k8s.KeyOf(&l.Items[i])] = &l.Items[i]
		}
	}); err != nil {
		return nil, err
	}
	err := pages(ctx, k8s.Kind(c.client.V2Alpha1, v2alpha1.ResourceEndpointSlices, ""), func(l *v2alpha1.CiliumEndpointSliceList) {
		w.slices = append(w.slices, l.Items...)
	})
	return w, err
}

// setOf returns the label set that makes a pod's identity.
func (w *world) setOf(f *labels.Filter, p *corev1.Pod) (labels.Set, error) {
	all, err := labels.PodLabels(labels.Pod{
		Namespace: p.Namespace, ServiceAccount: p.Spec.ServiceAccountName, Cluster: clusterName, Labels: p.Labels, NamespaceLabels: w.namespaces[p.Namespace],
	})
	set, _ := f.Split(all)
	return set, err
}

// ids returns the IDs of each label set. Those in quarantine have no labels.
func (w *world) ids() (map[string][]string, error) {
	out := map[string][]string{}
	for i := range w.identities {
		o := &w.identities[i]
		if _, _, quarantined := identities.Quarantined(o); quarantined {
			continue
		}
		key, err := identities.Key{}.PutKeyFromMap(o.SecurityLabels)
		if err != nil {
			return nil, fmt.Errorf("identity %s: %w", o.Name, err)
		}
		out[key.GetKey()] = append(out[key.GetKey()], o.Name)
	}
	return out, nil
}

// The invariants. Each returns what does not hold, in words, and nothing if all is well.

// oneNumberEach: no label set has two identities.
func (w *world) oneNumberEach() []string {
	ids, err := w.ids()
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	for text, list := range ids {
		if len(list) > 1 {
			wrong = append(wrong, fmt.Sprintf("%d identities for %s", len(list), text))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// everyPodIsPublished: each pod has an endpoint with the ID and the labels of an identity of
// just its labels, and there is no other endpoint.
func (w *world) everyPodIsPublished(f *labels.Filter) []string {
	ids, err := w.ids()
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	for key, p := range w.pods {
		set, err := w.setOf(f, p)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		if why := rightEndpoint(w.endpoints[key], p, set, ids[set.KVString()]); why != "" {
			wrong = append(wrong, fmt.Sprintf("endpoint %s %s", key, why))
		}
	}
	for key := range w.endpoints {
		if w.pods[key] == nil {
			wrong = append(wrong, fmt.Sprintf("endpoint %s has no pod", key))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// rightEndpoint says what is wrong with a pod's endpoint.
func rightEndpoint(ep *v2.CiliumEndpoint, p *corev1.Pod, set labels.Set, ids []string) string {
	switch {
	case ep == nil:
		return "is missing"
	case len(ep.OwnerReferences) != 1 || ep.OwnerReferences[0].UID != p.UID:
		return "is another pod's"
	case ep.Status.Identity == nil:
		return "has no identity"
	case !slices.Contains(ids, strconv.FormatInt(ep.Status.Identity.ID, 10)):
		return fmt.Sprintf("has the number %d, its labels have %s", ep.Status.Identity.ID, strings.Join(ids, ", "))
	case !slices.Equal(slices.Sorted(slices.Values(ep.Status.Identity.Labels)), slices.Sorted(slices.Values(set.Strings()))):
		return fmt.Sprintf("says labels %v, the pod has %v", ep.Status.Identity.Labels, set.Strings())
	}
	return ""
}

// everyEndpointIsInOneSlice: each endpoint stands in just one slice, of its namespace, with its
// identity and addresses.
func (w *world) everyEndpointIsInOneSlice() []string {
	var wrong []string
	in := map[k8s.Key]int{}
	for i := range w.slices {
		s := &w.slices[i]
		for _, e := range s.Endpoints {
			key := k8s.Key{Namespace: s.Namespace, Name: e.Name}
			in[key]++
			ep := w.endpoints[key]
			switch {
			case ep == nil:
				wrong = append(wrong, fmt.Sprintf("slice %s has %s, which is no endpoint", s.Name, key))
			case ep.Status.Identity == nil || ep.Status.Identity.ID != e.IdentityID:
				wrong = append(wrong, fmt.Sprintf("slice %s has another identity for %s", s.Name, key))
			case e.Networking == nil || ep.Status.Networking == nil || e.Networking.NodeIP != ep.Status.Networking.NodeIP:
				wrong = append(wrong, fmt.Sprintf("slice %s has another node for %s", s.Name, key))
			}
		}
	}
	for key := range w.endpoints {
		if in[key] != 1 {
			wrong = append(wrong, fmt.Sprintf("endpoint %s is in %d slices", key, in[key]))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// everyPodIsInOneSlice is for slices without endpoints: each pod stands in just one slice, of its
// namespace, with the number of its labels.
func (w *world) everyPodIsInOneSlice(f *labels.Filter) []string {
	ids, err := w.ids()
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	in := map[k8s.Key]int{}
	for i := range w.slices {
		for _, e := range w.slices[i].Endpoints {
			key := k8s.Key{Namespace: w.slices[i].Namespace, Name: e.Name}
			in[key]++
			p := w.pods[key]
			if p == nil {
				wrong = append(wrong, fmt.Sprintf("slice %s has %s, which is no pod", w.slices[i].Name, key))
				continue
			}
			set, err := w.setOf(f, p)
			if err != nil {
				wrong = append(wrong, err.Error())
			} else if list := ids[set.KVString()]; !slices.Contains(list, strconv.FormatInt(e.IdentityID, 10)) {
				wrong = append(wrong, fmt.Sprintf("pod %s has the number %d in its slice, its labels have %s", key, e.IdentityID, strings.Join(list, ", ")))
			}
		}
	}
	for key := range w.pods {
		if in[key] != 1 {
			wrong = append(wrong, fmt.Sprintf("pod %s is in %d slices", key, in[key]))
		}
	}
	slices.Sort(wrong)
	return wrong
}
