package agent

import (
	"fmt"

	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/validate"
)

// datapathLBOnly is the datapath mode of a node without pods that leads clients to the backends of
// services on other machines.
const datapathLBOnly = "lb-only"

// lbOnly reports whether the node has no pods.
func (c *Config) lbOnly() bool { return c.DatapathMode == datapathLBOnly }

// forMode sets what follows from the mode of IPAM, and from that of the datapath. AWS leads IPv6
// addresses of pods everywhere, and shows no CIDR beyond which they were better masqueraded: that
// is done only beyond the one that is given.
//
// With lb-only packets go to backends as the node's own do: nothing is encapsulated, for which the
// node would need an address among the pods, and nothing is masqueraded but what services lead
// elsewhere. There is nothing that could be an endpoint.
func (c *Config) forMode() {
	if c.IPAM == addressing.ENI && c.NativeIPv6CIDR == "" {
		c.MasqueradeIPv6 = false
	}
	c.NoPods = c.lbOnly()
	if !c.lbOnly() {
		return
	}
	c.KubeProxyReplacement = true
	c.RoutingMode = "native"
	c.MasqueradeIPv4, c.MasqueradeIPv6 = false, false
	c.HealthEndpoint = false
	c.IPv4Range, c.IPv6Range, c.RouterIPv4, c.RouterIPv6 = "", "", "", ""
	c.IPAM = addressing.ClusterPool // whatever the other nodes have: it is not used here
	c.CNI.WritePath = ""
	c.BigTCPIPv4, c.BigTCPIPv6 = false, false
}

// validateServices checks where services come from.
func (c *Config) validateServices() error {
	var errs validate.Errors
	errs.If(c.lbOnly() && !c.balances(),
		"--datapath-mode=%s: there is nothing to balance: give --enable-k8s, or --%s with services and their endpoints", datapathLBOnly, flagServicesFile)
	errs.If(c.ServicesFile != "" && c.EnableK8s, "--%s: services are read from Kubernetes; leave it out, or --enable-k8s", flagServicesFile)
	return errs.Err()
}

// refusePods reports why a node that has pods cannot be one without.
func (p *parts) refusePods() error {
	if n := len(p.tables.registry.List()); p.cfg.lbOnly() && n > 0 {
		return fmt.Errorf("--datapath-mode=%s: %d pods of this node are attached: drain the node first, or start the agent with %s", datapathLBOnly, n, datapathVeth)
	}
	return nil
}
