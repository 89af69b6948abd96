package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/daemon"
)

// newREST returns the API, with what its operations show and change of the agent.
func (a *api) newREST() *restapi.API {
	c := restapi.Config{
		Log: a.log, Version: a.version, Flags: a.flagValues,
		Options: restapi.Options{
			ClusterName: a.cfg.ClusterName, NodeName: a.cfg.NodeName, IPAM: a.cfg.IPAM, DatapathMode: a.cfg.DatapathMode,
			RoutingMode: a.cfg.RoutingMode, TunnelProtocol: a.cfg.TunnelProtocol, EnableIPv4: a.cfg.EnableIPv4, EnableIPv6: a.cfg.EnableIPv6,
			MasqueradeIPv4: a.cfg.MasqueradeIPv4, MasqueradeIPv6: a.cfg.MasqueradeIPv6, KubeProxyReplacement: a.cfg.KubeProxyReplacement,
			KVStore: a.cfg.KVStore, KVStoreOpts: a.cfg.KVStoreOpts, StaticCNPPath: a.cfg.StaticCNPPath, SocketPath: a.cfg.SocketPath,
			MapDirectory: a.cfg.Maps.Dir, APIAccess: a.cfg.APIAccess, Management: a.cfg.management(),
		},
		Registry: a.registry, Lifecycle: a.lifecycle, Policy: a.policy, Identities: a.identities, FirstID: a.idMin, LastID: a.idMax,
		Pool: a.pool, Book: a.book, Maps: a.maps, Programs: a.programs, Addresses: a.cache, Nodes: a.nodes, Store: a.store, Mesh: a.mesh,
		Files: a.files, CNI: a.cni, Events: a.monitor, Hubble: a.hubble, Components: a.components, Health: a.health, Metrics: a.metrics.registry,
		Routers: func() (v4, v6 netip.Addr) { return a.router4, a.router6 },
		Devices: a.deviceFacts, Outside: a.outside, PodSettings: a.podSettings, PoolsFor: a.poolsFor,
		AwaitPrograms: a.awaitPrograms, AwaitRules: a.awaitRules, Stopping: a.stopping,
	}
	if a.kube != nil {
		c.Kubernetes = a.kube
	}
	return restapi.New(c)
}

// serveHealthAPI answers, at a socket beside the agent's own, clients that ask there which nodes
// are reachable.
func (a *api) serveHealthAPI(ctx context.Context, log *slog.Logger) error {
	path := filepath.Join(filepath.Dir(a.cfg.SocketPath), "health.sock")
	l, err := restapi.Listen(path, "--socket-path", log)
	if err != nil {
		log.Warn("clients of health.sock are not answered", "error", err)
		return nil
	}
	defer os.Remove(path)
	return daemon.Serve(ctx, l, a.rest.HealthHandler(time.Now()))
}
