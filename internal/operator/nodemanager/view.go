package nodemanager

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// prefixBits is the size of the prefixes that a cloud delegates to an interface: AWS knows no other
// for IPv4 (Amazon EC2 User Guide, "Prefix delegation for Amazon EC2 network interfaces").
const prefixBits = 28

// prefixSize is how many addresses that is.
const prefixSize = 1 << (32 - prefixBits)

// Interface is a network interface of a cloud.
type Interface struct {
	ID string
	// Instance is where it is attached, or whom it was made for; "" if neither is known.
	Instance string
	// Attachment names the attachment; "" if it is not attached.
	Attachment string
	// Index is its place on the instance, if it is attached.
	Index               int
	DeleteOnTermination bool
	// Name and State are for clouds whose interfaces have such.
	Name, State string
	Subnet      string
	VPC         string
	Zone        string
	MAC         string
	Description string
	PublicIP    string
	// StaticIP is what the cloud calls PublicIP if that is one that is kept apart from machines.
	StaticIP string
	Groups   []string
	Tags     map[string]string
	// Managed is set if an operator of this cluster has made it.
	Managed bool
	// Primary is not valid as long as the cloud does not report it.
	Primary netip.Addr
	// Held are the secondary addresses, each as a prefix of full length, and the delegated
	// prefixes.
	Held []netip.Prefix
	// Other counts what takes places, too, and pods cannot get: IPv6, or what has no address yet.
	Other int
	// IPv6Prefixes are those that are delegated to it; OtherIPv6 counts what takes their places.
	IPv6Prefixes []netip.Prefix
	OtherIPv6    int
}

// clone returns a copy whose Held and IPv6Prefixes may be changed.
func (i Interface) clone() Interface {
	i.Held, i.IPv6Prefixes = slices.Clone(i.Held), slices.Clone(i.IPv6Prefixes)
	return i
}

// Subnet is one of a cloud.
type Subnet struct {
	ID   string
	CIDR string
	VPC  string
	Zone string
	Tags map[string]string
	// Free is how many addresses can still be assigned.
	Free int
	// NoPrefixes is set if no prefix could be had lately: what is free is scattered.
	NoPrefixes bool
	// IPv6 is set if it has an IPv6 CIDR block.
	IPv6 bool
}

// SecurityGroup is one of a cloud.
type SecurityGroup struct {
	ID   string
	VPC  string
	Tags map[string]string
}

// VPC is a virtual private cloud.
type VPC struct {
	ID      string
	Primary string
	CIDRs   []string
}

// Limits are those of a type of instances.
type Limits struct {
	Interfaces int
	// Addresses counts all of an interface, its primary one included. A prefix takes the place of
	// one.
	Addresses int
	// Prefixes is set if prefixes can be delegated.
	Prefixes bool
	// IPv6 counts IPv6 addresses of an interface, a prefix as one; 0 if it can have none.
	IPv6 int
}

// View is everything that is decided by about a node.
type View struct {
	InstanceType string

	// ---- what is asked for: see spec.ipam of CiliumNode ---------------------------------------
	PreAllocate, MinAllocate, MaxAllocate, MaxAboveWatermark int
	// Pending counts pods of the node that have no address yet.
	Pending int
	// First is the first interface whose addresses are given to pods.
	First int
	// Exclude are tags of interfaces whose addresses are not.
	Exclude map[string]string
	// Only is the name of the only interface whose addresses are; "" for all.
	Only string
	// UsePrimary has the primary addresses of interfaces be given to pods, too.
	UsePrimary bool
	// Prefixes has prefixes be delegated as long as they can be had.
	Prefixes bool
	// IPv6 has an IPv6 prefix be delegated to the node.
	IPv6 bool
	// KeepOnTermination has interfaces outlive their instance.
	KeepOnTermination bool
	// Release has superfluous addresses be released when they have been so for Delay.
	Release bool
	Delay   time.Duration

	// ---- what the CiliumNode says now ---------------------------------------------------------
	Used     map[netip.Addr]string // with the owner
	Pool     map[netip.Addr]bool
	Releases map[netip.Addr]v2.IPReleaseStatus
	// Released were released by an operator before this one, so that the cloud may describe them as
	// assigned; none as soon as it does not.
	Released map[netip.Addr]bool
	// UsedIPv6 is as Used, of IPv6.
	UsedIPv6 map[netip.Addr]string

	// ---- what the cloud says ------------------------------------------------------------------
	Limits Limits
	// Attached are all interfaces of the instance, Loose those made for it that are not attached.
	Attached, Loose []Interface
	// Subnets are all, by ID.
	Subnets map[string]Subnet
	// Choice are those in which an interface may be made; Chosen describes how they were chosen.
	Choice []string
	Chosen string
	// Groups are those of a new interface.
	Groups []string

	// ---- what the last decision remembered ----------------------------------------------------
	Excess map[netip.Prefix]time.Time
	Now    time.Time
	// IPv6Fault is why the last attempt to have an IPv6 prefix delegated has failed, "" if it has
	// not; IPv6Rest is for how long there is to be no other.
	IPv6Fault string
	IPv6Rest  time.Duration
}

// Call is what can be asked of a cloud.
type Call uint8

// Calls that change a cloud.
const (
	Nothing Call = iota
	Assign
	Unassign
	Create
	Attach
	Modify
	Delete
	Associate
	// AssignIPv6 has one IPv6 prefix be delegated to an interface.
	AssignIPv6
)

func (c Call) String() string {
	return [...]string{"nothing", "assign addresses", "unassign addresses", "create an interface", "attach an interface", "modify an interface", "delete an interface", "associate a public address", "assign an IPv6 prefix"}[c]
}

// Step is one call to a cloud.
type Step struct {
	Call Call
	// Interface is the one to change; its ID is empty for Create.
	Interface Interface
	// Subnet and Groups are those of a new interface.
	Subnet string
	Groups []string
	// Index is where an interface is attached.
	Index int
	// Addresses and Prefixes count what is to be assigned; one of them is 0.
	Addresses, Prefixes int
	// Units are to be unassigned: single addresses and prefixes.
	Units []netip.Prefix
}

// Decision is what becomes of a node.
type Decision struct {
	// Pool is what spec.ipam.pool is to be: each address with its interface.
	Pool map[netip.Addr]string
	// IPv6Pool is what spec.ipam.ipv6-pool is to be: each prefix with its interface.
	IPv6Pool map[netip.Prefix]string
	// Releases is what status.ipam.release-ips is to be.
	Releases map[netip.Addr]v2.IPReleaseStatus
	// Step is to be made when the CiliumNode has Pool and Releases.
	Step Step
	// Excess is to be handed to the next decision.
	Excess map[netip.Prefix]time.Time
	// Again reports when time alone changes the decision; 0 for never.
	Again time.Duration
	// Fault is for people: what is missing and what to do. "" if nothing is.
	Fault string
	// Stale is set if Fault may be of the past: it is of subnets or groups, which are read with all
	// of the cloud only.
	Stale bool
	// AtCapacity is set if the instance can hold no more.
	AtCapacity bool
	// Available, Used and Needed are counts of addresses.
	Available, Used, Needed int
}

// usable reports whether pods get the addresses of an interface.
func (v *View) usable(i *Interface) bool {
	if i.Attachment == "" || i.Index < v.First || v.Only != "" && i.Name != v.Only {
		return false
	}
	return len(v.Exclude) == 0 || !HasTags(i.Tags, v.Exclude)
}

// HasTags reports whether all of want are among tags.
func HasTags(tags, want map[string]string) bool {
	for k, w := range want {
		if got, ok := tags[k]; !ok || got != w {
			return false
		}
	}
	return true
}

// addrs calls do with each address of a unit.
func addrs(unit netip.Prefix, do func(netip.Addr)) {
	for a := unit.Masked().Addr(); unit.Contains(a); a = a.Next() {
		do(a)
	}
}

func size(unit netip.Prefix) int { return 1 << (unit.Addr().BitLen() - unit.Bits()) }

// room is how many addresses or prefixes more an interface can hold.
func (v *View) room(i *Interface) int { return v.Limits.Addresses - 1 - len(i.Held) - i.Other }

// sortedSubnets are those in which an interface may be made, with most room first; before them all
// those with IPv6 as long as the node wants an IPv6 prefix and can have none where it is.
func (v *View) sortedSubnets() []Subnet {
	var out []Subnet
	for _, id := range v.Choice {
		if s, ok := v.Subnets[id]; ok {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Subnet) int { return cmp.Or(cmp.Compare(b.Free, a.Free), cmp.Compare(a.ID, b.ID)) })
	if v.wantsIPv6Subnet() {
		slices.SortStableFunc(out, func(a, b Subnet) int {
			if a.IPv6 == b.IPv6 {
				return 0
			}
			if a.IPv6 {
				return -1
			}
			return 1
		})
	}
	return out
}

// neededAddresses is how many addresses are missing by the watermarks, for a node that has
// available, of which used are used.
func neededAddresses(v *View, available, used int) int {
	n := max(v.PreAllocate+used-available, v.MinAllocate-available, 0)
	if v.MaxAllocate > 0 {
		n = min(n, v.MaxAllocate-available)
	}
	return max(n, 0)
}

// excessAddresses is how many are too many by the watermarks.
func excessAddresses(v *View, available, used int) int {
	floor := v.MinAllocate + v.MaxAboveWatermark
	if used <= floor {
		if available <= floor {
			return 0
		}
		if used+v.PreAllocate <= floor {
			return available - floor
		}
	}
	return max(available-used-v.PreAllocate-v.MaxAboveWatermark, 0)
}
