package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/agent/hubble"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/agent/statedir"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/validate"
)

// NetworkOptions configure the node's network.
type NetworkOptions = network.Options

// Config is everything that can be configured of the agent, a part for each concern. The names of
// its flags are Cilium's where they exist there, so that configuration written for it is
// understood.
type Config struct {
	daemon.Options
	daemon.Cluster
	NodeOptions
	NetworkOptions
	AddressOptions
	CloudOptions
	PodOptions
	ServiceOptions
	StoreOptions
	KubernetesOptions
	IdentityOptions
	PolicyOptions
	ConntrackOptions
	HealthOptions

	// ClusterMesh names other clusters.
	ClusterMesh clustermesh.Config
	// Maps are the sizes of the kernel's maps; the directory follows from BPFRoot.
	Maps maps.Config
	CNI  cniconf.Config
	// Flows is what becomes of the kernel's events besides being watched.
	Flows hubble.Config

	state *statedir.Dir // StateDir, of an agent that runs
}

// Defaults returns the configuration of an agent without options.
func Defaults() Config {
	c := Config{
		Options: daemon.Defaults(), Cluster: daemon.ClusterDefaults(), NodeOptions: nodeDefaults(), NetworkOptions: network.Defaults(),
		AddressOptions: addressDefaults(), PodOptions: podDefaults(), ServiceOptions: serviceDefaults(), StoreOptions: storeDefaults(),
		KubernetesOptions: kubernetesDefaults(), IdentityOptions: identityDefaults(), PolicyOptions: policyDefaults(),
		ConntrackOptions: conntrackDefaults(), HealthOptions: healthDefaults(),
		ClusterMesh: clustermesh.Defaults(), Maps: maps.Defaults(), CNI: cniconf.Config{Exclusive: true}, Flows: hubble.Defaults(),
	}
	c.CNI.Defaults()
	return c
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	for _, part := range []interface{ Flags(*pflag.FlagSet) }{
		&c.Options, &c.Cluster, &c.NodeOptions, &c.NetworkOptions, &c.AddressOptions, &c.CloudOptions, &c.PodOptions, &c.ServiceOptions, &c.StoreOptions,
		&c.KubernetesOptions, &c.IdentityOptions, &c.PolicyOptions, &c.ConntrackOptions, &c.HealthOptions,
		&c.ClusterMesh, &c.Maps, &c.CNI, &c.Flows,
	} {
		part.Flags(fs)
	}
}

// Validate checks every option, and what must be so of several together, and joins all faults in
// one error.
func (c *Config) Validate() error {
	return errors.Join(c.Options.Validate(), c.Cluster.Validate(), c.NodeOptions.Validate(), c.NetworkOptions.Validate(), c.PodOptions.Validate(),
		c.ServiceOptions.Validate(), c.StoreOptions.Validate(), c.KubernetesOptions.Validate(), c.IdentityOptions.Validate(), c.PolicyOptions.Validate(),
		c.ConntrackOptions.Validate(), c.CloudOptions.Validate(), c.HealthOptions.Validate(), c.Maps.Validate(), c.CNI.Validate(), c.ClusterMesh.Validate(c.ClusterID), c.Flows.Validate(),
		c.validateAddresses(), c.validateServices(), c.validateIdentities(), c.validateReservedPorts())
}

// validateReservedPorts checks the ports that pods must ask for: the tunnel's may be among them.
func (c *Config) validateReservedPorts() error {
	_, err := c.podReservedPorts()
	return err
}

// NodeOptions configure the node's name, the agent's paths, and access to its API.
type NodeOptions struct {
	// AcceptWithout names protections of Cilium that the configuration asks for and that are gone
	// without.
	AcceptWithout []string

	NodeName   string
	SocketPath string
	StateDir   string
	BPFRoot    string

	// GiveUpUnrecorded has the agent start beside pods of which StateDir has no record, and take
	// their network.
	GiveUpUnrecorded bool

	OrphanGrace time.Duration
	NodeDelay   time.Duration

	PrometheusAddr string
	APIAccess      []string
}

func nodeDefaults() NodeOptions {
	host, _ := os.Hostname() // empty on failure: Validate then asks for --node-name
	return NodeOptions{
		NodeName: host, SocketPath: "/var/run/cilium/cilium.sock", StateDir: "/var/run/cilium", BPFRoot: "/sys/fs/bpf",
		OrphanGrace: time.Minute, NodeDelay: 30 * time.Second, APIAccess: []string{"*"},
	}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *NodeOptions) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.AcceptWithout, confdir.AcceptFlag, o.AcceptWithout,
		"options of Cilium for protection that Hawser does not have, such as enable-wireguard: the agent starts although the configuration sets them")
	fs.StringVar(&o.SocketPath, "socket-path", o.SocketPath, "unix socket of the agent's API")
	fs.StringVar(&o.StateDir, "state-dir", o.StateDir, "directory for state that must survive a restart of the agent")
	fs.BoolVar(&o.GiveUpUnrecorded, "give-up-unrecorded-pods", o.GiveUpUnrecorded,
		"start where the kernel has pods and the state directory has the record of none, as after it was emptied or is another, and take their network; by default the agent does not start then")
	fs.StringVar(&o.BPFRoot, "bpf-root", o.BPFRoot, "BPF filesystem in which maps and programs are pinned; mounted if it is not")
	fs.StringVar(&o.NodeName, "node-name", o.NodeName, "name of this node; K8S_NODE_NAME or the host name by default")
	fs.DurationVar(&o.OrphanGrace, "orphan-link-grace-period", o.OrphanGrace, "how long a pod interface may exist without an endpoint; at least 30s, as the plugin tries for so long to create one")
	fs.DurationVar(&o.NodeDelay, "node-delete-delay", o.NodeDelay, "how long a node stays reachable after it vanished from the key-value store; 0 for not at all")
	fs.StringVar(&o.PrometheusAddr, "prometheus-serve-addr", o.PrometheusAddr, "address to serve metrics at, such as :9962; empty for none")
	fs.StringSliceVar(&o.APIAccess, "enable-cilium-api-server-access", o.APIAccess, "API calls to serve, by operation name, or by that of Cilium, such as GetConfig or Get*; * for all")
}

// Validate checks every option and joins all faults in one error.
func (o *NodeOptions) Validate() error {
	var errs validate.Errors
	errs.If(o.NodeName == "", "--node-name: the host has no name; give one")
	for _, p := range []struct{ flag, path string }{{"socket-path", o.SocketPath}, {"state-dir", o.StateDir}, {"bpf-root", o.BPFRoot}} {
		errs.If(!filepath.IsAbs(p.path), "--%s: %q is not an absolute path", p.flag, p.path)
	}
	errs.If(len(o.SocketPath) > 107, "--socket-path: %q is longer than the 107 characters a unix socket may have", o.SocketPath)
	errs.If(o.OrphanGrace < endpoint.MinOrphanGrace, "--orphan-link-grace-period: %s must be at least %s: the plugin tries for so long to create the endpoint of an interface that it has made", o.OrphanGrace, endpoint.MinOrphanGrace)
	errs.If(o.NodeDelay < 0, "--node-delete-delay: %s must not be negative", o.NodeDelay)
	errs.Address("prometheus-serve-addr", o.PrometheusAddr)
	errs = append(errs, restapi.CheckAccess(o.APIAccess))
	return errs.Err()
}

// cniFile reports which CNI configuration the agent writes.
func (c *Config) cniFile() cniconf.Config {
	f := c.CNI
	f.Debug = c.Debug
	if def := Defaults(); c.SocketPath != def.SocketPath {
		f.SocketPath = c.SocketPath
	}
	return f
}

// StoreOptions configure the key-value store that the nodes share.
type StoreOptions struct {
	KVStore                  string // a kind of store, or empty for a node on its own
	KVStoreOpts              map[string]string
	KVStoreLeaseTTL          time.Duration
	KVStoreMaxQuorumFailures int
}

func storeDefaults() StoreOptions {
	d := storedial.Defaults()
	return StoreOptions{KVStore: d.Kind, KVStoreOpts: d.Options, KVStoreLeaseTTL: d.LeaseTTL, KVStoreMaxQuorumFailures: d.MaxQuorumFailures}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *StoreOptions) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.KVStore, "kvstore", o.KVStore, "key-value store shared by the nodes: "+strings.Join(storedial.Kinds(), " or ")+"; empty for a single node, or for Kubernetes")
	storedial.OptionsVar(fs, &o.KVStoreOpts, "kvstore-opt", "options of the key-value store, such as etcd.address=http://10.0.0.1:2379, etcd.config=/path or consul.address=10.0.0.1:8500")
	fs.DurationVar(&o.KVStoreLeaseTTL, "kvstore-lease-ttl", o.KVStoreLeaseTTL, "how long this node's keys outlive it, 25s to 24h")
	fs.IntVar(&o.KVStoreMaxQuorumFailures, "kvstore-max-consecutive-quorum-errors", o.KVStoreMaxQuorumFailures,
		"how many checks of the key-value store may fail in a row before it is reported as failed")
}

// Validate checks every option and joins all faults in one error.
func (o *StoreOptions) Validate() error { return o.store().Validate() }

// store defines how to open the key-value store.
func (o *StoreOptions) store() storedial.Config {
	return storedial.Config{Kind: o.KVStore, Options: o.KVStoreOpts, LeaseTTL: o.KVStoreLeaseTTL, MaxQuorumFailures: o.KVStoreMaxQuorumFailures}
}

// PolicyOptions configure enforcement.
type PolicyOptions struct {
	EnablePolicy              string
	PolicyAudit               bool
	AllowLocalhost            string // always, auto or policy
	StaticCNPPath             string
	PolicyDefaultLocalCluster bool
	NonDefaultDeny            bool
	NamespacePrefixes         int
}

func policyDefaults() PolicyOptions {
	return PolicyOptions{EnablePolicy: "default", AllowLocalhost: "auto", PolicyDefaultLocalCluster: true, NonDefaultDeny: true, NamespacePrefixes: 4096}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *PolicyOptions) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.PolicyAudit, "policy-audit-mode", o.PolicyAudit, "let packets pass that policy refuses, and only report them: nothing is protected while this is on")
	fs.StringVar(&o.EnablePolicy, "enable-policy", o.EnablePolicy, "when policy is enforced: default (for endpoints that a rule selects), always or never")
	fs.StringVar(&o.AllowLocalhost, "allow-localhost", o.AllowLocalhost, "whether the node can always reach its own pods: always, auto (the same as long as there is no host firewall) or policy")
	fs.StringVar(&o.StaticCNPPath, "static-cnp-path", o.StaticCNPPath, "directory of YAML files of CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies, read again when they change")
	fs.BoolVar(&o.PolicyDefaultLocalCluster, "policy-default-local-cluster", o.PolicyDefaultLocalCluster, "selectors that name no cluster match only this one")
	fs.BoolVar(&o.NonDefaultDeny, "enable-non-default-deny-policies", o.NonDefaultDeny, "honour enableDefaultDeny in rules")
	fs.IntVar(&o.NamespacePrefixes, "policy-namespace-prefix-max", o.NamespacePrefixes, "maximum number of prefixes that the policies of one namespace may name, as each takes room in rule sets of others; 0 for any number")
}

// Validate checks every option and joins all faults in one error.
func (o *PolicyOptions) Validate() error {
	var errs validate.Errors
	errs.OneOf("enable-policy", o.EnablePolicy, "default", "always", "never")
	errs.OneOf("allow-localhost", o.AllowLocalhost, "always", "auto", "policy")
	errs.If(o.NamespacePrefixes < 0, "--policy-namespace-prefix-max is %d; it cannot be negative", o.NamespacePrefixes)
	return errs.Err()
}

// ConntrackOptions configure the lifetimes of flows.
type ConntrackOptions struct {
	CTTCP, CTTCPSyn, CTTCPFin, CTAny time.Duration
	CTInterval                       time.Duration
}

func conntrackDefaults() ConntrackOptions {
	d := datapath.DefaultCTTimeouts()
	return ConntrackOptions{CTTCP: d.TCP, CTTCPSyn: d.TCPSyn, CTTCPFin: d.TCPFin, CTAny: d.Any, CTInterval: 30 * time.Second}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *ConntrackOptions) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.CTTCP, "bpf-ct-timeout-regular-tcp", o.CTTCP, "lifetime of idle established TCP flows")
	fs.DurationVar(&o.CTTCPSyn, "bpf-ct-timeout-regular-tcp-syn", o.CTTCPSyn, "lifetime of TCP flows that are not established")
	fs.DurationVar(&o.CTTCPFin, "bpf-ct-timeout-regular-tcp-fin", o.CTTCPFin, "lifetime of TCP flows after FIN or RST")
	fs.DurationVar(&o.CTAny, "bpf-ct-timeout-regular-any", o.CTAny, "lifetime of idle flows of other protocols")
	fs.DurationVar(&o.CTInterval, "conntrack-gc-interval", o.CTInterval, "how often expired flows are removed")
}

// Validate checks every option and joins all faults in one error.
func (o *ConntrackOptions) Validate() error {
	var errs validate.Errors
	errs.AtLeastSecond("bpf-ct-timeout-regular-tcp", o.CTTCP)
	errs.AtLeastSecond("bpf-ct-timeout-regular-tcp-syn", o.CTTCPSyn)
	errs.AtLeastSecond("bpf-ct-timeout-regular-tcp-fin", o.CTTCPFin)
	errs.AtLeastSecond("bpf-ct-timeout-regular-any", o.CTAny)
	errs.AtLeastSecond("conntrack-gc-interval", o.CTInterval)
	return errs.Err()
}

// HealthOptions configure how the health of this node, and connectivity between nodes, is checked
// and served.
type HealthOptions struct {
	HealthPort int
	// HealthChecking has the agent probe all nodes and answer theirs at ClusterHealthPort;
	// HealthEndpoint gives the node an endpoint for that besides.
	HealthChecking, HealthEndpoint bool
	ClusterHealthPort              uint16
	// HealthInterval is how long a round through all nodes takes, at least.
	HealthInterval time.Duration
}

func healthDefaults() HealthOptions {
	return HealthOptions{HealthPort: 9879, HealthChecking: true, HealthEndpoint: true, ClusterHealthPort: clusterhealth.Port, HealthInterval: time.Minute}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *HealthOptions) Flags(fs *pflag.FlagSet) {
	fs.IntVar(&o.HealthPort, "agent-health-port", o.HealthPort, "port of /healthz, /livez and /readyz on loopback; 0 for none")
	fs.BoolVar(&o.HealthChecking, "enable-health-checking", o.HealthChecking, "probe all nodes, and answer their probes, to find out which nodes reach each other")
	fs.BoolVar(&o.HealthEndpoint, "enable-endpoint-health-checking", o.HealthEndpoint,
		"with --enable-health-checking, give the node an endpoint with an address of the pods that the others probe")
	fs.Uint16Var(&o.ClusterHealthPort, "cluster-health-port", o.ClusterHealthPort, "TCP port of the nodes' addresses, and of their health endpoints, for probes; the same on all nodes")
	fs.DurationVar(&o.HealthInterval, "cluster-health-interval", o.HealthInterval,
		"minimum duration of a round of probes through all nodes; with more than 600 nodes a round takes a second for every ten nodes")
}

// Validate checks every option and joins all faults in one error.
func (o *HealthOptions) Validate() error {
	var errs validate.Errors
	errs.AtLeastSecond("cluster-health-interval", o.HealthInterval)
	errs.If(o.ClusterHealthPort == 0, "--cluster-health-port: must not be 0; --enable-health-checking=false switches probes off")
	errs.If(o.HealthPort < 0 || o.HealthPort > 65535, "--agent-health-port: %d is not a port", o.HealthPort)
	return errs.Err()
}
