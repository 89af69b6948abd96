package addressing

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// Plain has the families whose packets leave the cluster under the pod's own address.
type Plain struct{ IPv4, IPv6 bool }

// Or is the union of both.
func (p Plain) Or(o Plain) Plain { return Plain{p.IPv4 || o.IPv4, p.IPv6 || o.IPv6} }

// Pods returns a pod's data of Kubernetes.
type Pods interface {
	Get(ctx context.Context, key k8s.Key, uid string) (pods.Info, error)
}

// syncWait is how long a new pod waits until it is known which pools there are.
const syncWait = 20 * time.Second

// For returns the pools for a pod's address, and whether the pod leaves the cluster under that
// address. A pool named by the request counts only if the request is not for a pod. An owner that
// is not of the form namespace/pod is none of Kubernetes. Errors have the code of the REST API.
func (n *Pools) For(ctx context.Context, dir Pods, owner, named string) (ipam.Choice, Plain, error) {
	both := ipam.Choice{IPv4: named, IPv6: named}
	namespace, name, isPod := strings.Cut(owner, "/")
	if n == nil || !isPod || named != "" {
		return both, Plain{}, nil
	}
	if err := n.waitSynced(ctx); err != nil {
		return both, Plain{}, err
	}
	info, err := dir.Get(ctx, k8s.Key{Namespace: namespace, Name: name}, "")
	switch {
	case errors.Is(err, pods.ErrNotFound):
		return both, Plain{}, server.Errorf(http.StatusBadGateway, "%w", err)
	case err != nil:
		return both, Plain{}, server.Errorf(http.StatusServiceUnavailable, "%w", err)
	}
	choice, plain, err := n.choose(info)
	if err != nil {
		return choice, Plain{}, server.Errorf(http.StatusBadGateway, "%w", err)
	}
	return choice, plain, nil
}

// waitSynced waits until it is known which pools there are.
func (n *Pools) waitSynced(ctx context.Context) error {
	timeout := time.NewTimer(syncWait)
	defer timeout.Stop()
	select {
	case <-n.catalog.Synced():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return server.Errorf(http.StatusServiceUnavailable, "the agent has not observed all CiliumPodIPPools yet; try again in a moment")
	}
}

// choose returns the pools of a pod. One that has no addresses of a family that pods have is an
// error: the pod would be without.
func (n *Pools) choose(info pods.Info) (ipam.Choice, Plain, error) {
	choice, err := ippools.Choose(info.Choice, n.catalog.All(), n.cfg.DefaultPool, n.cfg.Families)
	if err != nil {
		return choice, Plain{}, server.Errorf(http.StatusBadRequest, "%w", err)
	}
	var plain Plain
	for _, f := range []struct {
		family           ipam.Families
		name, annotation string
		plain            *bool
	}{
		{ipam.IPv4, choice.IPv4, ippools.IPv4PoolAnnotation, &plain.IPv4},
		{ipam.IPv6, choice.IPv6, ippools.IPv6PoolAnnotation, &plain.IPv6},
	} {
		p, ok, _ := n.catalog.Get(f.name)
		if n.cfg.Families&f.family == 0 || !ok {
			continue // the operator reports a missing default pool in the node's status
		}
		if p.Fault != nil {
			return choice, plain, server.Errorf(http.StatusServiceUnavailable, "the pod's address is to be of an invalid pool: %w", p.Fault)
		}
		part, family := p.IPv6, "IPv6"
		if f.family == ipam.IPv4 {
			part, family = p.IPv4, "IPv4"
		}
		if len(part.Ranges) == 0 {
			return choice, plain, server.Errorf(http.StatusBadRequest, "CiliumPodIPPool %s has no %s range: add one, or name another pool with the annotation %s", f.name, family, f.annotation)
		}
		*f.plain = p.SkipMasquerade
	}
	return choice, plain, nil
}

// Check refuses addresses for a pod that are not of the pod's pools: the choice of pools may have
// changed since they were assigned, or the request was for another pod. It returns the families
// whose packets leave the cluster under these addresses. Errors have the code of the REST API.
func (n *Pools) Check(info pods.Info, req *endpoint.CreateRequest) (Plain, error) {
	if n == nil {
		return Plain{}, nil
	}
	choice, plain, err := n.choose(info)
	if err != nil {
		return Plain{}, err
	}
	for ip, want := range map[netip.Addr]string{req.IPv4: choice.IPv4, req.IPv6: choice.IPv6} {
		if !ip.IsValid() {
			continue
		}
		if of := n.pool.PoolOf(ip); of != want {
			return Plain{}, server.Errorf(http.StatusConflict, "address %s is of pool %q, and pod %s is to have one of pool %q; try again", ip, of, req.Pod(), want)
		}
	}
	return plain, nil
}
