package agent

import (
	"log/slog"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/services"
	"github.com/hawser-net/hawser/internal/service"
)

// balances reports whether there is a source of services.
func (c *Config) balances() bool { return c.EnableK8s || c.ServicesFile != "" }

// newServices returns what follows services, of Kubernetes or of a file, and keeps the kernel's
// table of them; nil if there is no source of them. meshSynced opens when other clusters were
// observed.
func newServices(cfg Config, host network.Host, c *cluster, k *kernel, n *network.Network, meshSynced *latch, metrics *metricsSet, statuses *component.Statuses, log *slog.Logger) (*services.Services, error) {
	if !cfg.balances() {
		return nil, nil
	}
	within, err := cfg.nodePortRanges()
	if err != nil {
		return nil, err
	}
	sc := services.Config{
		NodeName: cfg.NodeName, NodeAddrs: host.Addresses(), Announced: host.Addresses(), Within: within, KubeProxy: !cfg.KubeProxyReplacement,
		WaitSynced: meshSynced.wait,
		Maglev:     cfg.LBAlgorithm == service.Maglev,
		Forwarding: service.Forwarding(cfg.LBMode), PerService: cfg.LBModeAnnotation, Kernel: k.maps, Log: log,
		CheckInterval: network.RepairInterval, Edited: metrics.countEdited(mapServices),
	}
	sc.Report = func(err error) {
		if err != nil {
			statuses.Set("services", rest.StateWarning, err.Error()) // pods go on, and policy
			return
		}
		statuses.Set("services", rest.StateOk, "the kernel has all frontends of services")
	}
	if cfg.KubeProxyReplacement {
		sc.HealthListen, sc.Sockets = health.ListenForBalancers, nodeSockets{k}
	}
	var client *k8s.Client
	if c != nil {
		client, sc.HostPorts = c.client, n.SetHostPorts
	} else {
		sc.File = &services.File{
			Path: cfg.ServicesFile, Interval: cfg.ServicesInterval,
			Report: func(err error) { statuses.Report("services-file", err, "services are those of "+cfg.ServicesFile) },
		}
	}
	return services.New(sc, client)
}

// serveAddresses has node ports and host ports served at the addresses that the node has now.
func (p *parts) serveAddresses() error {
	if p.services == nil {
		return nil
	}
	ips, err := p.network.NodeAddresses()
	if err == nil {
		p.services.SetNodeAddrs(ips)
	}
	return err
}
