package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/operator/rounds"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/retry"
)

// SetupStoreGC adds the removal of keys of nodes that are gone from a key-value store to m. Agents
// put these keys on a lease of a quarter of an hour, in which the node's pod CIDR may have been
// given to another node, and who observes both sends its packets to the node that is gone. Nodes
// that were none of Kubernetes stay: agents without Kubernetes may share the store. A node was one
// of Kubernetes if its agent says so, or if it was seen to be deleted. Nothing is removed from a
// store that is another cluster's, too.
func SetupStoreGC(m manager.Manager, cfg Config, store kvstore.Backend, cluster string, log *slog.Logger) error {
	if cfg.GCInterval == 0 {
		return nil
	}
	c := &storeCollector{
		meter:  cfg.Meter,
		cached: m.GetClient(), live: m.GetAPIReader(), store: store, cluster: cluster, prefix: kvstore.JoinKey(storekeys.NodesPrefix, cluster) + "/", log: log,
		deleted: map[string]bool{},
	}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		deleted := make(chan struct{}, 1)
		informer, err := m.GetCache().GetInformer(ctx, &corev1.Node{})
		if err != nil {
			return fmt.Errorf("watch of nodes: %w", err)
		}
		reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				c.note(key)
			}
			retry.Notify(deleted)
		}})
		if err != nil {
			return fmt.Errorf("watch of nodes: %w", err)
		}
		defer func() { _ = informer.RemoveEventHandler(reg) }() // it fails only for an informer that has ended
		return rounds.Every(ctx, cfg.GCInterval, deleted, c.meter.Measure("node-keys", c.round))
	}))
}

// storeCollector removes keys of nodes that are gone.
type storeCollector struct {
	meter        *rounds.Meter
	cached, live client.Reader
	store        kvstore.Backend
	cluster      string
	prefix       string // of this cluster's nodes, with a slash at the end
	log          *slog.Logger

	mu      sync.Mutex
	deleted map[string]bool // nodes that Kubernetes had, until there is no key of theirs
}

// note remembers that a Node was deleted.
func (c *storeCollector) note(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted[name] = true
}

// wasNode reports whether a node was seen to be one of Kubernetes that was deleted.
func (c *storeCollector) wasNode(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deleted[name]
}

func (c *storeCollector) round(ctx context.Context) error {
	err := c.collect(ctx)
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot remove the keys of nodes that are gone, trying again", "error", err)
	}
	return err
}

func (c *storeCollector) collect(ctx context.Context) error {
	if err := clustermesh.CheckOwner(ctx, c.store, c.cluster); err != nil {
		return err
	}
	list, err := c.store.List(ctx, c.prefix)
	if err != nil {
		return fmt.Errorf("list of nodes in the key-value store: %w", err)
	}
	there := make(map[string]bool, len(list.Pairs))
	for _, kv := range list.Pairs {
		name := strings.TrimPrefix(kv.Key, c.prefix)
		there[name] = true
		var n struct {
			Source      string
			Annotations map[string]string
		}
		if json.Unmarshal(kv.Value, &n) != nil || n.Source != node.SourceLocal {
			continue // it is whose who wrote it
		}
		if n.Annotations[node.KubernetesAnnotation] != "true" && !c.wasNode(name) {
			continue
		}
		if gone, err := c.gone(ctx, name); err != nil {
			return err
		} else if !gone {
			continue
		}
		// Not if it was written since: its agent runs, whatever Kubernetes shows.
		deleted, err := kvstore.CompareAndDelete(ctx, c.store, kv.Key, kv.ModRevision)
		if err != nil {
			return fmt.Errorf("delete %s: %w", kv.Key, err)
		}
		if deleted {
			c.meter.Removed("node-keys", 1)
			c.log.Info("removed the key of a node that is gone", "node", name, "key", kv.Key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.deleted, func(name string, _ bool) bool { return !there[name] })
	return nil
}

// gone reports whether the API server has no Node of this name, and no CiliumNode that is to be
// kept without one. What the cache shows is not enough.
func (c *storeCollector) gone(ctx context.Context, name string) (bool, error) {
	for _, r := range []client.Reader{c.cached, c.live} {
		if there, err := hasNode(ctx, r, name); there || err != nil {
			return false, err
		}
	}
	var cn v2.CiliumNode
	switch err := c.live.Get(ctx, types.NamespacedName{Name: name}, &cn); {
	case err == nil:
		return cn.Annotations[keepAnnotation] != "true", nil
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("CiliumNode %s: %w", name, err)
	}
	return true, nil
}
