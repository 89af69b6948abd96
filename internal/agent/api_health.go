package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/clusterhealth"
)

// GetClusterHealth is GET /cluster/health.
func (a *api) GetClusterHealth(context.Context, server.GetClusterHealthRequestObject) (server.GetClusterHealthResponseObject, error) {
	if a.nodeHealth == nil {
		return nil, server.Errorf(http.StatusNotImplemented, "nodes do not probe each other: --enable-health-checking is false")
	}
	return server.GetClusterHealth200JSONResponse(a.nodeHealth.model()), nil
}

// model is what is known of each node.
func (h *nodeHealth) model() rest.HealthStatus {
	all, round := h.prober.Statuses()
	out := rest.HealthStatus{Timestamp: time.Now().UTC(), ProbeInterval: round.String(), Local: rest.HealthSelf{Name: h.a.localName()}}
	for _, s := range all {
		n := rest.HealthNode{Name: s.Name, Host: healthAddresses(s.Node), HealthEndpoint: healthAddresses(s.Endpoint)}
		n.Endpoint = n.HealthEndpoint.PrimaryAddress
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

func healthAddresses(paths []clusterhealth.Path) rest.HealthAddresses {
	var out rest.HealthAddresses
	for i, p := range paths {
		m := rest.HealthPath{IP: p.Addr.String(), ICMP: connectivity(p.ICMP), HTTP: connectivity(p.HTTP)}
		if p.HTTP.Unasked && p.HTTP.Err != "" {
			m.HTTP.Status = "answers no health checks: " + p.HTTP.Err
		}
		if i == 0 {
			out.PrimaryAddress = m
		} else {
			out.SecondaryAddresses = append(out.SecondaryAddresses, m)
		}
	}
	return out
}

func connectivity(c clusterhealth.Connectivity) rest.HealthConnectivity {
	return rest.HealthConnectivity{Latency: int64(c.Latency), Status: c.Err, LastProbed: c.Probed, Since: c.Since}
}

// healthElement is the health endpoint's address of a family as GET /cluster/nodes shows it.
func healthElement(ips []netip.Addr, v4 bool) (out rest.NodeAddressingElement) {
	if i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is4() == v4 }); i >= 0 {
		out.Enabled, out.IP = true, ips[i].String()
	}
	return out
}

// maxNamed is how many nodes a line of the status names.
const maxNamed = 5

// summary is the line of the agent's status. A node that is unreachable is no fault of this one's
// parts, and so only a warning there.
func (h *nodeHealth) summary() rest.Status {
	if h == nil {
		return rest.Status{State: rest.StateDisabled, Msg: "--enable-health-checking is false"}
	}
	all, round := h.prober.Statuses()
	var failing []string
	reachable, unknown, silent := 0, 0, 0
	for _, s := range all {
		of, since := clusterhealth.Judge(slices.Concat(s.Node, s.Endpoint))
		switch of {
		case clusterhealth.Reachable:
			reachable++
		case clusterhealth.Unknown:
			unknown++
		case clusterhealth.Silent:
			silent++
		case clusterhealth.Unreachable:
			failing = append(failing, fmt.Sprintf("%s since %s", s.Name, since.UTC().Format(time.RFC3339)))
		}
	}
	st := rest.Status{State: rest.StateOk, Msg: fmt.Sprintf("%d of %d nodes reachable", reachable, len(all))}
	if unknown > 0 {
		st.Msg += fmt.Sprintf(", %d not probed yet (a round takes %s)", unknown, round)
	}
	if silent > 0 {
		st.Msg += fmt.Sprintf(", %d answer no health checks (of another version, or without --enable-health-checking)", silent)
	}
	if n := len(failing); n > 0 {
		st.State = rest.StateWarning
		st.Msg += "; not, or not in all ways: " + strings.Join(failing[:min(n, maxNamed)], ", ")
		if n > maxNamed {
			st.Msg += fmt.Sprintf(" and %d more", n-maxNamed)
		}
	}
	return st
}

// serveHealthAPI answers, at a socket beside the agent's own, clients that ask there which nodes
// are reachable.
func (a *api) serveHealthAPI(ctx context.Context, log *slog.Logger) error {
	path := filepath.Join(filepath.Dir(a.cfg.SocketPath), "health.sock")
	l, err := listenAPI(path, "--socket-path", log)
	if err != nil {
		log.Warn("clients of health.sock are not answered", "error", err)
		return nil
	}
	defer os.Remove(path)
	return serve(ctx, l, a.healthAPI(time.Now()))
}

// healthAPI is the API of health.sock.
func (a *api) healthAPI(began time.Time) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // it fails if nobody listens any more
	}
	// What the agent's own socket does not say, this one does not either.
	handle := func(pattern, operation string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !mayCall(a.cfg.APIAccess, operation) {
				answer(w, http.StatusForbidden, switchedOff(operation))
				return
			}
			h(w, r)
		})
	}
	handle("GET /v1beta/status", "GetClusterHealth", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.nodeHealth.model()) })
	handle("PUT /v1beta/status/probe", "GetClusterHealth", func(w http.ResponseWriter, _ *http.Request) {
		_, round := a.nodeHealth.prober.Statuses()
		answer(w, http.StatusForbidden, fmt.Sprintf("nodes are probed one after the other, once in %s, and not on demand: ask for the status", round))
	})
	handle("GET /v1beta/healthz", "GetHealthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"cilium": a.fullHealth(), "uptime": time.Since(began).Round(time.Second).String()})
	})
	return mux
}
