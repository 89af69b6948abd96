package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// probeTimeout bounds how long GET /readyz waits for the API server: a kubelet asks with a timeout
// of three seconds.
const probeTimeout = 2 * time.Second

// apiHandler answers, whether or not this operator leads:
//
//   - GET /healthz and /livez: 200 and "ok" as long as the process works. They ask neither the
//     store nor the API server: a new process would not reach them either, and would have lost
//     what this one knows.
//   - GET /readyz and /v1/healthz: 200 and "ok", or 500 and what it depends on and cannot reach.
//   - GET /v1/metrics: the metrics as JSON; GET /v1/status: an [api.Status].
//
// store and c are nil if they are not in use.
func (o *Operator) apiHandler(store kvstore.Backend, c *kubeSide) http.Handler {
	mux := http.NewServeMux()
	live := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprint(w, "ok")
	}
	ready := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if faults := o.faults(r.Context(), store, c); len(faults) > 0 {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintln(w, strings.Join(faults, "\n"))
			return
		}
		fmt.Fprint(w, "ok")
	}
	mux.HandleFunc("GET /healthz", live)
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /v1/healthz", ready)
	mux.HandleFunc("GET /v1/metrics", o.listMetrics)
	mux.HandleFunc("GET /v1/status", o.serveStatus(store, c))
	return mux
}

// faults returns why this operator cannot do its duties, if it cannot.
func (o *Operator) faults(ctx context.Context, store kvstore.Backend, c *kubeSide) []string {
	var out []string
	if store != nil {
		if st := store.Status(); !st.Healthy() {
			out = append(out, "kvstore: "+st.Message)
		} else if err := o.foreign(ctx, store); err != nil {
			out = append(out, "kvstore: "+err.Error())
		}
	}
	if c != nil {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if _, err := c.prober.Version(ctx); err != nil {
			out = append(out, "kubernetes: "+err.Error())
		}
	}
	return out
}

// ownerTimeout bounds how long GET /readyz waits for the store, beside the API server.
const ownerTimeout = probeTimeout / 4

// foreign returns an error if the store is another cluster's. A store that does not answer in time
// is none: its own state shows that.
func (o *Operator) foreign(ctx context.Context, store kvstore.Backend) error {
	ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
	defer cancel()
	if err := o.owns(ctx, store); ctx.Err() == nil {
		return err
	}
	return nil
}

// pprofHandler serves profiles of the process.
func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// metric is one metric as JSON.
type metric struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
}

func (o *Operator) listMetrics(w http.ResponseWriter, _ *http.Request) {
	families, err := o.metrics.gatherer().Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	out := []metric{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			e := metric{Name: f.GetName()}
			for _, l := range m.GetLabel() {
				if e.Labels == nil {
					e.Labels = map[string]string{}
				}
				e.Labels[l.GetName()] = l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				e.Value = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				e.Value = m.GetGauge().GetValue()
			default:
				continue // a distribution is no single number
			}
			out = append(out, e)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client has gone
}

// listen opens addr. For "localhost" it listens on both loopback addresses, on one if the machine
// has not both.
func listen(ctx context.Context, addr string) ([]net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	var out []net.Listener
	var errs []error
	for _, h := range hosts {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(h, port))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if port == "0" { // the second address gets the port that the first was given
			_, port, _ = net.SplitHostPort(l.Addr().String())
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}
