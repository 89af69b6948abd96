package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/validate"
)

// Validate reports what makes the row unfit for the kernel, all faults joined.
func (ep Endpoint) Validate() error {
	var errs validate.Errors
	errs.If(ep.ID == 0, "id is 0")
	errs.If(ep.Incarnation == 0, "incarnation is 0")
	errs.If(ep.IfIndex <= 0, "interface index %d is not positive", ep.IfIndex)
	errs.If(len(ep.MAC) != 6, "hardware address %q is not 6 bytes long", ep.MAC)
	errs.If(len(ep.HostMAC) != 6, "host-side hardware address %q is not 6 bytes long", ep.HostMAC)
	errs.If(!ep.IPv4.IsValid() && !ep.IPv6.IsValid(), "no address")
	errs.If(ep.RuleSet > MaxRuleSet, "rule set %d is beyond %d", ep.RuleSet, MaxRuleSet)
	errs.If(ep.IPv4.IsValid() && (!ep.IPv4.Is4() || ep.IPv4.IsUnspecified()), "%s is not an IPv4 host address", ep.IPv4)
	errs.If(ep.IPv6.IsValid() && (!ep.IPv6.Is6() || ep.IPv6.Is4In6() || ep.IPv6.IsUnspecified() || ep.IPv6.Zone() != ""), "%s is not an IPv6 host address", ep.IPv6)
	if len(errs) > 0 {
		return fmt.Errorf("endpoint %d: %w", ep.ID, errs.Err())
	}
	return nil
}

// Validate reports what makes a row about another node unfit for the kernel, all faults joined.
func (p TunnelPeer) Validate() error {
	var errs []error
	if !p.Addr.IsValid() || p.Addr.Is4In6() || p.Addr.Zone() != "" || p.Addr.IsUnspecified() || p.Addr.IsLoopback() || p.Addr.IsMulticast() {
		errs = append(errs, fmt.Errorf("%v is no address of a node", p.Addr))
	}
	// Numbers beyond mean something on one node only, and those below are reserved.
	if p.First < 256 || p.Last >= 1<<24 || p.First > p.Last {
		errs = append(errs, fmt.Errorf("%d to %d is no range of identities of a cluster", p.First, p.Last))
	}
	if len(errs) > 0 {
		return fmt.Errorf("tunnel peer %v: %w", p.Addr, errors.Join(errs...))
	}
	return nil
}

// Addresses returns the endpoint's valid addresses, IPv4 first.
func (ep Endpoint) Addresses() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{ep.IPv4, ep.IPv6}, func(ip netip.Addr) bool { return !ip.IsValid() })
}

// Validate reports whether the kernel could ever match the key.
func (k PolicyKey) Validate() error {
	switch {
	case k.Direction > Egress:
		return fmt.Errorf("policy key %+v: no such direction", k)
	case k.PortBits > 16:
		return fmt.Errorf("policy key %+v: a port has 16 bits", k)
	case k.Proto == 0 && k.PortBits != 0:
		return fmt.Errorf("policy key %+v: a port needs a protocol", k)
	case k.Port != k.Port&PortMask(k.PortBits):
		return fmt.Errorf("policy key %+v: port has bits beyond its prefix", k)
	}
	return nil
}

// PortMask returns the mask of a port prefix of the given length, at most 16.
func PortMask(bits uint8) uint16 {
	return ^uint16(0) << (16 - min(bits, 16))
}

// Validate reports a rule set without a number, with one beyond MaxRuleSet, or with a key that the
// kernel could never match.
func (rs RuleSet) Validate() error {
	if rs.ID == 0 {
		return errors.New("rule set 0 means that an endpoint has none; it cannot be installed")
	}
	if rs.ID > MaxRuleSet {
		return fmt.Errorf("rule set %d: its number is beyond %d", rs.ID, MaxRuleSet)
	}
	for k := range rs.Entries {
		if err := k.Validate(); err != nil {
			return fmt.Errorf("rule set %d: %w", rs.ID, err)
		}
	}
	return nil
}

// Validate reports whether the block can be written. The prefix may have host bits.
func (b Block) Validate() error {
	if _, err := CanonicalPrefix(b.Prefix); err != nil {
		return err
	}
	if b.Identity>>24 != BlockScope {
		return fmt.Errorf("block %s: identity %d is not one of a block", b.Prefix, b.Identity)
	}
	return nil
}

// CanonicalPrefix returns p with its host bits cleared and, if it is an IPv4 prefix written in
// IPv6, as IPv4. It fails if p is invalid.
func CanonicalPrefix(p netip.Prefix) (netip.Prefix, error) {
	if !p.IsValid() {
		return netip.Prefix{}, errors.New("ipcache: invalid prefix")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("ipcache: %s spans both address families", p)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// ValidatePodIdentities reports whether all are identities of pods, see Maps.SetKnownIdentities.
func ValidatePodIdentities(ids []uint32) error {
	for _, id := range ids {
		if id < MinPodIdentity || id > MaxPodIdentity {
			return fmt.Errorf("identity %d is not one of a pod", id)
		}
	}
	return nil
}
