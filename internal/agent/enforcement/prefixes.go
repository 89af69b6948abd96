package enforcement

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

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
	// unnamed are the IDs of prefixes that the kernel may have still, and no rule names any more.
	unnamed map[netip.Prefix]identity.ID
}

func newPrefixIdentities(scope identity.ID, named func([]*policy.Rule) []netip.Prefix, set func(netip.Prefix) labels.Set) (*prefixIdentities, error) {
	alloc, err := identity.NewLocalAllocator(scope)
	if err != nil {
		return nil, err
	}
	return &prefixIdentities{
		alloc: alloc, named: named, labels: set,
		byOwner: map[policy.Owner][]netip.Prefix{}, users: map[netip.Prefix]int{}, prefixes: map[netip.Prefix]identity.ID{},
		unnamed: map[netip.Prefix]identity.ID{},
	}, nil
}

// take is use with the prefixes of an owner's new rules.
func (b *prefixIdentities) take(ch policy.Change, places map[netip.Prefix]identity.ID) (previous []netip.Prefix, errs []error) {
	return b.use(ch.Owner, b.named(ch.Rules), places)
}

// use notes the prefixes that an owner names now and adds the identities of those that had none to
// places. It returns those that the owner has named until now, for release.
func (b *prefixIdentities) use(owner policy.Owner, next []netip.Prefix, places map[netip.Prefix]identity.ID) (previous []netip.Prefix, errs []error) {
	for _, p := range next {
		b.users[p]++
		if _, known := b.prefixes[p]; known {
			continue
		}
		if id, kept := b.unnamed[p]; kept {
			delete(b.unnamed, p)
			b.prefixes[p], places[p] = id, id
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
	previous = b.byOwner[owner]
	if b.byOwner[owner] = next; len(next) == 0 {
		delete(b.byOwner, owner)
	}
	return previous, errs
}

// release takes a user from each prefix. Those that have none left are unnamed, and keep their IDs
// until they are forgotten.
func (b *prefixIdentities) release(list []netip.Prefix) {
	for _, p := range list {
		if b.users[p]--; b.users[p] > 0 {
			continue
		}
		delete(b.users, p)
		if id, known := b.prefixes[p]; known {
			delete(b.prefixes, p)
			b.unnamed[p] = id
		}
	}
}

// unused returns the prefixes that no rule names any more. The kernel must have none of them before
// they are forgotten.
func (b *prefixIdentities) unused() []netip.Prefix {
	return slices.SortedFunc(maps.Keys(b.unnamed), netip.Prefix.Compare)
}

// forget gives up the IDs of unused prefixes, and returns those that are free now.
func (b *prefixIdentities) forget(list []netip.Prefix) (free []identity.ID) {
	for _, p := range list {
		if id := b.unnamed[p]; b.alloc.Release(id) {
			free = append(free, id)
		}
		delete(b.unnamed, p)
	}
	return free
}
