package addressing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
)

// Allocator allocates the node's addresses as those who ask for them see it.
type Allocator struct {
	*ipam.IPAM
	// Node names the CiliumNode whose operator assigns the addresses, "" if none does.
	Node string
	// Delegated is set if another plugin gives the addresses.
	Delegated bool
	// InterfaceOf returns the network interface of the node's machine that an address is of; nil
	// where addresses are of none.
	InterfaceOf func(netip.Addr) (Interface, bool)
	// NativeCIDRs are networks besides those of an interface that see pods under their own
	// addresses.
	NativeCIDRs []netip.Prefix
	// Stopping is closed when the agent ends.
	Stopping <-chan struct{}
}

// Through returns the network interface by which packets of an address leave, and the networks that
// they reach with it as source. ok is false if the address belongs to no interface; err is not nil
// if the interface has gone.
func (b *Allocator) Through(ip netip.Addr) (i Interface, ok bool, err error) {
	if b.InterfaceOf == nil {
		return i, false, nil
	}
	if i, ok = b.InterfaceOf(ip); !ok {
		return i, false, fmt.Errorf("the network interface of %s is not shown by CiliumNode %s any more", ip, b.Node)
	}
	for _, p := range b.NativeCIDRs {
		if p.Addr().Is4() == ip.Is4() && !slices.Contains(i.Networks, p) {
			i.Networks = append(slices.Clip(i.Networks), p)
		}
	}
	return i, true, nil
}

// assignWait is how long a pod waits for its node to be assigned addresses.
const assignWait = 10 * time.Second

// Give gives addresses. Where the operator assigns them it waits a while for more, or for one that
// another pod gives back, if there is none left.
func (b *Allocator) Give(ctx context.Context, families ipam.Families, owner string, pools ipam.Choice, expire bool) (ipam.Result, error) {
	timeout := time.NewTimer(assignWait)
	defer timeout.Stop()
	for last := false; ; {
		moved := b.Moved()
		res, err := b.AllocateFrom(families, owner, pools, expire)
		if !errors.Is(err, ipam.ErrExhausted) || b.Node == "" {
			return res, err
		}
		if !last {
			select {
			case <-moved:
				continue
			case <-timeout.C:
				last = true // something may have moved at the same time
				continue
			case <-ctx.Done():
			case <-b.Stopping:
			}
		}
		return res, fmt.Errorf("%w; status.ipam.operator-status.error of CiliumNode %s says if the operator cannot assign more", err, b.Node)
	}
}

// Endpoints is the allocator as endpoints use it.
func (b *Allocator) Endpoints() endpoint.Addresses {
	if b.Delegated {
		return delegated{given{b.IPAM}}
	}
	return given{b.IPAM}
}

// given are addresses that the agent gives.
type given struct {
	pool *ipam.IPAM
}

// Claim checks that the address was given to the owner. After a restart it is assigned again, with
// the same expiry: the plugin may have gone before it could release the address.
func (p given) Claim(ip netip.Addr, owner, uuid string) error {
	given, ok := p.pool.Lookup(ip)
	switch {
	case !ok || given.Reserved: // the pool says whether it is reserved for this pod
		err := p.pool.Take(ip, owner, uuid)
		switch {
		case errors.Is(err, ipam.ErrInvalid), errors.Is(err, ipam.ErrDisabled):
			return fmt.Errorf("%w: %w", endpoint.ErrInvalid, err)
		case errors.Is(err, ipam.ErrExists):
			return fmt.Errorf("%w: %w", endpoint.ErrExists, err)
		}
		return err
	case given.Owner == ipam.RouterOwner:
		return fmt.Errorf("%w: address %s is the router's", endpoint.ErrExists, ip)
	case given.UUID != uuid:
		return fmt.Errorf("%w: address %s was given to %s, and not with this request's expiration UUID; allocate an address first", endpoint.ErrExists, ip, given.Owner)
	}
	return nil
}

// Unclaim leaves the address assigned: the requester releases it, or it expires.
func (p given) Unclaim(netip.Addr, string) {}

// Commit makes the address stay.
func (p given) Commit(ip netip.Addr, uuid string) error {
	if given, ok := p.pool.Lookup(ip); ok && given.UUID == "" {
		return nil // taken without expiration
	}
	return p.pool.StopExpiration(ip, uuid)
}

// Restore takes the address of an endpoint from before the restart.
func (p given) Restore(ip netip.Addr, owner string) error { return p.pool.Restore(ip, owner) }

// Free gives the address back.
func (p given) Free(ip netip.Addr) {
	_ = p.pool.Free(ip) // it fails only if the address is free already, which is what is wanted
}

// delegated are addresses that another plugin assigns. The agent keeps its own table of owners: it
// records an address when the endpoint is created, and refuses one that is in use, one of the node
// itself, and one outside of the node's pod CIDRs, to which other nodes have no route.
type delegated struct{ given }

// Claim records an address that is not in use.
func (p delegated) Claim(ip netip.Addr, owner, _ string) error {
	err := p.pool.Take(ip, owner, "")
	switch {
	case errors.Is(err, ipam.ErrInvalid), errors.Is(err, ipam.ErrDisabled):
		return fmt.Errorf("%w: the IPAM plugin gave an address that pods of this node cannot have: %w", endpoint.ErrInvalid, err)
	case errors.Is(err, ipam.ErrExists):
		return fmt.Errorf("%w: the IPAM plugin gave an address that is not free: %w", endpoint.ErrExists, err)
	}
	return err
}

// Unclaim gives back what Claim took, if the owner still has it.
func (p delegated) Unclaim(ip netip.Addr, owner string) { p.pool.FreeOf(ip, owner) }
