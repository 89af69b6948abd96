package aws

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// ElasticIP is a public address of the account.
type ElasticIP struct {
	// ID is that of its allocation.
	ID   string
	IP   netip.Addr
	Tags map[string]string
	// Association is empty if it leads nowhere, else it leads to the address Private of Interface.
	Association, Interface string
	Private                netip.Addr
}

// publicRange are the addresses that there are to allocate: TEST-NET-3 (RFC 5737), which is not
// routed.
var publicRange = netip.MustParsePrefix("203.0.113.0/24")

// elsewhere is the interface of an address of another owner in the account.
const elsewhere = "eni-elsewhere"

// AddElasticIP allocates an elastic IP with tags.
func (c *Cloud) AddElasticIP(tags map[string]string) (ElasticIP, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := map[netip.Addr]bool{}
	for _, x := range c.elastic.Now() {
		taken[x.IP] = true
	}
	for ip := publicRange.Addr().Next(); publicRange.Contains(ip); ip = ip.Next() {
		if !taken[ip] {
			x := ElasticIP{ID: c.id("eipalloc"), IP: ip, Tags: maps.Clone(tags)}
			c.elastic.Put(x.ID, x)
			return x, nil
		}
	}
	return ElasticIP{}, fmt.Errorf("all of %s is allocated", publicRange)
}

// ElasticIPs returns all of them as they are now, by ID.
func (c *Cloud) ElasticIPs() []ElasticIP {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.elastic.Now()), byID)
}

func byID(a, b ElasticIP) int { return cmp.Compare(a.ID, b.ID) }

// Occupy gives an elastic IP another owner in the account if it is not associated.
func (c *Cloud) Occupy(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.elastic.Now()[id]; x.ID != "" && x.Association == "" {
		x.Association, x.Interface = c.id("eipassoc"), elsewhere
		c.elastic.Put(id, x)
	}
}

// Vacate has an elastic IP lead nowhere.
func (c *Cloud) Vacate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vacate(id)
}

// Release gives an elastic IP back.
func (c *Cloud) Release(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.elastic.Change(func(all map[string]ElasticIP) { delete(all, id) })
}

// GivePublic has the cloud give the first interface of an instance a public address of its own, as
// it does where the subnet says so; an elastic IP takes its place.
func (c *Cloud) GivePublic(instance string, ip netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interfaces.Now() {
		if i.Instance == instance && i.Index == 0 {
			i.given = ip
			c.put(i)
			return
		}
	}
}

// ---- all of this must be called with mu held --------------------------------------------------

func (c *Cloud) vacate(id string) {
	if x, ok := c.elastic.Now()[id]; ok {
		x.Association, x.Interface, x.Private = "", "", netip.Addr{}
		c.elastic.Put(id, x)
	}
}

// strand has elastic IPs lead nowhere that led to what is no more ("Elastic IP addresses": one is
// disassociated when its instance is terminated, or its interface deleted).
func (c *Cloud) strand() {
	for id, x := range c.elastic.Now() {
		if x.Association == "" || x.Interface == elsewhere {
			continue
		}
		i, ok := c.interfaces.Now()[x.Interface]
		if !ok || x.Private != i.Primary && !slices.Contains(i.Addresses, x.Private) {
			c.vacate(id)
		}
	}
}

type publicItem struct {
	IP          string `xml:"publicIp"`
	Owner       string `xml:"ipOwnerId"`
	Allocation  string `xml:"allocationId,omitempty"`
	Association string `xml:"associationId,omitempty"`
}

// account owns everything but what the cloud gives.
const account = "123456789012"

// association is what descriptions say of the public address of an interface's private one.
func (c *Cloud) association(i *Interface, private netip.Addr) *publicItem {
	for _, x := range c.elastic.Seen() {
		if x.Interface == i.ID && x.Private == private {
			return &publicItem{x.IP.String(), account, x.ID, x.Association}
		}
	}
	if i.given.IsValid() && private == i.Primary {
		return &publicItem{IP: i.given.String(), Owner: "amazon"}
	}
	return nil
}

type elasticItem struct {
	IP          string    `xml:"publicIp"`
	ID          string    `xml:"allocationId"`
	Domain      string    `xml:"domain"`
	Association string    `xml:"associationId,omitempty"`
	Instance    string    `xml:"instanceId,omitempty"`
	Interface   string    `xml:"networkInterfaceId,omitempty"`
	Owner       string    `xml:"networkInterfaceOwnerId,omitempty"`
	Private     string    `xml:"privateIpAddress,omitempty"`
	Tags        []tagItem `xml:"tagSet>item"`
}

type elasticAnswer struct {
	XMLName xml.Name      `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeAddressesResponse"`
	Items   []elasticItem `xml:"addressesSet>item"`
}

// describeAddresses answers in one piece: this action has no pages.
func (c *Cloud) describeAddresses(form url.Values) (any, *Fault) {
	out := elasticAnswer{}
	seen := c.elastic.Seen()
	for _, id := range list(form, "AllocationId") {
		if _, ok := seen[id]; !ok {
			return nil, noAllocation(id)
		}
	}
	for _, x := range slices.SortedFunc(maps.Values(seen), byID) {
		item := elasticItem{IP: x.IP.String(), ID: x.ID, Domain: "vpc", Association: x.Association, Interface: x.Interface, Tags: tagItems(x.Tags)}
		if x.Association != "" {
			item.Instance, item.Owner = c.interfaces.Now()[x.Interface].Instance, account
		}
		if x.Private.IsValid() {
			item.Private = x.Private.String()
		}
		ok, f := filtered(form, map[string]string{
			"allocation-id": x.ID, "association-id": x.Association, "public-ip": item.IP, "network-interface-id": x.Interface, "private-ip-address": item.Private, "instance-id": item.Instance,
		}, x.Tags)
		if f != nil {
			return nil, f
		}
		if ids := list(form, "AllocationId"); ok && (len(ids) == 0 || slices.Contains(ids, x.ID)) {
			out.Items = append(out.Items, item)
		}
	}
	return out, nil
}

func noAllocation(id string) *Fault {
	return &Fault{Code: "InvalidAllocationID.NotFound", Message: fmt.Sprintf("The allocation ID '%s' does not exist", id)}
}

type associateAnswer struct {
	XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ AssociateAddressResponse"`
	ID      string   `xml:"associationId"`
	Return  bool     `xml:"return"`
}

// associate has an elastic IP lead to an address of an interface. One that leads elsewhere is moved
// unless the request says otherwise, and one that led to the address leads nowhere then
// ("AssociateAddress").
func (c *Cloud) associate(form url.Values) (any, *Fault) {
	id, nic := form.Get("AllocationId"), form.Get("NetworkInterfaceId")
	if id == "" || nic == "" {
		return nil, &Fault{Code: "MissingParameter", Message: "The request must contain the parameters AllocationId and NetworkInterfaceId"}
	}
	x, ok := c.elastic.Now()[id]
	if !ok {
		return nil, noAllocation(id)
	}
	i, ok := c.interfaces.Now()[nic]
	if !ok {
		return nil, noInterface(nic)
	}
	private := i.Primary
	if text := form.Get("PrivateIpAddress"); text != "" {
		var err error
		if private, err = netip.ParseAddr(text); err != nil || private != i.Primary && !slices.Contains(i.Addresses, private) {
			return nil, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("The private IP address %s is not assigned to the network interface %s", text, nic)}
		}
	}
	switch {
	case x.Interface == nic && x.Private == private:
		return associateAnswer{ID: x.Association, Return: true}, nil
	case x.Association != "" && form.Get("AllowReassociation") == "false":
		return nil, &Fault{Code: "Resource.AlreadyAssociated", Message: fmt.Sprintf("resource %s is already associated with associate-id %s", id, x.Association)}
	}
	for other, o := range c.elastic.Now() {
		if o.Interface == nic && o.Private == private {
			c.vacate(other)
		}
	}
	x.Association, x.Interface, x.Private = c.id("eipassoc"), nic, private
	c.elastic.Put(id, x)
	return associateAnswer{ID: x.Association, Return: true}, nil
}

// staticIPs are what people see of the elastic IPs.
func (c *Cloud) staticIPs() (out []cloud.StaticIP) {
	for _, x := range slices.SortedFunc(maps.Values(c.elastic.Now()), byID) {
		out = append(out, cloud.StaticIP{ID: x.ID, IP: x.IP, Tags: x.Tags, Interface: x.Interface, Private: x.Private})
	}
	return out
}
