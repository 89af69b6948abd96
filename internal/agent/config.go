package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/hubble"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/storedial"
)

// NetworkOptions are what the node's network is told.
type NetworkOptions = network.Options

// Config is everything the agent can be told. The names of its flags are those of the field
// where they exist there, so that configuration written for it is understood.
type Config struct {
	daemon.Options
	daemon.Cluster
	NetworkOptions
	// AcceptWithout names protections of the field that the configuration asks for and that are
	// gone without.
	AcceptWithout []string

	SocketPath string
	StateDir   string
	BPFRoot    string

	NodeName string

	IPv4Range string
	IPv6Range string
	// PodReservedPorts are ports that no socket of a pod gets without asking for one, PodPMTUD how
	// pods find the MTU of a path where nobody says that packets are too large; see
	// podReservedPorts and validatePods.
	PodReservedPorts, PodPMTUD string
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
	// has an annotation of a service say otherwise for it.
	LBAlgorithm      string
	LBMode           string
	LBModeAnnotation bool
	// SNATPorts is the range of ports in whose name clients outside are sent on to other nodes.
	SNATPorts string

	KVStore                  string // a kind of store, or empty for a node on its own
	KVStoreOpts              map[string]string
	KVStoreLeaseTTL          time.Duration
	KVStoreMaxQuorumFailures int

	// EnableK8s has the node be one of a Kubernetes cluster.
	EnableK8s      bool
	K8s            k8s.Config
	Policies       policies.Config // which kinds of policies count
	CRDWait        time.Duration
	EndpointSlices bool
	// NoEndpointObjects has no CiliumEndpoints written for this node's pods.
	NoEndpointObjects bool
	// IdentityMode is where identities are kept: crd, kvstore, or empty for the first without a
	// key-value store.
	IdentityMode string
	// WellKnown gives certain system pods identities that every cluster has.
	WellKnown bool
	// ManagementMode and ManageCID say together who makes identities; see management.
	ManagementMode, ManageCID string
	// IdentityLabels says which labels make identities: a value of relevance.Flag. See
	// narrowLabels.
	IdentityLabels string
	// Namespace is that of the agents and the operator; empty for "default".
	Namespace string
	// PodReadiness is loose, or strict for pods with a readiness gate to wait until the cluster is
	// told of their identity.
	PodReadiness string
	// IPAM is who says which addresses this node's pods get, where IPv4Range and IPv6Range do not:
	// kubernetes, cluster-pool, multi-pool or crd; with delegated-plugin they are of the same
	// ranges as with kubernetes, and another plugin gives them.
	IPAM string
	// DefaultPool is the pool of pods for which no other is meant, and PreAllocation how many
	// addresses more than are in use this node has of a pool, as "pool=number"; both count with
	// multi-pool.
	DefaultPool   string
	PreAllocation []string
	// NodeUpdate is how often the CiliumNode says which addresses are used, with crd.
	NodeUpdate time.Duration
	// DatapathMode is how pods are connected: veth, or auto for the same.
	DatapathMode string

	// ClusterMesh names other clusters.
	ClusterMesh clustermesh.Config

	EnablePolicy              string
	PolicyAudit               bool
	AllowLocalhost            string // always, auto or policy
	StaticCNPPath             string
	Labels                    []string
	LabelPrefixFile           string
	FixedIdentities           map[string]string
	PolicyDefaultLocalCluster bool
	NonDefaultDeny            bool
	AllocationTimeout         time.Duration
	AllocationSync            time.Duration

	CTTCP, CTTCPSyn, CTTCPFin, CTAny time.Duration
	CTInterval                       time.Duration
	// Maps are the sizes of the kernel's maps; the directory follows from BPFRoot.
	Maps maps.Config

	IPAMExpiration time.Duration
	OrphanGrace    time.Duration
	NodeDelay      time.Duration

	CNI cniconf.Config

	PrometheusAddr string
	HealthPort     int
	// HealthChecking has the agent probe all nodes and answer theirs at ClusterHealthPort;
	// HealthEndpoint gives the node an endpoint for that besides.
	HealthChecking, HealthEndpoint bool
	ClusterHealthPort              uint16
	// HealthInterval is how long a round through all nodes takes, at least.
	HealthInterval time.Duration
	APIAccess      []string

	// Flows is what becomes of the kernel's events besides being watched.
	Flows hubble.Config
}

// The ways to choose a backend.
const (
	lbRandom = "random"
	lbMaglev = "maglev"
)

// Defaults returns the configuration of an agent that is told nothing.
func Defaults() Config {
	host, _ := os.Hostname() // empty on failure: Validate then asks for --node-name
	c := Config{
		Options: daemon.Defaults(), Cluster: daemon.ClusterDefaults(), NetworkOptions: network.Defaults(),
		Flows: hubble.Defaults(), SocketPath: "/var/run/cilium/cilium.sock", StateDir: "/var/run/cilium", BPFRoot: "/sys/fs/bpf",
		NodeName:    host,
		LBAlgorithm: lbRandom, LBMode: string(service.ForwardSNAT), SNATPorts: datapath.DefaultMasqueradePorts().String(),
		PodReservedPorts: reservedAuto, PodPMTUD: pmtudBlackhole,
		ClusterMesh: clustermesh.Defaults(), EnablePolicy: "default", AllowLocalhost: "auto", PolicyDefaultLocalCluster: true, NonDefaultDeny: true,
		EnableK8s: k8s.InPod(), K8s: k8s.Defaults(), Policies: policies.Defaults(), CRDWait: 5 * time.Minute, IPAM: addressing.ClusterPool, DefaultPool: ipam.DefaultPool, PreAllocation: []string{ipam.DefaultPool + "=8"}, DatapathMode: datapathVeth, PodReadiness: readinessLoose,
		IdentityLabels: relevance.AllLabels, FixedIdentities: map[string]string{}, WellKnown: true, AllocationTimeout: 2 * time.Minute, AllocationSync: 5 * time.Minute,
		CTTCP: 8000 * time.Second, CTTCPSyn: time.Minute, CTTCPFin: 10 * time.Second, CTAny: time.Minute,
		CTInterval: 30 * time.Second, Maps: maps.Defaults(),
		IPAMExpiration: 10 * time.Minute, NodeUpdate: 15 * time.Second, OrphanGrace: time.Minute, NodeDelay: 30 * time.Second,
		CNI: cniconf.Config{Exclusive: true}, HealthPort: 9879, HealthChecking: true, HealthEndpoint: true, ClusterHealthPort: clusterhealth.Port, HealthInterval: time.Minute, APIAccess: []string{"*"},
	}
	c.CNI.Defaults()
	c.setStore(storedial.Defaults())
	return c
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	c.Options.Flags(fs)
	c.Cluster.Flags(fs)
	c.NetworkOptions.Flags(fs)
	fs.StringSliceVar(&c.AcceptWithout, confdir.AcceptFlag, c.AcceptWithout,
		"options of Cilium that protect something Hawser has nothing for, such as enable-wireguard: the agent starts although the configuration sets them")
	fs.StringVar(&c.SocketPath, "socket-path", c.SocketPath, "unix socket of the agent's API")
	fs.StringVar(&c.StateDir, "state-dir", c.StateDir, "directory for what must survive a restart of the agent")
	fs.StringVar(&c.BPFRoot, "bpf-root", c.BPFRoot, "BPF filesystem in which maps and programs are pinned; mounted if it is not")
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "name of this node; K8S_NODE_NAME or the host name by default")
	fs.StringVar(&c.IPv4Range, "ipv4-range", c.IPv4Range, "IPv4 range of this node's pods, such as 10.0.1.0/24")
	fs.StringVar(&c.IPv6Range, "ipv6-range", c.IPv6Range, "IPv6 range of this node's pods, such as fd00:1::/112")
	fs.StringVar(&c.PodReservedPorts, flagReservedPorts, c.PodReservedPorts,
		"ports that sockets of pods get only if they ask for them, such as 8472,20000-20100; auto for that of the tunnel, empty for none")
	fs.StringVar(&c.PodPMTUD, flagPMTUD, c.PodPMTUD, "how TCP of pods finds the MTU of a path itself: blackhole (when packets vanish that are too large), "+
		"always, disabled, or unset to leave it to the kernel's default")
	fs.BoolVar(&c.KubeProxyReplacement, "kube-proxy-replacement", c.KubeProxyReplacement,
		"lead the node's own processes, and clients outside of the cluster, to services; without it that is kube-proxy's, and pods' traffic alone is ours")
	fs.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "cgroup (version 2) of the node's own processes; where such cgroups are mounted by default")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses,
		"ranges, such as 192.0.2.0/24, of the node's addresses at which node ports and host ports are served; all addresses of all devices by default")
	fs.StringVar(&c.ProxyHealthzAddr, "kube-proxy-replacement-healthz-bind-address", c.ProxyHealthzAddr,
		"with --kube-proxy-replacement, where balancers find kube-proxy's /healthz, such as 0.0.0.0:10256; empty for nowhere")
	fs.StringVar(&c.LBAlgorithm, "bpf-lb-algorithm", c.LBAlgorithm,
		"how a backend is chosen for a client outside of the cluster: random, or maglev, by which all nodes choose the same")
	fs.StringVar(&c.LBMode, "bpf-lb-mode", c.LBMode, "how packets of clients outside reach a pod on another node: snat (in this node's name), "+
		"dsr (in the client's own name, and the other node answers) or hybrid (dsr for TCP, snat for the rest)")
	fs.StringVar(&c.SNATPorts, "snat-port-range", c.SNATPorts, "ports in whose name, with --kube-proxy-replacement, clients outside are sent on to pods of other nodes; "+
		"they are reserved from the node's own sockets")
	fs.BoolVar(&c.LBModeAnnotation, "bpf-lb-mode-annotation", c.LBModeAnnotation, "let the annotation "+service.AnnotationForwarding+
		" of a service (snat or dsr) say how packets of its clients outside reach a pod on another node")
	fs.StringVar(&c.KVStore, "kvstore", c.KVStore, "key-value store shared by the nodes: "+strings.Join(storedial.Kinds(), " or ")+"; empty for a node on its own")
	storedial.OptionsVar(fs, &c.KVStoreOpts, "kvstore-opt", "options of the key-value store, such as etcd.address=http://10.0.0.1:2379, etcd.config=/path or consul.address=10.0.0.1:8500")
	fs.DurationVar(&c.KVStoreLeaseTTL, "kvstore-lease-ttl", c.KVStoreLeaseTTL, "how long this node's keys outlive it, 25s to 24h")
	fs.IntVar(&c.KVStoreMaxQuorumFailures, "kvstore-max-consecutive-quorum-errors", c.KVStoreMaxQuorumFailures,
		"how many checks of the key-value store may fail in a row before it is reported as failed")
	fs.BoolVar(&c.EnableK8s, "enable-k8s", c.EnableK8s, "be a node of a Kubernetes cluster; on in a pod, and with one of the two options that say where Kubernetes is")
	c.ClusterMesh.Flags(fs)
	c.K8s.Flags(fs)
	c.Policies.Flags(fs)
	fs.DurationVar(&c.CRDWait, "crd-wait-timeout", c.CRDWait, "how long the custom resources may be missing before the agent gives up")
	fs.BoolVar(&c.NoEndpointObjects, "disable-endpoint-crd", c.NoEndpointObjects,
		"write no CiliumEndpoints: the operator makes CiliumEndpointSlices without them, or a key-value store tells of pods")
	fs.BoolVar(&c.EndpointSlices, "enable-cilium-endpoint-slice", c.EndpointSlices, "learn of other nodes' pods from CiliumEndpointSlices, which the operator must make")
	fs.StringVar(&c.IdentityMode, "identity-allocation-mode", c.IdentityMode, "where identities are kept: crd or kvstore, "+
		"or in both and read from one: doublewrite-readkvstore or doublewrite-readcrd; by default kvstore if there is one, else crd")
	fs.BoolVar(&c.WellKnown, identity.WellKnownFlag, c.WellKnown, "give certain system pods, such as CoreDNS, identities of fixed numbers; not for clusters that are connected with others")
	fs.StringVar(&c.ManagementMode, identity.ManagementFlag, c.ManagementMode,
		"who makes identities: agent (the default), operator or both; with operator a pod whose identity is not known yet starts with a temporary one")
	fs.StringVar(&c.ManageCID, identity.ManageCIDFlag, c.ManageCID, "true is the same as --identity-management-mode=operator, false the same as agent")
	fs.Lookup(identity.ManageCIDFlag).NoOptDefVal = "true"
	fs.StringVar(&c.IdentityLabels, relevance.Flag, c.IdentityLabels,
		"which labels make identities, of those that --labels leaves: all, or policy (those that some policy selects); needs the same of the operator")
	fs.StringVar(&c.Namespace, "k8s-namespace", c.Namespace, "namespace of the agents and the operator")
	fs.StringVar(&c.PodReadiness, "pod-readiness", c.PodReadiness,
		"when pods are ready: loose (when their containers are) or strict (those with the readiness gate network.hawser.net/identity-known when all nodes are told of their identity)")
	fs.StringVar(&c.IPAM, "ipam", c.IPAM, "who says which addresses this node's pods get in Kubernetes, if no range is given: cluster-pool (the operator), multi-pool (the operator, out of CiliumPodIPPools), kubernetes (the Node), crd (single addresses of the CiliumNode) or delegated-plugin (the IPAM plugin of the CNI configuration, out of the Node's or the given range)")
	fs.StringVar(&c.DefaultPool, "ipam-default-ip-pool", c.DefaultPool, "with --ipam multi-pool, name of the pool of pods for which no other is meant; the operator must be told the same")
	fs.StringSliceVar(&c.PreAllocation, addressing.PreAllocationFlag, c.PreAllocation,
		"with --ipam multi-pool, how many addresses of a pool the node has in advance of pods, such as default=8,edge=4; of other pools it asks for what pods need")
	fs.DurationVar(&c.NodeUpdate, "ipam-cilium-node-update-rate", c.NodeUpdate,
		"with --ipam crd, how often the CiliumNode says which addresses are used; what the operator waits for at most ten times as often")
	fs.StringVar(&c.DatapathMode, "datapath-mode", c.DatapathMode, "how pods are connected: veth (a pair of interfaces), or auto, which is the same")
	fs.BoolVar(&c.PolicyAudit, "policy-audit-mode", c.PolicyAudit, "let pass what policy refuses, and only tell of it: nothing is protected while this is on")
	fs.StringVar(&c.EnablePolicy, "enable-policy", c.EnablePolicy, "when policy is enforced: default (for endpoints that a rule selects), always or never")
	fs.StringVar(&c.AllowLocalhost, "allow-localhost", c.AllowLocalhost, "whether the node may always reach its own pods: always, auto (the same until there is a host firewall) or policy")
	fs.StringVar(&c.StaticCNPPath, "static-cnp-path", c.StaticCNPPath, "directory of CiliumNetworkPolicy YAML files, read again when they change")
	fs.StringSliceVar(&c.Labels, "labels", c.Labels, "label prefixes that make or (with !) do not make an identity, added to the default list")
	fs.StringVar(&c.LabelPrefixFile, "label-prefix-file", c.LabelPrefixFile, "JSON file of label prefixes that replaces the default list")
	fs.StringToStringVar(&c.FixedIdentities, "fixed-identity-mapping", c.FixedIdentities, "identities 128 to 255 by name, such as 128=kv-store")
	fs.BoolVar(&c.PolicyDefaultLocalCluster, "policy-default-local-cluster", c.PolicyDefaultLocalCluster, "selectors that name no cluster select this one")
	fs.BoolVar(&c.NonDefaultDeny, "enable-non-default-deny-policies", c.NonDefaultDeny, "honour enableDefaultDeny in rules")
	fs.DurationVar(&c.AllocationTimeout, "identity-allocation-timeout", c.AllocationTimeout, "how long to try to get an identity")
	fs.DurationVar(&c.AllocationSync, "identity-allocation-sync-interval", c.AllocationSync, "how often this node's identity keys are repaired")
	fs.DurationVar(&c.CTTCP, "bpf-ct-timeout-regular-tcp", c.CTTCP, "lifetime of idle established TCP flows")
	fs.DurationVar(&c.CTTCPSyn, "bpf-ct-timeout-regular-tcp-syn", c.CTTCPSyn, "lifetime of TCP flows that are not established")
	fs.DurationVar(&c.CTTCPFin, "bpf-ct-timeout-regular-tcp-fin", c.CTTCPFin, "lifetime of TCP flows after FIN or RST")
	fs.DurationVar(&c.CTAny, "bpf-ct-timeout-regular-any", c.CTAny, "lifetime of idle flows of other protocols")
	fs.DurationVar(&c.CTInterval, "conntrack-gc-interval", c.CTInterval, "how often expired flows are removed")
	c.Maps.Flags(fs)
	fs.DurationVar(&c.IPAMExpiration, "ipam-expiration", c.IPAMExpiration, "how long an address waits for its endpoint")
	fs.DurationVar(&c.OrphanGrace, "orphan-link-grace-period", c.OrphanGrace, "how long a pod interface may exist without an endpoint")
	fs.DurationVar(&c.NodeDelay, "node-delete-delay", c.NodeDelay, "how long a node that vanished from the key-value store is still reachable")
	c.CNI.Flags(fs)
	fs.StringVar(&c.PrometheusAddr, "prometheus-serve-addr", c.PrometheusAddr, "address to serve metrics at, such as :9962; empty for none")
	fs.IntVar(&c.HealthPort, "agent-health-port", c.HealthPort, "port of /healthz, /livez and /readyz on loopback; 0 for none")
	fs.BoolVar(&c.HealthChecking, "enable-health-checking", c.HealthChecking, "probe all nodes, and answer when they probe this one: who reaches whom")
	fs.BoolVar(&c.HealthEndpoint, "enable-endpoint-health-checking", c.HealthEndpoint,
		"with --enable-health-checking, give the node an endpoint with an address of the pods that the others probe")
	fs.Uint16Var(&c.ClusterHealthPort, "cluster-health-port", c.ClusterHealthPort, "TCP port of the nodes' addresses, and of their health endpoints, for probes; the same on all nodes")
	fs.DurationVar(&c.HealthInterval, "cluster-health-interval", c.HealthInterval,
		"how long a round of probes through all nodes takes at least; with more than 600 nodes it takes a second for each ten at any rate")
	fs.StringSliceVar(&c.APIAccess, "enable-cilium-api-server-access", c.APIAccess, "API calls that are served, by operation name; * for all")
	c.Flows.Flags(fs)
}

// validateRanges checks the ranges of this node's pods.
func (c *Config) validateRanges() error {
	check := func(family, value string, on, v4 bool) error {
		switch {
		case !on, value == "" && c.EnableK8s: // Kubernetes says which
			return nil
		case value == "":
			return fmt.Errorf("--%s-range: not given; each node needs a range of its own, or --enable-%s=false", family, family)
		}
		return network.ValidRange(family+"-range", value, v4)
	}
	return errors.Join(check("ipv4", c.IPv4Range, c.EnableIPv4, true), check("ipv6", c.IPv6Range, c.EnableIPv6, false))
}

// store says how to open the key-value store.
func (c *Config) store() storedial.Config {
	return storedial.Config{Kind: c.KVStore, Options: c.KVStoreOpts, LeaseTTL: c.KVStoreLeaseTTL, MaxQuorumFailures: c.KVStoreMaxQuorumFailures}
}

func (c *Config) setStore(d storedial.Config) {
	c.KVStore, c.KVStoreOpts, c.KVStoreLeaseTTL, c.KVStoreMaxQuorumFailures = d.Kind, d.Options, d.LeaseTTL, d.MaxQuorumFailures
}

// Values of --identity-allocation-mode.
const (
	datapathVeth    = "veth"
	datapathAuto    = "auto"
	identityCRD     = "crd"
	identityKVStore = "kvstore"
	// In both places; read from one.
	identityBothKVStore = "doublewrite-readkvstore"
	identityBothCRD     = "doublewrite-readcrd"
)

// identityMode is where identities are kept.
func (c *Config) identityMode() string {
	switch {
	case c.IdentityMode != "":
		return c.IdentityMode
	case c.EnableK8s && c.KVStore == "":
		return identityCRD
	}
	return identityKVStore
}

// inBothPlaces says whether identities are kept as objects and in the key-value store.
func (c *Config) inBothPlaces() bool {
	return c.identityMode() == identityBothKVStore || c.identityMode() == identityBothCRD
}

// management is who makes identities, of a configuration that is valid.
func (c *Config) management() identity.Management {
	m, err := identity.ParseManagement(c.ManagementMode, c.ManageCID)
	if err != nil {
		return identity.ManagedByAgent
	}
	return m
}

// narrowLabels says whether only labels make identities that policies select, of a configuration
// that is valid.
func (c *Config) narrowLabels() bool { return c.IdentityLabels == relevance.PolicyLabels }

// inNamespace is the namespace of the agents and the operator.
func (c *Config) inNamespace() string { return cmp.Or(c.Namespace, "default") }

// snatPorts are the ports in whose name clients outside are sent on, of a configuration that is
// valid.
func (c *Config) snatPorts() datapath.PortRange {
	r, err := datapath.ParsePortRange(c.SNATPorts)
	if err != nil {
		return datapath.DefaultMasqueradePorts()
	}
	return r
}

// nodePortRanges are the ranges of addresses at which node ports are served.
func (c *Config) nodePortRanges() (out []netip.Prefix, err error) {
	for _, r := range c.NodePortAddresses {
		p, perr := netip.ParsePrefix(r)
		if perr != nil || p.Addr().Is4In6() {
			err = errors.Join(err, fmt.Errorf("--nodeport-addresses: %q is no range of addresses such as 192.0.2.0/24 or 2001:db8::/64", r))
			continue
		}
		out = append(out, p.Masked())
	}
	return out, err
}

// cniFile says which CNI configuration the agent writes.
func (c *Config) cniFile() cniconf.Config {
	f := c.CNI
	f.Debug = c.Debug
	if def := Defaults(); c.SocketPath != def.SocketPath {
		f.SocketPath = c.SocketPath
	}
	return f
}

// validateLabels checks what must be so if identities are made by some labels only.
func (c *Config) validateLabels() error {
	if narrow, err := relevance.ParseFlag(c.IdentityLabels); err != nil || !narrow {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+relevance.Flag+"="+relevance.PolicyLabels+" "+format, args...))
	}
	if c.identityMode() != identityCRD || c.KVStore != "" {
		bad("needs --identity-allocation-mode=%s and no --kvstore: who reads identities from a key-value store does not hear by which labels they are made", identityCRD)
	}
	if !c.management().Operator() {
		bad("needs --%s=%s or %s: one has to say for all which labels count", identity.ManagementFlag, identity.ManagedByOperator, identity.ManagedByBoth)
	}
	if c.NoEndpointObjects {
		bad("needs CiliumEndpoints, by which agents say which identity a pod has (no --disable-endpoint-crd)")
	}
	if c.StaticCNPPath != "" {
		bad("cannot be used with --static-cnp-path: the operator does not know which labels the rules of files select")
	}
	if c.ClusterMesh.Dir != "" {
		bad("cannot be used with --clustermesh-config: the identities of other clusters are made by other labels")
	}
	return errors.Join(errs...)
}

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	errs := []error{c.Options.Validate(), c.Cluster.Validate(), c.NetworkOptions.Validate()}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(flag, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		bad("--%s: %q is not one of %s", flag, value, strings.Join(allowed, ", "))
	}
	oneOf("bpf-lb-algorithm", c.LBAlgorithm, lbRandom, lbMaglev)
	oneOf("bpf-lb-mode", c.LBMode, string(service.ForwardSNAT), string(service.ForwardDSR), string(service.ForwardHybrid))
	if r, err := datapath.ParsePortRange(c.SNATPorts); err != nil {
		bad("--snat-port-range: %w", err)
	} else if r.First < 1024 {
		bad("--snat-port-range: ports below 1024 are those of well-known services")
	}
	if !c.KubeProxyReplacement && (c.LBMode == string(service.ForwardDSR) || c.LBMode == string(service.ForwardHybrid)) {
		bad("--bpf-lb-mode: %s needs --kube-proxy-replacement: without it kube-proxy leads clients outside", c.LBMode)
	}
	oneOf("enable-policy", c.EnablePolicy, "default", "always", "never")
	oneOf("allow-localhost", c.AllowLocalhost, "always", "auto", "policy")
	if c.NodeName == "" {
		bad("--node-name: the host has no name; give one")
	}
	switch {
	case c.IPAM == addressing.ClusterPool || c.IPAM == addressing.Kubernetes:
	case c.IPAM == addressing.Delegated:
		errs = append(errs, c.validateDelegated())
	case c.IPAM == addressing.MultiPool && c.EnableK8s:
		errs = append(errs, c.validateMultiPool())
	case (c.IPAM == addressing.CRD) && c.EnableK8s:
		errs = append(errs, c.validateSingles())
	case c.EnableK8s:
		bad("--ipam: %q is not supported: use %s (the operator gives each node a block), %s (the operator, out of pools), %s (the Node's pod CIDR), %s (an IPAM plugin, out of the same) or %s (single addresses of the CiliumNode)",
			c.IPAM, addressing.ClusterPool, addressing.MultiPool, addressing.Kubernetes, addressing.Delegated, addressing.CRD)
	default:
		bad("--ipam: %q is not supported: leave it out, without Kubernetes --ipv4-range and --ipv6-range say which addresses pods get", c.IPAM)
	}
	switch c.DatapathMode {
	case datapathVeth, datapathAuto:
	case "lb-only":
		bad("--datapath-mode: lb-only is not supported: the agent attaches pods and leads to services on one node, there is no load balancer without pods; "+
			"set %s, with --kube-proxy-replacement for clients outside", datapathVeth)
	default:
		bad("--datapath-mode: %q is not supported: pods get veth pairs; set %s", c.DatapathMode, datapathVeth)
	}
	if c.EnableK8s {
		oneOf("identity-allocation-mode", c.identityMode(), identityCRD, identityKVStore, identityBothKVStore, identityBothCRD)
		if c.identityMode() != identityCRD && c.KVStore == "" {
			bad("--identity-allocation-mode: %s needs --kvstore", c.identityMode())
		}
		if m, err := identity.ParseManagement(c.ManagementMode, c.ManageCID); c.inBothPlaces() && err == nil && m != identity.ManagedByAgent {
			bad("--identity-allocation-mode: with %s agents make identities; --%s must be %s", c.identityMode(), identity.ManagementFlag, identity.ManagedByAgent)
		}
		if c.NoEndpointObjects && !c.EndpointSlices && c.identityMode() != identityKVStore {
			bad("--disable-endpoint-crd: without --enable-cilium-endpoint-slice no node would hear of another's pods")
		}
		oneOf("pod-readiness", c.PodReadiness, readinessLoose, readinessStrict)
		if c.CRDWait <= 0 {
			bad("--crd-wait-timeout: %s is not above 0", c.CRDWait)
		}
		errs = append(errs, c.K8s.Validate(), c.Policies.Validate())
	} else if c.identityMode() != identityKVStore {
		bad("--identity-allocation-mode: %s needs --enable-k8s", c.IdentityMode)
	}
	if m, err := identity.ParseManagement(c.ManagementMode, c.ManageCID); err != nil {
		errs = append(errs, err)
	} else if m.Operator() && !c.EnableK8s && c.KVStore == "" {
		bad("--%s: %s needs --enable-k8s or --kvstore: a node on its own has no operator", identity.ManagementFlag, m)
	}
	errs = append(errs, c.validateRanges())
	atLeastSecond := func(flag string, d time.Duration) {
		if d < time.Second {
			bad("--%s: %s is below one second", flag, d)
		}
	}
	atLeastSecond("bpf-ct-timeout-regular-tcp", c.CTTCP)
	atLeastSecond("bpf-ct-timeout-regular-tcp-syn", c.CTTCPSyn)
	atLeastSecond("bpf-ct-timeout-regular-tcp-fin", c.CTTCPFin)
	atLeastSecond("bpf-ct-timeout-regular-any", c.CTAny)
	atLeastSecond("conntrack-gc-interval", c.CTInterval)
	atLeastSecond("ipam-expiration", c.IPAMExpiration)
	atLeastSecond("cluster-health-interval", c.HealthInterval)
	atLeastSecond("identity-allocation-timeout", c.AllocationTimeout)
	atLeastSecond("identity-allocation-sync-interval", c.AllocationSync)
	absolute := func(flag, path string) {
		if !filepath.IsAbs(path) {
			bad("--%s: %q is not an absolute path", flag, path)
		}
	}
	absolute("socket-path", c.SocketPath)
	absolute("state-dir", c.StateDir)
	absolute("bpf-root", c.BPFRoot)
	if len(c.SocketPath) > 107 {
		bad("--socket-path: %q is longer than the 107 characters a unix socket may have", c.SocketPath)
	}
	if c.PrometheusAddr != "" {
		if _, _, err := net.SplitHostPort(c.PrometheusAddr); err != nil {
			bad("--prometheus-serve-addr: %q is not host:port", c.PrometheusAddr)
		}
	}
	if c.ClusterHealthPort == 0 {
		bad("--cluster-health-port: must not be 0; --enable-health-checking=false switches probes off")
	}
	if c.ProxyHealthzAddr != "" {
		if _, _, err := net.SplitHostPort(c.ProxyHealthzAddr); err != nil {
			bad("--kube-proxy-replacement-healthz-bind-address: %q is not host:port", c.ProxyHealthzAddr)
		}
	}
	_, err := c.nodePortRanges()
	errs = append(errs, err)
	if c.HealthPort < 0 || c.HealthPort > 65535 {
		bad("--agent-health-port: %d is not a port", c.HealthPort)
	}
	errs = append(errs, c.validateLabels(), c.validatePods(), c.store().Validate(), c.Maps.Validate(), c.CNI.Validate(), c.ClusterMesh.Validate(c.ClusterID),
		c.Flows.Validate())
	return errors.Join(errs...)
}
