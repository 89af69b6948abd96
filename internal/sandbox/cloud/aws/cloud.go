// Package aws is the part of EC2 on one machine that pods' addresses come from: VPCs, subnets,
// security groups, instances, their network interfaces and elastic IPs, by the query API of EC2
// (version 2016-11-15) and the instance metadata service (IMDSv2), so that the official SDK works
// unchanged. Point it there with AWS_ENDPOINT_URL.
//
// Shapes of requests and answers, and error codes, are those of the Amazon EC2 API Reference
// ("Actions", "Error codes for the Amazon EC2 API"), limits those of the Amazon EC2 User Guide
// ("Elastic network interfaces", "Prefix delegation", "Elastic IP addresses"). A [Cloud] can be
// disturbed as the real one disturbs its users: it throttles, answers in pages and from the past,
// is slow, runs dry, refuses, and loses answers. Signatures must be there and are not verified.
// Nothing is stored.
package aws

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// Type is a type of instances with its limits.
type Type struct {
	Interfaces, Addresses int
	// Hypervisor is "nitro" or "xen"; prefixes are delegated to nitro only.
	Hypervisor string
	// IPv6 is set if its interfaces can have IPv6 addresses: as many as of IPv4.
	IPv6 bool
}

// Fault is what becomes of a request, but its effect.
type Fault = cloud.Fault

// Interface is a network interface.
type Interface struct {
	ID, Subnet, MAC, Description string
	Primary                      netip.Addr
	Addresses                    []netip.Addr // secondary ones
	Prefixes                     []netip.Prefix
	IPv6                         []netip.Addr
	IPv6Prefixes                 []netip.Prefix
	Groups                       []string
	Tags                         map[string]string
	// Attachment is empty if it is not attached.
	Attachment, Instance string
	Index                int
	DeleteOnTermination  bool
	token                string
	given                netip.Addr // public address of the cloud's own
}

type instance struct {
	id, kind, subnet string
	tags             map[string]string
}

type subnet struct {
	cloud.Addresses
	id, vpc, zone string
	tags          map[string]string
	ipv6          netip.Prefix // not valid if it has no IPv6 CIDR block
}

type group struct {
	id, vpc string
	tags    map[string]string
}

// Cloud is a region. Make one with [New]; its methods may be called at any time from anywhere.
//
// Requests are throttled as "Request throttling for the Amazon EC2 API" says: a bucket of tokens.
type Cloud struct {
	cloud.Disturbances

	mu         sync.Mutex
	serial     int
	vpcs       map[string][]netip.Prefix
	vpcsIPv6   map[string]netip.Prefix
	subnets    map[string]*subnet
	groups     map[string]*group
	types      map[string]Type
	instances  map[string]*instance
	interfaces cloud.History[Interface]
	elastic    cloud.History[ElasticIP]

	pageSize int
	quota    int // of interfaces
}

// New returns a region in which nothing is but some types of instances.
func New() *Cloud {
	return &Cloud{
		vpcs: map[string][]netip.Prefix{}, vpcsIPv6: map[string]netip.Prefix{}, subnets: map[string]*subnet{}, groups: map[string]*group{}, instances: map[string]*instance{},
		pageSize: 1000,
		types: map[string]Type{
			"m1.small":   {Interfaces: 2, Addresses: 4, Hypervisor: "xen"},
			"t2.small":   {Interfaces: 3, Addresses: 4, Hypervisor: "xen", IPv6: true},
			"t3.nano":    {Interfaces: 2, Addresses: 2, Hypervisor: "nitro", IPv6: true},
			"t3.small":   {Interfaces: 3, Addresses: 4, Hypervisor: "nitro", IPv6: true},
			"m5.large":   {Interfaces: 3, Addresses: 10, Hypervisor: "nitro", IPv6: true},
			"m5.xlarge":  {Interfaces: 4, Addresses: 15, Hypervisor: "nitro", IPv6: true},
			"m5.4xlarge": {Interfaces: 8, Addresses: 30, Hypervisor: "nitro", IPv6: true},
		},
	}
}

// Types are the names of the types of instances, sorted.
func (c *Cloud) Types() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.types))
}

// AddVPC adds a VPC with its CIDRs.
func (c *Cloud) AddVPC(id string, cidrs ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vpcs[id] = cidrs
}

// AddSubnet adds a subnet, of which the cloud keeps the first four addresses and the last (Amazon
// VPC User Guide, "Subnet CIDR blocks").
func (c *Cloud) AddSubnet(id, vpc, zone string, cidr netip.Prefix, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id] = &subnet{Addresses: cloud.NewAddresses(cidr, 4, 1), id: id, vpc: vpc, zone: zone, tags: tags}
}

// AddGroup adds a security group.
func (c *Cloud) AddGroup(id, vpc string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[id] = &group{id, vpc, tags}
}

// AddInstance runs an instance with its first interface, and returns that one's address.
func (c *Cloud) AddInstance(id, kind, subnet string, groups []string, tags map[string]string) (netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.types[kind]; !ok {
		return netip.Addr{}, fmt.Errorf("no instance type %q", kind)
	}
	i, f := c.newInterface(subnet, groups, 0, 0)
	if f != nil {
		return netip.Addr{}, errors.New(f.Message)
	}
	i.Attachment, i.Instance, i.DeleteOnTermination = c.id("eni-attach"), id, true
	c.instances[id] = &instance{id, kind, subnet, tags}
	c.put(i)
	return i.Primary, nil
}

// Place has the first interface of an instance have an address and a hardware address, as its
// creator may choose.
func (c *Cloud) Place(instance string, ip netip.Addr, mac string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interfaces.Now() {
		if i.Instance == instance && i.Index == 0 {
			i.Primary, i.MAC = ip, mac
			c.put(i)
			return
		}
	}
}

// Keep has addresses of a subnet never be given.
func (c *Cloud) Keep(id string, ips ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id].Keep(ips...)
}

// Terminate ends an instance: its interfaces are deleted or left, as each says.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
	c.change(func(all map[string]Interface) {
		for k, i := range all {
			if i.Instance != id {
				continue
			}
			if i.DeleteOnTermination {
				delete(all, k)
				continue
			}
			i.Attachment, i.Instance, i.Index = "", "", 0
			all[k] = i
		}
	})
	c.strand()
}

// Interfaces returns all interfaces as they are now, by ID.
func (c *Cloud) Interfaces() []Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.interfaces.Now()), func(a, b Interface) int { return strings.Compare(a.ID, b.ID) })
}

// Lag has descriptions of interfaces and elastic IPs be that old ("Eventual consistency in the
// Amazon EC2 API").
func (c *Cloud) Lag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interfaces.Lag(d)
	c.elastic.Lag(d)
}

// Pages has descriptions come in pages of n.
func (c *Cloud) Pages(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pageSize = n
}

// Quota bounds the interfaces of the region; 0 is none.
func (c *Cloud) Quota(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quota = n
}

// Exhaust takes all addresses of a subnet but free, as if others had them; a larger number than
// there is gives back what was taken.
func (c *Cloud) Exhaust(id string, free int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.subnets[id]
	s.Exhaust(c.taken(s), free)
}

// Detach takes addresses from an interface behind its owner's back.
func (c *Cloud) Detach(id string, addrs ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.interfaces.Now()[id]
	i.Addresses = slices.DeleteFunc(slices.Clone(i.Addresses), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	c.put(i)
	c.strand()
}

// ---- what is in it; all of this must be called with mu held ----------------------------------

func (c *Cloud) id(kind string) string {
	c.serial++
	return fmt.Sprintf("%s-%017x", kind, c.serial)
}

func (c *Cloud) change(f func(map[string]Interface)) { c.interfaces.Change(f) }

func (c *Cloud) put(i Interface) { c.interfaces.Put(i.ID, i) }

func (c *Cloud) taken(s *subnet) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, i := range c.interfaces.Now() {
		if i.Subnet != s.id {
			continue
		}
		out[i.Primary] = true
		for _, a := range i.Addresses {
			out[a] = true
		}
		for _, p := range i.Prefixes {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				out[a] = true
			}
		}
	}
	return out
}

func (c *Cloud) free(s *subnet) []netip.Addr { return s.Free(c.taken(s)) }

// freePrefixes returns the blocks of 16 of which nothing is taken.
func (c *Cloud) freePrefixes(s *subnet) (out []netip.Prefix) {
	free := map[netip.Prefix]int{}
	for _, a := range c.free(s) {
		p := netip.PrefixFrom(a, 28).Masked()
		if free[p]++; free[p] == 16 {
			out = append(out, p)
		}
	}
	return out
}

func (c *Cloud) newInterface(id string, groups []string, addresses, prefixes int) (Interface, *Fault) {
	s := c.subnets[id]
	if s == nil {
		return Interface{}, &Fault{Code: "InvalidSubnetID.NotFound", Message: fmt.Sprintf("The subnet ID '%s' does not exist", id)}
	}
	for _, g := range groups {
		if c.groups[g] == nil {
			return Interface{}, &Fault{Code: "InvalidGroup.NotFound", Message: fmt.Sprintf("The security group '%s' does not exist", g)}
		}
	}
	if c.quota > 0 && len(c.interfaces.Now()) >= c.quota {
		return Interface{}, &Fault{Code: "NetworkInterfaceLimitExceeded", Message: "The maximum number of network interfaces has been reached."}
	}
	free := c.free(s)
	if len(free) == 0 {
		return Interface{}, noAddresses(id)
	}
	i := Interface{ID: c.id("eni"), Subnet: id, Primary: free[0], Groups: groups, Tags: map[string]string{}}
	i.MAC = fmt.Sprintf("02:00:00:%02x:%02x:%02x", byte(c.serial>>16), byte(c.serial>>8), byte(c.serial))
	c.interfaces.Now()[i.ID] = i // so that its primary address is taken
	f := c.extend(&i, addresses, prefixes)
	delete(c.interfaces.Now(), i.ID)
	return i, f
}

func noAddresses(id string) *Fault {
	return &Fault{Code: "InsufficientFreeAddressesInSubnet", Message: fmt.Sprintf("The specified subnet '%s' does not have enough free addresses to satisfy the request.", id)}
}

// extend gives an interface more; limits of an instance are those of whom it is attached to.
func (c *Cloud) extend(i *Interface, addresses, prefixes int) *Fault {
	s := c.subnets[i.Subnet]
	if in := c.instances[i.Instance]; in != nil {
		t := c.types[in.kind]
		if 1+len(i.Addresses)+len(i.Prefixes)+addresses+prefixes > t.Addresses {
			return &Fault{Code: "PrivateIpAddressLimitExceeded", Message: fmt.Sprintf("The number of addresses exceeds the limit of %d of an interface of type %s", t.Addresses, in.kind)}
		}
		if prefixes > 0 && t.Hypervisor != "nitro" {
			return &Fault{Code: "InvalidParameterCombination", Message: "Prefixes can be assigned to instances built on the Nitro System only"}
		}
	}
	blocks := c.freePrefixes(s)
	if len(blocks) < prefixes {
		return &Fault{Code: "InsufficientCidrBlocks", Message: fmt.Sprintf("The specified subnet '%s' does not have enough free cidr blocks to satisfy the request.", s.id)}
	}
	i.Prefixes = append(slices.Clone(i.Prefixes), blocks[:prefixes]...)
	if addresses > 0 {
		free := c.free(s)
		if len(free) < addresses {
			return noAddresses(s.id)
		}
		i.Addresses = append(slices.Clone(i.Addresses), free[:addresses]...)
	}
	return nil
}
