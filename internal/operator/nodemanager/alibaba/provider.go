// Package alibaba has the node manager use Alibaba Cloud: private addresses of the secondary
// elastic network interfaces of ECS instances.
//
// It stands on the core of the official SDK (credentials, signatures, errors) and has the few types
// that it reads itself: see docs/design/0022-cloud-sdks.md.
package alibaba

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/auth/credentials"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// maxAssign is how many addresses one call can ask for ("AssignPrivateIpAddresses").
	maxAssign = 49
	// attachTime is how long an interface may take to be made, or attached.
	attachTime = 2 * time.Minute
)

// instanceForm is that of the ID of an instance. IDs of another form are not looked up: they come
// from a CiliumNode, which others may write.
var instanceForm = regexp.MustCompile(`^i-[0-9a-z-]+$`)

// Provider implements [nodemanager.Provider]. Make it with [New].
type Provider struct {
	cfg    Config
	client *client
	budget *nodemanager.Budget
	poll   time.Duration
}

// New makes a provider. It sends nothing, unless it has to ask the instance that it runs on for the
// region.
func New(ctx context.Context, cfg Config, b *nodemanager.Budget) (*Provider, error) {
	if cfg.Region == "" {
		cfg.Region = os.Getenv("ALIBABA_CLOUD_REGION_ID")
	}
	if cfg.Region == "" {
		var err error
		if cfg.Region, err = regionOf(ctx); err != nil || !regionForm.MatchString(cfg.Region) {
			return nil, fmt.Errorf("region of Alibaba Cloud: set --alibaba-cloud-region-id: %w", err)
		}
	}
	return newProvider(cfg, b, credentials.NewDefaultCredentialsProvider(), &http.Client{}), nil
}

func newProvider(cfg Config, b *nodemanager.Budget, chain credentials.CredentialsProvider, h *http.Client) *Provider {
	c := &client{region: cfg.Region, http: h, chain: chain}
	if u, err := url.Parse(cfg.Endpoint); err == nil {
		c.endpoint = u.Host
	}
	return &Provider{cfg: cfg, client: c, budget: b, poll: time.Second}
}

type tag struct{ Key, Value, TagKey, TagValue string }

type tags struct{ Tag []tag }

func (t tags) all() map[string]string {
	if len(t.Tag) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, x := range t.Tag {
		if x.TagKey != "" {
			x.Key, x.Value = x.TagKey, x.TagValue
		}
		out[x.Key] = x.Value
	}
	return out
}

// eni is an interface ("DescribeNetworkInterfaces"). Its fields are matched without regard to case,
// as those of every answer here.
type eni struct {
	NetworkInterfaceID, InstanceID, Type, Status, VpcID, VSwitchID, ZoneID, MacAddress, PrivateIPAddress, Description string

	DeleteOnRelease    bool
	SecurityGroupIds   struct{ SecurityGroupID []string }
	AssociatedPublicIP struct{ PublicIPAddress string }
	PrivateIPSets      struct {
		PrivateIPSet []struct {
			PrivateIPAddress string
			Primary          bool
		}
	}
	Tags tags
}

// Read implements [nodemanager.Provider].
func (p *Provider) Read(ctx context.Context) (*nodemanager.Snapshot, error) {
	s := &nodemanager.Snapshot{Subnets: map[string]nodemanager.Subnet{}, Groups: map[string]nodemanager.SecurityGroup{}, VPCs: map[string]nodemanager.VPC{}}
	err := p.pages(ctx, "DescribeVSwitches", 50, p.within(), func(text []byte) (int, int, string, error) {
		var out struct {
			TotalCount int
			VSwitches  struct {
				VSwitch []struct {
					VSwitchID, VpcID, ZoneID, CidrBlock string
					AvailableIPAddressCount             int
					Tags                                tags
				}
			}
		}
		err := json.Unmarshal(text, &out)
		for _, x := range out.VSwitches.VSwitch {
			s.Subnets[x.VSwitchID] = nodemanager.Subnet{ID: x.VSwitchID, CIDR: x.CidrBlock, VPC: x.VpcID, Zone: x.ZoneID, Free: x.AvailableIPAddressCount, Tags: x.Tags.all()}
		}
		return len(out.VSwitches.VSwitch), out.TotalCount, "", err
	})
	if err != nil {
		return nil, err
	}
	err = p.pages(ctx, "DescribeVpcs", 50, p.within(), func(text []byte) (int, int, string, error) {
		var out struct {
			TotalCount int
			Vpcs       struct {
				Vpc []struct {
					VpcID, CidrBlock    string
					SecondaryCidrBlocks struct{ SecondaryCidrBlock []string }
				}
			}
		}
		err := json.Unmarshal(text, &out)
		for _, x := range out.Vpcs.Vpc {
			s.VPCs[x.VpcID] = nodemanager.VPC{ID: x.VpcID, Primary: x.CidrBlock, CIDRs: x.SecondaryCidrBlocks.SecondaryCidrBlock}
		}
		return len(out.Vpcs.Vpc), out.TotalCount, "", err
	})
	if err != nil {
		return nil, err
	}
	err = p.pages(ctx, "DescribeSecurityGroups", 100, p.within(), func(text []byte) (int, int, string, error) {
		var out struct {
			NextToken      string
			SecurityGroups struct {
				SecurityGroup []struct {
					SecurityGroupID, VpcID string
					Tags                   tags
				}
			}
		}
		err := json.Unmarshal(text, &out)
		for _, x := range out.SecurityGroups.SecurityGroup {
			s.Groups[x.SecurityGroupID] = nodemanager.SecurityGroup{ID: x.SecurityGroupID, VPC: x.VpcID, Tags: x.Tags.all()}
		}
		return 0, 0, out.NextToken, err
	})
	if err != nil {
		return nil, err
	}
	s.Interfaces, err = p.readInterfaces(ctx, p.within())
	return s, err
}

// within are the parameters by which a description is of the VPC only.
func (p *Provider) within() params {
	out := params{}
	if p.cfg.VPC != "" {
		out["VpcId"] = p.cfg.VPC
	}
	return out
}

func (p *Provider) readInterfaces(ctx context.Context, in params) (all []nodemanager.Interface, err error) {
	enis, err := p.readENIs(ctx, in)
	if err != nil {
		return nil, err
	}
	for k := range enis {
		i, err := p.read(&enis[k])
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, nil
}

func (p *Provider) readENIs(ctx context.Context, in params) (all []eni, err error) {
	err = p.pages(ctx, "DescribeNetworkInterfaces", 500, in, func(text []byte) (int, int, string, error) {
		var out struct {
			NextToken            string
			NetworkInterfaceSets struct{ NetworkInterfaceSet []eni }
		}
		err := json.Unmarshal(text, &out)
		all = append(all, out.NetworkInterfaceSets.NetworkInterfaceSet...)
		return 0, 0, out.NextToken, err
	})
	return all, err
}

// ReadInstance implements [nodemanager.Provider].
func (p *Provider) ReadInstance(ctx context.Context, instance string) ([]nodemanager.Interface, error) {
	if !instanceForm.MatchString(instance) {
		return nil, &nodemanager.Error{Text: fmt.Sprintf("%q is no instance ID of Alibaba Cloud: correct spec.instance-id of the CiliumNode", instance)}
	}
	attached, err := p.readInterfaces(ctx, params{"InstanceId": instance})
	if err != nil {
		return nil, err
	}
	in := params{}
	own := nodemanager.OwnTags(p.cfg.ClusterName)
	own[nodemanager.InstanceTag] = instance
	in.tags(own)
	made, err := p.readInterfaces(ctx, in)
	if err != nil {
		return nil, err
	}
	made = slices.DeleteFunc(made, func(l nodemanager.Interface) bool {
		return l.Attachment != "" || slices.ContainsFunc(attached, func(a nodemanager.Interface) bool { return a.ID == l.ID })
	})
	return append(attached, made...), nil
}

// read understands an interface. One whose addresses cannot be read is an error: a part of what is
// assigned is not what is assigned.
func (p *Provider) read(x *eni) (nodemanager.Interface, error) {
	i := nodemanager.Interface{
		ID: x.NetworkInterfaceID, Subnet: x.VSwitchID, VPC: x.VpcID, Zone: x.ZoneID, MAC: x.MacAddress, Description: x.Description, State: x.Status,
		PublicIP: x.AssociatedPublicIP.PublicIPAddress, Groups: x.SecurityGroupIds.SecurityGroupID, Tags: x.Tags.all(), DeleteOnTermination: x.DeleteOnRelease,
	}
	i.Managed = nodemanager.Owned(i.Tags, p.cfg.ClusterName)
	if x.Type != "Primary" {
		i.Index = 1
		if n, err := strconv.Atoi(i.Tags[indexTag]); err == nil && n > 0 {
			i.Index = n
		}
	}
	if x.InstanceID != "" {
		// Also while it is being attached: no other instance can have it.
		i.Attachment, i.Instance = x.InstanceID, x.InstanceID
	} else if i.Managed {
		i.Instance = i.Tags[nodemanager.InstanceTag]
	}
	var err error
	bad := func(what string) error {
		return &nodemanager.Error{Text: fmt.Sprintf("Alibaba Cloud: interface %s has %q, which is no address", i.ID, what)}
	}
	if x.PrivateIPAddress != "" {
		if i.Primary, err = netip.ParseAddr(x.PrivateIPAddress); err != nil {
			return i, bad(x.PrivateIPAddress)
		}
	}
	for _, a := range x.PrivateIPSets.PrivateIPSet {
		addr, err := netip.ParseAddr(a.PrivateIPAddress)
		switch {
		case err != nil || !addr.Is4():
			return i, bad(a.PrivateIPAddress)
		case a.Primary:
			i.Primary = addr
		default:
			i.Held = append(i.Held, netip.PrefixFrom(addr, 32))
		}
	}
	return i, nil
}

// Limits implements [nodemanager.Provider].
func (p *Provider) Limits(ctx context.Context, kind string) (nodemanager.Limits, error) {
	var out struct {
		InstanceTypes struct {
			InstanceType []struct {
				InstanceTypeID                           string
				EniQuantity, EniPrivateIPAddressQuantity int
			}
		}
	}
	in := params{}
	in.list("InstanceTypes", kind)
	if err := p.call(ctx, "DescribeInstanceTypes", in, &out); err != nil {
		return nodemanager.Limits{}, err
	}
	for _, t := range out.InstanceTypes.InstanceType {
		if t.InstanceTypeID == kind {
			return nodemanager.Limits{Interfaces: t.EniQuantity, Addresses: t.EniPrivateIPAddressQuantity}, nil
		}
	}
	return nodemanager.Limits{}, &nodemanager.Error{Text: fmt.Sprintf("Alibaba Cloud knows no instance type %q in this region", kind)}
}

// Assign implements [nodemanager.Provider].
func (p *Provider) Assign(ctx context.Context, s nodemanager.Step) ([]netip.Prefix, error) {
	var out struct {
		AssignedPrivateIPAddressesSet struct {
			PrivateIPSet struct{ PrivateIPAddress []string }
		}
	}
	in := params{"NetworkInterfaceId": s.Interface.ID, "SecondaryPrivateIpAddressCount": strconv.Itoa(min(s.Addresses, maxAssign))}
	if err := p.call(ctx, "AssignPrivateIpAddresses", in, &out); err != nil {
		return nil, err
	}
	var units []netip.Prefix
	for _, text := range out.AssignedPrivateIPAddressesSet.PrivateIPSet.PrivateIPAddress {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("what Alibaba Cloud assigned: %q: %w", text, err)
		}
		units = append(units, netip.PrefixFrom(a, a.BitLen()))
	}
	return units, nil
}

// Unassign implements [nodemanager.Provider].
func (p *Provider) Unassign(ctx context.Context, s nodemanager.Step) error {
	in := params{"NetworkInterfaceId": s.Interface.ID}
	var addrs []string
	for _, u := range s.Units {
		addrs = append(addrs, u.Addr().String())
	}
	in.list("PrivateIpAddress", addrs...)
	return p.call(ctx, "UnassignPrivateIpAddresses", in, nil)
}

// Create implements [nodemanager.Provider].
func (p *Provider) Create(ctx context.Context, instance string, s nodemanager.Step) (nodemanager.Interface, error) {
	own := nodemanager.OwnTags(p.cfg.ClusterName)
	own[nodemanager.InstanceTag], own[indexTag] = instance, strconv.Itoa(s.Index)
	in := params{"VSwitchId": s.Subnet, "Description": "addresses of pods on " + instance, "InstanceType": "Secondary", "DeleteOnRelease": "true"}
	in.tags(own)
	in.list("SecurityGroupIds", s.Groups...)
	if s.Addresses > 0 {
		in["SecondaryPrivateIpAddressCount"] = strconv.Itoa(min(s.Addresses, maxAssign))
	}
	var out eni
	if err := p.call(ctx, "CreateNetworkInterface", in, &out); err != nil {
		return nodemanager.Interface{}, err
	}
	if out.NetworkInterfaceID == "" {
		return nodemanager.Interface{}, &nodemanager.Error{Text: "Alibaba Cloud made an interface and returned no ID"}
	}
	return p.read(&out)
}

// Attach implements [nodemanager.Provider]. It waits until the interface can be attached, and then
// until it is.
func (p *Provider) Attach(ctx context.Context, instance string, s nodemanager.Step) (nodemanager.Interface, error) {
	i := s.Interface
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	if _, err := p.reaches(ctx, i.ID, "Available"); err != nil {
		return i, err
	}
	if err := p.call(ctx, "AttachNetworkInterface", params{"NetworkInterfaceId": i.ID, "InstanceId": instance}, nil); err != nil {
		return i, err
	}
	out, err := p.reaches(ctx, i.ID, "InUse")
	if err != nil {
		return i, err
	}
	return p.read(out)
}

// reaches waits until an interface has a status.
func (p *Provider) reaches(ctx context.Context, id, status string) (*eni, error) {
	for {
		in := params{}
		in.list("NetworkInterfaceId", id)
		all, err := p.readENIs(ctx, in)
		if err != nil {
			return nil, err
		}
		for k := range all {
			if all[k].Status == status {
				return &all[k], nil
			}
		}
		if !retry.Sleep(ctx, p.poll) {
			return nil, &nodemanager.Error{Text: fmt.Sprintf("interface %s does not become %s", id, status), Err: ctx.Err()}
		}
	}
}

// Modify implements [nodemanager.Provider].
func (p *Provider) Modify(ctx context.Context, s nodemanager.Step) error {
	in := params{"NetworkInterfaceId": s.Interface.ID, "DeleteOnRelease": strconv.FormatBool(s.Interface.DeleteOnTermination)}
	return p.call(ctx, "ModifyNetworkInterfaceAttribute", in, nil)
}

// Delete implements [nodemanager.Provider]. One that is gone is deleted.
func (p *Provider) Delete(ctx context.Context, id string) error {
	err := p.call(ctx, "DeleteNetworkInterface", params{"NetworkInterfaceId": id}, nil)
	if nodemanager.CodeOf(err) == "InvalidEniId.NotFound" {
		return nil
	}
	return err
}
