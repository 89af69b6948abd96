package hubble

import (
	"slices"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// policiesOf names the policies whose rules caused a verdict: all ordinary ones with that verdict,
// or the one of a tier that decides.
func policiesOf(side policy.TraceSide) []*flowpb.Policy {
	at := slices.IndexFunc(side.Steps, func(s policy.TraceStep) bool { return s.Decides && !s.Pass })
	if at < 0 {
		return nil // for want of a rule
	}
	decides := side.Steps[at]
	var out []*flowpb.Policy
	seen := map[policy.Owner]bool{}
	for i, s := range side.Steps {
		same := s.Tier == policy.TierOrdinary && decides.Tier == policy.TierOrdinary && s.Matches() && s.Deny == decides.Deny
		if (i == at || same) && !s.Local && !seen[s.Owner] {
			seen[s.Owner] = true
			out = append(out, policyNamed(s.Owner))
		}
	}
	return out
}

// policyNamed is the policy that an owner of rules stands for.
func policyNamed(o policy.Owner) *flowpb.Policy {
	name := o.Policy()
	p := &flowpb.Policy{Namespace: name.Namespace, Name: name.Name}
	label := func(key, value string) {
		if value != "" {
			p.Labels = append(p.Labels, labels.New(labels.SourceK8s, "io.cilium.k8s.policy."+key, value).String())
		}
	}
	label("derived-from", name.Kind)
	label("name", p.Name)
	label("namespace", p.Namespace)
	return p
}
