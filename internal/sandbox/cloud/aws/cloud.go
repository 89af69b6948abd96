// Package aws is the part of EC2 on one machine that pods' addresses come from: VPCs, subnets,
// security groups, instances and their network interfaces, by the query API of EC2 (version
// 2016-11-15) and the instance metadata service (IMDSv2), so that the official SDK works unchanged.
// Point it there with AWS_ENDPOINT_URL.
//
// Shapes of requests and answers, and error codes, are those of the Amazon EC2 API Reference
// ("Actions", "Error codes for the Amazon EC2 API"), limits those of the Amazon EC2 User Guide
// ("Elastic network interfaces", "Prefix delegation"). A [Cloud] can be disturbed as the real one
// disturbs its users: it throttles, answers in pages and from the past, is slow, runs dry, refuses,
// and loses answers. Signatures must be there and are not verified. Nothing is stored.
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
}

// Fault is what becomes of a request, but its effect.
type Fault = cloud.Fault

// Interface is a network interface.
type Interface struct {
	ID, Subnet, MAC, Description string
	Primary                      netip.Addr
	Addresses                    []netip.Addr // secondary ones
	Prefixes                     []netip.Prefix
	Groups                       []string
	Tags                         map[string]string
	// Attachment is empty if it is not attached.
	Attachment, Instance string
	Index                int
	DeleteOnTermination  bool
	token                string
}

type instance struct {
	id, kind, subnet string
	tags             map[string]string
}

type subnet struct {
	id, vpc, zone string
	cidr          netip.Prefix
	tags          map[string]string
	reserved      map[netip.Addr]bool
}

type group struct {
	id, vpc string
	tags    map[string]string
}

type moment struct {
	at         time.Time
	interfaces map[string]Interface
}

// Cloud is a region. Make one with [New]; its methods may be called at any time from anywhere.
//
// Requests are throttled as "Request throttling for the Amazon EC2 API" says: a bucket of tokens.
type Cloud struct {
	cloud.Disturbances

	mu         sync.Mutex
	serial     int
	vpcs       map[string][]netip.Prefix
	subnets    map[string]*subnet
	groups     map[string]*group
	types      map[string]Type
	instances  map[string]*instance
	interfaces map[string]Interface
	past       []moment // of interfaces, oldest first

	lag      time.Duration
	pageSize int
	quota    int // of interfaces
}

// New returns a region in which nothing is but some types of instances.
func New() *Cloud {
	return &Cloud{
		vpcs: map[string][]netip.Prefix{}, subnets: map[string]*subnet{}, groups: map[string]*group{}, instances: map[string]*instance{},
		interfaces: map[string]Interface{}, pageSize: 1000,
		types: map[string]Type{
			"t2.small":  {Interfaces: 3, Addresses: 4, Hypervisor: "xen"},
			"t3.nano":   {Interfaces: 2, Addresses: 2, Hypervisor: "nitro"},
			"t3.small":  {Interfaces: 3, Addresses: 4, Hypervisor: "nitro"},
			"m5.large":  {Interfaces: 3, Addresses: 10, Hypervisor: "nitro"},
			"m5.xlarge": {Interfaces: 4, Addresses: 15, Hypervisor: "nitro"},
		},
	}
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
	s := &subnet{id: id, vpc: vpc, zone: zone, cidr: cidr.Masked(), tags: tags, reserved: map[netip.Addr]bool{}}
	a := s.cidr.Addr()
	for range 4 {
		s.reserved[a] = true
		a = a.Next()
	}
	last := a
	for ; s.cidr.Contains(a); a = a.Next() {
		last = a
	}
	s.reserved[last] = true
	c.subnets[id] = s
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

// Terminate ends an instance: its interfaces are deleted or left, as each says.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
	c.change(func() {
		for k, i := range c.interfaces {
			if i.Instance != id {
				continue
			}
			if i.DeleteOnTermination {
				delete(c.interfaces, k)
				continue
			}
			i.Attachment, i.Instance, i.Index = "", "", 0
			c.interfaces[k] = i
		}
	})
}

// Interfaces returns all interfaces as they are now, by ID.
func (c *Cloud) Interfaces() []Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.interfaces), func(a, b Interface) int { return strings.Compare(a.ID, b.ID) })
}

// Lag has descriptions of interfaces be that old ("Eventual consistency in the Amazon EC2 API").
func (c *Cloud) Lag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag = d
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
	first := s.cidr.Addr().Next().Next().Next().Next() // behind the reserved ones
	last := first
	for a := first; s.cidr.Contains(a); a = a.Next() {
		delete(s.reserved, a)
		last = a
	}
	s.reserved[last] = true
	all := c.free(s)
	for k, a := range all {
		if k < len(all)-free {
			s.reserved[a] = true
		}
	}
}

// Detach takes addresses from an interface behind its owner's back.
func (c *Cloud) Detach(id string, addrs ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.interfaces[id]
	i.Addresses = slices.DeleteFunc(slices.Clone(i.Addresses), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	c.put(i)
}

// ---- what is in it; all of this must be called with mu held ----------------------------------

func (c *Cloud) id(kind string) string {
	c.serial++
	return fmt.Sprintf("%s-%017x", kind, c.serial)
}

func (c *Cloud) change(f func()) {
	c.past = append(c.past, moment{time.Now(), maps.Clone(c.interfaces)})
	for len(c.past) > 0 && time.Since(c.past[0].at) > c.lag && (len(c.past) < 2 || time.Since(c.past[1].at) > c.lag) {
		c.past = c.past[1:]
	}
	f()
}

func (c *Cloud) put(i Interface) { c.change(func() { c.interfaces[i.ID] = i }) }

// seen returns the interfaces as descriptions show them: as they were before what has changed
// within the lag.
func (c *Cloud) seen() map[string]Interface {
	for _, m := range c.past {
		if time.Since(m.at) < c.lag {
			return m.interfaces
		}
	}
	return c.interfaces
}

func (c *Cloud) taken(s *subnet) map[netip.Addr]bool {
	out := maps.Clone(s.reserved)
	for _, i := range c.interfaces {
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

func (c *Cloud) free(s *subnet) (out []netip.Addr) {
	taken := c.taken(s)
	for a := s.cidr.Addr(); s.cidr.Contains(a); a = a.Next() {
		if !taken[a] {
			out = append(out, a)
		}
	}
	return out
}

// freePrefixes returns the blocks of 16 of which nothing is taken.
func (c *Cloud) freePrefixes(s *subnet) (out []netip.Prefix) {
	taken := c.taken(s)
	for a := s.cidr.Addr(); s.cidr.Contains(a); {
		p, ok := netip.PrefixFrom(a, 28), true
		for ; p.Contains(a); a = a.Next() {
			ok = ok && !taken[a]
		}
		if ok {
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
	if c.quota > 0 && len(c.interfaces) >= c.quota {
		return Interface{}, &Fault{Code: "NetworkInterfaceLimitExceeded", Message: "The maximum number of network interfaces has been reached."}
	}
	free := c.free(s)
	if len(free) == 0 {
		return Interface{}, noAddresses(id)
	}
	i := Interface{ID: c.id("eni"), Subnet: id, Primary: free[0], Groups: groups, Tags: map[string]string{}}
	i.MAC = fmt.Sprintf("02:00:00:%02x:%02x:%02x", byte(c.serial>>16), byte(c.serial>>8), byte(c.serial))
	c.interfaces[i.ID] = i // so that its primary address is taken
	f := c.extend(&i, addresses, prefixes)
	delete(c.interfaces, i.ID)
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
