package policies

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/retry"
)

// clusterVersion is the version of ClusterNetworkPolicy that is read.
func clusterVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: policyv1alpha2.GroupVersion.Group, Version: policyv1alpha2.GroupVersion.Version}
}

const clusterResource = "clusternetworkpolicies"

// ClusterResource is ClusterNetworkPolicy in the version that is read.
func ClusterResource() schema.GroupVersionResource {
	return clusterVersion().WithResource(clusterResource)
}

// followCluster follows ClusterNetworkPolicy. A cluster without its definition has no such
// policies, and the agent need not wait for one; its presence is polled.
func (p *Policies) followCluster(ctx context.Context, synced func()) error {
	var once sync.Once
	markSynced := func() { once.Do(synced) }
	for ctx.Err() == nil {
		served, err := p.serves(ctx)
		wait := p.cfg.Look
		switch {
		case err != nil:
			// Whether there are any is not known, so that the rest has to wait as if there were.
			p.log.Debug("cannot find out whether ClusterNetworkPolicy is defined here", "error", err)
			wait = min(wait, time.Second)
		case served:
			p.log.Info("ClusterNetworkPolicy is defined here, and enforced", "version", clusterVersion().Version)
			if err := p.followWhileServed(ctx, markSynced); err != nil {
				return err
			}
			continue
		default:
			markSynced()
		}
		retry.Sleep(ctx, wait)
	}
	return nil
}

// followWhileServed returns when the definition is gone, and with it the policies, or when ctx
// ends.
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
		served, err := p.serves(ctx)
		if err != nil || served {
			continue
		}
		stop()
		err = <-done
		if ctx.Err() == nil {
			p.log.Info("ClusterNetworkPolicy is no longer defined here; its policies are gone")
			p.removeKind(KindCluster)
		}
		return err
	}
}

// serves asks whether the API server serves ClusterNetworkPolicy in the version that is read.
func (p *Policies) serves(ctx context.Context) (bool, error) {
	missing, err := p.client.Serves(ctx, ClusterResource())
	return len(missing) == 0, err
}

// parseCluster makes rules of a ClusterNetworkPolicy.
func (r *raw) parseCluster(fields map[string]json.RawMessage, faults []*policy.FieldError) ([]*policy.Rule, error) {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: r.ObjectMeta}
	if _, ok := fields["specs"]; ok {
		faults = append(faults, &policy.FieldError{Field: "specs", Problem: "is not a field that is known here"})
	}
	text, ok := fields["spec"]
	if !ok {
		return nil, &policy.FieldError{Field: "spec", Problem: "is missing"}
	}
	if more := decode("spec", text, &p.Spec); len(more) > 0 {
		p.Spec = policyv1alpha2.ClusterNetworkPolicySpec{}
		more = readCluster(text, &p.Spec)
		faults = append(faults, more...)
	}
	return policy.ParseClusterNetworkPolicy(p, policy.WithFaults(faults))
}

// readCluster reads the parts of a specification that can't be read as a whole.
func readCluster(text []byte, spec *policyv1alpha2.ClusterNetworkPolicySpec) (faults []*policy.FieldError) {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil || parts == nil {
		return decode("spec", text, spec)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		var more []*policy.FieldError
		switch name {
		case "ingress":
			spec.Ingress, more = readEntries[policyv1alpha2.ClusterNetworkPolicyIngressRule]("spec.ingress", parts[name])
		case "egress":
			spec.Egress, more = readEntries[policyv1alpha2.ClusterNetworkPolicyEgressRule]("spec.egress", parts[name])
		default:
			alone, _ := json.Marshal(map[string]json.RawMessage{name: parts[name]})
			if more = decode("spec."+name, alone, &policyv1alpha2.ClusterNetworkPolicySpec{}); len(more) == 0 {
				_ = json.Unmarshal(alone, spec) // as it just was
			}
		}
		faults = append(faults, more...)
	}
	return faults
}
