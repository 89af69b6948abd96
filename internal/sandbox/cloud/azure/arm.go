package azure

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
)

type reference struct {
	ID string `json:"id"`
}

type configItem struct {
	ID         string `json:"id,omitempty"`
	Name       string `json:"name"`
	Properties struct {
		Address string     `json:"privateIPAddress,omitempty"`
		Method  string     `json:"privateIPAllocationMethod,omitempty"`
		Version string     `json:"privateIPAddressVersion,omitempty"`
		State   string     `json:"provisioningState,omitempty"`
		Primary bool       `json:"primary"`
		Subnet  *reference `json:"subnet,omitempty"`
	} `json:"properties"`
}

type interfaceItem struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Etag       string `json:"etag"`
	Type       string `json:"type"`
	Location   string `json:"location"`
	Properties struct {
		State       string       `json:"provisioningState"`
		MAC         string       `json:"macAddress"`
		Primary     bool         `json:"primary"`
		Accelerated bool         `json:"enableAcceleratedNetworking"`
		Machine     *reference   `json:"virtualMachine,omitempty"`
		Group       *reference   `json:"networkSecurityGroup,omitempty"`
		Configs     []configItem `json:"ipConfigurations"`
	} `json:"properties"`
}

const location = "westeurope"

func state(until time.Time) string {
	if time.Now().Before(until) {
		return "Updating"
	}
	return "Succeeded"
}

func (c *Cloud) item(i Interface) interfaceItem {
	out := interfaceItem{ID: i.ID, Name: i.Name, Etag: etag(i.etag), Type: "Microsoft.Network/networkInterfaces", Location: location}
	out.Properties.State, out.Properties.MAC, out.Properties.Primary, out.Properties.Accelerated = state(i.updated), i.MAC, i.Primary, i.Accelerated
	out.Properties.Machine, out.Properties.Group = &reference{i.Machine}, &reference{i.Group}
	for _, x := range i.Configs {
		out.Properties.Configs = append(out.Properties.Configs, configOf(i.ID, x))
	}
	return out
}

func configOf(nic string, x Config) configItem {
	out := configItem{ID: nic + "/ipConfigurations/" + x.Name, Name: x.Name}
	p := &out.Properties
	p.Method, p.Version, p.State, p.Primary, p.Subnet = "Dynamic", "IPv4", "Succeeded", x.Primary, &reference{x.Subnet}
	if x.Address.IsValid() {
		p.Address = x.Address.String()
	}
	return out
}

func etag(n int) string { return fmt.Sprintf(`W/"%d"`, n) }

// ServeHTTP implements [http.Handler]: one request to Azure Resource Manager. The action by which
// it is counted and scripted is the permission that it needs, without its provider:
// "networkInterfaces/write".
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := cloud.Protocol{
		Read: c.read, Type: "application/json; charset=utf-8", Encode: json.Marshal,
		Refusal: func(f *Fault) any {
			return map[string]any{"error": map[string]string{"code": f.Code, "message": f.Message}}
		},
		Throttled: Fault{Code: "TooManyRequests", Message: "The request is being throttled.", Status: http.StatusTooManyRequests, RetryAfter: 1},
	}
	p.Serve(&c.Disturbances, w, r)
}

func (c *Cloud) read(r *http.Request) (string, cloud.Act, *Fault) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		return "", nil, &Fault{Code: "AuthenticationFailed", Message: "Authentication failed. The 'Authorization' header is missing.", Status: http.StatusUnauthorized}
	}
	if r.URL.Query().Get("api-version") == "" {
		return "", nil, &Fault{Code: "MissingApiVersionParameter", Message: "The api-version query parameter (?api-version=) is required for all requests."}
	}
	action, act := c.route(r)
	return action, func(w http.ResponseWriter, r *http.Request) (any, *Fault) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.finish()
		return act(w, r)
	}, nil
}

func missing(id string) *Fault {
	return &Fault{Code: "ResourceNotFound", Message: fmt.Sprintf("The Resource '%s' was not found.", id), Status: http.StatusNotFound}
}

// route finds what a request is for. Paths are alike in whichever case.
func (c *Cloud) route(r *http.Request) (action string, h cloud.Act) {
	verb := "read"
	if r.Method == http.MethodPut {
		verb = "write"
	}
	path := key(strings.TrimRight(r.URL.Path, "/"))
	rest, ok := strings.CutPrefix(path, key(c.id("")))
	if !ok {
		if at := strings.LastIndex(path, "/operations/"); at >= 0 {
			return "operations/read", func(http.ResponseWriter, *http.Request) (any, *Fault) {
				return c.operation(path[at+len("/operations/"):])
			}
		}
		return "unknown", func(http.ResponseWriter, *http.Request) (any, *Fault) { return nil, missing(r.URL.Path) }
	}
	parts := strings.Split(rest, "/")
	sets := "virtualmachinescalesets"
	switch kind := parts[1:]; {
	case len(kind) == 1 && kind[0] == "networkinterfaces":
		return "networkInterfaces/read", c.list(func(i Interface) bool { return !strings.Contains(key(i.ID), sets) })
	case len(kind) == 2 && kind[0] == "networkinterfaces":
		return "networkInterfaces/" + verb, c.oneInterface(path, verb)
	case len(kind) == 2 && kind[0] == "virtualnetworks":
		return "virtualNetworks/read", func(http.ResponseWriter, *http.Request) (any, *Fault) { return c.network(path) }
	case len(kind) == 2 && kind[0] == "virtualmachines":
		return "virtualMachines/read", func(http.ResponseWriter, *http.Request) (any, *Fault) { return c.machine(path) }
	case len(kind) == 1 && kind[0] == sets:
		return "virtualMachineScaleSets/read", c.listSets
	case len(kind) == 3 && kind[0] == sets && kind[2] == "networkinterfaces":
		return "virtualMachineScaleSets/networkInterfaces/read", c.list(func(i Interface) bool {
			return strings.HasPrefix(key(i.ID), strings.TrimSuffix(path, "networkinterfaces"))
		})
	case len(kind) == 4 && kind[0] == sets && kind[2] == "virtualmachines":
		return "virtualMachineScaleSets/virtualMachines/" + verb, c.oneInstance(path, verb)
	case len(kind) == 5 && kind[0] == sets && kind[4] == "networkinterfaces":
		return "virtualMachineScaleSets/virtualMachines/networkInterfaces/read", c.list(func(i Interface) bool { return strings.HasPrefix(key(i.ID), path+"/") })
	case len(kind) == 6 && kind[0] == sets && kind[4] == "networkinterfaces":
		return "virtualMachineScaleSets/virtualMachines/networkInterfaces/read", c.oneInterface(path, "read")
	}
	return "unknown", func(http.ResponseWriter, *http.Request) (any, *Fault) { return nil, missing(r.URL.Path) }
}

type page struct {
	Value []any  `json:"value"`
	Next  string `json:"nextLink,omitempty"`
}

// page cuts all to what a request asks for.
func (c *Cloud) page(r *http.Request, all []any) (any, *Fault) {
	start, _ := strconv.Atoi(r.URL.Query().Get("$skipToken"))
	start = min(max(start, 0), len(all))
	end := min(start+c.pageSize, len(all))
	out := page{Value: all[start:end]}
	if end < len(all) {
		out.Next = c.link(r, r.URL.Path) + "&$skipToken=" + strconv.Itoa(end)
	}
	return out, nil
}

// link returns a URL of this cloud as the caller of r reaches it.
func (c *Cloud) link(r *http.Request, path string) string {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host + path + "?api-version=" + r.URL.Query().Get("api-version")
}

func (c *Cloud) list(is func(Interface) bool) cloud.Act {
	return func(_ http.ResponseWriter, r *http.Request) (any, *Fault) {
		all := []any{}
		seen := c.interfaces.Seen()
		for _, k := range slices.Sorted(maps.Keys(seen)) {
			if is(seen[k]) {
				all = append(all, c.item(seen[k]))
			}
		}
		return c.page(r, all)
	}
}

func (c *Cloud) listSets(_ http.ResponseWriter, r *http.Request) (any, *Fault) {
	all := []any{}
	for _, id := range slices.Sorted(maps.Keys(c.sets)) {
		all = append(all, map[string]any{"id": c.id("Microsoft.Compute/virtualMachineScaleSets", c.sets[id]), "name": c.sets[id], "location": location})
	}
	return c.page(r, all)
}

func (c *Cloud) network(id string) (any, *Fault) {
	n := c.networks[id]
	if n == nil {
		return nil, missing(id)
	}
	subnets := []any{}
	for _, s := range n.subnets {
		uses := []reference{}
		for _, i := range c.interfaces.Now() {
			for _, x := range i.Configs {
				if key(x.Subnet) == key(s.id) {
					uses = append(uses, reference{i.ID + "/ipConfigurations/" + x.Name})
				}
			}
		}
		// Private endpoints, load balancers and such: it does not matter what the others are.
		for k := range s.Others() {
			uses = append(uses, reference{s.id + "/other/" + strconv.Itoa(k)})
		}
		subnets = append(subnets, map[string]any{"id": s.id, "properties": map[string]any{"addressPrefix": s.CIDR.String(), "ipConfigurations": uses}})
	}
	var spaces []string
	for _, p := range n.spaces {
		spaces = append(spaces, p.String())
	}
	return map[string]any{"id": n.id, "name": n.name, "location": location, "properties": map[string]any{"addressSpace": map[string]any{"addressPrefixes": spaces}, "subnets": subnets}}, nil
}

func (c *Cloud) machine(id string) (any, *Fault) {
	m := c.machines[id]
	if m == nil || m.set != "" {
		return nil, missing(id)
	}
	var list []reference
	for _, nic := range m.interfaces {
		list = append(list, reference{c.interfaces.Now()[nic].ID})
	}
	return map[string]any{"id": m.id, "name": m.name, "location": location, "properties": map[string]any{"networkProfile": map[string]any{"networkInterfaces": list}}}, nil
}

func (c *Cloud) oneInterface(id, verb string) cloud.Act {
	return func(w http.ResponseWriter, r *http.Request) (any, *Fault) {
		i, ok := c.interfaces.Now()[id]
		if !ok {
			return nil, missing(id)
		}
		if verb == "read" {
			return c.item(i), nil
		}
		var in interfaceItem
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, &Fault{Code: "InvalidRequestContent", Message: "The request content was invalid and could not be deserialized."}
		}
		if f := conflict(r, i.ID, etag(i.etag), i.updated); f != nil {
			return nil, f
		}
		// The whole of it is replaced.
		i.Accelerated, i.Configs = in.Properties.Accelerated, configs(in.Properties.Configs, i.Configs)
		if f := c.fill(&i); f != nil {
			return nil, f
		}
		i.etag++
		i.updated = time.Now().Add(c.takes)
		c.put(i)
		c.begin(w, r, "Microsoft.Network", nil)
		return c.item(i), nil
	}
}

// conflict says why a resource cannot be changed now.
func conflict(r *http.Request, id, etag string, updated time.Time) *Fault {
	if want := r.Header.Get("If-Match"); want != "" && want != "*" && want != etag {
		return &Fault{Code: "PreconditionFailed", Message: fmt.Sprintf("Etag provided in if-match header %s does not match etag %s of resource %s.", want, etag, id), Status: http.StatusPreconditionFailed}
	}
	if time.Now().Before(updated) {
		return &Fault{Code: "AnotherOperationInProgress", Message: "Another operation on this or dependent resource is in progress.", Status: http.StatusTooManyRequests}
	}
	return nil
}

// configs reads configurations; those of the same name keep their address.
func configs(in []configItem, have []Config) (out []Config) {
	for _, x := range in {
		n := Config{Name: x.Name, Primary: x.Properties.Primary}
		if x.Properties.Subnet != nil {
			n.Subnet = x.Properties.Subnet.ID
		}
		if at := slices.IndexFunc(have, func(o Config) bool { return o.Name == x.Name }); at >= 0 {
			n.Address = have[at].Address
		} else if a, err := netip.ParseAddr(x.Properties.Address); err == nil {
			n.Address = a
		}
		out = append(out, n)
	}
	return out
}

// begin starts an asynchronous operation and has the answer say where it is tracked.
func (c *Cloud) begin(w http.ResponseWriter, r *http.Request, provider string, m *machine) {
	c.serial++
	id := strconv.Itoa(c.serial)
	c.operations[id] = &operation{done: time.Now().Add(c.takes), machine: m}
	w.Header().Set("Azure-AsyncOperation", c.link(r, "/subscriptions/"+c.subscription+"/providers/"+provider+"/locations/"+location+"/operations/"+id))
}

func (c *Cloud) operation(id string) (any, *Fault) {
	o := c.operations[id]
	switch {
	case o == nil:
		return nil, missing(id)
	case !o.applied:
		return map[string]any{"status": "InProgress"}, nil
	case o.fault != nil:
		return map[string]any{"status": "Failed", "error": map[string]string{"code": o.fault.Code, "message": o.fault.Message}}, nil
	}
	return map[string]any{"status": "Succeeded"}, nil
}

type instanceItem struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Etag       string `json:"etag,omitempty"`
	InstanceID string `json:"instanceId"`
	Location   string `json:"location"`
	Properties struct {
		State    string `json:"provisioningState"`
		Hardware struct {
			Size string `json:"vmSize"`
		} `json:"hardwareProfile"`
		Storage map[string]any `json:"storageProfile,omitempty"`
		Network struct {
			Interfaces []interfaceModel `json:"networkInterfaceConfigurations"`
		} `json:"networkProfileConfiguration"`
	} `json:"properties"`
}

type interfaceModel struct {
	Name       string `json:"name"`
	Properties struct {
		Primary bool         `json:"primary"`
		Configs []configItem `json:"ipConfigurations"`
	} `json:"properties"`
}

func (c *Cloud) instance(m *machine) instanceItem {
	out := instanceItem{ID: m.id, Name: m.set + "_" + m.name, Etag: fmt.Sprintf(`"%d"`, m.etag), InstanceID: m.name, Location: location}
	out.Properties.State, out.Properties.Hardware.Size = state(m.updated), m.size
	out.Properties.Storage = map[string]any{"imageReference": map[string]string{"id": "/subscriptions/other/providers/Microsoft.Compute/galleries/images"}}
	for k, nic := range m.interfaces {
		i := c.interfaces.Now()[nic]
		n := interfaceModel{Name: i.Name}
		n.Properties.Primary = k == 0
		for _, x := range m.model[i.Name] {
			x.Address = netip.Addr{} // the model has none
			n.Properties.Configs = append(n.Properties.Configs, configOf("", x))
		}
		out.Properties.Network.Interfaces = append(out.Properties.Network.Interfaces, n)
	}
	return out
}

func (c *Cloud) oneInstance(id, verb string) cloud.Act {
	return func(w http.ResponseWriter, r *http.Request) (any, *Fault) {
		m := c.machines[id]
		if m == nil {
			return nil, missing(id)
		}
		if verb == "read" {
			return c.instance(m), nil
		}
		var in instanceItem
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, &Fault{Code: "InvalidRequestContent", Message: "The request content was invalid and could not be deserialized."}
		}
		if in.Properties.Storage["imageReference"] != nil {
			return nil, &Fault{Code: "LinkedAuthorizationFailed", Status: http.StatusForbidden,
				Message: "The client has permission to perform action 'Microsoft.Compute/galleries/images/read' on scope, however it does not have permission on the linked scope."}
		}
		if f := conflict(r, m.id, fmt.Sprintf(`"%d"`, m.etag), m.updated); f != nil {
			return nil, f
		}
		for _, n := range in.Properties.Network.Interfaces {
			m.model[n.Name] = configs(n.Properties.Configs, nil)
		}
		m.etag++
		m.updated = time.Now().Add(c.takes)
		c.begin(w, r, "Microsoft.Compute", m)
		c.finish()
		return c.instance(m), nil
	}
}
