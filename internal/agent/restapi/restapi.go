// Package restapi serves the agent's REST API: its operations, the unix socket that it is served
// at, and access to it. It owns no state of what it shows or changes.
package restapi

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/addressing"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/agent/hubble"
	"github.com/hawser-net/hawser/internal/agent/identities"
	"github.com/hawser-net/hawser/internal/agent/monitor"
	"github.com/hawser-net/hawser/internal/announce"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policydir"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Options are those of the agent's configuration that operations show or go by.
type Options struct {
	ClusterName, NodeName          string
	IPAM, DatapathMode             string
	RoutingMode, TunnelProtocol    string
	EnableIPv4, EnableIPv6         bool
	MasqueradeIPv4, MasqueradeIPv6 bool
	KubeProxyReplacement           bool
	KVStore                        string
	KVStoreOpts                    map[string]string
	StaticCNPPath, MapDirectory    string
	APIAccess                      []string
	Management                     identity.Management
}

// Kubernetes is what operations need of a cluster of Kubernetes.
type Kubernetes interface {
	// Complete fills in the data of Kubernetes for the pod of a new endpoint; given are the labels
	// that the runtime gave.
	Complete(ctx context.Context, req *endpoint.CreateRequest, given []string) error
	// Relabel has the labels of a pod's endpoints compared with the pod in Kubernetes.
	Relabel(k8s.Key)
	// PolicyObjects are the policies of the cluster, PolicyCounts how many are well and faulty.
	PolicyObjects(describe func(policy.Owner) string) []rest.PolicyFile
	PolicyCounts() (ok, faulty int)
	// Named reports whether addresses are of pools that have names.
	Named() bool
	Status() rest.K8SStatus
}

// Mesh is the status of other clusters.
type Mesh interface {
	Status() rest.ClusterMeshStatus
	// Component is the line of the status; false if there is none.
	Component() (rest.PartStatus, bool)
}

// Config gives the API what its operations show and change. All of it is safe for concurrent use.
type Config struct {
	Log     *slog.Logger
	Version string
	Flags   map[string]string
	Options Options

	Registry   *endpoint.Registry
	Lifecycle  *endpoint.Lifecycle
	Policy     *enforcement.Policy
	Identities *identities.Identities
	// FirstID and LastID are the identities that this cluster gives to label sets.
	FirstID, LastID identity.ID
	Pool            *ipam.IPAM
	Allocator       *addressing.Allocator
	Maps            *maps.Maps
	Programs        *loader.Loader
	Addresses       *ipcache.Cache
	Nodes           *announce.Nodes
	Store           kvstore.Backend // nil on a node on its own
	Kubernetes      Kubernetes      // nil outside of Kubernetes
	// Services is the table of frontends, nil if there is no source of services.
	Services   *table.Table[datapath.ServiceFrontend, service.Frontend]
	Mesh       Mesh
	Files      *policydir.Dir
	CNI        *cniconf.Manager
	Events     *monitor.Monitor
	Hubble     *hubble.Hubble
	Components *component.Statuses
	Health     *health.Health // nil if nodes do not probe each other
	Metrics    prometheus.Gatherer

	// Routers are the node's own addresses in the pod network, Devices its devices now.
	Routers func() (v4, v6 netip.Addr)
	Devices func() datapath.Devices
	// Outside is the identity of an address without a claim.
	Outside func(netip.Addr) identity.ID
	// PodSettings completes what the plugin gets.
	PodSettings func(*rest.DaemonConfigurationStatus)
	// PoolsFor returns the pools for an owner's addresses.
	PoolsFor func(ctx context.Context, owner, pool string) (ipam.Choice, addressing.Plain, error)
	// Sync is the line of the status for what was not observed yet; false if everything was.
	Sync func() (rest.PartStatus, bool)
	// AwaitPrograms and AwaitRules return when a new endpoint can be evaluated, or ctx ends.
	AwaitPrograms, AwaitRules func(context.Context) error
	// DropDeletions has deletions that were queued not be done any more.
	DropDeletions func(...deletequeue.Entry) error
	// Stopping is closed when the agent ends.
	Stopping <-chan struct{}
}

// API is the operations of the agent's API. Its methods may be called from any goroutine.
type API struct {
	Config
	nodeClients *nodeClients
}

var _ server.StrictServerInterface = (*API)(nil)

// New returns the API.
func New(cfg Config) *API { return &API{Config: cfg, nodeClients: newNodeClients()} }

// router is the node's own address of a family in the pod network.
func (a *API) router(v4 bool) netip.Addr {
	ip4, ip6 := a.Routers()
	if v4 {
		return ip4
	}
	return ip6
}

// kubernetesStatus is the status of Kubernetes.
func (a *API) kubernetesStatus() rest.K8SStatus {
	if a.Kubernetes == nil {
		return rest.K8SStatus{State: rest.StateDisabled, Msg: "not configured"}
	}
	return a.Kubernetes.Status()
}

// policyObjects are the policies of the cluster.
func (a *API) policyObjects(describe func(policy.Owner) string) []rest.PolicyFile {
	if a.Kubernetes == nil {
		return nil
	}
	return a.Kubernetes.PolicyObjects(describe)
}
