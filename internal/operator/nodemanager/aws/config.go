package aws

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// Config defines which of AWS is used, and how. Credentials and the region come from where the AWS
// SDK looks: environment, files, web identity, instance metadata.
type Config struct {
	// ReleaseExcess has superfluous addresses be released.
	ReleaseExcess bool
	// PrefixDelegation has prefixes be assigned where instances and subnets have them.
	PrefixDelegation bool
	// UsePrimary assigns primary addresses of interfaces to pods, unless a node overrides it.
	UsePrimary bool
	// InterfaceTags are tags of new interfaces, in addition to those that identify them.
	InterfaceTags map[string]string
	// GCTags are those of interfaces that may be deleted if they were left behind; by default those
	// by which the cluster's are known.
	GCTags map[string]string
	// SubnetIDs and SubnetTags bound the subnets that count at all.
	SubnetIDs  []string
	SubnetTags map[string]string
	// ClusterName is part of the tags; it is not a flag of this package.
	ClusterName string
	// IPv6 has an IPv6 prefix be delegated to each node; it is not a flag of this package.
	IPv6 bool
}

// Flags binds the configuration to command-line flags, by Cilium's names; the current values are
// the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.ReleaseExcess, "aws-release-excess-ips", c.ReleaseExcess, "with --ipam=eni, release addresses that nodes have too many of")
	fs.BoolVar(&c.PrefixDelegation, "aws-enable-prefix-delegation", c.PrefixDelegation, "with --ipam=eni, assign prefixes of 16 addresses where the instance and the subnet have them")
	fs.BoolVar(&c.UsePrimary, "aws-use-primary-address", c.UsePrimary, "with --ipam=eni, give pods the primary addresses of interfaces, too, but the first's")
	fs.StringToStringVar(&c.InterfaceTags, "eni-tags", c.InterfaceTags, "with --ipam=eni, tags of the interfaces that are made, k=v,k=v")
	fs.StringToStringVar(&c.GCTags, "eni-gc-tags", c.GCTags, "with --ipam=eni, tags of interfaces that are deleted if they were left behind; by default those that this cluster's have")
	fs.StringSliceVar(&c.SubnetIDs, "subnet-ids-filter", c.SubnetIDs, "with --ipam=eni, the subnets that may be used at all; by default all")
	fs.StringToStringVar(&c.SubnetTags, "subnet-tags-filter", c.SubnetTags, "with --ipam=eni, tags of the subnets that may be used at all, k=v,k=v")
}

// Validate checks all of it and joins the faults.
func (c *Config) Validate() error {
	var errs []error
	for _, k := range []string{nodemanager.ManagedTag, nodemanager.ClusterTag, nodemanager.InstanceTag} {
		if _, ok := c.InterfaceTags[k]; ok {
			errs = append(errs, fmt.Errorf("--eni-tags: %s is set by the operator", k))
		}
	}
	return errors.Join(errs...)
}

// Collected returns the tags of interfaces that may be deleted if they were left behind.
func (c *Config) Collected() map[string]string {
	if len(c.GCTags) > 0 {
		return c.GCTags
	}
	return nodemanager.OwnTags(c.ClusterName)
}
