package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest/server"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

const flagPreAllocation = "ipam-multi-pool-pre-allocation"

// defaultAhead is how many addresses of the default pool a node has in advance if nothing is said.
const defaultAhead = 8

// preAllocation is what PreAllocation says; Validate has parsed it.
func (c Config) preAllocation() map[string]int {
	out, _ := parsePreAllocation(c.PreAllocation)
	if _, ok := out[c.DefaultPool]; !ok {
		out[c.DefaultPool] = defaultAhead
	}
	return out
}

func parsePreAllocation(list []string) (map[string]int, error) {
	out := map[string]int{}
	var errs []error
	for _, text := range list {
		name, number, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("--%s: %q is not of the form pool=number", flagPreAllocation, text))
			continue
		}
		out[name] = n
	}
	return out, errors.Join(errs...)
}

// validateMultiPool checks what counts with pools only.
func (c *Config) validateMultiPool() error {
	ahead, err := parsePreAllocation(c.PreAllocation)
	errs := []error{err}
	if c.DefaultPool == "" {
		errs = append(errs, errors.New("--ipam-default-ip-pool: must not be empty"))
	}
	if n, ok := ahead[c.DefaultPool]; ok && n < 1 {
		errs = append(errs, fmt.Errorf("--%s: pool %q needs at least 1: the node itself has an address of it", flagPreAllocation, c.DefaultPool))
	}
	if c.IPv4Range != "" || c.IPv6Range != "" {
		errs = append(errs, fmt.Errorf("--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the pools say which addresses pods get", ipamMultiPool))
	}
	return errors.Join(errs...)
}

// nodePools returns the pools of this node; nil if there are none.
func (k *kube) nodePools() *nodePools {
	if k == nil {
		return nil
	}
	return k.pools
}

// assigned says whether the node's CIDRs are of pools.
func (a *api) assigned() bool { return a.kube.nodePools() != nil }

// awaitPools returns when the node has addresses of the default pool for itself: those of before if
// there are pods that use them, else what the operator assigns, for which it waits.
func (k *kube) awaitPools(ctx context.Context, facts nodeFacts) error {
	state := filepath.Join(k.cfg.StateDir, "state")
	n, err := newNodePools(k.cfg, filepath.Join(state, "pools.json"), k.log.With("part", "ipam"))
	if err != nil {
		return err
	}
	n.live = k.ownNode
	k.pools = n
	store, err := endpoint.NewStore(state)
	if err != nil {
		return err
	}
	rows, err := store.Load()
	switch {
	case err == nil && len(rows) > 0:
		before, err := loadRanges(filepath.Join(state, "podcidrs.json"))
		if err != nil {
			k.log.Warn("cannot read the pod CIDRs of before", "error", err)
		}
		if err := n.inherit(before); err != nil {
			return err
		}
	case err == nil:
		n.clear()
	}
	if n.missing() == nil {
		k.log.Info("this node keeps its pod CIDRs", "pools", text(n.state.Pools))
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make(chan struct{}, 1)
	asked := make(chan error, 1)
	go func() {
		asked <- k.askOperator(ctx, facts, func(o *v2.CiliumNode) {
			n.hear(o)
			if n.missing() == nil {
				select {
				case found <- struct{}{}:
				default:
				}
			}
		}, n.fill)
	}()
	remind := time.NewTicker(rangesRemind)
	defer remind.Stop()
	said := time.After(2 * time.Second) // usually it is there
	for {
		select {
		case <-found:
			cancel(nil)
			<-asked
			return nil
		case err := <-asked:
			if err == nil {
				err = context.Cause(ctx)
			}
			return err
		case <-said:
		case <-remind.C:
		}
		if n.confirm(ctx); n.missing() == nil {
			cancel(nil)
			<-asked
			return nil
		}
		k.log.Warn("waiting for the addresses of this node's pods", "missing", n.missing(),
			"in", "spec.ipam.pools.allocated of CiliumNode "+k.cfg.NodeName+", which the operator fills in; status.ipam.operator-status.error says what keeps it from that")
	}
}

// filler returns what writes into the node's object; nil if there is nothing.
func (n *nodePools) filler() func(*v2.CiliumNode, bool) {
	if n == nil {
		return nil
	}
	return n.fill
}

// heardOwn is told of this node's object.
func (k *kube) heardOwn(o *v2.CiliumNode) {
	if k.pools != nil {
		k.pools.hear(o)
		return
	}
	k.checkRanges(o)
}

// ownNode reads this node's object from the server itself.
func (k *kube) ownNode(ctx context.Context) (*v2.CiliumNode, error) {
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	c, err := k.client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		return nil, err
	}
	o := &v2.CiliumNode{}
	if err := c.Get().Resource(v2.ResourceNodes).Name(k.cfg.NodeName).Do(ctx).Into(o); err != nil {
		return nil, fmt.Errorf("CiliumNode %s: %w", k.cfg.NodeName, err)
	}
	return o, nil
}

// joinPools connects the pools of this node with what follows and tells them. It must be called
// once k.nodes is made.
func (k *kube) joinPools(a *api) {
	if k.pools == nil {
		return
	}
	n := k.pools
	n.mu.Lock()
	defer n.mu.Unlock()
	k.ippools = ippools.New(k.client, n.look, n.log)
	n.known, n.refresh = k.ippools.Get, k.nodes.Refresh
	n.report = func(err error) { a.components.Report("pod-cidrs", err, "as assigned") }
	n.moved = func() {
		select {
		case a.podCIDRsMoved <- struct{}{}:
		default: // it is due already
		}
	}
}

// startPools begins to follow the pools and to look after the node's CIDRs.
func (k *kube) startPools(run *group) {
	if k.pools == nil {
		return
	}
	run.start("ip-pools", k.afterKinds(k.ippools.Run))
	run.start("node-pools", k.tendPools)
}

// tendEvery is how often superfluous CIDRs are looked for.
const tendEvery = 5 * time.Second

// tendPools asks for what is needed, hands back what is not, and has others told what the node's
// CIDRs are, until ctx ends.
func (k *kube) tendPools(ctx context.Context) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-k.a.pool.DemandMoved():
		case <-k.a.podCIDRsMoved:
			self := k.a.selfNode(k.facts)
			if err := errors.Join(k.a.nodes.Announce(self), k.nodes.Announce(self)); err != nil {
				k.log.Error("cannot tell the other nodes of this one's pod CIDRs", "error", err)
			}
			select {
			case k.a.cidrsMoved <- struct{}{}:
			default: // it is due already
			}
		}
		k.pools.confirm(ctx)
		k.pools.tend(time.Now())
	}
}

// plainly says for which families packets leave the cluster under the pod's own address.
type plainly struct{ IPv4, IPv6 bool }

// poolsFor returns the pools from which the pod for which an address is asked is to have it, and
// whether it leaves the cluster under it. A pool that the request names counts, if it comes from
// nobody who asks for a pod. An owner that is no namespace/pod is none of Kubernetes.
func (a *api) poolsFor(ctx context.Context, owner, named string) (ipam.Choice, plainly, error) {
	both := ipam.Choice{IPv4: named, IPv6: named}
	skip := a.kube.skipsMasquerade(owner)
	plain := plainly{skip, skip}
	namespace, name, isPod := strings.Cut(owner, "/")
	if !a.assigned() || !isPod || named != "" {
		return both, plain, nil
	}
	if err := a.kube.awaitPoolsHeard(ctx); err != nil {
		return both, plain, err
	}
	info, err := a.kube.pods.Get(ctx, k8s.Key{Namespace: namespace, Name: name}, "")
	switch {
	case errors.Is(err, pods.ErrNotFound):
		return both, plain, server.Errorf(http.StatusBadGateway, "%w", err)
	case err != nil:
		return both, plain, server.Errorf(http.StatusServiceUnavailable, "%w", err)
	}
	choice, of, err := a.kube.choose(info)
	if err != nil {
		return choice, plain, server.Errorf(http.StatusBadGateway, "%w", err)
	}
	return choice, plainly{plain.IPv4 || of.IPv4, plain.IPv6 || of.IPv6}, nil
}

// awaitPoolsHeard waits until it is known which pools there are.
func (k *kube) awaitPoolsHeard(ctx context.Context) error {
	select {
	case <-k.ippools.Synced():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(admitWait):
		return server.Errorf(http.StatusServiceUnavailable, "the agent has not heard of all CiliumPodIPPools yet; try again in a moment")
	}
}

// choose returns the pools of a pod. One that has no addresses of a family that pods have is an
// error: the pod would be without.
func (k *kube) choose(info pods.Info) (ipam.Choice, plainly, error) {
	choice, err := ippools.Choose(info.Choice, k.ippools.All(), k.cfg.DefaultPool, k.pools.families)
	if err != nil {
		return choice, plainly{}, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	var plain plainly
	for _, f := range []struct {
		on, v4           bool
		name, annotation string
		plain            *bool
	}{
		{k.cfg.EnableIPv4, true, choice.IPv4, ippools.IPv4PoolAnnotation, &plain.IPv4},
		{k.cfg.EnableIPv6, false, choice.IPv6, ippools.IPv6PoolAnnotation, &plain.IPv6},
	} {
		p, ok, _ := k.ippools.Get(f.name)
		if !f.on || !ok {
			continue // without the default pool the operator says so in the node's status
		}
		if p.Fault != nil {
			return choice, plain, server.Errorf(http.StatusServiceUnavailable, "the pod is to have an address of a pool that makes no sense: %w", p.Fault)
		}
		part, family := p.IPv6, "IPv6"
		if f.v4 {
			part, family = p.IPv4, "IPv4"
		}
		if len(part.Ranges) == 0 {
			return choice, plain, server.Errorf(http.StatusBadRequest, "CiliumPodIPPool %s has no %s range: add one, or name another pool with the annotation %s", f.name, family, f.annotation)
		}
		*f.plain = p.SkipMasquerade
	}
	return choice, plain, nil
}

// assignWait is how long a pod waits for its node to be assigned a CIDR of the pool.
const assignWait = 10 * time.Second

// allocate gives addresses. Where the operator assigns CIDRs it waits a while for one, if there is
// no address left.
func (a *api) allocate(ctx context.Context, families ipam.Families, owner string, pools ipam.Choice, expire bool) (ipam.Result, error) {
	patience := time.NewTimer(assignWait)
	defer patience.Stop()
	for {
		moved := a.pool.Moved()
		res, err := a.pool.AllocateFrom(families, owner, pools, expire)
		if !errors.Is(err, ipam.ErrExhausted) || !a.assigned() {
			return res, err
		}
		select {
		case <-moved:
			continue
		case <-ctx.Done():
		case <-a.stopping:
		case <-patience.C:
		}
		return res, fmt.Errorf("%w; status.ipam.operator-status.error of CiliumNode %s says if the operator cannot assign more", err, a.cfg.NodeName)
	}
}

// checkPools refuses addresses for a pod that are not of the pools that the pod is to have them of:
// which it is may have changed since they were given, or whoever asked for them spoke for another
// pod. It returns for which families packets leave the cluster under them.
func (k *kube) checkPools(info pods.Info, req *endpoint.CreateRequest) (plainly, error) {
	if k.pools == nil {
		return plainly{}, nil
	}
	choice, plain, err := k.choose(info)
	if err != nil {
		return plainly{}, err
	}
	for ip, want := range map[netip.Addr]string{req.IPv4: choice.IPv4, req.IPv6: choice.IPv6} {
		if !ip.IsValid() {
			continue
		}
		if of := k.a.pool.PoolOf(ip); of != want {
			return plainly{}, server.Errorf(http.StatusConflict, "address %s is of pool %q, and pod %s is to have one of pool %q; try again", ip, of, req.Pod(), want)
		}
	}
	return plain, nil
}
