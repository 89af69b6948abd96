package hubble

import (
	"iter"
	"net/netip"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policypreview"
)

// previewed is what questions about policies are asked of.
type previewed struct{ node Node }

var _ policypreview.Agent = previewed{}

// Ready implements [policypreview.Agent].
func (p previewed) Ready() bool { return p.node.InForce() }

// PolicyLabels implements [policypreview.Agent].
func (p previewed) PolicyLabels() labels.Keys { return p.node.PolicyLabels() }

// Shares implements [policypreview.Agent].
func (p previewed) Shares(changes []policy.Change) (beyond, back []policy.Owner) {
	return p.node.Shares(changes)
}

// View implements [policypreview.Agent].
func (p previewed) View(f func(*policy.Engine)) { p.node.Policy.View(f) }

// RuleLine implements [policypreview.Agent].
func (p previewed) RuleLine(o policy.Owner, path string) (string, int) {
	if p.node.RuleLine == nil {
		return "", 0
	}
	return p.node.RuleLine(o, path)
}

// Endpoint implements [policypreview.Agent].
func (p previewed) Endpoint(number uint16) (policy.Subject, identity.ID, bool) {
	row, ok := p.node.Endpoints.Get(number)
	if !ok {
		return policy.Subject{}, 0, false
	}
	return row.Subject(), row.Seen(), true
}

// Addresses implements [policypreview.Agent].
func (p previewed) Addresses() iter.Seq2[netip.Addr, identity.ID] {
	return func(yield func(netip.Addr, identity.ID) bool) {
		for prefix, e := range p.node.Addresses.Table().All() {
			if prefix.IsSingleIP() && !yield(prefix.Addr(), e.Identity) {
				return
			}
		}
	}
}
