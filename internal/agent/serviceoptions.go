package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/validate"
)

// ServiceOptions configure which clients reach services, and how.
type ServiceOptions struct {
	// KubeProxyReplacement has the agent do for the node itself, and for what comes from outside,
	// what it does for pods in any case: lead to services. CgroupRoot is the cgroup of the node's
	// own processes; empty for the mounted hierarchy.
	KubeProxyReplacement bool
	CgroupRoot           string
	// NodePortAddresses are the ranges of which an address of the node must be for node ports and
	// host ports to be served there; none for all.
	NodePortAddresses []string
	// ProxyHealthzAddr is where /healthz of kube-proxy is answered in its place; empty for nowhere.
	ProxyHealthzAddr string
	// LBAlgorithm is how a backend is chosen for a client outside of the cluster, random or maglev,
	// and LBMode how its packets reach one on another node: snat, dsr or hybrid. LBModeAnnotation
	// lets an annotation of a service override it.
	LBAlgorithm      string
	LBMode           string
	LBModeAnnotation bool
	// SNATPorts is the range of ports in whose name clients outside are sent on to other nodes.
	SNATPorts string
	// ServicesFile is where services come from without Kubernetes, and ServicesInterval how often
	// it is looked at.
	ServicesFile     string
	ServicesInterval time.Duration
}

const flagServicesFile = "lb-state-file"

func serviceDefaults() ServiceOptions {
	return ServiceOptions{LBAlgorithm: service.Random, LBMode: string(service.ForwardSNAT), SNATPorts: datapath.DefaultMasqueradePorts().String(), ServicesInterval: time.Second}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *ServiceOptions) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.KubeProxyReplacement, "kube-proxy-replacement", o.KubeProxyReplacement,
		"serve services also to the node's own processes and to clients outside of the cluster; without it only pods are served, and kube-proxy does the rest")
	fs.StringVar(&o.CgroupRoot, "cgroup-root", o.CgroupRoot, "cgroup (version 2) of the node's own processes; where such cgroups are mounted by default")
	fs.StringSliceVar(&o.NodePortAddresses, "nodeport-addresses", o.NodePortAddresses,
		"ranges of the node's addresses at which node ports and host ports are served, such as 192.0.2.0/24; by default all addresses of all devices")
	fs.StringVar(&o.ProxyHealthzAddr, "kube-proxy-replacement-healthz-bind-address", o.ProxyHealthzAddr,
		"with --kube-proxy-replacement, address at which load balancers find kube-proxy's /healthz, such as 0.0.0.0:10256; empty for none")
	fs.StringVar(&o.LBAlgorithm, "bpf-lb-algorithm", o.LBAlgorithm,
		"how a backend is chosen for a client outside of the cluster: random, or maglev, by which all nodes choose the same")
	fs.StringVar(&o.LBMode, "bpf-lb-mode", o.LBMode, "how packets of outside clients reach a pod on another node: snat (with the address of this node), "+
		"dsr (with the address of the client; the other node answers directly) or hybrid (dsr for TCP, snat for the rest)")
	fs.StringVar(&o.SNATPorts, "snat-port-range", o.SNATPorts, "with --kube-proxy-replacement, source ports for outside clients that are forwarded to pods of other nodes; "+
		"reserved, so the node's own sockets do not get them")
	fs.BoolVar(&o.LBModeAnnotation, "bpf-lb-mode-annotation", o.LBModeAnnotation, "let the annotation "+service.AnnotationForwarding+
		" of a service (snat or dsr) override --bpf-lb-mode")
	fs.StringVar(&o.ServicesFile, flagServicesFile, o.ServicesFile,
		"without Kubernetes, file of services: YAML or JSON with Services under \"services\" and EndpointSlices under \"endpoints\"; read again when it changes")
	fs.DurationVar(&o.ServicesInterval, flagServicesFile+"-interval", o.ServicesInterval, "how often to check whether that file has changed")
}

// Validate checks every option and joins all faults in one error.
func (o *ServiceOptions) Validate() error {
	var errs validate.Errors
	errs.OneOf("bpf-lb-algorithm", o.LBAlgorithm, service.Random, service.Maglev)
	errs.OneOf("bpf-lb-mode", o.LBMode, string(service.ForwardSNAT), string(service.ForwardDSR), string(service.ForwardHybrid))
	if r, err := datapath.ParsePortRange(o.SNATPorts); err != nil {
		errs.Add("--snat-port-range: %w", err)
	} else if r.First < 1024 {
		errs.Add("--snat-port-range: ports below 1024 are those of well-known services")
	}
	errs.If(!o.KubeProxyReplacement && (o.LBMode == string(service.ForwardDSR) || o.LBMode == string(service.ForwardHybrid)),
		"--bpf-lb-mode: %s needs --kube-proxy-replacement: without it kube-proxy leads clients outside", o.LBMode)
	errs.If(o.ServicesFile != "" && o.ServicesInterval < 10*time.Millisecond, "--%s-interval: %s is below 10ms", flagServicesFile, o.ServicesInterval)
	errs.Address("kube-proxy-replacement-healthz-bind-address", o.ProxyHealthzAddr)
	_, err := o.nodePortRanges()
	return errors.Join(append(errs, err)...)
}

// nodePortRanges are the ranges of addresses at which node ports are served.
func (o *ServiceOptions) nodePortRanges() (out []netip.Prefix, err error) {
	for _, r := range o.NodePortAddresses {
		p, perr := netip.ParsePrefix(r)
		if perr != nil || p.Addr().Is4In6() {
			err = errors.Join(err, fmt.Errorf("--nodeport-addresses: %q is no range of addresses such as 192.0.2.0/24 or 2001:db8::/64", r))
			continue
		}
		out = append(out, p.Masked())
	}
	return out, err
}

// snatPorts are the ports in whose name clients outside are sent on, of a configuration that is
// valid.
func (o *ServiceOptions) snatPorts() datapath.PortRange {
	r, err := datapath.ParsePortRange(o.SNATPorts)
	if err != nil {
		return datapath.DefaultMasqueradePorts()
	}
	return r
}
