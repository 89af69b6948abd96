package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/operator/rounds"
)

// SetupNodeStatusGC adds to m what removes nodes that are gone from status.nodes of policies.
// Agents of long ago wrote there how each node enforces a policy; Hawser's do not, and its
// definitions have no such field. It is of use where older definitions are kept and such agents
// ran. An interval of 0 is never.
func SetupNodeStatusGC(m manager.Manager, interval time.Duration, log *slog.Logger) error {
	if interval == 0 {
		return nil
	}
	c := &nodeStatus{client: m.GetClient(), live: m.GetAPIReader(), log: log}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return rounds.Every(ctx, interval, nil, func(ctx context.Context) error {
			err := c.round(ctx)
			if err != nil && ctx.Err() == nil {
				log.Warn("cannot clean the node status of policies, trying again", "error", err)
			}
			return err
		})
	}))
}

type nodeStatus struct {
	client client.Client
	live   client.Reader
	log    *slog.Logger
}

// round looks at all policies once. The server is read itself, before the nodes are: so a node that
// is new is never taken for gone.
func (c *nodeStatus) round(ctx context.Context) error {
	var errs []error
	for _, kind := range []string{v2.KindNetworkPolicy, v2.KindClusterwideNetworkPolicy} {
		err := kube.EachPage(ctx, c.live, func() *unstructured.UnstructuredList {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(v2.SchemeGroupVersion().WithKind(kind + "List"))
			return list
		}, nil, func(list *unstructured.UnstructuredList) error {
			errs = append(errs, c.clean(ctx, list.Items))
			return nil
		})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("list of %s: %w", kind, err))...)
		}
	}
	return errors.Join(errs...)
}

// clean removes nodes that are gone from the status of policies.
func (c *nodeStatus) clean(ctx context.Context, items []unstructured.Unstructured) error {
	items = slices.DeleteFunc(items, func(u unstructured.Unstructured) bool { return len(nodesOf(&u)) == 0 })
	if len(items) == 0 {
		return nil
	}
	exist, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for i := range items {
		gone := map[string]any{}
		for name := range nodesOf(&items[i]) {
			if !exist[name] {
				gone[name] = nil
			}
		}
		if len(gone) == 0 {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": items[i].GetUID()}, "status": map[string]any{"nodes": gone}})
		if err != nil {
			return fmt.Errorf("encoding the status: %w", err)
		}
		at := client.ObjectKeyFromObject(&items[i])
		if err := client.IgnoreNotFound(c.client.Status().Patch(ctx, &items[i], client.RawPatch(types.MergePatchType, patch))); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", items[i].GetKind(), at, err))
			continue
		}
		c.log.Info("removed nodes that are gone from the status of a policy", "kind", items[i].GetKind(), "policy", at.String(), "nodes", len(gone))
	}
	return errors.Join(errs...)
}

// nodesOf returns status.nodes, nil if there is none.
func nodesOf(u *unstructured.Unstructured) map[string]any {
	nodes, _, err := unstructured.NestedMap(u.Object, "status", "nodes")
	if err != nil {
		return nil
	}
	return nodes
}

// nodes returns the names of all nodes, as either kind of object has them.
func (c *nodeStatus) nodes(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, gvk := range []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("NodeList"), v2.SchemeGroupVersion().WithKind(v2.KindNode + "List")} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)
		if err := c.live.List(ctx, list); err != nil {
			return nil, fmt.Errorf("%s: %w", gvk.Kind, err)
		}
		for i := range list.Items {
			out[list.Items[i].Name] = true
		}
	}
	return out, nil
}
