package alibaba

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

// ServeHTTP implements [http.Handler]: one action of an RPC API.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := cloud.Protocol{
		Read: c.read, Type: "application/json", Encode: json.Marshal,
		Refusal: func(f *Fault) any {
			return answer{"Code": f.Code, "Message": f.Message, "RequestId": "0", "HostId": "localhost"}
		},
		Throttled: Fault{Code: "Throttling.User", Message: "Request was denied due to user flow control."},
	}
	p.Serve(&c.Disturbances, w, r)
}

func (c *Cloud) read(r *http.Request) (string, cloud.Act, *Fault) {
	if err := r.ParseForm(); err != nil {
		return "", nil, &Fault{Code: "InvalidParameter", Message: err.Error()}
	}
	if r.Form.Get("Signature") == "" || r.Form.Get("AccessKeyId") == "" {
		return "", nil, &Fault{Code: "MissingAccessKeyId", Message: "AccessKeyId is mandatory for this action."}
	}
	action := r.Form.Get("Action")
	return action, func(_ http.ResponseWriter, r *http.Request) (any, *Fault) {
		out, f := c.act(action, r.Form)
		if f == nil {
			out["RequestId"] = "0"
		}
		return out, f
	}, nil
}

type answer = map[string]any

func (c *Cloud) act(action string, form url.Values) (answer, *Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	versions := map[string]string{"DescribeVSwitches": "2016-04-28", "DescribeVpcs": "2016-04-28"}
	want := cmp.Or(versions[action], "2014-05-26")
	actions := map[string]func(url.Values) (answer, *Fault){
		"DescribeNetworkInterfaces": c.describeInterfaces, "DescribeVSwitches": c.describeVSwitches, "DescribeVpcs": c.describeVPCs, "DescribeSecurityGroups": c.describeGroups,
		"DescribeInstanceTypes": c.describeTypes, "CreateNetworkInterface": c.create, "AttachNetworkInterface": c.attach, "DeleteNetworkInterface": c.remove,
		"ModifyNetworkInterfaceAttribute": c.modify, "AssignPrivateIpAddresses": c.assign, "UnassignPrivateIpAddresses": c.unassign,
	}
	do := actions[action]
	if do == nil || form.Get("Version") != want {
		return nil, &Fault{Code: "InvalidAction.NotFound", Message: "Specified api is not found, please check your url and method.", Status: 404}
	}
	return do(form)
}

// list returns the values of a numbered parameter.
func list(form url.Values, name string) (out []string) {
	for i := 1; form.Get(fmt.Sprintf("%s.%d", name, i)) != ""; i++ {
		out = append(out, form.Get(fmt.Sprintf("%s.%d", name, i)))
	}
	return out
}

// has reports whether something has the tags that a request asks for.
func has(form url.Values, tags map[string]string) bool {
	for i := 1; form.Get(fmt.Sprintf("Tag.%d.Key", i)) != ""; i++ {
		if v, ok := tags[form.Get(fmt.Sprintf("Tag.%d.Key", i))]; !ok || v != form.Get(fmt.Sprintf("Tag.%d.Value", i)) {
			return false
		}
	}
	return true
}

// is reports whether a parameter, if it is given, is a value.
func is(form url.Values, name, value string) bool {
	return form.Get(name) == "" || form.Get(name) == value
}

// paged cuts all to what a request asks for: by a token, or by a number.
func (c *Cloud) paged(form url.Values, outer, inner string, all []any) (answer, *Fault) {
	size := c.pageSize
	for _, name := range []string{"MaxResults", "PageSize"} {
		if n, err := strconv.Atoi(form.Get(name)); err == nil && n > 0 {
			size = min(size, n)
		}
	}
	start, _ := strconv.Atoi(form.Get("NextToken"))
	if n, err := strconv.Atoi(form.Get("PageNumber")); err == nil && n > 1 {
		start = (n - 1) * size
	}
	start = min(max(start, 0), len(all))
	end := min(start+size, len(all))
	out := answer{outer: answer{inner: append([]any{}, all[start:end]...)}, "TotalCount": len(all), "PageSize": size, "NextToken": ""}
	if end < len(all) {
		out["NextToken"] = strconv.Itoa(end)
	}
	return out, nil
}

func tagItems(tags map[string]string, key, value string) answer {
	items := []any{}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		items = append(items, answer{key: k, value: tags[k]})
	}
	return answer{"Tag": items}
}

func (c *Cloud) item(i Interface) answer {
	s := c.vswitches[i.VSwitch]
	sets := []any{answer{"PrivateIpAddress": i.Primary.String(), "Primary": true}}
	for _, a := range i.Addresses {
		sets = append(sets, answer{"PrivateIpAddress": a.String(), "Primary": false})
	}
	kind := "Secondary"
	if i.Main {
		kind = "Primary"
	}
	return answer{
		"NetworkInterfaceId": i.ID, "InstanceId": i.Instance, "Type": kind, "Status": statusOf(i), "VpcId": s.vpc, "VSwitchId": s.id, "ZoneId": s.zone, "MacAddress": i.MAC,
		"PrivateIpAddress": i.Primary.String(), "Description": i.Description, "DeleteOnRelease": i.DeleteOnRelease, "SecurityGroupIds": answer{"SecurityGroupId": i.Groups},
		"PrivateIpSets": answer{"PrivateIpSet": sets}, "Tags": tagItems(i.Tags, "TagKey", "TagValue"),
	}
}

func (c *Cloud) describeInterfaces(form url.Values) (answer, *Fault) {
	all, ids := []any{}, list(form, "NetworkInterfaceId")
	seen := c.interfaces.Seen()
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		i := seen[id]
		if is(form, "InstanceId", i.Instance) && is(form, "Status", statusOf(i)) && is(form, "VpcId", c.vswitches[i.VSwitch].vpc) && has(form, i.Tags) && (len(ids) == 0 || slices.Contains(ids, id)) {
			all = append(all, c.item(i))
		}
	}
	return c.paged(form, "NetworkInterfaceSets", "NetworkInterfaceSet", all)
}

func (c *Cloud) describeVSwitches(form url.Values) (answer, *Fault) {
	all := []any{}
	for _, id := range slices.Sorted(maps.Keys(c.vswitches)) {
		if s := c.vswitches[id]; is(form, "VpcId", s.vpc) {
			all = append(all, answer{"VSwitchId": id, "VpcId": s.vpc, "ZoneId": s.zone, "CidrBlock": s.CIDR.String(), "AvailableIpAddressCount": len(c.free(s)), "Tags": tagItems(s.tags, "Key", "Value")})
		}
	}
	return c.paged(form, "VSwitches", "VSwitch", all)
}

func (c *Cloud) describeVPCs(form url.Values) (answer, *Fault) {
	all := []any{}
	for _, id := range slices.Sorted(maps.Keys(c.vpcs)) {
		more := []string{}
		for _, p := range c.vpcs[id][1:] {
			more = append(more, p.String())
		}
		if is(form, "VpcId", id) {
			all = append(all, answer{"VpcId": id, "CidrBlock": c.vpcs[id][0].String(), "SecondaryCidrBlocks": answer{"SecondaryCidrBlock": more}})
		}
	}
	return c.paged(form, "Vpcs", "Vpc", all)
}

func (c *Cloud) describeGroups(form url.Values) (answer, *Fault) {
	all := []any{}
	for _, id := range slices.Sorted(maps.Keys(c.groups)) {
		if g := c.groups[id]; is(form, "VpcId", g.vpc) {
			all = append(all, answer{"SecurityGroupId": id, "VpcId": g.vpc, "Tags": tagItems(g.tags, "TagKey", "TagValue")})
		}
	}
	return c.paged(form, "SecurityGroups", "SecurityGroup", all)
}

func (c *Cloud) describeTypes(form url.Values) (answer, *Fault) {
	all := []any{}
	for _, name := range list(form, "InstanceTypes") {
		if t, ok := c.types[name]; ok {
			all = append(all, answer{"InstanceTypeId": name, "EniQuantity": t.Interfaces, "EniPrivateIpAddressQuantity": t.Addresses})
		}
	}
	return answer{"InstanceTypes": answer{"InstanceType": all}}, nil
}

func count(form url.Values) (int, *Fault) {
	text := form.Get("SecondaryPrivateIpAddressCount")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 49 {
		return 0, &Fault{Code: "InvalidParameter", Message: "SecondaryPrivateIpAddressCount is invalid."}
	}
	return n, nil
}

func (c *Cloud) create(form url.Values) (answer, *Fault) {
	n, f := count(form)
	if f != nil {
		return nil, f
	}
	groups := list(form, "SecurityGroupIds")
	if len(groups) == 0 {
		return nil, &Fault{Code: "MissingParameter", Message: "The input parameter SecurityGroupId that is mandatory for processing this request is not supplied."}
	}
	i, f := c.newInterface(form.Get("VSwitchId"), groups, n)
	if f != nil {
		return nil, f
	}
	i.Description, i.DeleteOnRelease = form.Get("Description"), form.Get("DeleteOnRelease") != "false"
	for k := 1; form.Get(fmt.Sprintf("Tag.%d.Key", k)) != ""; k++ {
		i.Tags[form.Get(fmt.Sprintf("Tag.%d.Key", k))] = form.Get(fmt.Sprintf("Tag.%d.Value", k))
	}
	i.status, i.ready = "Creating", time.Now().Add(c.takes)
	c.put(i)
	return c.item(i), nil
}

// one returns the interface that a request is about, if it can be changed.
func (c *Cloud) one(form url.Values, states ...string) (Interface, *Fault) {
	i, ok := c.interfaces.Now()[form.Get("NetworkInterfaceId")]
	if !ok {
		return i, &Fault{Code: "InvalidEniId.NotFound", Message: "The specified ENI does not exist.", Status: 404}
	}
	if !slices.Contains(states, statusOf(i)) {
		return i, &Fault{Code: "InvalidOperation.InvalidEniState", Message: fmt.Sprintf("The state %s of the ENI does not allow it.", statusOf(i)), Status: 403}
	}
	return i, nil
}

func (c *Cloud) attach(form url.Values) (answer, *Fault) {
	i, f := c.one(form, "Available")
	if f != nil {
		return nil, f
	}
	in := c.instances[form.Get("InstanceId")]
	if in == nil {
		return nil, &Fault{Code: "InvalidEcsId.NotFound", Message: "The specified instance does not exist.", Status: 404}
	}
	n := 0
	for _, o := range c.interfaces.Now() {
		if o.Instance == in.id {
			n++
		}
	}
	t := c.types[in.kind]
	if n >= t.Interfaces || 1+len(i.Addresses) > t.Addresses {
		return nil, &Fault{Code: "EniPerInstanceLimitExceeded", Message: "The maximum number of ENIs on the instance is exceeded.", Status: 403}
	}
	if c.vswitches[i.VSwitch].zone != c.vswitches[in.vswitch].zone {
		return nil, &Fault{Code: "InvalidOperation.AvailabilityZoneMismatch", Message: "The ENI and the instance are in different zones.", Status: 403}
	}
	i.Instance, i.status, i.ready = in.id, "Attaching", time.Now().Add(c.takes)
	c.put(i)
	return answer{}, nil
}

func (c *Cloud) remove(form url.Values) (answer, *Fault) {
	i, f := c.one(form, "Available")
	if f != nil {
		return nil, f
	}
	c.change(func(m map[string]Interface) { delete(m, i.ID) })
	return answer{}, nil
}

func (c *Cloud) modify(form url.Values) (answer, *Fault) {
	i, f := c.one(form, "Available", "InUse")
	if f != nil {
		return nil, f
	}
	if text := form.Get("DeleteOnRelease"); text != "" {
		i.DeleteOnRelease = text == "true"
	}
	c.put(i)
	return answer{}, nil
}

func (c *Cloud) assign(form url.Values) (answer, *Fault) {
	n, f := count(form)
	if f != nil {
		return nil, f
	}
	i, f := c.one(form, "Available", "InUse")
	if f != nil {
		return nil, f
	}
	if in := c.instances[i.Instance]; in != nil && 1+len(i.Addresses)+n > c.types[in.kind].Addresses {
		return nil, &Fault{Code: "QuotaExceeded.PrivateIpAddress", Message: "The maximum number of private IP addresses is exceeded.", Status: 403}
	}
	free := c.free(c.vswitches[i.VSwitch])
	if len(free) < n {
		return nil, full(i.VSwitch)
	}
	i.Addresses = slices.Concat(i.Addresses, free[:n])
	c.put(i)
	var got []string
	for _, a := range free[:n] {
		got = append(got, a.String())
	}
	return answer{"AssignedPrivateIpAddressesSet": answer{"NetworkInterfaceId": i.ID, "PrivateIpSet": answer{"PrivateIpAddress": got}}}, nil
}

func (c *Cloud) unassign(form url.Values) (answer, *Fault) {
	i, f := c.one(form, "Available", "InUse")
	if f != nil {
		return nil, f
	}
	i.Addresses = slices.Clone(i.Addresses)
	for _, text := range list(form, "PrivateIpAddress") {
		a, err := netip.ParseAddr(text)
		k := slices.Index(i.Addresses, a)
		if err != nil || k < 0 {
			return nil, &Fault{Code: "InvalidIp.IpUnassigned", Message: "The specified IP address is not assigned."}
		}
		i.Addresses = slices.Delete(i.Addresses, k, k+1)
	}
	c.put(i)
	return answer{}, nil
}
