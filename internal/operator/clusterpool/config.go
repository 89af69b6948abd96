package clusterpool

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/operator/pool"
)

var rangeFlags = [2]string{"cluster-pool-ipv4-cidr", "cluster-pool-ipv6-cidr"}

// Config defines what nodes are given addresses from.
type Config struct {
	// IPv4 and IPv6 are ranges in the form of CIDRs, used in their order. A family without ranges
	// is not served.
	IPv4, IPv6 []string
	// EnableIPv4 and EnableIPv6 are whether pods have addresses of the family at all.
	EnableIPv4, EnableIPv6 bool
	// IPv4Bits and IPv6Bits are the lengths of the prefixes that a node gets.
	IPv4Bits, IPv6Bits int
	// quarantine is how long the blocks of a deleted node are not reassigned.
	quarantine time.Duration
}

// Defaults returns a configuration without ranges, which no cluster has in common.
func Defaults() Config {
	return Config{EnableIPv4: true, EnableIPv6: true, IPv4Bits: 24, IPv6Bits: 112, quarantine: pool.Quarantine}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.EnableIPv4, "enable-ipv4", c.EnableIPv4, "pods have IPv4 addresses")
	fs.BoolVar(&c.EnableIPv6, "enable-ipv6", c.EnableIPv6, "pods have IPv6 addresses")
	fs.StringSliceVar(&c.IPv4, rangeFlags[0], c.IPv4, "IPv4 ranges to give nodes blocks of, with --ipam cluster-pool")
	fs.IntVar(&c.IPv4Bits, "cluster-pool-ipv4-mask-size", c.IPv4Bits, "length of the IPv4 prefix that a node gets")
	fs.StringSliceVar(&c.IPv6, rangeFlags[1], c.IPv6, "IPv6 ranges to give nodes blocks of, with --ipam cluster-pool")
	fs.IntVar(&c.IPv6Bits, "cluster-pool-ipv6-mask-size", c.IPv6Bits, "length of the IPv6 prefix that a node gets")
}

// Validate checks the ranges and joins all faults.
func (c *Config) Validate() error {
	var errs []error
	v4, err4 := c.ranges(0)
	v6, err6 := c.ranges(1)
	errs = append(errs, err4, err6)
	if err4 == nil && err6 == nil && len(v4)+len(v6) == 0 {
		errs = append(errs, fmt.Errorf("--%s and --%s: give at least one range, of a family that is enabled, that no other network uses; "+
			"nodes get their pods' addresses from it", rangeFlags[0], rangeFlags[1]))
	}
	if err4 == nil {
		errs = append(errs, named(rangeFlags[0], pool.Validate(v4, c.IPv4Bits)))
	}
	if err6 == nil {
		errs = append(errs, named(rangeFlags[1], pool.Validate(v6, c.IPv6Bits)))
	}
	return errors.Join(errs...)
}

func named(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// ranges parses the ranges of a family. Several may stand in one word, separated by spaces, as in a
// ConfigMap.
func (c *Config) ranges(f int) ([]netip.Prefix, error) {
	if !([2]bool{c.EnableIPv4, c.EnableIPv6}[f]) {
		return nil, nil // one ConfigMap serves all programs: a range may be there that is of no use
	}
	var out []netip.Prefix
	var errs []error
	for _, list := range [2][]string{c.IPv4, c.IPv6}[f] {
		for _, text := range strings.Fields(list) {
			p, err := netip.ParsePrefix(text)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("--%s: %q is not a CIDR", rangeFlags[f], text))
			case pool.Family(p) != f:
				errs = append(errs, fmt.Errorf("--%s: %s is not an %s range", rangeFlags[f], p, pool.FamilyNames[f]))
			default:
				out = append(out, p)
			}
		}
	}
	return out, errors.Join(errs...)
}

// index returns an empty index of the ranges.
func (c *Config) index() (*index, error) {
	v4, err4 := c.ranges(0)
	v6, err6 := c.ranges(1)
	if err := errors.Join(err4, err6); err != nil {
		return nil, err
	}
	b, err := newIndex(v4, c.IPv4Bits, v6, c.IPv6Bits)
	if err == nil {
		b.quarantine = c.quarantine
	}
	return b, err
}
