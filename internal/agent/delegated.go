package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/agent/addressing"
)

const (
	flagRouter4 = "local-router-ipv4"
	flagRouter6 = "local-router-ipv6"
)

// validateDelegated checks what counts only where a plugin gives the addresses.
func (c *Config) validateDelegated() error {
	if c.HealthChecking && c.HealthEndpoint {
		return fmt.Errorf("--ipam=%s: the node's health endpoint would have an address that the plugin may give to a pod; set --enable-endpoint-health-checking=false", addressing.Delegated)
	}
	return nil
}

// delegated says whether another plugin gives the addresses.
func (a *api) delegated() bool { return a.cfg.IPAM == addressing.Delegated }

// preferredRouters returns the router addresses to prefer. Those of the configuration come first,
// but not before those that pods have as their gateway.
func (a *api) preferredRouters(before []netip.Addr) (wanted, preferred []netip.Addr) {
	for _, text := range []string{a.cfg.RouterIPv4, a.cfg.RouterIPv6} {
		if ip, err := netip.ParseAddr(text); err == nil {
			wanted = append(wanted, ip)
		}
	}
	if len(a.registry.List()) > 0 {
		return wanted, slices.Concat(before, wanted)
	}
	return wanted, slices.Concat(wanted, before)
}

// checkRouters says which router addresses of the configuration the node could not have.
func (a *api) checkRouters(wanted []netip.Addr) error {
	var errs []error
	for _, ip := range wanted {
		flag, got := flagRouter4, a.router4
		if ip.Is6() {
			flag, got = flagRouter6, a.router6
		}
		if got == ip {
			continue
		}
		if len(a.registry.List()) > 0 {
			a.log.Error("the node keeps the router address that its pods have as gateway; delete them and start the agent again for the one of the configuration",
				"configured", ip, "kept", got)
			continue
		}
		errs = append(errs, fmt.Errorf("--%s: the node cannot have %s, which must be a free address of its pod CIDR", flag, ip))
	}
	return errors.Join(errs...)
}
