package operator

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/identity"
	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/operator/clusterpool"
	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/operator/endpoints"
	"github.com/hawser-net/hawser/internal/operator/endpointslices"
	"github.com/hawser-net/hawser/internal/operator/groups"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/operator/mesh"
	"github.com/hawser-net/hawser/internal/operator/multipool"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/alibaba"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/aws"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/azure"
	"github.com/hawser-net/hawser/internal/operator/nodes"
	"github.com/hawser-net/hawser/internal/operator/relevance"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// Ways for nodes to get their pods' addresses.
const (
	// ipamKubernetes takes them from Node.spec.podCIDRs, which others write.
	ipamKubernetes = "kubernetes"
	// ipamDelegated has a CNI plugin on each node give the addresses, out of the same.
	ipamDelegated = "delegated-plugin"
	// ipamCRD takes them from spec.ipam.pool of the CiliumNode, which others write.
	ipamCRD = "crd"
	// ipamClusterPool has this operator give nodes blocks of addresses.
	ipamClusterPool = "cluster-pool"
	// ipamMultiPool has it give nodes blocks of the CiliumPodIPPools that their agents ask for.
	ipamMultiPool = "multi-pool"
	// ipamENI has it have AWS assign addresses to the network interfaces of nodes.
	ipamENI = "eni"
	// ipamAzure has it have Azure do so.
	ipamAzure = "azure"
	// ipamAlibaba has it have Alibaba Cloud do so.
	ipamAlibaba = "alibabacloud"
)

// Places to keep identities.
const (
	modeKVStore = "kvstore"
	modeCRD     = "crd"
	// In both places, while a cluster moves from one to the other; agents read one of them.
	modeBothReadKVStore = "doublewrite-readkvstore"
	modeBothReadCRD     = "doublewrite-readcrd"
)

// Config is everything that can be configured of the operator. The names of its flags are those of
// the field where they exist there.
type Config struct {
	daemon.Options
	daemon.Cluster

	Store storedial.Config

	// Kubernetes decides whether there is a Kubernetes cluster to look after. It is no flag:
	// NewCommand finds out.
	Kubernetes bool
	// Hostname begins the name under which this operator stands for election. It is no flag.
	Hostname string
	Kube     kube.Config
	Election election.Config
	// SkipCRDs leaves the definitions of custom resources to another installer.
	SkipCRDs bool
	// IPAM decides where nodes get their pods' addresses from: one of the ipam constants.
	IPAM  string
	Pool  clusterpool.Config
	Pools multipool.Config
	// Cloud counts for every IPAM of a cloud, the others for theirs.
	Cloud     nodemanager.Config
	AWS       aws.Config
	Azure     azure.Config
	Alibaba   alibaba.Config
	Nodes     nodes.Config
	Endpoints endpoints.Config
	Slices    endpointslices.Config
	Mesh      mesh.Config
	// ValidatePolicies writes the condition Valid of policies.
	ValidatePolicies bool
	// Groups decides whether policies with groups of a cloud provider are followed.
	Groups groups.Config
	// PolicyNodeStatusInterval is the time between two looks for nodes that are gone in the status
	// of policies; 0 for never.
	PolicyNodeStatusInterval time.Duration

	// AllocationMode decides where identities are kept: one of the mode constants.
	AllocationMode string
	// CompareInterval is how often the places are compared if identities are in both.
	CompareInterval time.Duration
	// ManagementMode and ManageCID together select who makes identities; see [Config.Management].
	ManagementMode, ManageCID string
	// Identities counts if the operator makes identities.
	Identities identities.Control
	// Relevance decides which labels make identities, if the operator makes them.
	Relevance relevance.Config
	// HeartbeatTimeout is how long an identity must be unused before it is marked, where agents
	// make identities as Kubernetes objects, and else before it ends.
	HeartbeatTimeout time.Duration
	// ReuseDelay is how long the ID of a collected identity is not given to other labels, if
	// any other is free.
	ReuseDelay time.Duration
	// LostNodeDelay is how long it waits for agents that do not confirm that they have released it.
	LostNodeDelay time.Duration
	// GCInterval is the time from the start of one round of identity collection to that of the
	// next; 0 switches it off.
	GCInterval time.Duration
	// At most GCRateLimit identities are deleted in GCRateInterval; 0 for as many as agents can be
	// notified of.
	GCRateInterval time.Duration
	GCRateLimit    int

	// HeartbeatInterval, LockGCInterval and ClusterConfigInterval are fixed by what others expect;
	// tests shorten them.
	HeartbeatInterval     time.Duration
	LockGCInterval        time.Duration
	ClusterConfigInterval time.Duration

	// APIAddr serves the health of the operator; empty, or none, for nowhere.
	APIAddr string
	// Pprof serves profiles at PprofAddr and PprofPort.
	Pprof     bool
	PprofAddr string
	PprofPort uint16
	// PrometheusAddr serves metrics if EnableMetrics is set.
	PrometheusAddr string
	EnableMetrics  bool
}

// Defaults returns the configuration of an operator that is given no options.
func Defaults() Config {
	return Config{
		Options: daemon.Defaults(), Cluster: daemon.ClusterDefaults(),
		Store: storedial.Defaults(),
		Kube:  kube.Defaults(), Election: election.Defaults(),
		IPAM: ipamClusterPool, Pool: clusterpool.Defaults(), Pools: multipool.Defaults(), Cloud: nodemanager.Defaults(), Azure: azure.Defaults(), Nodes: nodes.Defaults(), Endpoints: endpoints.Defaults(), Slices: endpointslices.Defaults(),
		Mesh: mesh.Defaults(), ValidatePolicies: true, Groups: groups.Defaults(),
		AllocationMode: modeKVStore, HeartbeatTimeout: 30 * time.Minute, Identities: identities.ControlDefaults(), Relevance: relevance.Defaults(), CompareInterval: time.Minute,
		ReuseDelay: allocator.DefaultQuarantine, LostNodeDelay: identities.DefaultLost, GCInterval: time.Minute, GCRateInterval: time.Minute,
		HeartbeatInterval: time.Minute, LockGCInterval: 25 * time.Second, ClusterConfigInterval: 5 * time.Minute,
		APIAddr: "localhost:9234", PrometheusAddr: ":9963", PprofAddr: "localhost", PprofPort: 6061,
	}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	c.Options.Flags(fs)
	c.Cluster.Flags(fs)
	c.Store.Flags(fs)
	fs.StringVar(&c.AllocationMode, "identity-allocation-mode", c.AllocationMode, "where identities are kept: kvstore, crd (Kubernetes objects), or in both: doublewrite-readkvstore or doublewrite-readcrd")
	fs.DurationVar(&c.CompareInterval, "double-write-metric-reporter-interval", c.CompareInterval, "how often both places are compared if identities are in both")
	fs.StringVar(&c.ManagementMode, identity.ManagementFlag, c.ManagementMode, "who makes identities: agent (the default), operator or both")
	fs.StringVar(&c.ManageCID, identity.ManageCIDFlag, c.ManageCID, "true is the same as --identity-management-mode=operator, false the same as agent")
	fs.Lookup(identity.ManageCIDFlag).NoOptDefVal = "true"
	c.Identities.Flags(fs)
	c.Relevance.Flags(fs)
	fs.DurationVar(&c.HeartbeatTimeout, "identity-heartbeat-timeout", c.HeartbeatTimeout,
		"how long an identity must be unused before it is marked for deletion, where agents make Kubernetes objects, and else before it ends")
	fs.DurationVar(&c.GCInterval, "identity-gc-interval", c.GCInterval, "how often unused identities are looked for; 0 for never")
	fs.DurationVar(&c.ReuseDelay, "identity-reuse-delay", c.ReuseDelay,
		"how long the ID of a collected identity is not given to other labels, as long as another ID is free")
	fs.DurationVar(&c.LostNodeDelay, "identity-lost-node-delay", c.LostNodeDelay,
		"how long the ID of a collected identity waits for agents that do not confirm that they have released it, before it is given to other labels")
	fs.DurationVar(&c.GCRateInterval, "identity-gc-rate-interval", c.GCRateInterval, "time in which --identity-gc-rate-limit identities may be deleted")
	fs.IntVar(&c.GCRateLimit, "identity-gc-rate-limit", c.GCRateLimit, "how many identities may be deleted in --identity-gc-rate-interval; 0 for as many as agents can follow")
	c.Kube.Flags(fs)
	c.Election.Flags(fs)
	fs.BoolVar(&c.SkipCRDs, "skip-crd-creation", c.SkipCRDs, "do not create the definitions of custom resources, but wait for them")
	fs.StringVar(&c.IPAM, "ipam", c.IPAM, "where nodes get their pods' addresses from: cluster-pool (this operator), multi-pool (this operator, out of CiliumPodIPPools), eni, azure or alibabacloud (this operator, from that cloud), kubernetes (Node.spec.podCIDRs), crd (what others write into CiliumNodes) or delegated-plugin (an IPAM plugin on each node, out of these)")
	c.Pool.Flags(fs)
	c.Pools.Flags(fs)
	c.Cloud.Flags(fs)
	c.AWS.Flags(fs)
	c.Azure.Flags(fs)
	c.Alibaba.Flags(fs)
	c.Nodes.Flags(fs)
	c.Endpoints.Flags(fs)
	c.Slices.Flags(fs)
	c.Mesh.Flags(fs)
	fs.BoolVar(&c.ValidatePolicies, "validate-network-policy", c.ValidatePolicies, "report in the condition Valid of policies whether they can be enforced, and in Events which cannot")
	c.Groups.Flags(fs)
	fs.DurationVar(&c.PolicyNodeStatusInterval, "cnp-node-status-gc-interval", c.PolicyNodeStatusInterval,
		"how often nodes that are gone are removed from status.nodes of policies, which agents of long ago wrote; 0 for never")
	fs.BoolVar(&c.Pprof, "operator-pprof", c.Pprof, "serve profiles for go tool pprof")
	fs.StringVar(&c.PprofAddr, "operator-pprof-address", c.PprofAddr, "address to serve profiles at")
	fs.Uint16Var(&c.PprofPort, "operator-pprof-port", c.PprofPort, "port to serve profiles at")
	fs.StringVar(&c.APIAddr, "operator-api-serve-addr", c.APIAddr, "address to serve /healthz, /readyz and /v1/status at; none for nowhere")
	fs.StringVar(&c.PrometheusAddr, "operator-prometheus-serve-addr", c.PrometheusAddr, "address to serve metrics at")
	fs.BoolVar(&c.EnableMetrics, "enable-metrics", c.EnableMetrics, "serve metrics at --operator-prometheus-serve-addr")
}

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	errs := validate.Errors{c.Options.Validate(), c.Cluster.Validate()}
	if c.Store.Kind == "" && !c.Kubernetes {
		errs.Add("--kvstore: give one of %s; without a key-value store and without Kubernetes (--k8s-kubeconfig-path, --k8s-api-server) this operator has nothing to do",
			strings.Join(storedial.Kinds(), ", "))
	}
	if c.Store.Kind != "" {
		errs = append(errs, c.Store.Validate())
	}
	switch {
	case !c.inKVStore() && !c.inCRD():
		errs.Add("--identity-allocation-mode: %q is not supported; use %s, %s, %s or %s", c.AllocationMode, modeKVStore, modeCRD, modeBothReadKVStore, modeBothReadCRD)
	case c.inKVStore() && c.Store.Kind == "" && c.Kubernetes:
		errs.Add("--identity-allocation-mode: %s needs --kvstore; use %s to keep identities as Kubernetes objects", c.AllocationMode, modeCRD)
	case c.inCRD() && !c.Kubernetes:
		errs.Add("--identity-allocation-mode: %s needs Kubernetes: --k8s-kubeconfig-path or --k8s-api-server", c.AllocationMode)
	}
	errs.AtLeastSecond("double-write-metric-reporter-interval", c.CompareInterval)
	if m, err := c.Management(); err != nil {
		errs = append(errs, err)
	} else if m.Operator() && c.inCRD() && c.inKVStore() {
		errs.Add("--%s: %s needs --identity-allocation-mode=%s or %s: in both places agents write identities", identity.ManagementFlag, m, modeCRD, modeKVStore)
	} else if m.Operator() && !c.Kubernetes {
		errs.Add("--%s: %s needs Kubernetes, for its pods: --k8s-kubeconfig-path or --k8s-api-server", identity.ManagementFlag, m)
	}
	errs = append(errs, c.validateRelevance())
	if c.Kubernetes {
		errs = append(errs, c.validateKubernetes())
	}
	errs.Interval("cnp-node-status-gc-interval", c.PolicyNodeStatusInterval)
	errs.If(c.ReuseDelay < time.Minute, "--identity-reuse-delay: %s must be at least a minute", c.ReuseDelay)
	errs.If(c.LostNodeDelay < c.ReuseDelay, "--identity-lost-node-delay: %s must be at least --identity-reuse-delay, %s", c.LostNodeDelay, c.ReuseDelay)
	errs.Interval("identity-gc-interval", c.GCInterval)
	errs.If(c.HeartbeatTimeout < 0, "--identity-heartbeat-timeout: %s must not be negative", c.HeartbeatTimeout)
	errs.AtLeastSecond("identity-gc-rate-interval", c.GCRateInterval)
	errs.If(c.GCRateLimit < 0, "--identity-gc-rate-limit: %d must not be negative; --identity-gc-interval=0 switches collection off", c.GCRateLimit)
	errs.If(c.HeartbeatInterval <= 0 || c.LockGCInterval <= 0 || c.ClusterConfigInterval <= 0,
		"the intervals of the heartbeat, the lock sweep and the cluster's description must be above 0")
	checkAddr := func(flag, addr string) {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs.Add("--%s: %q is not host:port", flag, addr)
		}
	}
	if c.servesAPI() {
		checkAddr("operator-api-serve-addr", c.APIAddr)
	}
	if c.EnableMetrics {
		checkAddr("operator-prometheus-serve-addr", c.PrometheusAddr)
	}
	return errs.Err()
}

// servesAPI reports whether APIAddr is an address. A ConfigMap cannot set an option empty.
func (c *Config) servesAPI() bool { return c.APIAddr != "" && c.APIAddr != "none" }

// inCRD and inKVStore report where identities are kept.
func (c *Config) inCRD() bool {
	return c.AllocationMode == modeCRD || c.AllocationMode == modeBothReadCRD || c.AllocationMode == modeBothReadKVStore
}

func (c *Config) inKVStore() bool {
	return c.AllocationMode == modeKVStore || c.AllocationMode == modeBothReadCRD || c.AllocationMode == modeBothReadKVStore
}

// Management returns who makes identities.
func (c *Config) Management() (identity.Management, error) {
	return identity.ParseManagement(c.ManagementMode, c.ManageCID)
}

// keysByOperator reports whether identities are kept in the store, and made there by the operator.
// A reference of the leader keeps an ID then, and not those of agents alone: so it is the leader
// who collects.
func (c *Config) keysByOperator() bool {
	m, err := c.Management()
	return err == nil && m.Operator() && c.Kubernetes && c.AllocationMode == modeKVStore
}

// mesh returns what other clusters see of this one.
func (c *Config) mesh() mesh.Config {
	m := c.Mesh
	m.ClusterName, m.ClusterID, m.MaxConnectedClusters, m.Objects = c.ClusterName, c.ClusterID, c.MaxConnectedClusters, c.AllocationMode == modeCRD
	return m
}

// validateRelevance checks what must be so if identities are made by some labels only.
func (c *Config) validateRelevance() error {
	errs := validate.Errors{c.Relevance.Validate()}
	if !c.Relevance.Narrow() {
		return errs.Err()
	}
	const option = "--" + k8skeys.Flag + "=" + k8skeys.PolicyLabels
	m, err := c.Management()
	errs.If(c.AllocationMode != modeCRD, option+" needs --identity-allocation-mode=%s: agents that read identities from a key-value store cannot see which labels make them", modeCRD)
	errs.If(err == nil && !m.Operator(), option+" needs --%s=%s or %s: one program must decide which labels count", identity.ManagementFlag, identity.ManagedByOperator, identity.ManagedByBoth)
	errs.If(c.Store.Kind != "", option+" cannot be used with --kvstore: policies of other clusters, which read identities there, may select other labels")
	errs.If(c.Slices.Slim() || !c.Endpoints.Kept(),
		option+" needs CiliumEndpoints, by which agents publish the identities of pods (no --ces-controller-mode=%s, no --disable-endpoint-crd)", endpointslices.ModeSlim)
	return errs.Err()
}

// ipv4Alone refuses IPv6 where no IPv6 addresses are asked of the cloud.
func (c *Config) ipv4Alone() error {
	if !c.Pool.EnableIPv6 {
		return nil
	}
	return fmt.Errorf("--ipam=%s: the operator has IPv4 addresses assigned to nodes, and no others: set --enable-ipv6=false", c.IPAM)
}

// validateKubernetes checks the options that only count with Kubernetes.
func (c *Config) validateKubernetes() error {
	errs := validate.Errors{c.Kube.Validate(), c.Election.Validate(), c.Nodes.Validate(), c.Endpoints.Validate(), c.Slices.Validate(), c.Groups.Validate()}
	if m, err := c.Management(); err == nil && m.Operator() {
		errs = append(errs, c.Identities.Validate())
	}
	switch c.IPAM {
	case ipamKubernetes, ipamDelegated, ipamCRD:
	case ipamClusterPool:
		errs = append(errs, c.Pool.Validate())
	case ipamMultiPool:
		errs = append(errs, c.Pools.Validate())
	case ipamENI:
		errs = append(errs, c.Cloud.Validate(), c.AWS.Validate())
	case ipamAzure:
		errs = append(errs, c.Cloud.Validate(), c.Azure.Validate(), c.ipv4Alone())
	case ipamAlibaba:
		errs = append(errs, c.Cloud.Validate(), c.Alibaba.Validate(), c.ipv4Alone())
	default:
		errs.Add("--ipam: %q is not supported; use %s, %s, %s, %s, %s, %s, %s or %s", c.IPAM, ipamClusterPool, ipamMultiPool, ipamENI, ipamAzure, ipamAlibaba, ipamKubernetes, ipamCRD, ipamDelegated)
	}
	if m, err := c.Management(); c.Slices.Slim() && (c.AllocationMode != modeCRD || err == nil && !m.Operator()) {
		errs.Add("--ces-controller-mode: %s needs --identity-allocation-mode=%s and --%s=%s: no other component knows the identity of a pod",
			endpointslices.ModeSlim, modeCRD, identity.ManagementFlag, identity.ManagedByOperator)
	}
	if c.Slices.Enable && c.Slices.Mode == endpointslices.ModeDefault && !c.Endpoints.Kept() {
		errs.Add("--%s: without CiliumEndpoints (--cilium-endpoint-gc-interval=0 or --disable-endpoint-crd) slices are made with "+
			"--ces-controller-mode=%s only", endpointslices.EnableFlag, endpointslices.ModeSlim)
	}
	if c.inCRD() && c.GCInterval > 0 && !c.Endpoints.Kept() && !c.Slices.Slim() {
		errs.Add("--identity-gc-interval: without CiliumEndpoints (--cilium-endpoint-gc-interval=0 or --disable-endpoint-crd) " +
			"nothing shows which identities are in use; set it to 0")
	}
	return errs.Err()
}
