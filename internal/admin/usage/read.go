package usage

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s"
)

// World is one look at the objects of a cluster that have to do with identities.
type World struct {
	Identities []v2.CiliumIdentity
	Endpoints  []v2.CiliumEndpoint
	// Slices are nil if the cluster has no such kind.
	Slices     []v2alpha1.CiliumEndpointSlice
	Pods       []corev1.Pod
	Namespaces []metav1.PartialObjectMetadata
}

// Connect returns a client for whom a kubeconfig file stands: one of the given files, merged as
// kubectl does, and the context of that name in it, or the current one. Without any file that
// exists it is the service account of the pod.
func Connect(files []string, kubeContext string) (*k8s.Client, error) {
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: files}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: kubeContext}
	rc, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		if !k8s.InPod() || kubeContext != "" {
			return nil, fmt.Errorf("cannot find a cluster by kubeconfig %s: %w", cmp.Or(strings.Join(files, ", "), "(none is named)"), err)
		}
		if rc, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("the pod's service account: %w", err)
		}
	}
	rc.UserAgent = "hawser"
	return k8s.New(rc)
}

// Read reads the objects, page by page. It needs the right to list pods, namespaces, and
// identities, endpoints and slices of cilium.io.
func Read(ctx context.Context, c *k8s.Client) (*World, error) {
	w := &World{}
	kube := c.Kube.CoreV1().RESTClient()
	if err := pages(ctx, c.V2, v2.ResourceIdentities, func() page[v2.CiliumIdentity] {
		l := &v2.CiliumIdentityList{}
		return page[v2.CiliumIdentity]{l, &l.Items}
	}, &w.Identities); err != nil {
		return nil, err
	}
	if err := pages(ctx, c.V2, v2.ResourceEndpoints, func() page[v2.CiliumEndpoint] {
		l := &v2.CiliumEndpointList{}
		return page[v2.CiliumEndpoint]{l, &l.Items}
	}, &w.Endpoints); err != nil {
		return nil, err
	}
	err := pages(ctx, c.V2Alpha1, v2alpha1.ResourceEndpointSlices, func() page[v2alpha1.CiliumEndpointSlice] {
		l := &v2alpha1.CiliumEndpointSliceList{}
		return page[v2alpha1.CiliumEndpointSlice]{l, &l.Items}
	}, &w.Slices)
	if apierrors.IsNotFound(err) { // the kind is not everywhere
		missing, asked := c.Serves(ctx, v2alpha1.SchemeGroupVersion().WithResource(v2alpha1.ResourceEndpointSlices))
		if asked != nil || len(missing) > 0 {
			err = asked
		}
	}
	if err != nil {
		return nil, err
	}
	if err := pages(ctx, kube, "pods", func() page[corev1.Pod] {
		l := &corev1.PodList{}
		return page[corev1.Pod]{l, &l.Items}
	}, &w.Pods); err != nil {
		return nil, err
	}
	namespaces, err := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	w.Namespaces = namespaces.Items
	return w, nil
}

// list is an answer of the server.
type list interface {
	metav1.ListInterface
	runtime.Object
}

// page is an answer with its items.
type page[T any] struct {
	list  list
	items *[]T
}

// pages reads all objects of a kind, of all namespaces, into dst.
func pages[T any](ctx context.Context, c rest.Interface, resource string, empty func() page[T], dst *[]T) error {
	var p page[T]
	err := k8s.EachPage(ctx, func(ctx context.Context, opts metav1.ListOptions) (list, error) {
		p = empty()
		return p.list, c.Get().Resource(resource).VersionedParams(&opts, metav1.ParameterCodec).Do(ctx).Into(p.list)
	}, func() { *dst = nil }, func(list) error {
		*dst = append(*dst, *p.items...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	return nil
}
