package enforcement

import (
	"fmt"
	"net/netip"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// prefixIdentities counts which owners of rules name which prefixes of one kind, and gives each
// prefix an identity for as long as one does. Its owner sees to it that it is used by one goroutine
// at a time.
type prefixIdentities struct {
	alloc *identity.LocalAllocator
	// named are the prefixes in rules, labels the labels of the identity of one.
	named  func([]*policy.Rule) []netip.Prefix
	labels func(netip.Prefix) labels.Set

	byOwner  map[policy.Owner][]netip.Prefix
	users    map[netip.Prefix]int
	prefixes map[netip.Prefix]identity.ID
}

func newPrefixIdentities(scope identity.ID, named func([]*policy.Rule) []netip.Prefix, set func(netip.Prefix) labels.Set) (*prefixIdentities, error) {
	alloc, err := identity.NewLocalAllocator(scope)
	if err != nil {
		return nil, err
	}
	return &prefixIdentities{
		alloc: alloc, named: named, labels: set,
		byOwner: map[policy.Owner][]netip.Prefix{}, users: map[netip.Prefix]int{}, prefixes: map[netip.Prefix]identity.ID{},
	}, nil
}

// take notes the prefixes of an owner's new rules and adds the identities of those that had none to
// places. It returns the prefixes of the owner's rules until now, for release.
func (b *prefixIdentities) take(ch policy.Change, places map[netip.Prefix]identity.ID) (previous []netip.Prefix, errs []error) {
	next := b.named(ch.Rules)
	for _, p := range next {
		b.users[p]++
		if _, known := b.prefixes[p]; known {
			continue
		}
		id, _, err := b.alloc.Allocate(b.labels(p))
		if err != nil {
			// Without an identity of its own the prefix is matched by no rule that names it.
			errs = append(errs, fmt.Errorf("get an identity for %s: %w", p, err))
			continue
		}
		b.prefixes[p], places[p] = id, id
	}
	previous = b.byOwner[ch.Owner]
	if b.byOwner[ch.Owner] = next; len(next) == 0 {
		delete(b.byOwner, ch.Owner)
	}
	return previous, errs
}

// release takes a user from each prefix. It returns the prefixes that have none left, and the
// IDs that are free now.
func (b *prefixIdentities) release(list []netip.Prefix) (gone []netip.Prefix, free []identity.ID) {
	for _, p := range list {
		if b.users[p]--; b.users[p] > 0 {
			continue
		}
		delete(b.users, p)
		id, known := b.prefixes[p]
		if !known {
			continue
		}
		delete(b.prefixes, p)
		gone = append(gone, p)
		if b.alloc.Release(id) {
			free = append(free, id)
		}
	}
	return gone, free
}
