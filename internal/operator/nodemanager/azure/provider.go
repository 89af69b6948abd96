// Package azure has the node manager use Azure: IP configurations of the network interfaces of
// virtual machines and of the instances of scale sets.
//
// It stands on the parts of the official SDK that all of its clients have in common (credentials,
// pipeline, pages, long-running operations), and has the few types that it reads itself: see
// docs/design/0022-cloud-sdks.md. Interfaces are edited as they were read, so that nothing is lost
// that is not known here.
package azure

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

const (
	// maxAddresses is how many addresses an interface may have ("Azure subscription and service
	// limits").
	maxAddresses = 256
	// reserved is how many addresses of a subnet Azure keeps.
	reserved = 5
	// ownConfig begins the names of IP configurations that an operator makes.
	ownConfig = "pods-"
	// firstPoll is the first pause between two looks at what is under way.
	firstPoll = time.Second
	// longestChange is how long a change is waited for. A worker of the node manager waits; the
	// interface is not changed until the cloud reports completion.
	longestChange = 5 * time.Minute
)

// Permissions, by which calls are known in metrics and errors.
const (
	readNIC      = "Microsoft.Network/networkInterfaces/read"
	writeNIC     = "Microsoft.Network/networkInterfaces/write"
	readNetwork  = "Microsoft.Network/virtualNetworks/read"
	readVM       = "Microsoft.Compute/virtualMachines/read"
	readSets     = "Microsoft.Compute/virtualMachineScaleSets/read"
	readSetNICs  = "Microsoft.Compute/virtualMachineScaleSets/networkInterfaces/read"
	readOneNIC   = "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/networkInterfaces/read"
	readSetVM    = "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read"
	writeSetVM   = "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write"
	setsInID     = "/virtualmachinescalesets/"
	interfacesIn = "/networkinterfaces/"
)

// machineForm is that of the ID of a machine, or of an instance of a scale set, after the resource
// group.
var machineForm = regexp.MustCompile(`^/(virtualmachines|virtualmachinescalesets/[a-z0-9._-]+/virtualmachines)/[a-z0-9][a-z0-9._-]*$`)

// Provider implements [nodemanager.Provider]. Make it with [New].
type Provider struct {
	cfg     Config
	arm     *arm.Client
	budget  *nodemanager.Budget
	poll    time.Duration
	longest time.Duration
}

// New makes a provider. It sends nothing.
func New(cfg Config, b *nodemanager.Budget) (*Provider, error) {
	var cred azcore.TokenCredential
	var err error
	if cfg.UserAssignedIdentity != "" {
		cred, err = azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ID: azidentity.ClientID(cfg.UserAssignedIdentity)})
	} else {
		identity := azcore.ClientOptions{Cloud: cfg.cloud()}
		cred, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: identity})
	}
	if err != nil {
		return nil, fmt.Errorf("credentials for Azure: %w", err)
	}
	return newProvider(cfg, b, cred, nil)
}

// newProvider makes a provider that has its credentials; transport is nil for the SDK's.
func newProvider(cfg Config, b *nodemanager.Budget, cred azcore.TokenCredential, transport policy.Transporter) (*Provider, error) {
	o := &arm.ClientOptions{DisableRPRegistration: true}
	o.Cloud, o.Transport = cfg.cloud(), transport
	// The node manager repeats what fails, within the budget and after it has looked.
	o.Retry = policy.RetryOptions{MaxRetries: -1}
	client, err := arm.NewClient("hawser-operator", "v1.0.0", cred, o)
	if err != nil {
		return nil, fmt.Errorf("client of Azure: %w", err)
	}
	return &Provider{cfg: cfg, arm: client, budget: b, poll: firstPoll, longest: longestChange}, nil
}

// key is an ID by which things are compared: Azure does not care about case, and answers now in
// this one and now in that.
func key(id string) string { return strings.ToLower(id) }

// Read implements [nodemanager.Provider].
func (p *Provider) Read(ctx context.Context) (*nodemanager.Snapshot, error) {
	s := &nodemanager.Snapshot{Subnets: map[string]nodemanager.Subnet{}, VPCs: map[string]nodemanager.VPC{}}
	all, err := list[nic](ctx, p, readNIC, p.cfg.group("Microsoft.Network", "networkInterfaces"), networkVersion)
	if err != nil {
		return nil, err
	}
	sets, err := list[reference](ctx, p, readSets, p.cfg.group("Microsoft.Compute", "virtualMachineScaleSets"), computeVersion)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		more, err := list[nic](ctx, p, readSetNICs, set.ID+"/networkInterfaces", setNICVersion)
		if nodemanager.CodeOf(err) == "ResourceNotFound" {
			continue // it has gone meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	if s.Interfaces, err = interfaces(all); err != nil {
		return nil, err
	}
	return s, p.readNetworks(ctx, s)
}

// readNetworks reads the virtual networks that interfaces are in.
func (p *Provider) readNetworks(ctx context.Context, s *nodemanager.Snapshot) error {
	for k := range s.Interfaces {
		id := s.Interfaces[k].VPC
		if _, ok := s.VPCs[id]; ok || id == "" {
			continue
		}
		var n struct {
			Properties struct {
				Space struct {
					Prefixes []string `json:"addressPrefixes"`
				} `json:"addressSpace"`
				Subnets []struct {
					ID         string `json:"id"`
					Properties struct {
						Prefix   string      `json:"addressPrefix"`
						Prefixes []string    `json:"addressPrefixes"`
						Configs  []reference `json:"ipConfigurations"`
					} `json:"properties"`
				} `json:"subnets"`
			} `json:"properties"`
		}
		if err := p.get(ctx, readNetwork, id, networkVersion, &n); err != nil {
			return err
		}
		vpc := nodemanager.VPC{ID: id}
		if spaces := n.Properties.Space.Prefixes; len(spaces) > 0 {
			vpc.Primary, vpc.CIDRs = spaces[0], spaces[1:]
		}
		s.VPCs[id] = vpc
		for _, x := range n.Properties.Subnets {
			subnet := nodemanager.Subnet{ID: key(x.ID), VPC: id}
			for _, text := range append([]string{x.Properties.Prefix}, x.Properties.Prefixes...) {
				if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Addr().Is4() {
					subnet.CIDR = text
					subnet.Free = max(1<<(32-prefix.Bits())-reserved-len(x.Properties.Configs), 0)
					break
				}
			}
			s.Subnets[subnet.ID] = subnet
		}
	}
	return nil
}

// ReadInstance implements [nodemanager.Provider]. A machine that is gone has no interfaces, and
// neither has what is no machine of the resource group: the ID comes from a CiliumNode, which
// others may write, and the operator's token is sent with it.
func (p *Provider) ReadInstance(ctx context.Context, instance string) ([]nodemanager.Interface, error) {
	if id, ok := strings.CutPrefix(instance, key(p.cfg.group("Microsoft.Compute"))); !ok || !machineForm.MatchString(id) {
		return nil, nil
	}
	if strings.Contains(instance, setsInID) {
		all, err := list[nic](ctx, p, readOneNIC, instance+"/networkInterfaces", setNICVersion)
		if gone(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return interfaces(all)
	}
	var m struct {
		Properties struct {
			Network struct {
				Interfaces []reference `json:"networkInterfaces"`
			} `json:"networkProfile"`
		} `json:"properties"`
	}
	err := p.get(ctx, readVM, instance, computeVersion, &m)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []nic
	for _, r := range m.Properties.Network.Interfaces {
		var n nic
		// One that is gone is not the machine's end: it was detached meanwhile, and is read again.
		if err := p.get(ctx, readNIC, r.ID, networkVersion, &n); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return interfaces(all)
}

// gone reports whether an error means that the resource does not exist.
func gone(err error) bool {
	switch nodemanager.CodeOf(err) {
	case "ResourceNotFound", "ParentResourceNotFound", "NotFound":
		return true
	}
	return false
}

// interfaces understands the interfaces of machines. Their places on the machine are: the primary
// one first, then by name. One whose addresses cannot be read is an error: a part of what is
// assigned is not what is assigned.
func interfaces(all []nic) (out []nodemanager.Interface, err error) {
	slices.SortFunc(all, func(a, b nic) int {
		if a.Properties.Primary != b.Properties.Primary {
			if a.Properties.Primary {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	count := map[string]int{}
	for k := range all {
		n := &all[k]
		if n.Properties.Machine == nil {
			continue // without an owner
		}
		i := nodemanager.Interface{
			ID: key(n.ID), Name: n.Name, Instance: key(n.Properties.Machine.ID), MAC: strings.ReplaceAll(strings.ToLower(n.Properties.MAC), "-", ":"),
			State: strings.ToLower(n.Properties.State), Tags: n.Tags,
		}
		i.Attachment, i.Index = i.Instance, count[i.Instance]
		if !n.Properties.Primary && i.Index == 0 {
			i.Index = 1 // the primary one is not visible yet
		}
		count[i.Instance] = i.Index + 1
		if n.Properties.Group != nil {
			i.Groups = []string{n.Properties.Group.ID}
		}
		for _, x := range n.Properties.Configs {
			if x.Properties.Version == "IPv6" || x.Properties.Address == "" { // or is on its way
				if stays(n, &x) && (x.Properties.Version == "IPv6" || !x.Properties.Primary) {
					i.Other++
				}
				continue
			}
			a, err := netip.ParseAddr(x.Properties.Address)
			if err != nil || !a.Is4() {
				return nil, &nodemanager.Error{Text: fmt.Sprintf("Azure: interface %s has %q, which is no address", n.Name, x.Properties.Address)}
			}
			if !x.Properties.Primary {
				i.Held = append(i.Held, netip.PrefixFrom(a, 32))
				continue
			}
			i.Primary = a
			if x.Properties.Subnet != nil {
				i.Subnet = key(x.Properties.Subnet.ID)
				i.VPC, _, _ = strings.Cut(i.Subnet, "/subnets/")
			}
		}
		out = append(out, i)
	}
	return out, nil
}

// Limits implements [nodemanager.Provider].
func (p *Provider) Limits(context.Context, string) (nodemanager.Limits, error) {
	return nodemanager.Limits{}, nil // they do not depend on the type
}

// Assign implements [nodemanager.Provider].
func (p *Provider) Assign(ctx context.Context, s nodemanager.Step) ([]netip.Prefix, error) {
	var names []string
	after, err := p.edit(ctx, s.Interface.ID, func(n *nic, configs []ipConfig) ([]bool, []ipConfig, error) {
		keep := make([]bool, len(configs))
		var subnet *reference
		kept := 0
		for k, x := range configs {
			if keep[k] = stays(n, &x); keep[k] {
				kept++
			}
			if x.Properties.Primary && x.Properties.Version != "IPv6" {
				subnet = x.Properties.Subnet
			}
		}
		if kept >= maxAddresses {
			return nil, nil, &nodemanager.Error{Text: fmt.Sprintf("Azure: interface %s holds no more than %d addresses: fewer pods per node, or another interface", n.Name, maxAddresses)}
		}
		var more []ipConfig
		for range min(s.Addresses, maxAddresses-kept) {
			x := ipConfig{Name: ownConfig + strings.ToLower(rand.Text()[:12])}
			x.Properties.Version, x.Properties.Method, x.Properties.Subnet = "IPv4", "Dynamic", subnet
			if strings.Contains(s.Interface.ID, setsInID) {
				x.Properties.Method = "" // a scale set's have none
			}
			names, more = append(names, x.Name), append(more, x)
		}
		return keep, more, nil
	})
	if err != nil {
		return nil, err
	}
	var units []netip.Prefix
	for _, name := range names {
		if a := addressOf(after, name); a.IsValid() {
			units = append(units, netip.PrefixFrom(a, 32))
		}
	}
	return units, nil
}

// stays reports whether a configuration stays when others are added: what was asked of a scale
// set's instance once and could not be had is not asked again.
func stays(n *nic, x *ipConfig) bool {
	return x.Properties.Primary || !strings.HasPrefix(x.Name, ownConfig) || addressOf(n, x.Name).IsValid()
}

// Unassign implements [nodemanager.Provider].
func (p *Provider) Unassign(ctx context.Context, s nodemanager.Step) error {
	_, err := p.edit(ctx, s.Interface.ID, func(n *nic, configs []ipConfig) ([]bool, []ipConfig, error) {
		keep := make([]bool, len(configs))
		for k, x := range configs {
			a := addressOf(n, x.Name)
			keep[k] = x.Properties.Primary || !slices.ContainsFunc(s.Units, func(u netip.Prefix) bool { return u.Addr() == a })
		}
		return keep, nil, nil
	})
	return err
}

// addressOf returns the address that an interface has by a configuration; none if it has not.
func addressOf(n *nic, config string) netip.Addr {
	for _, x := range n.Properties.Configs {
		if x.Name == config {
			a, _ := netip.ParseAddr(x.Properties.Address)
			return a
		}
	}
	return netip.Addr{}
}

// edit changes the IP configurations of an interface: edit is given what the interface is and the
// configurations to change, and returns which of them to keep and which to add; nothing changes if
// it fails. It returns the changed interface.
func (p *Provider) edit(ctx context.Context, id string, edit func(n *nic, configs []ipConfig) ([]bool, []ipConfig, error)) (*nic, error) {
	read, version := readNIC, networkVersion
	if strings.Contains(id, setsInID) {
		read, version = readOneNIC, setNICVersion
	}
	before := object{}
	if err := p.get(ctx, read, id, version, &before); err != nil {
		return nil, err
	}
	n, err := before.nic()
	if err != nil {
		return nil, err
	}
	if err := checkIdle(n.Properties.State); err != nil {
		return nil, err
	}
	with := func(configs []ipConfig) ([]bool, []ipConfig, error) { return edit(n, configs) }
	if strings.Contains(id, setsInID) {
		err = p.editInstance(ctx, id, n.Name, with)
	} else {
		err = p.editInterface(ctx, id, before, n.Etag, with)
	}
	if err != nil {
		return nil, err
	}
	after := &nic{}
	return after, p.get(ctx, read, id, version, after)
}

// checkIdle refuses a resource with a change in progress: its final state is not known.
func checkIdle(state string) error {
	switch state {
	case "", "Succeeded", "Failed", "Canceled":
		return nil
	}
	return &nodemanager.Error{Code: "AnotherOperationInProgress", Text: "something else is changing the network interface or its machine: this is retried automatically"}
}

func (o object) nic() (*nic, error) {
	n := &nic{}
	return n, o.into(n)
}

func (p *Provider) editInterface(ctx context.Context, id string, o object, etag string, edit func([]ipConfig) ([]bool, []ipConfig, error)) error {
	properties, err := o.within("properties")
	if err != nil {
		return err
	}
	if err := properties.edited(edit); err != nil {
		return err
	}
	if err := o.set("properties", properties); err != nil {
		return err
	}
	return p.put(ctx, writeNIC, id, networkVersion, o, etag)
}

// editInstance changes an interface of a scale set's instance by the instance's model. Only what is
// to change is sent: the image and such stay without a word about them, and no right to them is
// needed.
func (p *Provider) editInstance(ctx context.Context, id, name string, edit func([]ipConfig) ([]bool, []ipConfig, error)) error {
	instance, _, _ := strings.Cut(id, interfacesIn)
	o := object{}
	if err := p.get(ctx, readSetVM, instance, computeVersion, &o); err != nil {
		return err
	}
	var m struct {
		Etag       string `json:"etag"`
		Properties struct {
			State   string `json:"provisioningState"`
			Network struct {
				Interfaces []object `json:"networkInterfaceConfigurations"`
			} `json:"networkProfileConfiguration"`
		} `json:"properties"`
	}
	if err := o.into(&m); err != nil {
		return err
	}
	if err := checkIdle(m.Properties.State); err != nil {
		return err
	}
	found := false
	for _, i := range m.Properties.Network.Interfaces {
		var known struct{ Name string }
		if err := i.into(&known); err != nil || known.Name != name {
			continue
		}
		found = true
		properties, err := i.within("properties")
		if err != nil {
			return err
		}
		if err := properties.edited(edit); err != nil {
			return err
		}
		if err := i.set("properties", properties); err != nil {
			return err
		}
	}
	if !found {
		return &nodemanager.Error{Text: fmt.Sprintf("Azure: the model of the instance has no interface %q", name)}
	}
	properties, err := o.within("properties")
	if err != nil {
		return err
	}
	body := object{"location": o["location"]}
	send := map[string]any{"networkProfileConfiguration": map[string]any{"networkInterfaceConfigurations": m.Properties.Network.Interfaces}}
	if hardware, ok := properties["hardwareProfile"]; ok {
		send["hardwareProfile"] = hardware
	}
	if err := body.set("properties", send); err != nil {
		return err
	}
	return p.put(ctx, writeSetVM, instance, computeVersion, body, m.Etag)
}

// Azure attaches interfaces only to machines that are off: the node manager uses those that are
// there.
var errFixed = &nodemanager.Error{Text: "Azure: the interfaces of a machine are those that it was made with"}

// Create implements [nodemanager.Provider]; it is not used.
func (p *Provider) Create(context.Context, string, nodemanager.Step) (nodemanager.Interface, error) {
	return nodemanager.Interface{}, errFixed
}

// Attach implements [nodemanager.Provider]; it is not used.
func (p *Provider) Attach(_ context.Context, _ string, s nodemanager.Step) (nodemanager.Interface, error) {
	return s.Interface, errFixed
}

// Modify implements [nodemanager.Provider]; it is not used.
func (p *Provider) Modify(context.Context, nodemanager.Step) error { return errFixed }

// Delete implements [nodemanager.Provider]; it is not used.
func (p *Provider) Delete(context.Context, string) error { return errFixed }
