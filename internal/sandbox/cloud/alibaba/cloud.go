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
	cloud.Addresses
	id, vpc, zone string
	tags          map[string]string
}

type group struct {
	id, vpc string
	tags    map[string]string
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
	interfaces cloud.History[Interface]

	takes    time.Duration
	pageSize int
}

// New returns a region in which nothing is but some types of instances.
func New() *Cloud {
	return &Cloud{
		vpcs: map[string][]netip.Prefix{}, vswitches: map[string]*vswitch{}, groups: map[string]*group{}, instances: map[string]*instance{},
		pageSize: 500,
		types:    map[string]Type{"ecs.g7.large": {3, 6}, "ecs.g7.xlarge": {4, 15}, "ecs.g7.2xlarge": {4, 15}, "ecs.g7.4xlarge": {8, 30}, "ecs.t6.small": {1, 2}},
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

// AddVSwitch adds a vSwitch, of which the cloud keeps the first address and the last three ("VPC
// User Guide", vSwitch).
func (c *Cloud) AddVSwitch(id, vpc, zone string, cidr netip.Prefix, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vswitches[id] = &vswitch{Addresses: cloud.NewAddresses(cidr, 1, 3), id: id, vpc: vpc, zone: zone, tags: tags}
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

// Place has the first interface of an instance have an address and a hardware address, as its
// creator may choose.
func (c *Cloud) Place(instance string, ip netip.Addr, mac string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interfaces.Now() {
		if i.Instance == instance && i.Main {
			i.Primary, i.MAC = ip, mac
			c.put(i)
			return
		}
	}
}

// Keep has addresses of a vSwitch never be given.
func (c *Cloud) Keep(id string, ips ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vswitches[id].Keep(ips...)
}

// Terminate releases an instance: its interfaces are deleted or left, as each says.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, id)
	c.change(func(all map[string]Interface) {
		for k, i := range all {
			if i.Instance != id {
				continue
			}
			if i.DeleteOnRelease {
				delete(all, k)
				continue
			}
			i.Instance = ""
			all[k] = i
		}
	})
}

// Interfaces returns all interfaces as they are now, by ID.
func (c *Cloud) Interfaces() []Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.interfaces.Now()), func(a, b Interface) int { return strings.Compare(a.ID, b.ID) })
}

// Lag has descriptions of interfaces be that old.
func (c *Cloud) Lag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interfaces.Lag(d)
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
	c.vswitches[id].Exhaust(c.taken(), free)
}

// ---- what is in it; all of this must be called with mu held ----------------------------------

func (c *Cloud) change(f func(map[string]Interface)) { c.interfaces.Change(f) }

func (c *Cloud) put(i Interface) { c.interfaces.Put(i.ID, i) }

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

// taken are the addresses of all interfaces.
func (c *Cloud) taken() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, i := range c.interfaces.Now() {
		out[i.Primary] = true
		for _, a := range i.Addresses {
			out[a] = true
		}
	}
	return out
}

func (c *Cloud) free(s *vswitch) []netip.Addr { return s.Free(c.taken()) }

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
