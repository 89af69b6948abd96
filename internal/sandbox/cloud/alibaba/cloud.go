// Package alibaba is the part of Alibaba Cloud on one machine that pods' addresses come from: VPCs,
// vSwitches, security groups, instances and their elastic network interfaces, by the RPC APIs of
// ECS (version 2014-05-26) and VPC (version 2016-04-28), and instance metadata, so that the
// official SDK works unchanged.
//
// Shapes of requests and answers, and error codes, are those of the API references of Elastic
// Compute Service ("ENI", "Security groups", "Instance types") and of Virtual Private Cloud
// ("DescribeVSwitches", "DescribeVpcs"). An interface is "Available" a while after it was made, and
// "InUse" a while after it was attached. A [Cloud] can be disturbed as the real one disturbs its
// users. Signatures must be there and are not verified. Nothing is stored.
package alibaba

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// Fault is what becomes of a request, but its effect.
type Fault = cloud.Fault

// Type is a type of instances with its limits.
type Type struct{ Interfaces, Addresses int }

// Interface is an elastic network interface.
type Interface struct {
	ID, VSwitch, MAC, Description string
	// Instance is empty if it is not attached, nor about to be.
	Instance        string
	Main            bool
	Primary         netip.Addr
	Addresses       []netip.Addr // secondary ones
	Groups          []string
	Tags            map[string]string
	DeleteOnRelease bool

	// status is what it is until ready, and then it is Available or InUse.
	status string
	ready  time.Time
}

type instance struct{ id, kind, vswitch string }

type vswitch struct {
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
type Cloud struct {
	cloud.Disturbances

	mu         sync.Mutex
	serial     int
	vpcs       map[string][]netip.Prefix
	vswitches  map[string]*vswitch
	groups     map[string]*group
	types      map[string]Type
	instances  map[string]*instance
	interfaces map[string]Interface
	past       []moment

	lag, takes time.Duration
	pageSize   int
}

// New returns a region in which nothing is but some types of instances.
func New() *Cloud {
	return &Cloud{
		vpcs: map[string][]netip.Prefix{}, vswitches: map[string]*vswitch{}, groups: map[string]*group{}, instances: map[string]*instance{},
		interfaces: map[string]Interface{}, pageSize: 500,
		types: map[string]Type{"ecs.g7.large": {3, 6}, "ecs.g7.xlarge": {4, 15}, "ecs.g7.2xlarge": {4, 15}, "ecs.t6.small": {1, 2}},
	}
}

// AddVPC adds a VPC with its CIDRs.
func (c *Cloud) AddVPC(id string, cidrs ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vpcs[id] = cidrs
}

// AddVSwitch adds a vSwitch, of which the cloud keeps the first address and the last three ("VPC
// User Guide", vSwitch).
func (c *Cloud) AddVSwitch(id, vpc, zone string, cidr netip.Prefix, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &vswitch{id: id, vpc: vpc, zone: zone, cidr: cidr.Masked(), tags: tags}
	s.reset()
	c.vswitches[id] = s
}

func (s *vswitch) reset() {
	s.reserved = map[netip.Addr]bool{}
	var all []netip.Addr
	for a := s.cidr.Addr(); s.cidr.Contains(a); a = a.Next() {
		all = append(all, a)
	}
	for _, a := range append(all[:1:1], all[len(all)-3:]...) {
		s.reserved[a] = true
	}
}

// AddGroup adds a security group.
func (c *Cloud) AddGroup(id, vpc string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[id] = &group{id, vpc, tags}
}

// AddInstance runs an instance with its first interface, and returns that one's address.
func (c *Cloud) AddInstance(id, kind, vswitch string, groups ...string) (netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.types[kind]; !ok {
		return netip.Addr{}, fmt.Errorf("no instance type %q", kind)
	}
	i, f := c.newInterface(vswitch, groups, 0)
	if f != nil {
		return netip.Addr{}, fmt.Errorf("%s", f.Message)
	}
	i.Instance, i.Main, i.DeleteOnRelease = id, true, true
	c.instances[id] = &instance{id, kind, vswitch}
	c.put(i)
	return i.Primary, nil
}

// Terminate releases an instance: its interfaces are deleted or left, as each says.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
	c.change(func() {
		for k, i := range c.interfaces {
			if i.Instance != id {
				continue
			}
			if i.DeleteOnRelease {
				delete(c.interfaces, k)
				continue
			}
			i.Instance = ""
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

// Lag has descriptions of interfaces be that old.
func (c *Cloud) Lag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag = d
}

// Takes has making and attaching an interface take that long.
func (c *Cloud) Takes(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes = d
}

// Pages has descriptions come in pages of n.
func (c *Cloud) Pages(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pageSize = n
}

// Exhaust takes all addresses of a vSwitch but free, as if others had them; a larger number than
// there is gives back what was taken.
func (c *Cloud) Exhaust(id string, free int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.vswitches[id]
	s.reset()
	all := c.free(s)
	for k, a := range all {
		if k < len(all)-free {
			s.reserved[a] = true
		}
	}
}

// ---- what is in it; all of this must be called with mu held ----------------------------------

func (c *Cloud) change(f func()) {
	c.past = append(c.past, moment{time.Now(), maps.Clone(c.interfaces)})
	for len(c.past) > 1 && time.Since(c.past[1].at) > c.lag {
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

// statusOf is what an interface is now.
func statusOf(i Interface) string {
	switch {
	case time.Now().Before(i.ready):
		return i.status
	case i.Instance != "":
		return "InUse"
	}
	return "Available"
}

func (c *Cloud) free(s *vswitch) (out []netip.Addr) {
	taken := maps.Clone(s.reserved)
	for _, i := range c.interfaces {
		taken[i.Primary] = true
		for _, a := range i.Addresses {
			taken[a] = true
		}
	}
	for a := s.cidr.Addr(); s.cidr.Contains(a); a = a.Next() {
		if !taken[a] {
			out = append(out, a)
		}
	}
	return out
}

func (c *Cloud) newInterface(id string, groups []string, addresses int) (Interface, *Fault) {
	s := c.vswitches[id]
	if s == nil {
		return Interface{}, &Fault{Code: "InvalidVSwitchId.NotFound", Message: "The specified VSwitch does not exist.", Status: 404}
	}
	for _, g := range groups {
		if c.groups[g] == nil {
			return Interface{}, &Fault{Code: "InvalidSecurityGroupId.NotFound", Message: fmt.Sprintf("The specified security group %s does not exist.", g), Status: 404}
		}
	}
	free := c.free(s)
	if len(free) < 1+addresses {
		return Interface{}, full(id)
	}
	c.serial++
	return Interface{
		ID: fmt.Sprintf("eni-%017x", c.serial), VSwitch: id, Primary: free[0], Addresses: slices.Clone(free[1 : 1+addresses]), Groups: groups, Tags: map[string]string{},
		MAC: fmt.Sprintf("00:16:3e:%02x:%02x:%02x", byte(c.serial>>16), byte(c.serial>>8), byte(c.serial)),
	}, nil
}

func full(id string) *Fault {
	return &Fault{Code: "InvalidVSwitchId.IpNotEnough", Message: fmt.Sprintf("The specified VSwitch %s does not have enough IP addresses.", id), Status: 403}
}
