package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s/services"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
)

// mesh is what the agent has to do with other clusters; nil if there are none.
type mesh struct {
	*clustermesh.Mesh
	cfg    Config
	tables *tables
	// globals, outside of Kubernetes nil, counts services that other clusters share.
	globals func() int
	// synced opens when all other clusters were observed, or the time for that is over.
	synced *latch
	log    *slog.Logger
}

// newMesh makes the part that follows other clusters, if there is a directory of them. Otherwise
// synced is open.
func newMesh(cfg Config, t *tables, s *services.Services, synced *latch, log *slog.Logger) (*mesh, error) {
	if cfg.ClusterMesh.Dir == "" {
		synced.open()
		return nil, nil
	}
	m := &mesh{cfg: cfg, tables: t, synced: synced, log: log}
	sinks := clustermesh.Sinks{Identities: meshIdentities{t}, Nodes: t.nodes, Addresses: t.cache}
	if s != nil {
		sinks.Services = s.Engine()
		m.globals = s.Engine().Globals
	}
	var err error
	m.Mesh, err = clustermesh.New(clustermesh.Params{
		Config: cfg.ClusterMesh, Name: cfg.ClusterName, ID: cfg.ClusterID, MaxClusters: cfg.MaxConnectedClusters, Sinks: sinks, Open: openRemote, Log: log,
	})
	return m, err
}

// openRemote connects to another cluster's etcd by a file of its client's format. The connection
// never writes, so it takes no lease.
func openRemote(ctx context.Context, file string, log *slog.Logger) (kvstore.Backend, error) {
	c := etcd.Defaults()
	c.File, c.HeartbeatKey = file, storekeys.HeartbeatKey
	c.MaxKeys, c.MaxBytes, c.MaxMessage = clustermesh.MaxKeys, clustermesh.MaxBytes, clustermesh.MaxMessage
	return etcd.New(ctx, c, log)
}

// meshIdentities hands identities of other clusters to policy and to the lists.
type meshIdentities struct{ *tables }

// SetIdentities implements [clustermesh.Identities].
func (s meshIdentities) SetIdentities(upserts map[identity.ID]labels.Set, deletes []identity.ID) error {
	return s.identities.Apply(s.policy, upserts, deletes)
}

// start begins to follow. It must be called before gate is waited for.
func (m *mesh) start(run *group, gate *syncGate) {
	if m == nil {
		return
	}
	m.setMine()
	synced := gate.expect("other clusters")
	run.start("clustermesh", m.Run)
	run.start("clustermesh-synced", func(ctx context.Context) error {
		wait, cancel := context.WithTimeout(ctx, m.cfg.ClusterMesh.SyncTimeout)
		defer cancel()
		if err := m.WaitSynced(wait); err != nil && ctx.Err() == nil {
			m.log.Warn("not all other clusters were observed; what only they could use is removed", "error", err)
		}
		m.synced.open()
		synced()
		return nil
	})
}

// register adds the metrics of other clusters.
func (m *mesh) register(reg *prometheus.Registry) {
	if m != nil {
		reg.MustRegister(m.Collector(m.cfg.NodeName, m.globals))
	}
}

// setMine records which addresses are this cluster's own, as the table of nodes has them.
func (m *mesh) setMine() {
	if m == nil {
		return
	}
	mine := m.tables.pool.CIDRs(ipam.Both)
	for key, n := range m.tables.nodes.Table().All() {
		if key.Cluster != m.cfg.ClusterName {
			continue
		}
		mine = append(mine, n.PodCIDRs()...)
		for _, ip := range append(n.NodeIPs(), n.RouterIPs()...) {
			mine = append(mine, ipcache.Single(ip))
		}
	}
	m.SetMine(mine)
}

// Status is the state of other clusters in the API.
func (m *mesh) Status() rest.ClusterMeshStatus {
	if m == nil {
		return rest.ClusterMeshStatus{}
	}
	var out rest.ClusterMeshStatus
	list, fault := m.Mesh.Status()
	out.Fault = fault
	if m.globals != nil {
		out.NumGlobalServices = m.globals()
	}
	for _, s := range list {
		out.Clusters = append(out.Clusters, rest.RemoteCluster{
			Name: s.Name, Connected: s.Connected, Ready: s.Ready, Status: s.Message, Since: s.Since, LastError: s.LastError,
			NumNodes: s.Nodes, NumIdentities: s.Identities, NumEndpoints: s.Addresses, NumSharedServices: s.Services, NumRefused: s.Refused,
			NumFailures: s.Failures, LastFailure: s.LastErrorAt, Config: rest.RemoteClusterConfig{Required: true, Retrieved: s.ID != 0, ClusterID: int(s.ID)},
		})
	}
	return out
}

// Component is the line of the agent's health for other clusters. One that is away is no failure of
// this node.
func (m *mesh) Component() (rest.PartStatus, bool) {
	if m == nil {
		return rest.PartStatus{}, false
	}
	list, fault := m.Mesh.Status()
	p := rest.PartStatus{Name: "clustermesh", State: rest.StateOk}
	well := 0
	for _, s := range list {
		if s.Connected && s.Ready {
			well++
		}
	}
	p.Msg = fmt.Sprintf("%d of %d other clusters are followed", well, len(list))
	if well < len(list) || fault != "" {
		p.State = rest.StateWarning
		p.Msg += " (see hawser clustermesh status)"
	}
	return p, true
}
