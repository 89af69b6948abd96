package enforcement

import (
	"errors"
	"net/netip"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// serversOwner names the addresses of API servers, as the owner of rules does prefixes. Owners of
// rules have a slash in their names.
const serversOwner policy.Owner = "kube-apiserver"

// SetServers replaces the addresses, as prefixes, outside of the cluster at which the Kubernetes
// API is served. Each has the identity of its prefix, as if a rule named it, with the label
// kube-apiserver besides: rules match it by both. The ID is the same with the label and without it,
// so that nothing in the kernel changes when a rule names the address as well.
//
// It returns the identities under which the kernel may know the addresses: without those that rule
// sets of before the restart could not be told, which Retry publishes. When an address is to be
// known otherwise, the kernel must have that before the address is left out here.
func (r *Rules) SetServers(list []netip.Prefix) (map[netip.Prefix]identity.ID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	places := map[netip.Prefix]identity.ID{}
	previous, errs := r.cidrs.use(serversOwner, list, places)
	before := r.servers
	r.servers = make(map[netip.Prefix]bool, len(list))
	for _, p := range list {
		r.servers[p] = true
	}
	// What rules name already, or name still, has other labels now.
	relabel := func(p netip.Prefix) {
		if id, known := r.cidrs.prefixes[p]; known && before[p] != r.servers[p] {
			places[p] = id
		}
	}
	for p := range before {
		relabel(p)
	}
	for p := range r.servers {
		relabel(p)
	}
	errs = append(errs, r.place(places, nil)...)
	r.oldPrefixes = append(r.oldPrefixes, previous...)
	errs = append(errs, r.dropOld()...)
	ids := make(map[netip.Prefix]identity.ID, len(list))
	for _, p := range list {
		id, known := r.cidrs.prefixes[p]
		if _, missing := r.missingPrefixes[p]; known && !missing {
			ids[p] = id
		}
	}
	return ids, errors.Join(errs...)
}

// RestoredServers returns the addresses in the cluster that the kernel had as those of API servers
// when the agent started.
func (r *Rules) RestoredServers() []datapath.IPCacheEntry { return r.nodeServers }

// labels are those by which rules match the identity of a prefix.
func (r *Rules) labels(p netip.Prefix) labels.Set {
	set := r.cidrs.labels(p)
	if r.servers[p] {
		set = set.With(labels.Reserved(identity.KubeAPIServer.String()))
	}
	return set
}
