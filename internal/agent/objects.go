package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/labels"
)

// objects are the objects of Kubernetes that this node follows, into the tables that other sources
// fill too, and those that it writes for others. Nil stands for a node outside of Kubernetes.
type objects struct {
	pods      *pods.Pods
	nodes     *nodes.Nodes
	endpoints *endpoints.Endpoints
	policies  *policies.Policies
	// former keeps addresses from new pods that objects give to others; reserved opens when it
	// does.
	former   addressing.Former
	reserved *latch
}

// newObjects returns what follows and writes objects; it does neither yet. changed is called with
// pods whose labels may have changed.
func newObjects(cfg Config, host network.Host, filter *labels.Filter, c *cluster, t *tables, changed func(k8s.Key), log *slog.Logger) (o *objects, err error) {
	if c == nil {
		return nil, nil
	}
	o = &objects{reserved: newLatch()}
	pc := pods.Config{Client: c.client, NodeName: cfg.NodeName, Cluster: cfg.ClusterName, Changed: changed, Log: log}
	ec := endpoints.Config{
		Hosts: host.Addresses(), Slices: cfg.EndpointSlices, Silent: cfg.NoEndpointObjects, Shared: cfg.management().Operator(), Accept: t.acceptable,
		OnIdentity: func(wait time.Duration) { t.metrics.known.Observe(wait.Seconds()) }, Observed: o.reserve, Log: log,
	}
	if t.gates != nil {
		pc.Gated, ec.OnPublished = t.gates.add, t.gates.add
	}
	if o.pods, err = pods.New(pc); err != nil {
		return nil, err
	}
	if o.nodes, err = newNodeObjects(cfg, filter, c, t, log); err != nil {
		return nil, err
	}
	// With a key-value store the other nodes are observed there: two sources would take turns.
	var cache endpoints.Cache = t.cache
	if cfg.KVStore != "" {
		cache = discardCache{}
	}
	if o.endpoints, err = endpoints.New(ec, c.client, cache); err != nil {
		return nil, err
	}
	o.former = addressing.Former{Pool: t.pool, Named: o.addresses, Has: o.pods.Has, Interval: formerInterval, Log: log}
	pol := cfg.Policies
	pol.Keep = filepath.Join(cfg.StateDir, "policies-k8s")
	pol.Unkept = func(err error) { t.components.Warn("policy-copies", err, "the policies are kept for a restart") }
	if o.policies, err = policies.New(pol, c.client, log); err != nil {
		return nil, err
	}
	return o, nil
}

// formerInterval is how often it is looked whether objects still give addresses to former pods.
const formerInterval = time.Second

// addresses returns those of a node's addresses that objects give to pods.
func (o *objects) addresses(ofNode func(netip.Addr) bool) []pods.Address {
	return append(o.endpoints.Addresses(ofNode), slices.DeleteFunc(o.pods.Addresses(), func(a pods.Address) bool { return !ofNode(a.IP) })...)
}

// reserve keeps addresses of former pods, before any of their objects is deleted.
func (o *objects) reserve(ctx context.Context) {
	select {
	case <-o.pods.Synced():
		o.former.Reserve()
		o.reserved.open()
	case <-ctx.Done():
	}
}

// newNodeObjects returns what follows CiliumNodes and writes this node's own.
func newNodeObjects(cfg Config, filter *labels.Filter, c *cluster, t *tables, log *slog.Logger) (*nodes.Nodes, error) {
	var sink nodes.Sink = t.nodes
	if cfg.KVStore != "" {
		sink = nodes.Discard{}
	}
	own := func(o *v2.CiliumNode) {
		says, err := c.addressing.Changed(o, t.podCIDRs())
		if err != nil {
			log.Error("the node's pod CIDRs have changed", "error", err)
		}
		if says {
			t.refuseAddresses(err)
		}
	}
	mode := cfg.IPAM
	var fill func(*v2.CiliumNode, bool)
	switch given := c.assigned(); {
	case given != nil:
		own, fill = given.Observe, given.Fill
	case mode == addressing.ClusterPool:
		// The object was deleted, as by kubectl delete node, and the operator no longer knows whose
		// the block is.
		fill = func(o *v2.CiliumNode, made bool) {
			if made {
				o.Spec.IPAM.PodCIDRs = nil
				for _, p := range t.podCIDRs() {
					o.Spec.IPAM.PodCIDRs = append(o.Spec.IPAM.PodCIDRs, p.String())
				}
			}
		}
	}
	return nodes.New(nodes.Config{
		Self: cfg.self(), ClusterID: cfg.ClusterID, WritePodCIDRs: mode == addressing.Kubernetes || mode == addressing.Delegated || c.addressing.Fixed(),
		Own: own, Fill: fill, Namesake: t.namesakes.observe, Log: log,
		LabelFilter: filter.Fingerprint(), Management: string(cfg.management()),
	}, c.client, sink)
}

// skipsMasquerade reports whether the packets of the pod for which an address is asked leave the
// cluster under it: what the plugin gets, and returns when it has the endpoint made. An owner that
// is no namespace/pod is none of Kubernetes.
func (o *objects) skipsMasquerade(owner string) bool {
	if o == nil {
		return false
	}
	namespace, _, pod := strings.Cut(owner, "/")
	return pod && o.pods.SkipsMasquerade(namespace)
}

// workload returns what made a pod of this node; nil if that is not known.
func (o *objects) workload(namespace, pod string) *flowpb.Workload {
	return workloadOf(o.pods.Workload(k8s.Key{Namespace: namespace, Name: pod}))
}

// remoteWorkload returns what made a pod of another node; nil if that is not known.
func (o *objects) remoteWorkload(at netip.Addr, namespace, pod string) *flowpb.Workload {
	return workloadOf(o.endpoints.Workload(at, k8s.Key{Namespace: namespace, Name: pod}))
}

func workloadOf(w pods.Workload) *flowpb.Workload {
	if w.Name == "" {
		return nil
	}
	return &flowpb.Workload{Kind: w.Kind, Name: w.Name}
}

// waitNodes waits until the table of nodes has those that this cluster had when the agent started.
func (o *objects) waitNodes(ctx context.Context) error {
	if o == nil {
		return nil
	}
	return o.nodes.WaitSynced(ctx)
}

// discardCache ignores what the sources of Kubernetes claim where a key-value store is the source.
type discardCache struct{}

func (discardCache) Upsert(netip.Prefix, ipcache.Claim) (uint64, error)            { return 0, nil }
func (discardCache) Delete(netip.Prefix, ipcache.Source, string) (revision uint64) { return 0 }

// firstWellKnown is the first of the IDs below the allocated ones that pods can have:
// well-known and fixed ones.
const firstWellKnown = 100

// acceptable reports why a pod of another node cannot have an identity.
func (t *tables) acceptable(id identity.ID) error {
	switch {
	case id >= t.idMin && id <= t.idMax, id == identity.Health, id == identity.Init, id == identity.Unmanaged:
		return nil
	case id >= firstWellKnown && id < identity.MinGlobal:
		return nil
	}
	return fmt.Errorf("identity %s is not one that a pod can have", id)
}
