package agent

import (
	"encoding/json"
	"net/http"
	"time"
)

// proxyHealthz answers as kube-proxy does whether services are led to their backends on this node: with status 200, or 503 as long as not all of them have been
// heard, or while they are not in force.
func proxyHealthz(well func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		ok, now := well(), time.Now().UTC()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"lastUpdated": now, "currentTime": now, "nodeEligible": ok}) // it fails if nobody listens any more
	})
	return mux
}
