package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/internal/agent/hubble"
	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
)

// newHubble returns what records and serves this node's flows, with what it reads of the agent.
func newHubble(a *api, log *slog.Logger) (*hubble.Hubble, error) {
	n := hubble.Node{
		Self: node.Key{Cluster: a.cfg.ClusterName, Name: a.cfg.NodeName}, Version: a.version, Nodes: a.nodes.Table(), NodesSynced: a.waitNodes,
		Monitor:   a.monitor,
		Endpoints: a.registry, Addresses: a.cache, Policy: a.policy, Labels: a.identities.Labels,
		InForce: a.isInForce, Judged: labels.AllKeys,
		Listen: func(path, option string) (net.Listener, error) { return restapi.Listen(path, option, log) },
		ServeMetrics: func(ctx context.Context, l net.Listener, registry *prometheus.Registry) error {
			return serveMetrics(ctx, l, registry, metricsTimeout)
		},
		Report:   a.components.Set,
		Services: func(s grpc.ServiceRegistrar) { health.RegisterNodeHealthServer(s, a.rest.HealthService()) },
	}
	if a.kube != nil {
		n.Judged = a.kube.labels.judged
		n.Workload, n.RemoteWorkload = a.kube.workload, a.kube.remoteWorkload
		if a.kube.services != nil {
			n.Frontends = a.kube.services.Table()
		}
	}
	return hubble.New(a.cfg.Flows, n, log)
}

// workload returns what made a pod of this node; nil if that is not known.
func (k *kube) workload(namespace, pod string) *flowpb.Workload {
	return workloadOf(k.pods.Workload(k8s.Key{Namespace: namespace, Name: pod}))
}

// remoteWorkload returns what made a pod of another node; nil if that is not known.
func (k *kube) remoteWorkload(at netip.Addr, namespace, pod string) *flowpb.Workload {
	return workloadOf(k.endpoints.Workload(at, k8s.Key{Namespace: namespace, Name: pod}))
}

func workloadOf(w pods.Workload) *flowpb.Workload {
	if w.Name == "" {
		return nil
	}
	return &flowpb.Workload{Kind: w.Kind, Name: w.Name}
}
