package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"golang.org/x/time/rate"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// The rate at which AWS is asked, which limits it by account: the field's defaults of
// limit-ipam-api-qps and limit-ipam-api-burst.
const (
	awsRate  = 4
	awsBurst = 20
)

// awsTimeout is how long AWS may take to answer, attempts of the SDK included, which has no limit
// of its own.
const awsTimeout = 30 * time.Second

// maxClients bounds the clients that are kept: there are fewer regions, but a policy may name any.
const maxClients = 64

// AWS asks EC2 for the instances in groups. Credentials and the region come from where the AWS SDK
// looks: environment, files, instance metadata.
type AWS struct {
	limiter *rate.Limiter
	timeout time.Duration
	options []func(*config.LoadOptions) error

	mu      sync.Mutex
	clients map[string]*regional // by region
}

// regional is a client for one region.
type regional struct {
	*ec2.Client
	used time.Time
}

// NewAWS makes a provider. It sends nothing and reads nothing yet. options are for tests.
func NewAWS(options ...func(*config.LoadOptions) error) *AWS {
	return &AWS{limiter: rate.NewLimiter(awsRate, awsBurst), timeout: awsTimeout, options: options, clients: map[string]*regional{}}
}

// client returns the client for a region; the empty one is that of the environment.
func (a *AWS) client(ctx context.Context, region string) (*ec2.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clients[region]; c != nil {
		c.used = time.Now()
		return c.Client, nil
	}
	options := slices.Clone(a.options)
	if region != "" {
		options = append(options, config.WithRegion(region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("AWS configuration: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("AWS: no region; name one in the group, or set AWS_REGION for the operator")
	}
	if len(a.clients) >= maxClients {
		delete(a.clients, slices.MinFunc(slices.Collect(maps.Keys(a.clients)), func(x, y string) int {
			return a.clients[x].used.Compare(a.clients[y].used)
		}))
	}
	c := ec2.NewFromConfig(cfg)
	a.clients[region] = &regional{c, time.Now()}
	return c, nil
}

// Members implements [Provider]: all addresses, private and public, of all interfaces of instances
// that run and have every one of the labels as a tag, one of the security groups by ID, and one by
// name, as far as these are given.
func (a *AWS) Members(ctx context.Context, g v2.Group) (Members, error) {
	if g.AWS == nil || len(g.AWS.Labels)+len(g.AWS.SecurityGroupsIDs)+len(g.AWS.SecurityGroupsNames) == 0 {
		return nil, errors.New("names no group of AWS") // without a filter EC2 returns every instance
	}
	c, err := a.client(ctx, g.AWS.Region)
	if err != nil {
		return nil, err
	}
	filters := []types.Filter{{Name: aws.String("instance-state-name"), Values: []string{"pending", "running"}}}
	for _, k := range slices.Sorted(maps.Keys(g.AWS.Labels)) {
		filters = append(filters, types.Filter{Name: aws.String("tag:" + k), Values: []string{g.AWS.Labels[k]}})
	}
	if ids := g.AWS.SecurityGroupsIDs; len(ids) > 0 {
		filters = append(filters, types.Filter{Name: aws.String("instance.group-id"), Values: ids})
	}
	if names := g.AWS.SecurityGroupsNames; len(names) > 0 {
		filters = append(filters, types.Filter{Name: aws.String("instance.group-name"), Values: names})
	}
	var out Members
	pages := ec2.NewDescribeInstancesPaginator(c, &ec2.DescribeInstancesInput{Filters: filters})
	for pages.HasMorePages() {
		if err := a.limiter.Wait(ctx); err != nil {
			return nil, fmt.Errorf("%w (%w)", errLater, err)
		}
		one, cancel := context.WithTimeout(ctx, a.timeout)
		page, err := pages.NextPage(one)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("AWS: instances of %s: %w", key(g), err)
		}
		for _, r := range page.Reservations {
			for i := range r.Instances {
				if out, err = appendAddrs(out, &r.Instances[i]); err != nil {
					return nil, err
				}
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// appendAddrs adds the addresses of an instance. One that cannot be read is an error: a part of a
// group is another group.
func appendAddrs(out Members, in *types.Instance) (Members, error) {
	var texts []*string
	texts = append(texts, in.PrivateIpAddress, in.PublicIpAddress)
	for _, nic := range in.NetworkInterfaces {
		for _, ip := range nic.PrivateIpAddresses {
			texts = append(texts, ip.PrivateIpAddress)
			if ip.Association != nil {
				texts = append(texts, ip.Association.PublicIp)
			}
		}
		for _, ip := range nic.Ipv6Addresses {
			texts = append(texts, ip.Ipv6Address)
		}
	}
	for _, s := range texts {
		if aws.ToString(s) == "" {
			continue
		}
		addr, err := netip.ParseAddr(*s)
		if err != nil || addr.Zone() != "" {
			return nil, fmt.Errorf("AWS: instance %s has the address %q, which is not an IP address", aws.ToString(in.InstanceId), *s)
		}
		out = append(out, addr.Unmap())
	}
	return out, nil
}
