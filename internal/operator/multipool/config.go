package multipool

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/operator/pool"
)

const (
	createFlag  = "auto-create-cilium-pod-ip-pools"
	migrateFlag = "enable-cluster-pool-to-multi-pool-migration"
)

// Config defines how nodes are given blocks of pools.
type Config struct {
	// Create are pools to make if there is none of the name:
	// "name=ipv4-cidrs:10.0.0.0/16,10.1.0.0/16;ipv4-mask-size:24", with the same for ipv6, several
	// separated by commas or white space.
	Create string
	// Default is the name of the pool of pods for which no other is meant.
	Default string
	// Migrate has nodes keep blocks of cluster-pool as such of the default pool.
	Migrate bool

	quarantineTime time.Duration // see pool.Quarantine
}

// Defaults returns a configuration that makes no pool.
func Defaults() Config { return Config{Default: ipam.DefaultPool, quarantineTime: pool.Quarantine} }

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Create, createFlag, c.Create, "with --ipam multi-pool, pools to create if they do not exist, such as "+
		"default=ipv4-cidrs:10.0.0.0/16;ipv4-mask-size:24;ipv6-cidrs:fd00::/104;ipv6-mask-size:120")
	fs.StringVar(&c.Default, "ipam-default-ip-pool", c.Default, "with --ipam multi-pool, name of the pool of pods for which no other is meant; agents need the same")
	fs.BoolVar(&c.Migrate, migrateFlag, c.Migrate, "with --ipam multi-pool, have nodes keep the blocks that cluster-pool gave them, as blocks of the default pool")
}

// Validate checks the pools to create and joins all faults.
func (c *Config) Validate() error {
	_, err := c.pools()
	if c.Default == "" {
		err = errors.Join(err, errors.New("--ipam-default-ip-pool: must not be empty"))
	}
	return err
}

// pools returns the pools to create.
func (c *Config) pools() ([]*v2alpha1.CiliumPodIPPool, error) {
	var out []*v2alpha1.CiliumPodIPPool
	var errs []error
	seen := map[string]bool{}
	for _, text := range splitPools(c.Create) {
		p, err := parsePool(text)
		if err == nil && seen[p.Name] {
			err = fmt.Errorf("pool %q is named twice", p.Name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", createFlag, err))
			continue
		}
		seen[p.Name] = true
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

// splitPools cuts a list of pools. Commas separate CIDRs too: what has no equals sign belongs to
// the pool before.
func splitPools(list string) []string {
	var out []string
	for _, word := range strings.Fields(list) {
		for i, part := range strings.Split(word, ",") {
			if strings.Contains(part, "=") || i == 0 || len(out) == 0 {
				out = append(out, part)
			} else {
				out[len(out)-1] += "," + part
			}
		}
	}
	return out
}

func parsePool(text string) (*v2alpha1.CiliumPodIPPool, error) {
	name, rest, ok := strings.Cut(text, "=")
	if !ok {
		return nil, fmt.Errorf("%q is not of the form name=ipv4-cidrs:CIDR,CIDR;ipv4-mask-size:BITS", text)
	}
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return nil, fmt.Errorf("%q is no name of an object: %s", name, strings.Join(faults, ", "))
	}
	p := &v2alpha1.CiliumPodIPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v4, v6 := v2alpha1.IPv4PoolSpec{}, v2alpha1.IPv6PoolSpec{}
	for _, field := range strings.Split(rest, ";") {
		key, value, _ := strings.Cut(field, ":")
		var err error
		switch key {
		case "ipv4-cidrs":
			v4.CIDRs = strings.Split(value, ",")
		case "ipv6-cidrs":
			v6.CIDRs = strings.Split(value, ",")
		case "ipv4-mask-size":
			v4.MaskSize, err = strconv.Atoi(value)
		case "ipv6-mask-size":
			v6.MaskSize, err = strconv.Atoi(value)
		case "":
		default:
			return nil, fmt.Errorf("pool %q: %q is none of ipv4-cidrs, ipv4-mask-size, ipv6-cidrs and ipv6-mask-size", name, key)
		}
		if err != nil {
			return nil, fmt.Errorf("pool %q: %s: %q is not a number", name, key, value)
		}
	}
	if len(v4.CIDRs) > 0 {
		p.Spec.IPv4 = &v4
	}
	if len(v6.CIDRs) > 0 {
		p.Spec.IPv6 = &v6
	}
	if p.Spec.IPv4 == nil && p.Spec.IPv6 == nil {
		return nil, fmt.Errorf("pool %q has neither ipv4-cidrs nor ipv6-cidrs", name)
	}
	if _, _, err := ippools.Read(p); err != nil {
		return nil, err
	}
	return p, nil
}
