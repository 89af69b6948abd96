package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
)

// nodePortRanges are the ranges of addresses at which node ports are served, of a configuration
// that is valid.
func (c *Config) nodePortRanges() []netip.Prefix {
	var out []netip.Prefix
	for _, r := range c.NodePortAddresses {
		if p, err := netip.ParsePrefix(r); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// leadsOutside says whether the programs lead clients outside to services: to all in kube-proxy's
// place, or to host ports, of which kube-proxy knows nothing, where a pod has some.
func (a *api) leadsOutside(devices datapath.Devices) bool {
	return devices.NativeIfIndex != 0 && (a.cfg.KubeProxyReplacement || a.kube != nil && a.kube.hostPorts.Load())
}

// noteMoved has the node's addresses, and what is served there, looked at again.
func (a *api) noteMoved() {
	select {
	case a.moved <- struct{}{}:
	default: // it is due already
	}
}

// serveAddresses has node ports and host ports served at the addresses that the node has now.
func (a *api) serveAddresses(facts nodeFacts, links *link.Links) error {
	if a.kube == nil {
		return nil
	}
	all, err := links.NodeAddresses()
	if err != nil {
		return fmt.Errorf("serve node ports at the node's addresses: %w", err)
	}
	ips := facts.hosts()
	for _, at := range all {
		ips = append(ips, at.IP)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	a.kube.services.SetNodeAddrs(slices.Compact(ips))
	return nil
}

// hadHostPorts says whether the kernel's table has a host port for clients outside. It counts until
// it is known what pods there are.
func hadHostPorts(kernel datapath.Services, log *slog.Logger) bool {
	rows, err := kernel.Services()
	if err != nil {
		log.Warn("cannot read the kernel's table of services; clients outside find host ports when all pods have been heard", "error", err)
	}
	return slices.ContainsFunc(rows, func(s datapath.Service) bool { return s.Scope == datapath.ServiceOutside })
}
