package hubble

import (
	"slices"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// maxNamed is how many policies a flow names: anyone who may create policies can have any number of
// them allow the same, and a relay refuses flows that are very large.
const maxNamed = 16

// policiesOf names the policies whose rules caused a verdict, maxNamed at most, the deciding one
// first: all ordinary ones with that verdict, or the one of a tier that decides. named returns the
// policy that an owner stands for.
func policiesOf(side policy.TraceSide, named func(policy.Owner) *flowpb.Policy) []*flowpb.Policy {
	at := slices.IndexFunc(side.Steps, func(s policy.TraceStep) bool { return s.Decides && !s.Pass })
	if at < 0 {
		return nil // for want of a rule
	}
	decides := side.Steps[at]
	var out []*flowpb.Policy
	seen := map[policy.Owner]bool{}
	for i, s := range side.Steps[at:] { // of ordinary ones the first with the verdict decides
		if len(out) == maxNamed {
			break
		}
		same := s.Tier == policy.TierOrdinary && decides.Tier == policy.TierOrdinary && s.Matches() && s.Deny == decides.Deny
		if (i == 0 || same) && !s.Local && !seen[s.Owner] {
			seen[s.Owner] = true
			out = append(out, named(s.Owner))
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
