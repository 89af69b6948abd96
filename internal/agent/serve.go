package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/agent/health"
	"github.com/hawser-net/hawser/internal/agent/restapi"
	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/endpoint"
)

// serve begins to serve flows, probes, the REST API, metrics and health checks. The socket of the
// API is the caller's to remove.
func (p *parts) serve(run *group) error {
	cfg, log := p.cfg, p.log
	if err := p.hubble.Start(run.start); err != nil {
		return err
	}
	if p.health != nil {
		run.start("cluster-health", p.health.Probe)
		run.start("health-answers", p.health.Answer)
		run.start("health-api", p.serveHealthAPI)
	}
	handler := server.NewHandler(p.rest, log.With("part", "api"), p.startup.Guard, restapi.GuardPods(cfg.DatapathMode), restapi.GuardAccess(cfg.APIAccess), p.tables.metrics.observe)
	listener, err := restapi.Listen(cfg.SocketPath, "--socket-path", log, func(err error) {
		p.tables.components.Report(partSocket, err, "clients find the agent at "+cfg.SocketPath)
	})
	if err != nil {
		return err
	}
	run.start("api", func(ctx context.Context) error {
		defer close(p.stopping)
		return daemon.Serve(ctx, listener, handler)
	})
	run.start("delete-queue", p.replayDeletions)
	if cfg.PrometheusAddr != "" {
		run.start("metrics", func(ctx context.Context) error {
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.PrometheusAddr)
			if err != nil {
				return err
			}
			return serveMetrics(ctx, l, p.tables.metrics.registry, metricsTimeout)
		})
	}
	if cfg.HealthPort != 0 {
		run.start("health", func(ctx context.Context) error { return serveLocal(ctx, cfg.HealthPort, p.healthHandler()) })
	}
	if cfg.ProxyHealthzAddr != "" && cfg.KubeProxyReplacement {
		h := health.ProxyHandler(func() bool { return p.isReady(p.rest.Status().Cilium.State) })
		run.start("kube-proxy-healthz", func(ctx context.Context) error { return health.ServeProxy(ctx, cfg.ProxyHealthzAddr, h, log) })
	}
	return nil
}

// install writes the CNI configuration once endpoint requests are let in. It returns false if the
// agent has ended before.
func (p *parts) install(run *group) bool {
	if p.startup.Wait(run.ctx) != nil {
		return false
	}
	if err := p.cni.Install(); err != nil {
		p.log.Error("cannot write the CNI configuration", "error", err)
	}
	run.start("cni", p.cni.Run)
	return true
}

// partSocket is the component of an agent that clients do not find, or did not find for a while.
const partSocket = "api-socket"

// healthSocket is in the directory of the agent's socket.
func healthSocket(socket string) string { return filepath.Join(filepath.Dir(socket), "health.sock") }

// serveHealthAPI serves the reachability of nodes at a second socket.
func (p *parts) serveHealthAPI(ctx context.Context) error {
	log := p.log.With("part", "health")
	path := healthSocket(p.cfg.SocketPath)
	l, err := restapi.Listen(path, "--socket-path", log, nil)
	if err != nil {
		log.Warn("clients of health.sock are not answered", "error", err)
		return nil
	}
	defer os.Remove(path)
	return daemon.Serve(ctx, l, p.rest.HealthHandler(time.Now()))
}

// healthHandler answers the node's own health checks with the agent's state and what it is about.
//
//   - GET /healthz and /livez: 200 as long as the process works. The state is read behind the locks
//     of every part, so a part that holds its lock for ever keeps it from answering. What fails in
//     the kernel, or is away, a new process would find as it is, and pods could not start
//     meanwhile.
//   - GET /readyz: 503 until everything was observed once, and the kernel enforces it, so that a
//     rollout does not go on to the next node before; then while a part has failed, as when pods
//     cannot be attached or policy is not in force. A store or an API server that goes away later
//     changes nothing.
//
// That something was not observed yet is no failure in the status: an agent that was never ready
// would have the plugin's STATUS fail, and the kubelet call the whole node NotReady.
func (p *parts) healthHandler() http.Handler {
	mux := http.NewServeMux()
	answer := func(ready func(rest.State) bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			st := p.rest.Status()
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			if !ready(st.Cilium.State) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprintln(w, st.Cilium.State, st.Cilium.Msg)
			if missing := p.unobserved(); missing != "" {
				fmt.Fprintln(w, partSync+":", missing)
			}
		}
	}
	live := answer(func(rest.State) bool { return true })
	mux.HandleFunc("GET /healthz", live)
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /readyz", answer(p.isReady))
	return mux
}

// isReady reports whether an agent of a state is ready, as /readyz answers.
func (p *parts) isReady(s rest.State) bool { return s != rest.StateFailure && p.inForce.isOpen() }

// partSync is the component that says whether everything was observed that policy depends on.
const partSync = "sync"

// unobserved says what of that is missing; nothing when policy is in force.
func (p *parts) unobserved() string {
	list := p.everything.missing()
	switch {
	case p.inForce.isOpen():
		return ""
	case len(list) == 0:
		return "everything was observed, and is being put into the kernel"
	}
	return "not observed yet: " + strings.Join(list, ", ") + "; what was in force before stays"
}

// syncPart is the component while something is missing.
func (p *parts) syncPart() (rest.PartStatus, bool) {
	missing := p.unobserved()
	return rest.PartStatus{Name: partSync, State: rest.StateWarning, Msg: missing}, missing != ""
}

// replayDeletions does what plugins asked for while no agent answered, then lets endpoint requests
// in. It waits for plugins that hold the queue.
func (p *parts) replayDeletions(ctx context.Context) error {
	n, err := deletequeue.Replay(ctx, deletequeue.Dir(p.cfg.SocketPath), func(_ context.Context, e deletequeue.Entry) error {
		if e.ContainerID != "" {
			p.lifecycle.DeleteContainer(e.ContainerID)
			return nil
		}
		ref, err := endpoint.ParseRef(e.EndpointID)
		if err != nil {
			return nil // it can never be deleted: the file must not come back for ever
		}
		row, err := p.tables.registry.Find(ref)
		if err != nil {
			return nil // gone already
		}
		_, err = p.lifecycle.Delete(row.ID)
		if errors.Is(err, endpoint.ErrNotFound) {
			return nil
		}
		return err
	}, p.startup.Open)
	if err != nil && ctx.Err() == nil {
		p.log.Error("some queued deletions could not be done", "error", err)
		p.startup.Open() // the queue is kept; refusing to serve would not make it shorter
	}
	if n > 0 {
		p.log.Info("executed the deletions that were queued while no agent ran", "deletions", n)
	}
	return nil
}

// dropDeletions drops queued deletions.
func (p *parts) dropDeletions(entries ...deletequeue.Entry) error {
	return deletequeue.Drop(deletequeue.Dir(p.cfg.SocketPath), entries...)
}
