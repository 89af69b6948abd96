package relay

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
)

const (
	// namespacesAge is how old an answer about namespaces may be.
	namespacesAge = 5 * time.Second
	// maxNamespaces bounds that answer.
	maxNamespaces = 1 << 15
)

// ServerStatus implements [observer.ObserverServer]: the sum of the nodes' last status, which is at
// most as old as the interval of health checks.
func (r *Relay) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	views, _ := r.roster.nodes()
	out := &observer.ServerStatusResponse{Version: r.version}
	var connected, unavailable uint32
	for _, v := range views {
		if v.conn == nil {
			unavailable++
			out.UnavailableNodes = append(out.UnavailableNodes, v.name)
			continue
		}
		connected++
		out.NumFlows += v.status.GetNumFlows()
		out.MaxFlows += v.status.GetMaxFlows()
		out.SeenFlows += v.status.GetSeenFlows()
		out.FlowsRate += v.status.GetFlowsRate()
		out.UptimeNs = max(out.UptimeNs, v.status.GetUptimeNs()) // since when there may be flows
	}
	out.NumConnectedNodes, out.NumUnavailableNodes = wrapperspb.UInt32(connected), wrapperspb.UInt32(unavailable)
	return out, nil
}

// GetNodes implements [observer.ObserverServer].
func (r *Relay) GetNodes(context.Context, *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	views, _ := r.roster.nodes()
	out := &observer.GetNodesResponse{Nodes: make([]*observer.Node, 0, len(views))}
	for _, v := range views {
		n := &observer.Node{
			Name: v.name, Address: v.address, State: v.state, Version: v.status.GetVersion(),
			Tls:      &observer.TLS{Enabled: v.serverName != "", ServerName: v.serverName},
			UptimeNs: v.status.GetUptimeNs(), NumFlows: v.status.GetNumFlows(), MaxFlows: v.status.GetMaxFlows(), SeenFlows: v.status.GetSeenFlows(),
		}
		if v.state == relay.NodeState_UNKNOWN_NODE_STATE {
			n.State = relay.NodeState_NODE_UNAVAILABLE
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out, nil
}

// GetNamespaces implements [observer.ObserverServer]. Nodes that do not answer are left out.
func (r *Relay) GetNamespaces(ctx context.Context, _ *observer.GetNamespacesRequest) (*observer.GetNamespacesResponse, error) {
	list, err := r.namespaces.get(ctx, namespacesAge, r.askNamespaces)
	if err != nil {
		return nil, err
	}
	return &observer.GetNamespacesResponse{Namespaces: list}, nil
}

func (r *Relay) askNamespaces(ctx context.Context) []*observer.Namespace {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.DialTimeout)
	defer cancel()
	type key struct{ cluster, namespace string }
	var mu sync.Mutex
	found := map[key]bool{}
	views, _ := r.roster.nodes()
	askEach(len(views), func(i int) {
		if views[i].conn == nil {
			return
		}
		res, err := observer.NewObserverClient(views[i].conn).GetNamespaces(ctx, &observer.GetNamespacesRequest{})
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, n := range res.GetNamespaces() {
			if len(found) < maxNamespaces && len(n.GetNamespace())+len(n.GetCluster()) <= maxNodeName {
				found[key{n.GetCluster(), n.GetNamespace()}] = true
			}
		}
	})
	out := make([]*observer.Namespace, 0, len(found))
	for k := range found {
		out = append(out, &observer.Namespace{Cluster: k.cluster, Namespace: k.namespace})
	}
	slices.SortFunc(out, func(a, b *observer.Namespace) int {
		if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace, b.Namespace)
	})
	return out
}
