package aws

import (
	"encoding/xml"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// prefixBits is the size of a delegated IPv6 prefix (Amazon EC2 User Guide, "Prefix delegation for
// Amazon EC2 network interfaces").
const prefixBits = 80

// AddVPCIPv6 gives a VPC its IPv6 CIDR block.
func (c *Cloud) AddVPCIPv6(id string, cidr netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vpcsIPv6[id] = cidr.Masked()
}

// AddSubnetIPv6 gives a subnet its IPv6 CIDR block; one that is not valid takes it away.
func (c *Cloud) AddSubnetIPv6(id string, cidr netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id].ipv6 = cidr.Masked()
}

// PlaceIPv6 has the first interface of an instance have an IPv6 address.
func (c *Cloud) PlaceIPv6(instance string, ip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interfaces.Now() {
		if i.Instance == instance && i.Index == 0 {
			i.IPv6 = []netip.Addr{ip}
			c.put(i)
			return
		}
	}
}

// freeIPv6 returns n prefixes of a subnet that overlap with nothing assigned, or fewer if there are
// no more. The first is never given: the cloud keeps addresses of it (Amazon VPC User Guide,
// "Subnet CIDR blocks").
func (c *Cloud) freeIPv6(s *subnet, n int) (out []netip.Prefix) {
	taken := map[netip.Prefix]bool{}
	for _, i := range c.interfaces.Now() {
		for _, p := range i.IPv6Prefixes {
			taken[p] = true
		}
		for _, a := range i.IPv6 {
			taken[netip.PrefixFrom(a, prefixBits).Masked()] = true
		}
	}
	// One that is free is found soon: there are no more taken than are counted.
	p := netip.PrefixFrom(s.ipv6.Addr(), prefixBits)
	for range len(taken) + n {
		p = netip.PrefixFrom(lastOf(p).Next(), prefixBits)
		if !p.IsValid() || !s.ipv6.Contains(lastOf(p)) || len(out) == n {
			break
		}
		if !taken[p] {
			out = append(out, p)
		}
	}
	return out
}

// lastOf is the last address of an IPv6 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As16()
	for bit := p.Bits(); bit < 128; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom16(b)
}

type assignIPv6Answer struct {
	XMLName  xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ AssignIpv6AddressesResponse"`
	ID       string   `xml:"networkInterfaceId"`
	Prefixes []string `xml:"assignedIpv6PrefixSet>item"`
}

// assignIPv6 is AssignIpv6Addresses, as far as prefixes go. Its page in the Amazon EC2 API
// Reference names no errors of its own, so these are the common ones.
func (c *Cloud) assignIPv6(form url.Values) (any, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return nil, noInterface(form.Get("NetworkInterfaceId"))
	}
	n, f := number(form, "Ipv6PrefixCount")
	switch {
	case f != nil:
		return nil, f
	case form.Has("Ipv6AddressCount") || form.Has("Ipv6Addresses.1") || form.Has("Ipv6Prefix.1"):
		return nil, &Fault{Code: "UnsupportedOperation", Message: "This cloud assigns IPv6 prefixes by Ipv6PrefixCount alone."}
	case n == 0:
		return nil, &Fault{Code: "MissingParameter", Message: "The request must contain the parameter Ipv6AddressCount, Ipv6Addresses, Ipv6PrefixCount or Ipv6Prefix"}
	}
	s := c.subnets[i.Subnet]
	if !s.ipv6.IsValid() {
		return nil, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("The subnet '%s' does not have an IPv6 CIDR block associated with it.", s.id)}
	}
	if in := c.instances[i.Instance]; in != nil {
		t := c.types[in.kind]
		switch {
		case !t.IPv6:
			return nil, &Fault{Code: "UnsupportedOperation", Message: fmt.Sprintf("Instance type %s does not support IPv6.", in.kind)}
		case t.Hypervisor != "nitro":
			return nil, &Fault{Code: "InvalidParameterCombination", Message: "Prefixes can be assigned to instances built on the Nitro System only"}
		case len(i.IPv6)+len(i.IPv6Prefixes)+n > t.Addresses:
			return nil, &Fault{Code: "PrivateIpAddressLimitExceeded", Message: fmt.Sprintf("The number of IPv6 addresses exceeds the limit of %d of an interface of type %s", t.Addresses, in.kind)}
		}
	}
	more := c.freeIPv6(s, n)
	if len(more) < n {
		return nil, &Fault{Code: "InsufficientCidrBlocks", Message: fmt.Sprintf("The specified subnet '%s' does not have enough free cidr blocks to satisfy the request.", s.id)}
	}
	i.IPv6Prefixes = append(slices.Clone(i.IPv6Prefixes), more...)
	c.put(i)
	return assignIPv6Answer{ID: i.ID, Prefixes: texts(more)}, nil
}

type ipv6PrefixItem struct {
	Prefix string `xml:"ipv6Prefix"`
}

type ipv6AddressItem struct {
	Address string `xml:"ipv6Address"`
}

// ipv6Items is what a description says of an interface's IPv6.
func ipv6Items(i Interface) (addresses []ipv6AddressItem, prefixes []ipv6PrefixItem) {
	for _, a := range i.IPv6 {
		addresses = append(addresses, ipv6AddressItem{a.String()})
	}
	for _, p := range i.IPv6Prefixes {
		prefixes = append(prefixes, ipv6PrefixItem{p.String()})
	}
	return addresses, prefixes
}

type ipv6CIDRItem struct {
	ID    string `xml:"associationId"`
	CIDR  string `xml:"ipv6CidrBlock"`
	State string `xml:"ipv6CidrBlockState>state"`
}

// ipv6CIDRs is what a description says of the IPv6 CIDR block of a subnet or VPC.
func ipv6CIDRs(of string, cidr netip.Prefix) []ipv6CIDRItem {
	if !cidr.IsValid() {
		return nil
	}
	return []ipv6CIDRItem{{ID: of + "-cidr-assoc", CIDR: cidr.String(), State: "associated"}}
}

// metadataIPv6 adds what the metadata service says of an interface's IPv6; at begins the paths.
func (c *Cloud) metadataIPv6(out map[string]string, at string, i Interface) {
	s := c.subnets[i.Subnet]
	for key, list := range map[string][]string{
		"ipv6s": texts(i.IPv6), "ipv6-prefix": texts(i.IPv6Prefixes), "subnet-ipv6-cidr-blocks": valid(s.ipv6), "vpc-ipv6-cidr-blocks": valid(c.vpcsIPv6[s.vpc]),
	} {
		if len(list) > 0 {
			out[at+key] = strings.Join(list, "\n")
		}
	}
}

func valid(p netip.Prefix) []string {
	if !p.IsValid() {
		return nil
	}
	return []string{p.String()}
}

func texts[T fmt.Stringer](list []T) []string {
	out := make([]string, 0, len(list))
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}
