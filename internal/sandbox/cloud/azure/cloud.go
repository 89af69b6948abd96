// Package azure is the part of Azure on one machine that pods' addresses come from: virtual
// networks, subnets, virtual machines, scale sets and their network interfaces, by the REST API of
// Azure Resource Manager, and the instance metadata service (IMDS), so that the official SDK works
// unchanged. Point it there by the SDK's cloud configuration.
//
// Shapes of requests and answers are those of the Azure REST API reference ("Network Interfaces",
// "Virtual Networks", "Virtual Machine Scale Set VMs"), of "Track asynchronous Azure operations",
// and of "Understand how Azure Resource Manager throttles requests"; limits those of "Azure
// subscription and service limits" (networking) and "Private IP addresses". Where the reference
// names no code of an error, it is one that users report. A [Cloud] can be disturbed as the real
// one disturbs its users. Tokens must be there and are not verified. Nothing is stored.
package azure

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

// MaxAddresses is how many addresses an interface may have ("Azure subscription and service
// limits", private IP addresses per network interface).
const MaxAddresses = 256

// Config is an IP configuration of an interface.
type Config struct {
	Name, Subnet string
	Address      netip.Addr
	Primary      bool
}

// Interface is a network interface. IDs are those of Azure Resource Manager, in whichever case.
type Interface struct {
	ID, Name, Machine, MAC, Group string
	Primary                       bool
	// Accelerated is a property that has nothing to do with addresses: replacing the interface
	// without it switches it off.
	Accelerated bool
	Configs     []Config

	etag    int
	updated time.Time // until then it is being updated
}

type subnet struct {
	cloud.Addresses
	id string
}

type network struct {
	id, name string
	spaces   []netip.Prefix
	subnets  []*subnet
}

// machine is a virtual machine, or an instance of a scale set.
type machine struct {
	id, name, set, size, zone string
	interfaces                []string // IDs in lower case
	// model is what a scale set's instance was configured to have: by interface, its
	// configurations.
	model   map[string][]Config
	etag    int
	updated time.Time
}

type operation struct {
	done    time.Time
	machine *machine // whose model is applied when it is done; nil if there is nothing to do
	fault   *Fault
	applied bool
}

// Cloud is a resource group of a subscription. Make one with [New]; its methods may be called at
// any time from anywhere.
type Cloud struct {
	cloud.Disturbances

	subscription, group string

	mu         sync.Mutex
	serial     int
	networks   map[string]*network // all maps are by ID in lower case
	machines   map[string]*machine
	sets       map[string]string // names
	interfaces cloud.History[Interface]
	operations map[string]*operation

	takes    time.Duration
	pageSize int
}

// New returns an empty resource group.
func New(subscription, group string) *Cloud {
	return &Cloud{
		subscription: subscription, group: group, networks: map[string]*network{}, machines: map[string]*machine{}, sets: map[string]string{},
		operations: map[string]*operation{}, pageSize: 1000,
	}
}

// id returns the ID of a resource of the group.
func (c *Cloud) id(kind string, more ...string) string {
	return strings.Join(append([]string{"/subscriptions/" + c.subscription + "/resourceGroups/" + c.group + "/providers/" + kind}, more...), "/")
}

func key(id string) string { return strings.ToLower(id) }

// AddNetwork adds a virtual network with its address spaces.
func (c *Cloud) AddNetwork(name string, spaces ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.id("Microsoft.Network/virtualNetworks", name)
	c.networks[key(id)] = &network{id: id, name: name, spaces: spaces}
}

// AddSubnet adds a subnet, of which the cloud keeps the first four addresses and the last ("Azure
// Virtual Network FAQ"). It returns its ID.
func (c *Cloud) AddSubnet(name, network string, cidr netip.Prefix) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.networks[key(c.id("Microsoft.Network/virtualNetworks", network))]
	s := &subnet{Addresses: cloud.NewAddresses(cidr, 4, 1), id: n.id + "/subnets/" + name}
	n.subnets = append(n.subnets, s)
	return s.id
}

// AddMachine adds a virtual machine with an interface in each of the subnets, and returns its ID.
// If set is not empty it is that number of a scale set.
func (c *Cloud) AddMachine(set, name string, subnets ...string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &machine{name: name, set: set, size: "Standard_D2s_v5", zone: "1", etag: 1, model: map[string][]Config{}}
	m.id = c.id("Microsoft.Compute/virtualMachines", name)
	if set != "" {
		id := c.id("Microsoft.Compute/virtualMachineScaleSets", set)
		c.sets[key(id)] = set
		m.id = id + "/virtualMachines/" + name
	}
	for k, s := range subnets {
		sub := c.subnet(s)
		if sub == nil {
			return "", fmt.Errorf("no subnet %q", s)
		}
		c.serial++
		i := Interface{Name: fmt.Sprintf("nic%d", k), Machine: m.id, Primary: k == 0, Accelerated: true, etag: 1, Group: c.id("Microsoft.Network/networkSecurityGroups", "nodes")}
		if set == "" {
			i.Name = name + "-" + i.Name
			i.ID = c.id("Microsoft.Network/networkInterfaces", i.Name)
		} else {
			i.ID = m.id + "/networkInterfaces/" + i.Name
		}
		i.MAC = fmt.Sprintf("00-22-48-%02X-%02X-%02X", byte(c.serial>>16), byte(c.serial>>8), byte(c.serial))
		i.Configs = []Config{{Name: "ipconfig1", Subnet: sub.id, Primary: true}}
		if f := c.fill(&i); f != nil {
			return "", fmt.Errorf("%s", f.Message)
		}
		m.interfaces = append(m.interfaces, key(i.ID))
		m.model[i.Name] = slices.Clone(i.Configs)
		c.put(i)
	}
	c.machines[key(m.id)] = m
	return m.id, nil
}

// Place has the first interface of a machine have an address and a hardware address, as its creator
// may choose.
func (c *Cloud) Place(id string, ip netip.Addr, mac string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[key(id)]
	i := c.interfaces.Now()[m.interfaces[0]]
	i.MAC, i.Configs = strings.ToUpper(strings.ReplaceAll(mac, ":", "-")), slices.Clone(i.Configs)
	i.Configs[0].Address = ip
	c.put(i)
}

// Keep has addresses of a subnet never be given.
func (c *Cloud) Keep(id string, ips ...netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnet(id).Keep(ips...)
}

// Terminate deletes a machine with its interfaces.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.machines, key(id))
	c.change(func(all map[string]Interface) {
		maps.DeleteFunc(all, func(_ string, i Interface) bool { return key(i.Machine) == key(id) })
	})
}

// Interfaces returns all interfaces as they are now, by ID.
func (c *Cloud) Interfaces() []Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish()
	return slices.SortedFunc(maps.Values(c.interfaces.Now()), func(a, b Interface) int { return strings.Compare(a.ID, b.ID) })
}

// Lag has lists of interfaces be that old.
func (c *Cloud) Lag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interfaces.Lag(d)
}

// Takes has asynchronous operations take that long.
func (c *Cloud) Takes(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes = d
}

// Pages has lists come in pages of n.
func (c *Cloud) Pages(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pageSize = n
}

// Exhaust takes all addresses of a subnet but free, as if others had them; a larger number than
// there is gives back what was taken.
func (c *Cloud) Exhaust(id string, free int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnet(id).Exhaust(c.taken(), free)
}

// Touch changes an interface's etag, as a concurrent change would.
func (c *Cloud) Touch(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.interfaces.Now()[key(id)]
	i.etag++
	c.put(i)
	if m := c.machines[key(i.Machine)]; m != nil {
		m.etag++
	}
}

// ---- what is in it; all of this must be called with mu held ----------------------------------

func (c *Cloud) change(f func(map[string]Interface)) { c.interfaces.Change(f) }

func (c *Cloud) put(i Interface) { c.interfaces.Put(key(i.ID), i) }

func (c *Cloud) subnet(id string) *subnet {
	for _, n := range c.networks {
		for _, s := range n.subnets {
			if key(s.id) == key(id) {
				return s
			}
		}
	}
	return nil
}

// taken are the addresses of all configurations.
func (c *Cloud) taken() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, i := range c.interfaces.Now() {
		for _, x := range i.Configs {
			out[x.Address] = true
		}
	}
	return out
}

func (c *Cloud) free(s *subnet) []netip.Addr { return s.Free(c.taken()) }

// fill gives each configuration of an interface that has none an address.
func (c *Cloud) fill(i *Interface) *Fault {
	if len(i.Configs) > MaxAddresses {
		return &Fault{Code: "BadRequest", Message: fmt.Sprintf("Network interface %s has more than %d IP configurations.", i.Name, MaxAddresses)}
	}
	used := map[netip.Addr]bool{}
	for k := range i.Configs {
		x := &i.Configs[k]
		if x.Address.IsValid() {
			continue
		}
		s := c.subnet(x.Subnet)
		if s == nil {
			return &Fault{Code: "InvalidResourceReference", Message: fmt.Sprintf("Resource %s referenced by resource %s was not found.", x.Subnet, i.ID)}
		}
		free := slices.DeleteFunc(c.free(s), func(a netip.Addr) bool { return used[a] })
		if len(free) == 0 {
			return &Fault{Code: "SubnetIsFull", Message: fmt.Sprintf("Subnet %s with address prefix %s does not have enough available IP addresses to satisfy the request.", s.id, s.CIDR)}
		}
		x.Address = free[0]
		used[free[0]] = true
	}
	return nil
}

// finish ends the operations whose time has come.
func (c *Cloud) finish() {
	for _, o := range c.operations {
		if o.applied || time.Now().Before(o.done) {
			continue
		}
		o.applied = true
		if o.machine != nil {
			o.fault = c.apply(o.machine)
		}
	}
}

// apply gives the interfaces of a scale set's instance what its model says. What cannot be had
// stays in the model.
func (c *Cloud) apply(m *machine) *Fault {
	for _, id := range m.interfaces {
		i, ok := c.interfaces.Now()[id]
		if !ok {
			continue
		}
		var configs []Config
		for _, x := range m.model[i.Name] {
			if at := slices.IndexFunc(i.Configs, func(o Config) bool { return o.Name == x.Name }); at >= 0 {
				x = i.Configs[at]
			}
			configs = append(configs, x)
		}
		i.Configs = configs
		if f := c.fill(&i); f != nil {
			return f
		}
		i.etag++
		c.put(i)
	}
	return nil
}
