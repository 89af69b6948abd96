package hubble

import (
	"net/netip"

	"golang.org/x/time/rate"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy"
)

// question is what the policies behind a verdict depend on, besides those there are.
type question struct {
	direction     datapath.Direction
	endpoint      uint16
	subject, peer identity.ID
	// peerAddr is set only where the answer depends on it: the world has many addresses.
	peerAddr       netip.Addr
	proto          uint8
	port           uint16
	passed, denied bool
}

// answer is who answers for a verdict.
type answer struct {
	policies []*flowpb.Policy
	// byAddress means that it depends on the address of the peer, which the question had not.
	byAddress bool
}

// Bounds of how many answers are remembered, and of how often policy is asked again, a second: for
// all endpoints, and for one of them, so that one that scans leaves the others their names.
const (
	maxDecided         = 8192
	maxAsked           = 500
	maxAskedOfEndpoint = 50
	maxLimits          = 1024 // endpoints of which it is known how much they asked
	maxNames           = 8192 // policies that were named
)

// answers remembers the policies behind verdicts, of one revision of policy.
type answers struct {
	decided  map[question]answer
	revision uint64
	// names has the policies that owners of rules stand for, whatever the revision, so that answers
	// share them.
	names  map[policy.Owner]*flowpb.Policy
	all    *rate.Limiter
	limits map[uint16]*rate.Limiter // by endpoint
}

func newAnswers() answers {
	return answers{
		decided: map[question]answer{}, names: map[policy.Owner]*flowpb.Policy{}, all: rate.NewLimiter(maxAsked, maxAsked), limits: map[uint16]*rate.Limiter{},
	}
}

// named returns the policy that an owner of rules stands for. It is shared and must not change.
func (a *answers) named(o policy.Owner) *flowpb.Policy {
	p := a.names[o]
	if p == nil {
		if len(a.names) >= maxNames {
			clear(a.names)
			clear(a.decided) // which would keep them
		}
		p = policyNamed(o)
		a.names[o] = p
	}
	return p
}

// get returns the policies behind a verdict, from the cache if they were looked up before in this
// revision; none if there are too many lookups, or if ask does not answer.
func (a *answers) get(q question, peer netip.Addr, revision uint64, ask func(question) (answer, bool)) []*flowpb.Policy {
	if revision != a.revision || len(a.decided) >= maxDecided {
		clear(a.decided)
		a.revision = revision
	}
	for {
		found, ok := a.decided[q]
		if !ok {
			if !a.allow(q.endpoint) {
				return nil
			}
			if found, ok = ask(q); !ok {
				return nil
			}
			a.decided[q] = found
		}
		if !found.byAddress || q.peerAddr.IsValid() {
			return found.policies
		}
		q.peerAddr = peer
	}
}

// allow reports whether a question of an endpoint may be asked now.
func (a *answers) allow(endpoint uint16) bool {
	limit := a.limits[endpoint]
	if limit == nil {
		if len(a.limits) >= maxLimits {
			clear(a.limits)
		}
		limit = rate.NewLimiter(maxAskedOfEndpoint, maxAskedOfEndpoint)
		a.limits[endpoint] = limit
	}
	return limit.Allow() && a.all.Allow()
}
