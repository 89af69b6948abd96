package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/internal/agent/addressing"
)

// validateMultiPool checks what counts with pools only.
func (c *Config) validateMultiPool() error {
	_, err := addressing.ParsePreAllocation(c.PreAllocation, c.DefaultPool)
	errs := []error{err}
	if c.DefaultPool == "" {
		errs = append(errs, errors.New("--ipam-default-ip-pool: must not be empty"))
	}
	if c.IPv4Range != "" || c.IPv6Range != "" {
		errs = append(errs, fmt.Errorf("--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the pools say which addresses pods get", addressing.MultiPool))
	}
	return errors.Join(errs...)
}

// validateSingles checks what counts where a node has single addresses.
func (c *Config) validateSingles() error {
	var errs []error
	if c.RoutingMode != "native" {
		errs = append(errs, fmt.Errorf("--ipam=%s: the network leads to each pod's own address, and no tunnel does: set --routing-mode=native", c.IPAM))
	}
	if c.IPAM == addressing.CRD && (c.EnableIPv4 && c.MasqueradeIPv4 && c.NativeIPv4CIDR == "" || c.EnableIPv6 && c.MasqueradeIPv6 && c.NativeIPv6CIDR == "") {
		errs = append(errs, fmt.Errorf("--ipam=%s: pods of other nodes are in no pod CIDR: say with --ipv4-native-routing-cidr and --ipv6-native-routing-cidr "+
			"where packets are not masqueraded, or switch masquerading off", c.IPAM))
	}
	if c.IPv4Range != "" || c.IPv6Range != "" {
		errs = append(errs, fmt.Errorf("--ipv4-range and --ipv6-range cannot be used with --ipam=%s: the CiliumNode says which addresses pods get", c.IPAM))
	}
	if c.NodeUpdate < time.Second {
		errs = append(errs, fmt.Errorf("--ipam-cilium-node-update-rate: %s is below a second", c.NodeUpdate))
	}
	return errors.Join(errs...)
}

// validateDelegated checks what counts only where a plugin gives the addresses.
func (c *Config) validateDelegated() error {
	if c.HealthChecking && c.HealthEndpoint {
		return fmt.Errorf("--ipam=%s: the node's health endpoint would have an address that the plugin may give to a pod; set --enable-endpoint-health-checking=false", addressing.Delegated)
	}
	return nil
}
