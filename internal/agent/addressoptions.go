package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/validate"
)

// AddressOptions configure the addresses of this node's pods.
type AddressOptions struct {
	IPv4Range string
	IPv6Range string
	// IPAM is the source of the pods' addresses, unless IPv4Range and IPv6Range are set:
	// kubernetes, cluster-pool, multi-pool, crd, or a cloud: eni, azure or alibabacloud; with
	// delegated-plugin they are of the same ranges as with kubernetes, and another plugin gives
	// them.
	IPAM string
	// DefaultPool is the pool of pods for which no other is meant, and PreAllocation how many
	// addresses more than are in use this node has of a pool, as "pool=number"; both count with
	// multi-pool.
	DefaultPool   string
	PreAllocation []string
	// NodeUpdate is how often the addresses in use are written to the CiliumNode, with crd and
	// clouds.
	NodeUpdate     time.Duration
	IPAMExpiration time.Duration
}

func addressDefaults() AddressOptions {
	return AddressOptions{
		IPAM: addressing.ClusterPool, DefaultPool: ipam.DefaultPool, PreAllocation: []string{fmt.Sprintf("%s=%d", ipam.DefaultPool, v2.DefaultPreAllocate)},
		IPAMExpiration: ipam.DefaultExpiration, NodeUpdate: 15 * time.Second,
	}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *AddressOptions) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.IPv4Range, "ipv4-range", o.IPv4Range, "IPv4 range of this node's pods, such as 10.0.1.0/24")
	fs.StringVar(&o.IPv6Range, "ipv6-range", o.IPv6Range, "IPv6 range of this node's pods, such as fd00:1::/112")
	fs.StringVar(&o.IPAM, "ipam", o.IPAM, "source of the addresses of this node's pods in Kubernetes, if no range is given: cluster-pool (the operator), multi-pool (the operator, out of CiliumPodIPPools), kubernetes (the Node), crd (single addresses of the CiliumNode), eni, azure or alibabacloud (those of the network interfaces of the cloud) or delegated-plugin (the IPAM plugin of the CNI configuration, out of the Node's or the given range)")
	fs.StringVar(&o.DefaultPool, "ipam-default-ip-pool", o.DefaultPool, "with --ipam multi-pool, name of the pool for pods that select no other; set the same for the operator")
	fs.StringSliceVar(&o.PreAllocation, addressing.PreAllocationFlag, o.PreAllocation,
		"with --ipam multi-pool, how many addresses of a pool the node keeps free, such as default=8,edge=4; from other pools it requests only what pods need")
	fs.DurationVar(&o.NodeUpdate, "ipam-cilium-node-update-rate", o.NodeUpdate,
		"with --ipam crd, eni, azure or alibabacloud, how often the agent writes used addresses to the CiliumNode; up to ten times as often while the operator waits for it")
	fs.DurationVar(&o.IPAMExpiration, "ipam-expiration", o.IPAMExpiration, "how long an allocated address is kept before its endpoint is registered")
}

// validateAddresses checks these options, which depend on the kind of cluster.
func (c *Config) validateAddresses() error {
	var errs validate.Errors
	errs.AtLeastSecond("ipam-expiration", c.IPAMExpiration)
	var err error
	switch {
	case c.IPAM == addressing.ClusterPool || c.IPAM == addressing.Kubernetes:
	case c.IPAM == addressing.Delegated:
		err = c.validateDelegated()
	case c.IPAM == addressing.MultiPool && c.EnableK8s:
		err = c.validateMultiPool()
	case c.IPAM == addressing.CRD && c.EnableK8s:
		err = c.validateSingles()
	case addressing.OfCloud(c.IPAM) && c.EnableK8s:
		err = errors.Join(c.validateSingles(), c.validateCloud())
	case addressing.OfCloud(c.IPAM):
		errs.Add("--ipam: %s needs --enable-k8s: the operator shows in the CiliumNode what the cloud has assigned", c.IPAM)
	case c.EnableK8s:
		errs.Add("--ipam: %q is not supported: use %s (the operator gives each node a block), %s (the operator, out of pools), %s (the Node's pod CIDR), %s (an IPAM plugin, out of the same), %s (single addresses of the CiliumNode), or %s, %s or %s (those of a cloud's network interfaces)",
			c.IPAM, addressing.ClusterPool, addressing.MultiPool, addressing.Kubernetes, addressing.Delegated, addressing.CRD, addressing.ENI, addressing.Azure, addressing.AlibabaCloud)
	default:
		errs.Add("--ipam: %q is not supported: leave it out, without Kubernetes --ipv4-range and --ipv6-range say which addresses pods get", c.IPAM)
	}
	return errors.Join(append(errs, err, c.validateRanges())...)
}

// validateRanges checks the ranges of this node's pods.
func (c *Config) validateRanges() error {
	check := func(family, value string, on, v4 bool) error {
		switch {
		case !on, value == "" && (c.EnableK8s || c.lbOnly()): // those of Kubernetes, or there are none
			return nil
		case value == "":
			return fmt.Errorf("--%s-range: not given; each node needs a range of its own, or --enable-%s=false", family, family)
		}
		return network.ValidRange(family+"-range", value, v4)
	}
	return errors.Join(check("ipv4", c.IPv4Range, c.EnableIPv4, true), check("ipv6", c.IPv6Range, c.EnableIPv6, false))
}

// validateMultiPool checks what counts with pools only.
func (c *Config) validateMultiPool() error {
	_, err := addressing.ParsePreAllocation(c.PreAllocation, c.DefaultPool)
	errs := validate.Errors{err}
	errs.If(c.DefaultPool == "", "--ipam-default-ip-pool: must not be empty")
	errs.If(c.IPv4Range != "" || c.IPv6Range != "",
		"--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the pools say which addresses pods get", addressing.MultiPool)
	return errs.Err()
}

// validateSingles checks what counts where a node has single addresses.
func (c *Config) validateSingles() error {
	var errs validate.Errors
	errs.If(c.RoutingMode != "native", "--ipam=%s: the network leads to each pod's own address, and no tunnel does: set --routing-mode=native", c.IPAM)
	if c.IPAM == addressing.CRD && (c.EnableIPv4 && c.MasqueradeIPv4 && c.NativeIPv4CIDR == "" || c.EnableIPv6 && c.MasqueradeIPv6 && c.NativeIPv6CIDR == "") {
		errs.Add("--ipam=%s: pods of other nodes are in no pod CIDR: say with --ipv4-native-routing-cidr and --ipv6-native-routing-cidr "+
			"where packets are not masqueraded, or switch masquerading off", c.IPAM)
	}
	errs.If(c.IPv4Range != "" || c.IPv6Range != "", "--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the CiliumNode says which addresses pods get", c.IPAM)
	errs.If(c.NodeUpdate < time.Second, "--ipam-cilium-node-update-rate: %s is below a second", c.NodeUpdate)
	return errs.Err()
}

// validateDelegated checks what counts only where a plugin gives the addresses.
func (c *Config) validateDelegated() error {
	if c.HealthChecking && c.HealthEndpoint {
		return fmt.Errorf("--ipam=%s: the node's health endpoint would have an address that the plugin may give to a pod; set --enable-endpoint-health-checking=false", addressing.Delegated)
	}
	return nil
}
