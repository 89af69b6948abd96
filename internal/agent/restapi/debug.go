package restapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
)

// ListMetrics is GET /metrics: what is served to Prometheus, too, if it is. A histogram or summary
// is its sum and its count.
func (a *API) ListMetrics(context.Context, server.ListMetricsRequestObject) (server.ListMetricsResponseObject, error) {
	families, err := a.Metrics.Gather()
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	out := server.ListMetrics200JSONResponse{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			add := func(suffix string, value float64) {
				metric := rest.Metric{Name: f.GetName() + suffix, Value: value}
				for _, l := range m.GetLabel() {
					if metric.Labels == nil {
						metric.Labels = map[string]string{}
					}
					metric.Labels[l.GetName()] = l.GetValue()
				}
				out = append(out, metric)
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				add("", m.GetCounter().GetValue())
			case dto.MetricType_GAUGE:
				add("", m.GetGauge().GetValue())
			case dto.MetricType_HISTOGRAM:
				add("_sum", m.GetHistogram().GetSampleSum())
				add("_count", float64(m.GetHistogram().GetSampleCount()))
			case dto.MetricType_SUMMARY:
				add("_sum", m.GetSummary().GetSampleSum())
				add("_count", float64(m.GetSummary().GetSampleCount()))
			default:
				add("", m.GetUntyped().GetValue())
			}
		}
	}
	return out, nil
}

// GetDebugInfo is GET /debuginfo: what is shown elsewhere, in one answer for a report of a fault.
// Options that may hold secrets are not in it.
func (a *API) GetDebugInfo(ctx context.Context, _ server.GetDebugInfoRequestObject) (server.GetDebugInfoResponseObject, error) {
	st := a.FullStatus()
	info := rest.DebugInfo{CiliumVersion: a.Version, CiliumStatus: st, Encryption: st.Encryption, Subsystem: map[string]string{}}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err == nil {
		info.KernelVersion = unix.ByteSliceToString(kernel.Release[:])
	}
	for _, row := range a.Registry.List() {
		info.EndpointList = append(info.EndpointList, a.endpointModel(row))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Flags)) {
		info.EnvironmentVariables = append(info.EnvironmentVariables, name+":"+a.Flags[name])
	}
	if p, err := a.GetPolicy(ctx, server.GetPolicyRequestObject{}); err == nil {
		if p, ok := p.(server.GetPolicy200JSONResponse); ok {
			info.Policy = rest.Policy(p)
		}
	}
	if s, err := a.ListServices(ctx, server.ListServicesRequestObject{}); err == nil {
		if s, ok := s.(server.ListServices200JSONResponse); ok {
			info.ServiceList = s
		}
	}
	addresses, err := a.ipList("")
	if err != nil {
		return nil, err
	}
	identities := []rest.Identity{}
	for _, k := range a.Identities.List() {
		identities = append(identities, identityModel(k.ID, k.Labels))
	}
	for name, table := range map[string]any{"identities": identities, "addresses": addresses, "policy-files": a.PolicyFileStates()} {
		text, err := json.Marshal(table)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		info.Subsystem[name] = string(text)
	}
	return server.GetDebugInfo200JSONResponse(info), nil
}
