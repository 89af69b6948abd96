package enforcement

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy"
)

// Another cluster decides how many identities it has that a selector of this one matches. A rule
// set that exceeds its share by those does without what they are allowed, instead of locking pods.

// otherClusters tells identities of other clusters from those of this one.
type otherClusters struct {
	own uint32
	// each is how many identities a cluster has; 0 if there are no other clusters.
	each identity.ID
}

// SetCluster sets which identities are this cluster's, by its ID and the highest one of all
// clusters. Before, all of them are.
func (p *Policy) SetCluster(id, maxClusters uint32) error {
	first, last, err := identity.Range(1, maxClusters)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others = otherClusters{own: id, each: last - first + 1}
	return nil
}

// of returns the ID of the other cluster that an identity is of, 0 if it is of none.
func (o otherClusters) of(id uint32) uint32 {
	if o.each == 0 || identity.ID(id) > datapath.MaxPodIdentity {
		return 0
	}
	if c := id / uint32(o.each); c != o.own {
		return c // those of 0 are the same in all clusters
	}
	return 0
}

// allowed returns the ID of the other cluster that an entry allows something, and does nothing
// else, 0 if it is none. A rule set without that entry lets nothing pass that the whole does not:
// where it counted, nothing less specific does anything but allow.
func (o otherClusters) allowed(k datapath.PolicyKey, e datapath.PolicyEntry) uint32 {
	if e != (datapath.PolicyEntry{Allow: true}) {
		return 0
	}
	return o.of(k.Identity)
}

// partial is how a rule set that exceeds its share stands in the kernel.
type partial struct {
	otherClusters
	without map[uint32]int // entries that are left out, by cluster
	whole   int            // entries of the whole when it was too large
}

// leaveOut returns a rule set without what it allows that other cluster which it allows most, and
// notes that. It returns false if it allows none anything.
func (l *partial) leaveOut(rs datapath.RuleSet) (datapath.RuleSet, bool) {
	counts := map[uint32]int{}
	for k, e := range rs.Entries {
		if c := l.allowed(k, e); c != 0 {
			counts[c]++
		}
	}
	if len(counts) == 0 {
		return rs, false
	}
	most := slices.MaxFunc(slices.Collect(maps.Keys(counts)), func(a, b uint32) int {
		return cmp.Or(cmp.Compare(counts[a], counts[b]), cmp.Compare(a, b))
	})
	l.without[most] = counts[most]
	rest := make(map[datapath.PolicyKey]datapath.PolicyEntry, len(rs.Entries)-counts[most])
	for k, e := range rs.Entries {
		if l.allowed(k, e) != most {
			rest[k] = e
		}
	}
	rs.Entries = rest
	return rs, true
}

// leftOut reports whether an entry of the whole is left out.
func (l *partial) leftOut(k datapath.PolicyKey, e datapath.PolicyEntry) bool {
	return l.without[l.allowed(k, e)] > 0
}

// size returns how many entries of a rule set the kernel has, or would have.
func (l *partial) size(rs datapath.RuleSet) int {
	n := len(rs.Entries)
	if l == nil {
		return n
	}
	for k, e := range rs.Entries {
		if l.leftOut(k, e) {
			n--
		}
	}
	return n
}

// within returns a change as it concerns what stands in the kernel.
func (l *partial) within(d policy.Delta) policy.Delta {
	if l == nil {
		return d
	}
	upserts, deletes := make([]policy.Entry, 0, len(d.Upserts)), slices.Clone(d.Deletes)
	for _, e := range d.Upserts {
		if l.leftOut(e.PolicyKey, e.PolicyEntry) {
			deletes = append(deletes, e.PolicyKey) // it may have been a deny
			continue
		}
		upserts = append(upserts, e)
	}
	d.Upserts, d.Deletes = upserts, deletes
	return d
}

// installShare writes a rule set whole, or if that exceeds its share, without what other clusters
// are allowed. It returns what is to be written if there is room. The rule set has its ID in the
// kernel; id is the engine's.
func (p *Policy) installShare(id datapath.RuleSetID, rs datapath.RuleSet) (datapath.RuleSet, error) {
	err := p.maps.InstallRuleSet(rs)
	l := &partial{otherClusters: p.others, without: map[uint32]int{}, whole: len(rs.Entries)}
	for some := true; some && errors.Is(err, datapath.ErrShare); {
		var rest datapath.RuleSet
		if rest, some = l.leaveOut(rs); some {
			rs, err = rest, p.maps.InstallRuleSet(rest)
		}
	}
	before := p.partial[id]
	if len(l.without) == 0 || errors.Is(err, datapath.ErrShare) {
		delete(p.partial, id)
		return rs, err
	}
	p.partial[id] = l
	for _, c := range slices.Sorted(maps.Keys(l.without)) {
		if before == nil || before.without[c] == 0 {
			p.log.Error("a rule set exceeds its share: what the identities of another cluster are allowed is left out, until there is room",
				"rule-set", rs.ID, "cluster-id", c, "entries", l.whole, "left-out", l.without[c])
		}
	}
	return rs, err
}
