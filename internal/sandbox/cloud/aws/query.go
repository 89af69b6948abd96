package aws

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// ServeHTTP implements [http.Handler]: one action of the query API.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := cloud.Protocol{
		Read: c.read, Type: "text/xml;charset=UTF-8", Encode: xml.Marshal,
		Refusal:   func(f *Fault) any { return errorAnswer{Code: f.Code, Message: f.Message, ID: "0"} },
		Throttled: Fault{Code: "RequestLimitExceeded", Message: "Request limit exceeded.", Status: http.StatusServiceUnavailable},
	}
	p.Serve(&c.Disturbances, w, r)
}

type errorAnswer struct {
	XMLName xml.Name `xml:"Response"`
	Code    string   `xml:"Errors>Error>Code"`
	Message string   `xml:"Errors>Error>Message"`
	ID      string   `xml:"RequestID"`
}

func (c *Cloud) read(r *http.Request) (string, cloud.Act, *Fault) {
	if err := r.ParseForm(); err != nil {
		return "", nil, &Fault{Code: "MalformedQueryString", Message: err.Error()}
	}
	if r.Header.Get("Authorization") == "" {
		return "", nil, &Fault{Code: "MissingAuthenticationToken", Message: "Request is missing Authentication Token", Status: http.StatusForbidden}
	}
	action := r.Form.Get("Action")
	return action, func(_ http.ResponseWriter, r *http.Request) (any, *Fault) { return c.act(action, r.Form) }, nil
}

func (c *Cloud) act(action string, form url.Values) (any, *Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch action {
	case "DescribeNetworkInterfaces":
		return c.describeInterfaces(form)
	case "DescribeSubnets":
		return c.describeSubnets(form)
	case "DescribeVpcs":
		return c.describeVPCs(form)
	case "DescribeSecurityGroups":
		return c.describeGroups(form)
	case "DescribeInstanceTypes":
		return c.describeTypes(form)
	case "CreateNetworkInterface":
		return c.create(form)
	case "AttachNetworkInterface":
		return c.attach(form)
	case "ModifyNetworkInterfaceAttribute":
		return c.modify(form)
	case "AssignPrivateIpAddresses":
		return c.assign(form)
	case "AssignIpv6Addresses":
		return c.assignIPv6(form)
	case "UnassignPrivateIpAddresses":
		return c.unassign(form)
	case "DeleteNetworkInterface":
		return c.deleteInterface(form)
	case "DescribeAddresses":
		return c.describeAddresses(form)
	case "AssociateAddress":
		return c.associate(form)
	}
	return nil, &Fault{Code: "InvalidAction", Message: fmt.Sprintf("The action %s is not valid for this web service.", action)}
}

// list returns the values of a numbered parameter.
func list(form url.Values, name string) (out []string) {
	for i := 1; form.Has(fmt.Sprintf("%s.%d", name, i)); i++ {
		out = append(out, form.Get(fmt.Sprintf("%s.%d", name, i)))
	}
	return out
}

func number(form url.Values, name string) (int, *Fault) {
	text := form.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 1000 {
		return 0, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("Value (%s) for parameter %s is invalid.", text, name)}
	}
	return n, nil
}

// matches reports whether a value is that of a filter, which may have wildcards ("List and filter
// using the CLI and API"): * is any characters, ? is one or none, and a backslash escapes them.
func matches(pattern, got string) bool {
	form := ""
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '*':
			form += "(?s:.*)"
		case c == '?':
			form += "(?s:.?)"
		case c == '\\' && i+1 < len(pattern):
			i++
			form += regexp.QuoteMeta(pattern[i : i+1])
		default:
			form += regexp.QuoteMeta(pattern[i : i+1])
		}
	}
	ok, err := regexp.MatchString("^"+form+"$", got)
	return ok && err == nil
}

// filtered reports whether something has one of the values of each filter.
func filtered(form url.Values, fields map[string]string, tags map[string]string) (bool, *Fault) {
	for i := 1; form.Get(fmt.Sprintf("Filter.%d.Name", i)) != ""; i++ {
		name := form.Get(fmt.Sprintf("Filter.%d.Name", i))
		got, ok := fields[name]
		if k, is := strings.CutPrefix(name, "tag:"); is {
			if got, ok = tags[k]; !ok {
				return false, nil
			}
		}
		if !ok {
			return false, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("The filter '%s' is invalid", name)}
		}
		if !slices.ContainsFunc(list(form, fmt.Sprintf("Filter.%d.Value", i)), func(v string) bool { return matches(v, got) }) {
			return false, nil
		}
	}
	return true, nil
}

// page cuts all to what a request asks for, and returns the token of the rest.
func page[T any](c *Cloud, form url.Values, all []T) ([]T, string, *Fault) {
	size, f := number(form, "MaxResults")
	if f != nil {
		return nil, "", f
	}
	if size == 0 || size > c.pageSize {
		size = c.pageSize
	}
	start := 0
	if t := form.Get("NextToken"); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil || n < 0 {
			return nil, "", &Fault{Code: "InvalidNextToken", Message: "The specified token is not valid."}
		}
		start = n
	}
	start = min(start, len(all))
	if end := start + size; end < len(all) {
		return all[start:end], strconv.Itoa(end), nil
	}
	return all[start:], "", nil
}

type tagItem struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func tagItems(tags map[string]string) (out []tagItem) {
	for k, v := range tags {
		out = append(out, tagItem{k, v})
	}
	slices.SortFunc(out, func(a, b tagItem) int { return strings.Compare(a.Key, b.Key) })
	return out
}

type addressItem struct {
	Address     string      `xml:"privateIpAddress"`
	Primary     bool        `xml:"primary"`
	Association *publicItem `xml:"association"`
}

type prefixItem struct {
	Prefix string `xml:"ipv4Prefix"`
}

type groupItem struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type attachmentItem struct {
	ID                  string `xml:"attachmentId"`
	Instance            string `xml:"instanceId"`
	Index               int    `xml:"deviceIndex"`
	Status              string `xml:"status"`
	DeleteOnTermination bool   `xml:"deleteOnTermination"`
}

type interfaceItem struct {
	ID          string          `xml:"networkInterfaceId"`
	Subnet      string          `xml:"subnetId"`
	VPC         string          `xml:"vpcId"`
	Zone        string          `xml:"availabilityZone"`
	Description string          `xml:"description"`
	Status      string          `xml:"status"`
	MAC         string          `xml:"macAddress"`
	Primary     string          `xml:"privateIpAddress"`
	Groups      []groupItem     `xml:"groupSet>item"`
	Attachment  *attachmentItem `xml:"attachment"`
	Association *publicItem     `xml:"association"`
	Tags        []tagItem       `xml:"tagSet>item"`
	Addresses   []addressItem   `xml:"privateIpAddressesSet>item"`
	Prefixes    []prefixItem    `xml:"ipv4PrefixSet>item"`

	IPv6         []ipv6AddressItem `xml:"ipv6AddressesSet>item"`
	IPv6Prefixes []ipv6PrefixItem  `xml:"ipv6PrefixSet>item"`
}

func (c *Cloud) item(i Interface) interfaceItem {
	s := c.subnets[i.Subnet]
	out := interfaceItem{
		ID: i.ID, Subnet: i.Subnet, VPC: s.vpc, Zone: s.zone, Description: i.Description, Status: "available", MAC: i.MAC,
		Primary: i.Primary.String(), Tags: tagItems(i.Tags), Association: c.association(&i, i.Primary),
	}
	out.Addresses = []addressItem{{i.Primary.String(), true, out.Association}}
	for _, g := range i.Groups {
		out.Groups = append(out.Groups, groupItem{g, g})
	}
	if i.Attachment != "" {
		out.Status = "in-use"
		out.Attachment = &attachmentItem{i.Attachment, i.Instance, i.Index, "attached", i.DeleteOnTermination}
	}
	for _, a := range i.Addresses {
		out.Addresses = append(out.Addresses, addressItem{Address: a.String(), Association: c.association(&i, a)})
	}
	for _, p := range i.Prefixes {
		out.Prefixes = append(out.Prefixes, prefixItem{p.String()})
	}
	out.IPv6, out.IPv6Prefixes = ipv6Items(i)
	return out
}

type interfacesAnswer struct {
	XMLName xml.Name        `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeNetworkInterfacesResponse"`
	Items   []interfaceItem `xml:"networkInterfaceSet>item"`
	Next    string          `xml:"nextToken,omitempty"`
}

func (c *Cloud) describeInterfaces(form url.Values) (any, *Fault) {
	var all []interfaceItem
	ids, seen := list(form, "NetworkInterfaceId"), c.interfaces.Seen()
	for _, id := range ids {
		if _, ok := seen[id]; !ok {
			return nil, noInterface(id)
		}
	}
	for _, i := range seen {
		x := c.item(i)
		fields := map[string]string{
			"vpc-id": x.VPC, "subnet-id": x.Subnet, "status": x.Status, "availability-zone": x.Zone, "network-interface-id": x.ID, "attachment.instance-id": i.Instance,
		}
		ok, f := filtered(form, fields, i.Tags)
		if f != nil {
			return nil, f
		}
		if ok && (len(ids) == 0 || slices.Contains(ids, i.ID)) {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b interfaceItem) int { return strings.Compare(a.ID, b.ID) })
	items, next, f := page(c, form, all)
	return interfacesAnswer{Items: items, Next: next}, f
}

type subnetItem struct {
	ID   string    `xml:"subnetId"`
	VPC  string    `xml:"vpcId"`
	CIDR string    `xml:"cidrBlock"`
	Zone string    `xml:"availabilityZone"`
	Free int       `xml:"availableIpAddressCount"`
	Tags []tagItem `xml:"tagSet>item"`

	IPv6 []ipv6CIDRItem `xml:"ipv6CidrBlockAssociationSet>item"`
}

type subnetsAnswer struct {
	XMLName xml.Name     `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeSubnetsResponse"`
	Items   []subnetItem `xml:"subnetSet>item"`
	Next    string       `xml:"nextToken,omitempty"`
}

func (c *Cloud) describeSubnets(form url.Values) (any, *Fault) {
	var all []subnetItem
	for _, s := range c.subnets {
		ok, f := filtered(form, map[string]string{"vpc-id": s.vpc, "subnet-id": s.id, "availability-zone": s.zone}, s.tags)
		if f != nil {
			return nil, f
		}
		if ids := list(form, "SubnetId"); ok && (len(ids) == 0 || slices.Contains(ids, s.id)) {
			all = append(all, subnetItem{s.id, s.vpc, s.CIDR.String(), s.zone, len(c.free(s)), tagItems(s.tags), ipv6CIDRs(s.id, s.ipv6)})
		}
	}
	slices.SortFunc(all, func(a, b subnetItem) int { return strings.Compare(a.ID, b.ID) })
	items, next, f := page(c, form, all)
	return subnetsAnswer{Items: items, Next: next}, f
}

type cidrItem struct {
	CIDR string `xml:"cidrBlock"`
}

type vpcItem struct {
	ID    string     `xml:"vpcId"`
	CIDR  string     `xml:"cidrBlock"`
	CIDRs []cidrItem `xml:"cidrBlockAssociationSet>item"`

	IPv6 []ipv6CIDRItem `xml:"ipv6CidrBlockAssociationSet>item"`
}

type vpcsAnswer struct {
	XMLName xml.Name  `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeVpcsResponse"`
	Items   []vpcItem `xml:"vpcSet>item"`
	Next    string    `xml:"nextToken,omitempty"`
}

func (c *Cloud) describeVPCs(form url.Values) (any, *Fault) {
	var all []vpcItem
	for id, cidrs := range c.vpcs {
		x := vpcItem{ID: id, CIDR: cidrs[0].String(), IPv6: ipv6CIDRs(id, c.vpcsIPv6[id])}
		for _, p := range cidrs {
			x.CIDRs = append(x.CIDRs, cidrItem{p.String()})
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b vpcItem) int { return strings.Compare(a.ID, b.ID) })
	items, next, f := page(c, form, all)
	return vpcsAnswer{Items: items, Next: next}, f
}

type groupsAnswer struct {
	XMLName xml.Name    `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeSecurityGroupsResponse"`
	Items   []groupFull `xml:"securityGroupInfo>item"`
	Next    string      `xml:"nextToken,omitempty"`
}

type groupFull struct {
	ID   string    `xml:"groupId"`
	Name string    `xml:"groupName"`
	VPC  string    `xml:"vpcId"`
	Tags []tagItem `xml:"tagSet>item"`
}

func (c *Cloud) describeGroups(form url.Values) (any, *Fault) {
	var all []groupFull
	for _, g := range c.groups {
		ok, f := filtered(form, map[string]string{"vpc-id": g.vpc, "group-id": g.id}, g.tags)
		if f != nil {
			return nil, f
		}
		if ok {
			all = append(all, groupFull{g.id, g.id, g.vpc, tagItems(g.tags)})
		}
	}
	slices.SortFunc(all, func(a, b groupFull) int { return strings.Compare(a.ID, b.ID) })
	items, next, f := page(c, form, all)
	return groupsAnswer{Items: items, Next: next}, f
}

type typesAnswer struct {
	XMLName xml.Name   `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstanceTypesResponse"`
	Items   []typeItem `xml:"instanceTypeSet>item"`
}

type typeItem struct {
	Name       string `xml:"instanceType"`
	Hypervisor string `xml:"hypervisor"`
	BareMetal  bool   `xml:"bareMetal"`
	Interfaces int    `xml:"networkInfo>maximumNetworkInterfaces"`
	Addresses  int    `xml:"networkInfo>ipv4AddressesPerInterface"`
	IPv6       bool   `xml:"networkInfo>ipv6Supported"`
	IPv6Max    int    `xml:"networkInfo>ipv6AddressesPerInterface"`
}

func (c *Cloud) describeTypes(form url.Values) (any, *Fault) {
	var out typesAnswer
	for _, name := range list(form, "InstanceType") {
		t, ok := c.types[name]
		if !ok {
			return nil, &Fault{Code: "InvalidInstanceType", Message: fmt.Sprintf("The following supplied instance types do not exist: [%s]", name)}
		}
		x := typeItem{Name: name, Hypervisor: t.Hypervisor, Interfaces: t.Interfaces, Addresses: t.Addresses, IPv6: t.IPv6}
		if t.IPv6 {
			x.IPv6Max = t.Addresses
		}
		out.Items = append(out.Items, x)
	}
	return out, nil
}

func noInterface(id string) *Fault {
	return &Fault{Code: "InvalidNetworkInterfaceID.NotFound", Message: fmt.Sprintf("The networkInterface ID '%s' does not exist", id)}
}

type createAnswer struct {
	XMLName xml.Name      `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ CreateNetworkInterfaceResponse"`
	Item    interfaceItem `xml:"networkInterface"`
}

func (c *Cloud) create(form url.Values) (any, *Fault) {
	token := form.Get("ClientToken")
	for _, i := range c.interfaces.Now() {
		if token != "" && i.token == token {
			return createAnswer{Item: c.item(i)}, nil
		}
	}
	addresses, f := number(form, "SecondaryPrivateIpAddressCount")
	if f != nil {
		return nil, f
	}
	prefixes, f := number(form, "Ipv4PrefixCount")
	if f != nil {
		return nil, f
	}
	if addresses > 0 && prefixes > 0 {
		return nil, &Fault{Code: "InvalidParameterCombination", Message: "Addresses and prefixes cannot be asked for at once"}
	}
	i, f := c.newInterface(form.Get("SubnetId"), list(form, "SecurityGroupId"), addresses, prefixes)
	if f != nil {
		return nil, f
	}
	i.Description, i.token = form.Get("Description"), token
	for k := 1; form.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Key", k)) != ""; k++ {
		i.Tags[form.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Key", k))] = form.Get(fmt.Sprintf("TagSpecification.1.Tag.%d.Value", k))
	}
	c.put(i)
	return createAnswer{Item: c.item(i)}, nil
}

type attachAnswer struct {
	XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ AttachNetworkInterfaceResponse"`
	ID      string   `xml:"attachmentId"`
}

func (c *Cloud) attach(form url.Values) (any, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return nil, noInterface(form.Get("NetworkInterfaceId"))
	}
	in := c.instances[form.Get("InstanceId")]
	if in == nil {
		return nil, &Fault{Code: "InvalidInstanceID.NotFound", Message: fmt.Sprintf("The instance ID '%s' does not exist", form.Get("InstanceId"))}
	}
	if i.Attachment != "" {
		return nil, &Fault{Code: "InvalidNetworkInterface.InUse", Message: fmt.Sprintf("Interface: %s in use.", i.ID)}
	}
	index, f := number(form, "DeviceIndex")
	if f != nil {
		return nil, f
	}
	n := 0
	for _, o := range c.interfaces.Now() {
		if o.Instance != in.id {
			continue
		}
		if n++; o.Index == index {
			return nil, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("Instance '%s' already has an interface attached at device index '%d'.", in.id, index)}
		}
	}
	t := c.types[in.kind]
	if n >= t.Interfaces || 1+len(i.Addresses)+len(i.Prefixes) > t.Addresses {
		return nil, &Fault{Code: "AttachmentLimitExceeded", Message: fmt.Sprintf("Interface count %d exceeds the limit for %s", n+1, in.kind)}
	}
	if c.subnets[i.Subnet].zone != c.subnets[in.subnet].zone {
		return nil, &Fault{Code: "InvalidParameterCombination", Message: "You may not attach a network interface to an instance in another availability zone"}
	}
	i.Attachment, i.Instance, i.Index, i.DeleteOnTermination = c.id("eni-attach"), in.id, index, false
	c.put(i)
	return attachAnswer{ID: i.Attachment}, nil
}

type modifyAnswer struct {
	XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ ModifyNetworkInterfaceAttributeResponse"`
	Return  bool     `xml:"return"`
}

func (c *Cloud) modify(form url.Values) (any, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return nil, noInterface(form.Get("NetworkInterfaceId"))
	}
	if id := form.Get("Attachment.AttachmentId"); id == "" || id != i.Attachment {
		return nil, &Fault{Code: "InvalidAttachmentID.NotFound", Message: fmt.Sprintf("The attachment '%s' does not exist", id)}
	}
	i.DeleteOnTermination = form.Get("Attachment.DeleteOnTermination") == "true"
	c.put(i)
	return modifyAnswer{Return: true}, nil
}

type assignAnswer struct {
	XMLName   xml.Name      `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ AssignPrivateIpAddressesResponse"`
	ID        string        `xml:"networkInterfaceId"`
	Addresses []addressItem `xml:"assignedPrivateIpAddressesSet>item"`
	Prefixes  []prefixItem  `xml:"assignedIpv4PrefixSet>item"`
	Return    bool          `xml:"return"`
}

func (c *Cloud) assign(form url.Values) (any, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return nil, noInterface(form.Get("NetworkInterfaceId"))
	}
	addresses, f := number(form, "SecondaryPrivateIpAddressCount")
	if f != nil {
		return nil, f
	}
	prefixes, f := number(form, "Ipv4PrefixCount")
	if f != nil {
		return nil, f
	}
	before := i
	if f := c.extend(&i, addresses, prefixes); f != nil {
		return nil, f
	}
	c.put(i)
	out := assignAnswer{ID: i.ID, Return: true}
	for _, a := range i.Addresses[len(before.Addresses):] {
		out.Addresses = append(out.Addresses, addressItem{Address: a.String()})
	}
	for _, p := range i.Prefixes[len(before.Prefixes):] {
		out.Prefixes = append(out.Prefixes, prefixItem{p.String()})
	}
	return out, nil
}

type unassignAnswer struct {
	XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ UnassignPrivateIpAddressesResponse"`
	Return  bool     `xml:"return"`
}

func (c *Cloud) unassign(form url.Values) (any, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return nil, noInterface(form.Get("NetworkInterfaceId"))
	}
	i.Addresses, i.Prefixes = slices.Clone(i.Addresses), slices.Clone(i.Prefixes)
	for _, text := range list(form, "PrivateIpAddress") {
		a, err := netip.ParseAddr(text)
		k := slices.Index(i.Addresses, a)
		if err != nil || k < 0 {
			return nil, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("Some of the specified addresses are not assigned to interface %s", i.ID)}
		}
		i.Addresses = slices.Delete(i.Addresses, k, k+1)
	}
	for _, text := range list(form, "Ipv4Prefix") {
		p, err := netip.ParsePrefix(text)
		k := slices.Index(i.Prefixes, p)
		if err != nil || k < 0 {
			return nil, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("Some of the specified prefixes are not assigned to interface %s", i.ID)}
		}
		i.Prefixes = slices.Delete(i.Prefixes, k, k+1)
	}
	c.put(i)
	c.strand()
	return unassignAnswer{Return: true}, nil
}

type deleteAnswer struct {
	XMLName xml.Name `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DeleteNetworkInterfaceResponse"`
	Return  bool     `xml:"return"`
}

func (c *Cloud) deleteInterface(form url.Values) (any, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return nil, noInterface(form.Get("NetworkInterfaceId"))
	}
	if i.Attachment != "" {
		return nil, &Fault{Code: "InvalidParameterValue", Message: fmt.Sprintf("Network interface '%s' is currently in use.", i.ID)}
	}
	c.change(func(m map[string]Interface) { delete(m, i.ID) })
	c.strand()
	return deleteAnswer{Return: true}, nil
}
