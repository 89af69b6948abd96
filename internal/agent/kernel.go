package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/service"
)

// kernel is what this node's kernel holds, and the only ones that write it.
type kernel struct {
	maps     *maps.Maps
	links    *link.Links
	programs *loader.Loader
	// interfaces are those of a cloud, where pods have addresses of them.
	interfaces *link.Interfaces
}

// openKernel opens the maps and programs that a former agent left in the kernel, or creates them.
// It must be closed.
func openKernel(ctx context.Context, cfg Config, log *slog.Logger) (_ *kernel, err error) {
	k := &kernel{}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	if k.maps, err = maps.Open(cfg.Maps); err != nil {
		return nil, err
	}
	if !cfg.balances() {
		if err := forgetServices(ctx, k.maps); err != nil {
			return nil, err
		}
	}
	if k.links, err = link.New(linkConfig(), log.With("part", "link")); err != nil {
		return nil, err
	}
	k.programs = loader.New(k.maps, k.links, log.With("part", "loader"))
	k.interfaces = link.NewInterfaces(k.links, k.programs, log.With("part", "link"))
	return k, nil
}

// linkConfig is how the interfaces of this node's pods are known.
func linkConfig() link.Config {
	return link.Config{PodPrograms: []string{loader.FromPod, loader.ToPod}}
}

// close releases the kernel, which goes on.
func (k *kernel) close() {
	if k.programs != nil {
		k.programs.Close()
	}
	if k.links != nil {
		k.links.Close()
	}
	if k.maps != nil {
		k.maps.Close()
	}
}

// mapsDir is where the maps of an agent with this configuration are pinned.
func (c *Config) mapsDir() string { return filepath.Join(c.BPFRoot, "hawser") }

// forgetServices removes services that are in the kernel since the node was part of a cluster: they
// would never be updated.
func forgetServices(ctx context.Context, kernel datapath.Services) error {
	have, err := kernel.Services()
	if err != nil || len(have) == 0 {
		return err
	}
	none := service.New(service.Local{}).Table()
	if err := service.NewMaps(kernel, func() {}).Prune(ctx, none.All()); err != nil {
		return fmt.Errorf("remove the services of a former cluster: %w", err)
	}
	if err := service.NewFlows(kernel, none).ForgetStale(ctx); err != nil {
		return fmt.Errorf("end flows to the services of a former cluster: %w", err)
	}
	return nil
}

// hadHostPorts reports whether the kernel's table has a host port for clients outside. It counts
// until it is known what pods there are.
func hadHostPorts(kernel datapath.Services, log *slog.Logger) bool {
	rows, err := kernel.Services()
	if err != nil {
		log.Warn("cannot read the kernel's table of services; clients outside find host ports when all pods have been observed", "error", err)
	}
	return slices.ContainsFunc(rows, func(s datapath.Service) bool { return s.Scope == datapath.ServiceExternal })
}

// nodeSockets are the sockets of the node's own processes to which the hooks of the cgroup have
// given backends.
type nodeSockets struct{ *kernel }

var _ service.Sockets = nodeSockets{}

// EndSockets implements [service.Sockets].
func (s nodeSockets) EndSockets(end func(frontend, backend netip.AddrPort) bool) (int, error) {
	var errs []error
	n, err := s.links.EndUDP(func(cookie uint64, peer netip.AddrPort) bool {
		frontend, ok, err := s.maps.SocketFrontend(cookie, unix.IPPROTO_UDP, peer)
		errs = append(errs, err)
		return ok && end(frontend, peer)
	})
	return n, errors.Join(append(errs, err)...)
}
