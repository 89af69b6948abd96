package usage

import (
	"context"
	"fmt"

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
			return nil, fmt.Errorf("no way to Kubernetes: %w", err)
		}
		if rc, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("the pod's service account: %w", err)
		}
	}
	rc.UserAgent = "hawser"
	return k8s.New(rc)
}

// pageSize bounds what one answer holds.
const pageSize = 500

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
	if err != nil && !apierrors.IsNotFound(err) { // the kind is not everywhere
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

// pages appends all objects of a kind, of all namespaces, to dst.
func pages[T any](ctx context.Context, c rest.Interface, resource string, empty func() page[T], dst *[]T) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		p := empty()
		if err := c.Get().Resource(resource).VersionedParams(&opts, metav1.ParameterCodec).Do(ctx).Into(p.list); err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		*dst = append(*dst, *p.items...)
		if opts.Continue = p.list.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}
