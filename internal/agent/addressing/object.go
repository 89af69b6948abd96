package addressing

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/node"
)

// askOperator makes this node's CiliumNode, if need be, with what fill writes into it, and calls
// observed with it until ctx ends.
func (c *Config) askOperator(ctx context.Context, client *k8s.Client, observed func(*v2.CiliumNode), fill func(o *v2.CiliumNode, made bool)) error {
	if err := client.WaitForKinds(ctx, c.KindsWait, c.Log, v2.Resource(v2.ResourceNodes)); err != nil {
		return err
	}
	asking, err := nodes.New(nodes.Config{Self: c.Self, ClusterID: c.ClusterID, Own: observed, Fill: fill, Log: c.Log}, client, nodes.Discard{})
	if err != nil {
		return err
	}
	self := node.Node{Name: c.Self.Name, Cluster: c.Self.Cluster, ClusterID: c.ClusterID, Source: node.SourceLocal}
	for _, ip := range c.Hosts {
		self.Addresses = append(self.Addresses, node.Address{Type: node.InternalIP, IP: ip})
	}
	if err := asking.Announce(self); err != nil {
		return err
	}
	return asking.Run(ctx)
}

// ownNode reads this node's object from the server itself.
func (c *Config) ownNode(ctx context.Context, client *k8s.Client) (*v2.CiliumNode, error) {
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	r, err := client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		return nil, err
	}
	o := &v2.CiliumNode{}
	if err := r.Get().Resource(v2.ResourceNodes).Name(c.Self.Name).Do(ctx).Into(o); err != nil {
		return nil, fmt.Errorf("CiliumNode %s: %w", c.Self.Name, err)
	}
	return o, nil
}

// patchStatus changes the status of this node's object, if it is still the version that o is, and
// returns it as it is then. Values that are nil are removed.
func (c *Config) patchStatus(ctx context.Context, client *k8s.Client, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error) {
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	r, err := client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion, "uid": o.UID}, "status": status})
	if err != nil {
		return nil, err
	}
	now := &v2.CiliumNode{}
	err = r.Patch(types.MergePatchType).Resource(v2.ResourceNodes).Name(o.Name).SubResource("status").Body(text).Do(ctx).Into(now)
	if err != nil {
		return nil, fmt.Errorf("status of CiliumNode %s: %w", o.Name, err)
	}
	return now, nil
}
