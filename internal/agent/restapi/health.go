package restapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/clusterhealth"
)

// GetClusterHealth is GET /cluster/health.
func (a *API) GetClusterHealth(context.Context, server.GetClusterHealthRequestObject) (server.GetClusterHealthResponseObject, error) {
	if a.Health == nil {
		return nil, server.Errorf(http.StatusNotImplemented, "nodes do not probe each other: --enable-health-checking is false")
	}
	return server.GetClusterHealth200JSONResponse(a.Health.Model()), nil
}

// healthElement is the health endpoint's address of a family as GET /cluster/nodes shows it.
func healthElement(ips []netip.Addr, v4 bool) (out rest.NodeAddressingElement) {
	if i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is4() == v4 }); i >= 0 {
		out.Enabled, out.IP = true, ips[i].String()
	}
	return out
}

// healthSummary is the line of the status about other nodes.
func (a *API) healthSummary() rest.Status {
	if a.Health == nil {
		return rest.Status{State: rest.StateDisabled, Msg: "--enable-health-checking is false"}
	}
	return a.Health.Summary()
}

// HealthService is what clients of flows get of the nodes' health.
func (a *API) HealthService() *clusterhealth.Service {
	s := &clusterhealth.Service{Self: a.localName()}
	switch {
	case !mayCall(a.Options.APIAccess, "GetClusterHealth"): // a call that one socket refuses, all do
		s.Refused = switchedOff("GetClusterHealth")
	case a.Health != nil:
		s.Statuses = a.Health.Statuses
	}
	return s
}

// HealthHandler is the API of health.sock.
func (a *API) HealthHandler(began time.Time) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // it fails if the client has gone
	}
	// A call that the agent's own socket refuses, this one refuses, too.
	handle := func(pattern, operation string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !mayCall(a.Options.APIAccess, operation) {
				answer(w, http.StatusForbidden, switchedOff(operation))
				return
			}
			h(w, r)
		})
	}
	handle("GET /v1beta/status", "GetClusterHealth", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.Health.Model()) })
	handle("PUT /v1beta/status/probe", "GetClusterHealth", func(w http.ResponseWriter, _ *http.Request) {
		_, round := a.Health.Statuses()
		answer(w, http.StatusForbidden, fmt.Sprintf("nodes are probed one after the other, once in %s, and not on demand: ask for the status", round))
	})
	handle("GET /v1beta/healthz", "GetHealthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"cilium": a.FullStatus(), "uptime": time.Since(began).Round(time.Second).String()})
	})
	return mux
}
