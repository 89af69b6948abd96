package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	definitions "github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/operator/clusterpool"
	"github.com/hawser-net/hawser/internal/operator/crds"
	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/operator/endpoints"
	"github.com/hawser-net/hawser/internal/operator/endpointslices"
	"github.com/hawser-net/hawser/internal/operator/groups"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/operator/mesh"
	"github.com/hawser-net/hawser/internal/operator/multipool"
	"github.com/hawser-net/hawser/internal/operator/nodes"
	"github.com/hawser-net/hawser/internal/operator/policies"
	"github.com/hawser-net/hawser/internal/operator/relevance"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// kubeSide is the Kubernetes side of the operator.
type kubeSide struct {
	rest     *rest.Config
	prober   *kube.Prober
	election *election.Election
	// store and what collects in it; nil without one.
	store kvstore.Backend
	ids   *allocator.Allocator
}

// newCluster prepares the Kubernetes side. It reads files but sends nothing.
func (o *Operator) newCluster(store kvstore.Backend, ids *allocator.Allocator) (*kubeSide, error) {
	cfg, err := o.cfg.Kube.Rest("hawser-operator/" + o.version)
	if err != nil {
		return nil, err
	}
	prober, err := kube.NewProber(cfg)
	if err != nil {
		return nil, err
	}
	e, err := election.New(o.cfg.Election, cfg, o.cfg.Kube.InNamespace(), election.Identity(o.cfg.Hostname), o.log)
	if err != nil {
		return nil, err
	}
	o.metrics.watchElection(e)
	return &kubeSide{cfg, prober, e, store, ids}, nil
}

// runCluster waits for the server, stands for election and leads.
func (o *Operator) runCluster(ctx context.Context, c *kubeSide) error {
	if err := o.awaitServer(ctx, c.prober); err != nil || ctx.Err() != nil {
		return err
	}
	return c.election.Run(ctx, func(ctx context.Context) error { return o.lead(ctx, c) })
}

// awaitServer returns when the API server answers, with an error if it is too old.
func (o *Operator) awaitServer(ctx context.Context, p *kube.Prober) error {
	pauses := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 32, Cap: 5 * time.Second}
	err := pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		info, err := p.Version(attempt)
		if err == nil {
			o.log.Info("the API server answers", "version", info.GitVersion)
			return true, crds.CheckServer(info)
		}
		if ctx.Err() == nil {
			o.log.Warn("waiting for the API server", "error", err)
		}
		return false, nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lead does what only one operator may do, until ctx ends.
func (o *Operator) lead(ctx context.Context, c *kubeSide) error {
	cfg := rest.CopyConfig(c.rest)
	kube.Apart(cfg)
	cfg.Wrap(c.election.Fence)
	kinds, err := o.prepareResources(ctx, cfg)
	if err != nil {
		return err
	}
	m, err := kube.NewManager(cfg, kinds, o.log, kube.StopTimeout)
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(m.GetHTTPClient().Transport)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lost := func() { cancel(election.ErrLost) }
	if err := o.addControllers(ctx, m, c, lost); err != nil {
		return err
	}
	var view client.Reader = m.GetCache()
	o.cache.Store(&view)
	defer o.cache.Store(nil)
	defer o.keys.Store(nil)
	defer o.inStore.Store(nil)
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	if err := context.Cause(ctx); errors.Is(err, election.ErrLost) {
		return fmt.Errorf("%w: another operator has written to the key-value store as the leader", err)
	}
	return nil
}

// prepareResources has the server serve the custom resources. It returns a mapper that knows their
// kinds.
func (o *Operator) prepareResources(ctx context.Context, cfg *rest.Config) (meta.RESTMapper, error) {
	defs, err := definitions.All()
	if err != nil {
		return nil, err
	}
	c, err := kube.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	log := o.log.With("part", "crds")
	if o.cfg.SkipCRDs {
		err = crds.Wait(ctx, c, crds.Names(defs), log)
	} else {
		err = crds.Register(ctx, c, defs, log)
	}
	return c.RESTMapper(), err
}

// addControllers adds everything that the leader does to m: this is the list. lost is called when
// another operator has begun to lead.
func (o *Operator) addControllers(ctx context.Context, m manager.Manager, c *kubeSide, lost func()) error {
	reg := o.metrics.registry
	nodeConfig, endpointConfig := o.cfg.Nodes, o.cfg.Endpoints
	nodeConfig.Meter, endpointConfig.Meter = o.metrics.meter, o.metrics.meter
	endpointConfig.Sliced = o.cfg.Slices.Enable
	// Before anything else: nodes wait for their addresses.
	switch o.cfg.IPAM {
	case ipamClusterPool:
		if err := clusterpool.Setup(ctx, m, o.cfg.Pool, reg, o.log.With("part", "cluster-pool")); err != nil {
			return err
		}
	case ipamMultiPool:
		if err := multipool.Setup(ctx, m, o.cfg.Pools, reg, o.log.With("part", "multi-pool")); err != nil {
			return err
		}
	case ipamENI, ipamAzure, ipamAlibaba:
		if err := o.addCloud(ctx, m, c); err != nil {
			return err
		}
	}
	if err := nodes.SetupReadiness(ctx, m, o.cfg.Nodes, o.cfg.Kube.InNamespace(), o.log.With("part", "node-readiness")); err != nil {
		return err
	}
	if err := nodes.SetupGC(m, nodeConfig, o.log.With("part", "node-gc")); err != nil {
		return err
	}
	if err := endpoints.SetupGC(m, endpointConfig, o.log.With("part", "endpoint-gc")); err != nil {
		return err
	}
	if err := endpoints.SetupRestart(m, endpointConfig, reg, o.log.With("part", "unmanaged-pods")); err != nil {
		return err
	}
	rules, err := o.cfg.Identities.Rules(o.cfg.ClusterName, o.first, o.last)
	if err != nil {
		return err
	}
	if err := endpointslices.Setup(m, o.cfg.Slices, rules.IdentityOf, reg, o.log.With("part", "endpoint-slices")); err != nil {
		return err
	}
	if o.cfg.ValidatePolicies {
		if err := policies.Setup(m, o.cfg.Groups.Interval > 0, o.log.With("part", "policies")); err != nil {
			return err
		}
	}
	if err := policies.SetupNodeStatusGC(m, o.cfg.PolicyNodeStatusInterval, o.log.With("part", "policies")); err != nil {
		return err
	}
	if err := groups.Setup(m, o.cfg.Groups, groups.NewAWS(), o.log.With("part", "groups")); err != nil {
		return err
	}
	if c.store != nil {
		store := &fencedStore{Backend: c.store, held: c.election.Held, name: c.election.Identity(), lost: lost}
		if err := nodes.SetupStoreGC(m, nodeConfig, store, o.cfg.ClusterName, o.log.With("part", "node-gc")); err != nil {
			return err
		}
		if err := mesh.Setup(m, o.cfg.mesh(), store, reg, o.log.With("part", "clustermesh")); err != nil {
			return err
		}
	}
	if o.cfg.inCRD() && o.cfg.inKVStore() {
		if err := o.addComparison(m, c.store); err != nil {
			return err
		}
	}
	if o.cfg.GCInterval > 0 && o.cfg.inKVStore() && !o.cfg.keysByOperator() {
		err := m.Add(manager.RunnableFunc(func(ctx context.Context) error {
			return o.collectIdentities(ctx, c.store, c.ids, o.gcLimiter(storeRate), nil)
		}))
		if err != nil {
			return err
		}
	}
	switch {
	case o.cfg.inCRD():
		return o.addIdentities(m)
	case o.cfg.keysByOperator():
		return o.addKeys(m, c, rules)
	}
	return nil
}

// addIdentities adds what makes and collects identities that are objects.
func (o *Operator) addIdentities(m manager.Manager) error {
	management, err := o.cfg.Management()
	if err != nil {
		return err
	}
	gc := identities.Config{
		Interval: o.cfg.GCInterval, Timeout: o.cfg.HeartbeatTimeout, Quarantine: o.cfg.ReuseDelay, Lost: o.cfg.LostNodeDelay,
		Namespace: o.cfg.Kube.InNamespace(), Limiter: o.gcLimiter(rate.Inf),
		First: uint32(o.first), Last: uint32(o.last), Agents: management.Agent(),
	}
	if management.Operator() {
		rules, err := o.cfg.Identities.Rules(o.cfg.ClusterName, o.first, o.last)
		if err != nil {
			return err
		}
		// It starts when the labels that make identities are known.
		keys := relevance.New(o.cfg.Relevance, o.cfg.Kube.InNamespace(), o.log.With("part", "identity-labels"))
		control := o.cfg.Identities
		control.Await, control.Agents = keys.Await, management.Agent()
		if gc.Pods, err = identities.Setup(m, control, rules, nil, o.metrics.registry, o.log.With("part", "identities")); err != nil {
			return err
		}
		if err := keys.Setup(m, gc.Pods, o.metrics.registry); err != nil {
			return err
		}
		o.keys.Store(keys)
	}
	return identities.SetupGC(m, gc, func(s identities.Stats, took time.Duration, err error) {
		o.metrics.collected(ofCRD, s, took, err)
	}, o.log.With("part", "identity-gc"))
}

// addKeys adds what makes identities in the store, and collects them there.
func (o *Operator) addKeys(m manager.Manager, c *kubeSide, rules *identities.Rules) error {
	management, err := o.cfg.Management()
	if err != nil {
		return err
	}
	control := o.cfg.Identities
	control.Agents = management.Agent()
	control.Await = func(ctx context.Context) { o.awaitStore(ctx, c.store) }
	// The name under which this process stands for election is new with every start, and so are its
	// references.
	keys := &identities.Keys{Store: c.store, Suffix: "operator-" + c.election.Identity()}
	pods, err := identities.Setup(m, control, rules, keys, o.metrics.registry, o.log.With("part", "identities"))
	if err != nil {
		return err
	}
	o.inStore.Store(pods)
	if o.cfg.GCInterval == 0 {
		return nil
	}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return o.collectIdentities(ctx, c.store, c.ids, o.gcLimiter(storeRate), func(ctx context.Context, numbers []allocator.ID) (func(allocator.ID) bool, error) {
			return usersOfKeys(ctx, c.store, pods, numbers)
		})
	}))
}

// podsOf reports which of some IDs pods and their endpoints use; it fails as long as that is
// not known.
type podsOf interface {
	Users(ctx context.Context, numbers []identity.ID) (used func(identity.ID) bool, err error)
}

// usersOfKeys finds which of some IDs are used that no agent refers to: by pods, their
// endpoints, and the addresses that agents have written into the store.
func usersOfKeys(ctx context.Context, store kvstore.Backend, pods podsOf, numbers []allocator.ID) (func(allocator.ID) bool, error) {
	ids := make([]identity.ID, len(numbers))
	for i, id := range numbers {
		ids[i] = identity.ID(id)
	}
	used, err := pods.Users(ctx, ids)
	if err != nil {
		return nil, err
	}
	unused := map[allocator.ID]bool{}
	for _, id := range numbers {
		if !used(identity.ID(id)) {
			unused[id] = true
		}
	}
	if len(unused) == 0 {
		return func(allocator.ID) bool { return true }, nil
	}
	prefix := kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace) + "/"
	// What a listing that began anew has shown before counts, too: it only keeps an ID in use.
	_, err = kvstore.ListPages(ctx, store, prefix, func() {}, func(page []kvstore.KeyValue) {
		for _, kv := range page {
			if p, err := ipcache.ParsePair(strings.TrimPrefix(kv.Key, prefix), kv.Value); err == nil {
				delete(unused, allocator.ID(p.Identity))
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of addresses: %w", err)
	}
	return func(id allocator.ID) bool { return !unused[id] || used(identity.ID(id)) }, nil
}
