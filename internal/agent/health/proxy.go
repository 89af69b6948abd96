package health

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/pkg/retry"
)

// maxBalancers is how many connections there may be at a time at each port for load balancers: any
// host can open them.
const maxBalancers = 64

// ListenForBalancers opens a port at which balancers outside ask, at all addresses; 0 for any port.
func ListenForBalancers(port uint16) (net.Listener, error) {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	return clusterhealth.Limit(l, maxBalancers), nil
}

// ServeProxy answers in kube-proxy's place at an address until ctx ends. While another process has
// the address it retries.
func ServeProxy(ctx context.Context, addr string, h http.Handler, log *slog.Logger) error {
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err == nil {
			r := clusterhealth.NewResponderWith(h)
			err = r.Serve(ctx, clusterhealth.Limit(l, maxBalancers))
			r.Close()
		}
		if ctx.Err() != nil {
			return nil
		}
		log.Warn("balancers that ask kube-proxy's address for health are not answered; does kube-proxy still run on this node?", "error", err)
		if !retry.Sleep(ctx, maxRetry) {
			return nil
		}
	}
}

// ProxyHandler answers as kube-proxy does whether services are led to their backends on this node:
// with status 200, or 503 as long as not all of them have been observed, or while they are not in
// force.
func ProxyHandler(well func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		ok, now := well(), time.Now().UTC()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"lastUpdated": now, "currentTime": now, "nodeEligible": ok}) // it fails if the client has gone
	})
	return mux
}
