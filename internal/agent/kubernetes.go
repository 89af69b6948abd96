package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/placement"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/apiserver"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/retry"
)

// kubeConfig is what kube uses.
type kubeConfig struct {
	cfg       Config
	log       *slog.Logger
	cluster   *cluster
	objects   *objects
	tables    *tables
	lifecycle *endpoint.Lifecycle
	rules     *enforcement.Rules
	filter    *labels.Filter
	relabels  *podQueue
	servers   *placement.APIServers
	// everything opens when all that policy depends on has been observed.
	everything *syncGate
}

// kube applies the objects of Kubernetes to this node's endpoints and rules. Nil stands for
// a node outside of Kubernetes.
type kube struct {
	kubeConfig
	labels *identityLabels

	// creation opens when policy for new pods can be evaluated; open opens then.
	creation *syncGate
	open     *latch
	// identitiesKnown opens when the identities of the cluster are known.
	identitiesKnown *latch
	noteIdentities  func()
	// ranges opens when it is known whether the Node still has this node's pod CIDRs.
	ranges *latch

	mu    sync.Mutex
	state rest.K8SStatus
}

// newKube returns a kube that follows nothing yet. Everything must not
// be waited for before start.
func newKube(c kubeConfig) (*kube, error) {
	k := &kube{
		kubeConfig: c, creation: newSyncGate(), open: newLatch(), identitiesKnown: newLatch(), ranges: newLatch(),
		state: rest.K8SStatus{State: rest.StateWarning, Msg: c.cluster.client.Host() + " has not answered yet"},
	}
	k.noteIdentities = k.creation.expect("identities")
	var err error
	k.labels, err = newIdentityLabels(k.kubeConfig, k.putRules(c.everything.expect("policies of the cluster"), k.creation.expect("policies")), k.open)
	return k, err
}

// identitiesSynced records that the identities of the cluster are known. Only the first call
// counts.
func (k *kube) identitiesSynced() {
	k.noteIdentities()
	k.identitiesKnown.open()
}

// start begins to follow and to write. agent is notified of what becomes of assigned addresses.
func (k *kube) start(run *group, agent addressing.Agent) {
	c, o := k.cluster, k.objects
	run.start("kubernetes", func(ctx context.Context) error { return c.followKinds(ctx, k.cfg, k.log) })
	run.start("kubernetes-status", k.watchStatus)
	run.start("pods", o.pods.Run)
	run.start("pod-labels", k.followLabels)
	if k.tables.gates != nil {
		run.start("pod-readiness", k.keepGates)
	}
	run.start("cilium-nodes", c.afterKinds(o.nodes.Run))
	if c.pools != nil {
		run.start("ip-pools", c.afterKinds(c.pools.Follow))
	}
	if given := c.assigned(); given != nil {
		run.start("node-addressing", func(ctx context.Context) error { return given.Run(ctx, agent) })
	}
	k.startRanges(run)
	k.startEndpoints(run)
	const servers = "addresses of API servers"
	serversSynced, placed := k.everything.expect(servers), k.creation.expect(servers)
	run.start("api-servers", func(ctx context.Context) error {
		// The labels of this node's own identity are among those that come first.
		if k.identitiesKnown.wait(ctx) != nil {
			return nil
		}
		return apiserver.Run(ctx, c.client, k.log, func(list []netip.Addr) {
			k.servers.Set(list)
			serversSynced()
			placed()
		})
	})
	k.startRules(run)
	run.start("pods-admitted", func(ctx context.Context) error {
		if k.creation.wait(ctx) == nil {
			k.tables.policy.Observed()
			k.open.open()
		}
		return nil
	})
}

// startRanges begins to compare this node's pod CIDRs with those of its Node, where they are these.
func (k *kube) startRanges(run *group) {
	if !k.cluster.addressing.OfNode() || k.cfg.lbOnly() {
		k.ranges.open()
		return
	}
	compared := k.creation.expect("pod CIDRs of the Node")
	run.start("node-pod-cidrs", func(ctx context.Context) error {
		logged := ""
		return k.cluster.addressing.FollowNode(ctx, k.cluster.client, k.tables.podCIDRs, func(err error) {
			if text := fmt.Sprint(err); err != nil && text != logged {
				k.log.Error("the node's pod CIDRs have changed", "error", err)
				logged = text
			}
			k.tables.refuseAddresses(err)
			compared()
			k.ranges.open()
		})
	})
}

// awaitRanges waits for as long as a request for an address may until it is known whether the Node
// still has this node's pod CIDRs, and which of its addresses others know as those of former pods.
func (k *kube) awaitRanges(ctx context.Context) error {
	if k == nil {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, admitWait)
	defer cancel()
	for _, of := range []struct {
		seen *latch
		what string
	}{
		{k.ranges, "Node " + k.cfg.NodeName + ", whose pod CIDRs it gives addresses of"},
		{k.objects.reserved, "which of its addresses objects give to pods of before"},
	} {
		if of.seen.wait(within) == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return server.Errorf(http.StatusServiceUnavailable, "the agent has not observed %s yet; try again in a moment", of.what)
	}
	return nil
}

// startEndpoints begins to follow the pods of this node and of others.
func (k *kube) startEndpoints(run *group) {
	o := k.objects
	addressesSynced, podsSynced, placed := k.everything.expect("pods of other nodes"), k.everything.expect("pods of this node"), k.creation.expect("pods of other nodes")
	run.start("cilium-endpoints", k.cluster.afterKinds(o.endpoints.Run))
	run.start("cilium-endpoints-synced", func(ctx context.Context) error {
		if o.endpoints.WaitSynced(ctx) != nil {
			return nil
		}
		addressesSynced()
		// A deny of a peer whose address the kernel does not know yet would let it through.
		if k.tables.addresses.WaitTried(ctx, k.tables.cache.Table().Revision()) == nil {
			placed()
		}
		return nil
	})
	reserved, kept := k.everything.expect("addresses of former pods"), k.creation.expect("addresses of former pods")
	run.start("former-pods", func(ctx context.Context) error {
		if o.reserved.wait(ctx) != nil {
			return nil
		}
		reserved()
		kept()
		return o.former.Run(ctx)
	})
	run.start("pods-synced", func(ctx context.Context) error {
		select {
		case <-o.pods.Synced():
			k.logGone()
			podsSynced()
		case <-ctx.Done():
		}
		return nil
	})
}

// storedAfter is how long the API server may be away before policies are those from before the
// restart. With one that answers they are observed once.
const storedAfter = 3 * time.Second

// putRules returns what puts rules of the cluster in force, and calls inForce and admit when the
// first are.
func (k *kube) putRules(inForce, admit func()) func([]policy.Change) {
	return func(changes []policy.Change) {
		err := k.rules.Apply(changes)
		if err != nil {
			k.log.Error("policy is not fully in force", "error", err)
		}
		k.tables.components.Report("cluster-rules", err, "all rules of the cluster are in force")
		k.tables.metrics.policyUp.Add(float64(len(changes)))
		inForce()
		admit()
	}
}

// startRules begins to follow the rules of the cluster.
func (k *kube) startRules(run *group) {
	k.labels.start(run, k.creation.expect("labels of identities"))
	follow := k.cluster.afterKinds(func(ctx context.Context) error {
		return k.objects.policies.Run(ctx, func(changes []policy.Change) { k.labels.apply(ctx, changes) })
	})
	run.start("policies", func(ctx context.Context) error {
		kept := k.objects.policies.LoadStored()
		select {
		case <-k.cluster.kinds.opened:
		case <-time.After(storedAfter):
			// They are not enforced before all has been observed; they are for people to see, and
			// keep their prefixes and blocks of addresses in the kernel.
			if len(kept) > 0 {
				k.log.Info("the API server is unavailable; the stored policies are in force", "policies", len(kept))
			}
			if err := k.rules.Apply(kept); err != nil {
				k.log.Error("the stored policies are incomplete", "error", err)
			}
		case <-ctx.Done():
			return nil
		}
		return follow(ctx)
	})
}

// PolicyObjects shows the policies of the cluster as if each were a file.
func (k *kube) PolicyObjects(describe func(policy.Owner) string) []rest.PolicyFile {
	var out []rest.PolicyFile
	for _, s := range k.objects.policies.Status() {
		f := rest.PolicyFile{Path: string(s.Owner), State: rest.PolicyFileStateOk, InForce: s.InForce, Loaded: s.Loaded}
		if s.Err != nil {
			f.State, f.Error = rest.PolicyFileStateFaulty, s.Err.Error()
		}
		if k.labels.waits(s.Owner) {
			f.InForce, f.Error = false, "waits until the identities of all pods have the labels that it selects; its last version, if there was one, is in force"
		}
		if s.InForce {
			f.Policies = []rest.PolicyFilePolicy{{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, Rules: s.Rules, Description: describe(s.Owner)}}
		}
		out = append(out, f)
	}
	return out
}

// PolicyCounts counts the policies of the cluster.
func (k *kube) PolicyCounts() (ok, faulty int) { return k.objects.policies.Counts() }

// Named reports whether the node's addresses are of pools that have names.
func (k *kube) Named() bool { return k.cluster.pools != nil }

// admitWait is how long a new pod waits for the rules to be observed before the runtime is asked to
// try again.
const admitWait = 20 * time.Second

// Complete fills in the data of Kubernetes for the pod of a new endpoint. A pod must not begin
// before the rules have been observed that may isolate it. Labels that the runtime gives (CNI
// convention args.cni.labels) would be gone with the pod's next change, and no operator would know
// them: they are refused.
func (k *kube) Complete(ctx context.Context, req *endpoint.CreateRequest, given []string) error {
	if len(given) > 0 {
		return server.Errorf(http.StatusBadRequest, "labels (args.cni.labels of the CNI configuration) are not supported for pods of Kubernetes: "+
			"label the pod itself and leave them out: %s", strings.Join(given, ", "))
	}
	select {
	case <-k.open.opened:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(admitWait):
		return server.Errorf(http.StatusServiceUnavailable, "the agent has not observed all rules and identities from Kubernetes yet; try again in a moment")
	}
	key := k8s.Key{Namespace: req.Namespace, Name: req.PodName}
	info, err := k.objects.pods.Get(ctx, key, req.PodUID)
	switch {
	case errors.Is(err, pods.ErrNotFound):
		return server.Errorf(http.StatusNotFound, "%w", err)
	case err != nil:
		return err
	}
	plain, err := k.cluster.pools.Check(info, req)
	if err != nil {
		return err
	}
	k.objects.endpoints.Mirror(key, info.Runtime, info.UID)
	req.Labels, req.NamedPorts, req.PodUID, req.PodCreated = info.Labels, info.Ports, info.Runtime, info.Created
	if info.SkipMasquerade {
		req.PlainIPv4, req.PlainIPv6 = true, true
	}
	req.PlainIPv4, req.PlainIPv6 = req.PlainIPv4 || plain.IPv4, req.PlainIPv6 || plain.IPv6
	return nil
}

// Relabel has a pod's endpoints compared with the pod in Kubernetes.
func (k *kube) Relabel(key k8s.Key) { k.relabels.add(key) }

// statusInterval is how often the API server is asked whether it answers.
const statusInterval = 10 * time.Second

func (k *kube) watchStatus(ctx context.Context) error {
	for {
		version, err := k.cluster.client.Version(ctx)
		now := rest.K8SStatus{State: rest.StateOk, Msg: strings.TrimPrefix(version, "v") + " at " + k.cluster.client.Host()}
		if err != nil {
			now = rest.K8SStatus{State: rest.StateFailure, Msg: err.Error() + "; what was observed before stays in force"}
		}
		if ctx.Err() != nil {
			return nil
		}
		k.mu.Lock()
		k.state = now
		k.mu.Unlock()
		if !retry.Sleep(ctx, statusInterval) {
			return nil
		}
	}
}

// Status is what `hawser status` shows of Kubernetes.
func (k *kube) Status() rest.K8SStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}
