package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
)

// judgeAddresses tells policy which addresses and prefixes the kernel's maps have no room for, and
// whom the kernel takes them for, so that endpoints whose rules tell the two apart are locked until
// there is room.
func (a *api) judgeAddresses() {
	a.judging.Lock()
	defer a.judging.Unlock()
	var list []endpoint.Unplaced
	var cause error
	for p, status := range a.addresses.Failing() {
		u := endpoint.Unplaced{Prefix: p, Identity: a.desiredIdentity(p)}
		known, err := a.maps.Resolve(p)
		if err != nil {
			a.log.Error("cannot tell whom the kernel takes an address for", "prefix", p, "error", err)
		}
		if u.TakenFor = identity.ID(known); known == 0 {
			u.TakenFor = a.outside(p.Addr())
		}
		if u.TakenFor != u.Identity {
			list = append(list, u)
		}
		cause = status.Err
	}
	slices.SortFunc(list, func(x, y endpoint.Unplaced) int {
		return cmp.Or(x.Prefix.Addr().Compare(y.Prefix.Addr()), cmp.Compare(x.Prefix.Bits(), y.Prefix.Bits()))
	})
	if len(list) > 0 {
		cause = fmt.Errorf("the kernel does not know %d addresses and prefixes, as %s; endpoints whose rules name them drop all their packets (--bpf-ipcache-max, --bpf-ipcache-prefix-max): %w",
			len(list), list[0].Prefix, cause)
	}
	a.components.Report("addresses", cause, "the kernel knows all addresses and prefixes")
	if err := a.policy.SetUnplaced("address", list); err != nil {
		a.log.Error("policy is not in force in full", "error", err)
	}
}

// desiredIdentity is the identity that the kernel should know a prefix by.
func (a *api) desiredIdentity(p netip.Prefix) identity.ID {
	for bits := p.Bits(); bits >= 0; bits-- {
		around, _ := p.Addr().Prefix(bits)
		if e, ok := a.cache.Table().Get(around); ok {
			return e.Identity
		}
	}
	return a.outside(p.Addr())
}
