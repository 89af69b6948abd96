package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/agent/statedir"
	"github.com/hawser-net/hawser/internal/endpoint"
)

// Agent is one node's agent. Make it with New, run it once with Run.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	version string
	flags   map[string]string
	// step is called before each step of a creation or deletion of an endpoint; nil but in tests.
	step func(string)
}

// New returns an agent for a valid configuration. It touches nothing.
func New(cfg Config, log *slog.Logger, version string, flags map[string]string) (*Agent, error) {
	cfg.forMode()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Maps.Dir = cfg.mapsDir()
	return &Agent{cfg: cfg, log: log, version: version, flags: flags, step: endpoint.FaultStep()}, nil
}

// Run sets the node up and keeps it so until ctx ends. It returns nil after a clean stop, which
// leaves everything in the kernel as it is, or the error that makes it impossible to go on.
func (ag *Agent) Run(ctx context.Context) error {
	err := ag.run(ctx)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; the agent needs all rights of root: run it as root, and in a container with privileged: true", err)
	}
	return err
}

func (ag *Agent) run(ctx context.Context) error {
	started := time.Now()
	cfg, log := ag.cfg, ag.log
	host, err := network.FindHost(cfg.NetworkOptions)
	if err != nil {
		return err
	}
	filter, err := newFilter(cfg)
	if err != nil {
		return err
	}
	if cfg.state, err = statedir.Lock(ctx, cfg.StateDir); err != nil {
		return err
	}
	defer cfg.state.Close()
	if err := cfg.state.RemoveUnfinished(); err != nil {
		log.Warn("files of an agent that was killed stay in the state directory", "error", err)
	}
	cluster, err := connect(ctx, &cfg, host, log.With("part", "kubernetes"))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	kernel, err := openKernel(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer kernel.close()
	tables, err := newTables(ctx, cfg, host, kernel, cluster, log)
	if err != nil {
		return err
	}
	defer tables.close()
	run := newGroup(ctx, log)
	defer run.abort()
	p, err := ag.newParts(cfg, host, filter, kernel, tables, cluster)
	if err != nil {
		return err
	}

	// ==== from here on the machine is changed ====================================================

	restored, release, err := p.bringUp(ctx, run)
	if errors.Is(err, errEnded) {
		return run.wait()
	}
	if err != nil {
		return err
	}
	log.Info("the node's network is up", "restored", restored, "took", time.Since(started).Round(time.Millisecond))
	if err := p.follow(run, release); err != nil {
		return err
	}
	if err := p.serve(run); err != nil {
		return err
	}
	defer os.Remove(cfg.SocketPath)
	if p.install(run) {
		log.Info("ready", "took", time.Since(started).Round(time.Millisecond))
	}
	return run.wait()
}
