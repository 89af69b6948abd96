// Package region serves a cloud to the instances that are namespaces of this machine: its API, by
// which operators change it, the metadata service of each instance, and its network, in which
// interfaces appear as the cloud attaches them (package fabric). People see what it has, and have
// it fail, by a socket of its own (see [Client]).
//
// All of it is one process, by [Serve]. What the cloud has is in its memory alone.
package region

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/alibaba"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/azure"
	"github.com/hawser-net/hawser/internal/sandbox/fabric"
	"github.com/hawser-net/hawser/internal/validate"
)

// The providers.
const (
	AWS     = "aws"
	Azure   = "azure"
	Alibaba = "alibaba"
)

// Providers are the clouds that there are.
func Providers() []string { return []string{AWS, Azure, Alibaba} }

// instanceTypes are those of instances if nothing is said. Azure's is always the same, as what its
// interfaces hold does not depend on it.
var instanceTypes = map[string]string{AWS: "m5.xlarge", Alibaba: "ecs.g7.xlarge"}

// CheckInstanceType says what is wrong with a type of instances. None is right: there is a default.
func CheckInstanceType(provider, kind string) error {
	var known []string
	switch provider {
	case AWS:
		known = aws.New().Types()
	case Alibaba:
		known = alibaba.New().Types()
	}
	if kind == "" || slices.Contains(known, kind) {
		return nil
	}
	if len(known) == 0 {
		return fmt.Errorf("instance type %q: there is no choice in the cloud %q", kind, provider)
	}
	return fmt.Errorf("instance type %q: want one of %v", kind, known)
}

// Names of what is in each cloud, for those who configure its users.
const (
	Zone          = "eu-central-1a"
	Region        = "eu-central-1"
	Subscription  = "00000000-0000-0000-0000-000000000001"
	ResourceGroup = "sandbox"
	// PodsSubnet is the subnet that is for pods, of which Azure has none, and PodsTag and PodsValue
	// are its tag.
	PodsSubnet         = "subnet-pods"
	PodsTag, PodsValue = "purpose", "pods"
	vpcName            = "vpc-sandbox"
	nodesName          = "subnet-nodes"
	groupName          = "sg-nodes"
)

// Host is an instance.
type Host struct {
	// Name is how people know the node, Namespace the path of its network namespace, First the link
	// in the router's namespace that is the other end of its eth0.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	First     string `json:"first"`
	// IPv4 and MAC are those of eth0.
	IPv4 netip.Addr `json:"ipv4"`
	MAC  string     `json:"mac"`
	// IPv6 is its IPv6 address, where the region has IPv6.
	IPv6 netip.Addr `json:"ipv6,omitzero"`
}

// Spec is what a region consists of, and where it is served.
type Spec struct {
	Provider string `json:"provider"`
	// InstanceType is that of all instances, as [CheckInstanceType] allows.
	InstanceType string `json:"instanceType,omitempty"`
	// Router is the path of the namespace that is the cloud's router, and has the addresses by
	// which it is asked.
	Router string `json:"router"`
	Hosts  []Host `json:"hosts"`
	// Nodes is the subnet of all eth0, of which Kept are addresses of others; Pods is a subnet that
	// is for pods alone.
	Nodes netip.Prefix `json:"nodes"`
	Pods  netip.Prefix `json:"pods"`
	Kept  []netip.Addr `json:"kept"`
	// IPv6 is the IPv6 CIDR block of all, of which NodesIPv6 and PodsIPv6 are those of the subnets;
	// they are not valid without IPv6, which AWS alone has here.
	IPv6      netip.Prefix `json:"ipv6,omitzero"`
	NodesIPv6 netip.Prefix `json:"nodesIPv6,omitzero"`
	PodsIPv6  netip.Prefix `json:"podsIPv6,omitzero"`
	// API is where the cloud's API is served, by the certificate Cert and its key Key (files).
	API  netip.AddrPort `json:"api"`
	Cert string         `json:"cert"`
	Key  string         `json:"key"`
	// Socket is the path of the socket by which people look and disturb.
	Socket string `json:"socket"`
}

// Load reads a spec from a file of JSON.
func Load(path string) (Spec, error) {
	var s Spec
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil {
		err = s.validate()
	}
	return s, err
}

func (s *Spec) validate() error {
	var errs validate.Errors
	errs.If(!slices.Contains(Providers(), s.Provider), "cloud %q: want one of %v", s.Provider, Providers())
	errs = append(errs, CheckInstanceType(s.Provider, s.InstanceType))
	errs.If(!s.Nodes.IsValid() || !s.Pods.IsValid() || s.Nodes.Overlaps(s.Pods), "subnets %v and %v: want two that do not overlap", s.Nodes, s.Pods)
	errs.If(s.IPv6.IsValid() && (s.Provider != AWS || !s.IPv6.Overlaps(s.NodesIPv6) || !s.IPv6.Overlaps(s.PodsIPv6) || s.NodesIPv6.Overlaps(s.PodsIPv6)),
		"IPv6 subnets %v and %v of %v in %s: want two that do not overlap, in %s", s.NodesIPv6, s.PodsIPv6, s.IPv6, s.Provider, AWS)
	errs.If(s.Router == "" || len(s.Hosts) == 0 || s.Socket == "", "a region needs a router, instances and a socket")
	return errs.Err()
}

// MetadataAddr is where instances find their metadata: AWS and Azure have the link-local one,
// Alibaba Cloud one of its own.
func (s *Spec) MetadataAddr() netip.Addr {
	if s.Provider == Alibaba {
		return netip.AddrFrom4([4]byte{100, 100, 100, 200})
	}
	return netip.AddrFrom4([4]byte{169, 254, 169, 254})
}

// InstanceID is what the cloud calls a node's instance.
func InstanceID(provider, node string) string {
	if provider == Azure {
		return "/subscriptions/" + Subscription + "/resourceGroups/" + ResourceGroup + "/providers/Microsoft.Compute/virtualMachines/" + node
	}
	return "i-" + node
}

// Cloud is one of the clouds.
type Cloud interface {
	http.Handler
	View() cloud.View
	Metadata(instance string) http.Handler
	// Exhaust has others have all addresses of a subnet but free.
	Exhaust(subnet string, free int)
	Terminate(instance string)
	Calls() map[string]int
	Script(func(action string) *cloud.Fault)
	Latency(time.Duration)
	Throttle(perSecond, burst float64)
}

// build makes the cloud with what is in it from the start.
func (s *Spec) build() (Cloud, error) {
	tags := map[string]string{PodsTag: PodsValue}
	kind := cmp.Or(s.InstanceType, instanceTypes[s.Provider])
	var errs []error
	switch s.Provider {
	case AWS:
		c := aws.New()
		c.AddVPC(vpcName, s.Nodes, s.Pods)
		c.AddSubnet(nodesName, vpcName, Zone, s.Nodes, nil)
		c.AddSubnet(PodsSubnet, vpcName, Zone, s.Pods, tags)
		c.AddGroup(groupName, vpcName, nil)
		c.Keep(nodesName, s.Kept...)
		for _, h := range s.Hosts {
			_, err := c.AddInstance(InstanceID(s.Provider, h.Name), kind, nodesName, []string{groupName}, map[string]string{"Name": h.Name})
			errs = append(errs, err)
			c.Place(InstanceID(s.Provider, h.Name), h.IPv4, h.MAC)
		}
		if s.IPv6.IsValid() {
			s.addIPv6(c)
		}
		return c, errors.Join(errs...)
	case Alibaba:
		c := alibaba.New()
		c.AddVPC(vpcName, s.Nodes, s.Pods)
		c.AddVSwitch(nodesName, vpcName, Zone, s.Nodes, nil)
		c.AddVSwitch(PodsSubnet, vpcName, Zone, s.Pods, tags)
		c.AddGroup(groupName, vpcName, nil)
		c.Keep(nodesName, s.Kept...)
		for _, h := range s.Hosts {
			_, err := c.AddInstance(InstanceID(s.Provider, h.Name), kind, nodesName, groupName)
			errs = append(errs, err)
			c.Place(InstanceID(s.Provider, h.Name), h.IPv4, h.MAC)
		}
		return c, errors.Join(errs...)
	}
	c := azure.New(Subscription, ResourceGroup)
	c.AddNetwork(vpcName, s.Nodes, s.Pods)
	nodes := c.AddSubnet(nodesName, vpcName, s.Nodes)
	c.Keep(nodes, s.Kept...)
	for _, h := range s.Hosts {
		id, err := c.AddMachine("", h.Name, nodes)
		errs = append(errs, err)
		c.Place(id, h.IPv4, h.MAC)
	}
	return c, errors.Join(errs...)
}

// addIPv6 adds what a region of AWS has of IPv6 from the start.
func (s *Spec) addIPv6(c *aws.Cloud) {
	c.AddVPCIPv6(vpcName, s.IPv6)
	c.AddSubnetIPv6(nodesName, s.NodesIPv6)
	c.AddSubnetIPv6(PodsSubnet, s.PodsIPv6)
	for _, h := range s.Hosts {
		if h.IPv6.IsValid() {
			c.PlaceIPv6(InstanceID(s.Provider, h.Name), h.IPv6)
		}
	}
}

// fabric is the region's network.
func (s *Spec) fabric() *fabric.Fabric {
	f := &fabric.Fabric{Router: s.Router, Gateway: func(p netip.Prefix) netip.Addr { return p.Addr().Next() }}
	if s.Provider == Alibaba {
		f.Gateway = thirdLast
	}
	for _, h := range s.Hosts {
		f.Hosts = append(f.Hosts, fabric.Host{Name: h.Name, Instance: InstanceID(s.Provider, h.Name), Namespace: h.Namespace, First: h.First})
	}
	return f
}

// thirdLast is the address of a subnet that Alibaba Cloud's router has ("VPCs and vSwitches").
func thirdLast(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b).Prev().Prev()
}
