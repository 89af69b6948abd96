package cloud

import "net/netip"

// View is what a cloud has, in the words that all clouds share: for people who look, and for the
// network that leads its addresses. All lists are sorted by ID.
type View struct {
	Instances  []Instance  `json:"instances"`
	Interfaces []Interface `json:"interfaces"`
	Subnets    []Subnet    `json:"subnets"`
	StaticIPs  []StaticIP  `json:"static-ips,omitempty"`
}

// Instance is a machine.
type Instance struct {
	ID   string `json:"id"`
	Type string `json:"type"`
}

// Interface is a network interface.
type Interface struct {
	ID     string `json:"id"`
	Subnet string `json:"subnet"`
	// MAC is its hardware address, with colons.
	MAC string `json:"mac"`
	// Instance is whose it is, empty if it is not attached, and Index its number there, from 0.
	Instance  string         `json:"instance,omitempty"`
	Index     int            `json:"index"`
	Primary   netip.Addr     `json:"primary"`
	Addresses []netip.Addr   `json:"addresses,omitempty"` // secondary ones
	Prefixes  []netip.Prefix `json:"prefixes,omitempty"`
	// IPv6 are its own IPv6 addresses, IPv6Prefixes those that are delegated to it.
	IPv6         []netip.Addr   `json:"ipv6,omitempty"`
	IPv6Prefixes []netip.Prefix `json:"ipv6Prefixes,omitempty"`
}

// Subnet is one, with the number of its free addresses.
type Subnet struct {
	ID   string       `json:"id"`
	Zone string       `json:"zone,omitempty"`
	CIDR netip.Prefix `json:"cidr"`
	// IPv6 is its IPv6 CIDR block, if it has one.
	IPv6 netip.Prefix `json:"ipv6,omitzero"`
	Free int          `json:"free"`
}

// StaticIP is a public address that is kept apart from machines.
type StaticIP struct {
	ID   string            `json:"id"`
	IP   netip.Addr        `json:"ip"`
	Tags map[string]string `json:"tags,omitempty"`
	// Interface is whose address Private it leads to, empty if it leads nowhere.
	Interface string     `json:"interface,omitempty"`
	Private   netip.Addr `json:"private,omitzero"`
}
