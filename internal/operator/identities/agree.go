package identities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
)

// errDiffer means that agents and operator would make different identities of a pod's labels. Then
// the operator cannot derive the identities in use from pods.
var errDiffer = errors.New("agents make other labels count for identities than this operator, so no identity is collected until they agree; " +
	"give all the same --labels and --label-prefix-file")

// maxDiffer bounds how many nodes are named.
const maxDiffer = 10

// agree returns an error, which wraps [errDiffer], unless the agents of all nodes report the
// operator's label filter. One that does not report it, such as an older one, may have any. It
// reads from the server itself, or a cache. A node counts for as long as it has a CiliumNode: its
// kernel enforces policy without an agent, too.
func (c *Controller) agree(ctx context.Context, from client.Reader) error {
	want := c.index.rules.Filter.Fingerprint()
	var others []string
	err := eachNode(ctx, from, from != c.live, func() { others = nil }, func(o *metav1.ObjectMeta) {
		if o.Annotations[nodes.LabelFilterAnnotation] != want {
			others = append(others, o.Name)
		}
	})
	if err != nil {
		return fmt.Errorf("list of CiliumNodes: %w", err)
	}
	c.mu.Lock()
	c.differ = len(others)
	c.mu.Unlock()
	if len(others) == 0 {
		return nil
	}
	slices.Sort(others)
	more := ""
	if n := len(others) - maxDiffer; n > 0 {
		others, more = others[:maxDiffer], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w (nodes %s%s)", errDiffer, strings.Join(others, ", "), more)
}

// eachNode calls f for every CiliumNode, as [eachPage] does. A server is asked for no more than
// their metadata.
func eachNode(ctx context.Context, from client.Reader, cached bool, begin func(), f func(*metav1.ObjectMeta)) error {
	if cached {
		return eachPage(ctx, from, 0, func() client.ObjectList { return &v2.CiliumNodeList{} }, begin, func(page client.ObjectList) {
			for i := range page.(*v2.CiliumNodeList).Items {
				f(&page.(*v2.CiliumNodeList).Items[i].ObjectMeta)
			}
		})
	}
	return eachPage(ctx, from, pageSize, metadataOf(v2.SchemeGroupVersion().WithKind(v2.KindNode)), begin, func(page client.ObjectList) {
		for i := range page.(*metav1.PartialObjectMetadataList).Items {
			f(&page.(*metav1.PartialObjectMetadataList).Items[i].ObjectMeta)
		}
	})
}

// metadataOf returns what makes lists of a kind's metadata.
func metadataOf(gvk schema.GroupVersionKind) func() client.ObjectList {
	gvk.Kind += "List"
	return func() client.ObjectList {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		return list
	}
}
