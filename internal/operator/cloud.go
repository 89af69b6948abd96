package operator

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/alibaba"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/aws"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/azure"
)

// addCloud adds the node manager with the cloud that --ipam names. Nothing is made of the others.
func (o *Operator) addCloud(ctx context.Context, m manager.Manager, c *kubeSide) error {
	cfg := o.cfg.Cloud
	cfg.Held = c.election.Held
	metrics, err := nodemanager.NewMetrics(o.metrics.registry)
	if err != nil {
		return err
	}
	b := nodemanager.NewBudget(cfg, metrics)
	var p nodemanager.Provider
	switch o.cfg.IPAM {
	case ipamAzure:
		cfg.ReleaseExcess = o.cfg.Azure.ReleaseExcess
		p, err = azure.New(o.cfg.Azure, b)
	case ipamAlibaba:
		cloud := o.cfg.Alibaba
		cloud.ClusterName = o.cfg.ClusterName
		cfg.ReleaseExcess, cfg.GCTags = cloud.ReleaseExcess, cloud.Collected()
		p, err = alibaba.New(ctx, cloud, b)
	default:
		cloud := o.cfg.AWS
		cloud.ClusterName, cloud.IPv6 = o.cfg.ClusterName, o.cfg.Pool.EnableIPv6
		cfg.ReleaseExcess, cfg.GCTags = cloud.ReleaseExcess, cloud.Collected()
		p, err = aws.New(ctx, cloud, b)
	}
	if err != nil {
		return err
	}
	return nodemanager.Setup(ctx, m, cfg, p, metrics, o.log.With("part", "ipam"))
}
