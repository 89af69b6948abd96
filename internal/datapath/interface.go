package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/hawser-net/hawser/internal/validate"
)

// ErrNoInterface means that the node has no interface with a hardware address. The cloud may attach
// it later.
var ErrNoInterface = errors.New("the node has no such interface")

// MaxInterfaces is how many interfaces of a cloud a node has at most. The largest instances have
// about half as many.
const MaxInterfaces = 128

// Interface is a network interface to which the network routes addresses of pods: one that a cloud
// attaches to the node. Packets from these addresses leave by it, as the network takes them nowhere
// else.
type Interface struct {
	// MAC is how it is found; its name is the operating system's choice.
	MAC net.HardwareAddr
	// Number is its place on the instance, from 0, of which no two have the same: it names the
	// table of its routes.
	Number int
	// MTU is that of the interface, 0 for what it has already.
	MTU int
	// Subnets are where its addresses are from, at most one of a family. Addresses of a family
	// without one have no rules.
	Subnets []Subnet
	// VPCCIDRs are where packets from Pods are led by this interface, under their own addresses;
	// elsewhere the main table leads them. None of a family stands for everywhere.
	VPCCIDRs []netip.Prefix
	// Pods are the addresses of the interface that endpoints of this node have or can get, as
	// prefixes that do not overlap: single ones, and networks that are the interface's as a whole.
	Pods []netip.Prefix
}

// Subnet is a network on an interface's link.
type Subnet struct {
	CIDR netip.Prefix
	// Gateway is the cloud's router, the first address of CIDR if it is invalid.
	Gateway netip.Addr
}

// Router returns the address of the network's router.
func (s Subnet) Router() netip.Addr {
	if s.Gateway.IsValid() {
		return s.Gateway
	}
	return s.CIDR.Masked().Addr().Next()
}

// SpellPods writes one of Pods for people: without its length if it is an address.
func SpellPods(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// InterfaceState reports whether packets of an Interface pass.
type InterfaceState struct {
	MAC net.HardwareAddr
	// Name and IfIndex are the kernel's, empty while it has none.
	Name    string
	IfIndex int
	// Err is why they do not pass, ErrNoInterface among others.
	Err error
}

// Validate reports all faults of i.
func (i Interface) Validate() error {
	var errs validate.Errors
	errs.If(len(i.MAC) != 6, "its hardware address is not 6 bytes long")
	errs.If(i.Number < 0 || i.Number >= MaxInterfaces, "number %d is not within 0 to %d", i.Number, MaxInterfaces-1)
	errs.If(i.MTU != 0 && (i.MTU < 1280 || i.MTU > 65535), "MTU %d is not within 1280 to 65535", i.MTU)
	var has4, has6 bool
	for _, s := range i.Subnets {
		if !s.CIDR.IsValid() || s.CIDR.Addr().Is4In6() {
			errs.Add("subnet %v is malformed", s.CIDR)
			continue
		}
		has := &has4
		if s.CIDR.Addr().Is6() {
			has = &has6
		}
		errs.If(*has, "it has several subnets of one family")
		*has = true
		errs.If(s.Gateway.IsValid() && (s.Gateway.Is4() != s.CIDR.Addr().Is4() || s.Gateway.Is4In6() || s.Gateway.Zone() != ""), "gateway %s of subnet %s is of the other family", s.Gateway, s.CIDR)
	}
	for _, p := range i.VPCCIDRs {
		errs.If(!p.IsValid() || p.Addr().Is4In6(), "network %v is malformed", p)
	}
	for _, p := range i.Pods {
		errs.If(!p.IsValid() || p.Addr().Is4In6() || p != p.Masked(), "address %v is malformed", p)
	}
	if len(errs) > 0 {
		return fmt.Errorf("interface %s: %w", i.MAC, errs.Err())
	}
	return nil
}
