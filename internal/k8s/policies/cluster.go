package policies

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/policy"
)

// clusterVersion is the version of ClusterNetworkPolicy that is read.
func clusterVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: policyv1alpha2.GroupVersion.Group, Version: policyv1alpha2.GroupVersion.Version}
}

const clusterResource = "clusternetworkpolicies"

// followCluster follows ClusterNetworkPolicy. A cluster without its definition has no such policies, and the agent need not wait for one; it is looked for
// again and again, and so is whether it is gone.
func (p *Policies) followCluster(ctx context.Context, synced func()) error {
	var once sync.Once
	tell := func() { once.Do(synced) }
	for ctx.Err() == nil {
		served, err := p.serves(ctx)
		wait := p.cfg.Look
		switch {
		case err != nil:
			// Whether there are any is not known, so that the rest has to wait as if there were.
			p.log.Debug("cannot tell whether ClusterNetworkPolicy is defined here", "error", err)
			wait = min(wait, time.Second)
		case served:
			p.log.Info("ClusterNetworkPolicy is defined here, and enforced", "version", clusterVersion().Version)
			if err := p.followWhileServed(ctx, tell); err != nil {
				return err
			}
			continue
		default:
			tell()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// followWhileServed returns when the definition is gone, and with it the policies, or when ctx ends.
func (p *Policies) followWhileServed(ctx context.Context, synced func()) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- p.followRaw(p.theirs, clusterResource, KindCluster)(following, synced) }()
	tick := time.NewTicker(p.cfg.Look)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
		// An API server that has just started may not know its definitions yet: only one that says so twice is believed.
		gone := true
		for i := 0; i < 2 && gone; i++ {
			served, err := p.serves(ctx)
			gone = err == nil && !served
			if gone && i == 0 {
				select {
				case <-time.After(p.cfg.Look):
				case <-ctx.Done():
				}
			}
		}
		if !gone {
			continue
		}
		stop()
		err := <-done
		if ctx.Err() == nil {
			p.log.Info("ClusterNetworkPolicy is no longer defined here; its policies are gone")
			p.removeKind(KindCluster)
		}
		return err
	}
}

// serves asks whether the API server serves ClusterNetworkPolicy in the version that is read.
func (p *Policies) serves(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	var list metav1.APIResourceList
	err := p.client.Urgent.Discovery().RESTClient().Get().AbsPath("/apis", clusterVersion().Group, clusterVersion().Version).Do(ctx).Into(&list)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	for _, r := range list.APIResources {
		if r.Name == clusterResource {
			return true, nil
		}
	}
	return false, nil
}

// parseCluster makes rules of a ClusterNetworkPolicy.
func (r *raw) parseCluster() ([]*policy.Rule, error) {
	var spec *policyv1alpha2.ClusterNetworkPolicySpec
	if err := r.decode(map[string]any{"spec": &spec}); err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, errors.New("spec: is missing")
	}
	return policy.ParseClusterNetworkPolicy(&policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: r.ObjectMeta, Spec: *spec})
}
