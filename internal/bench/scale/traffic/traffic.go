// Package traffic is what an API server has done, by its own count.
package traffic

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hawser-net/hawser/internal/bench/scale/report"
)

// Traffic is what the API server has done since it started, by its own count.
type Traffic struct {
	// Calls are the requests that it has answered, by verb and resource such as "CREATE
	// ciliumidentities". Watches count when they end.
	Calls map[string]float64
	// Failed are those of them that it refused: 409 for one that exists, 404, 422.
	Failed map[string]float64
	// Events and Bytes are what it has sent over watches, by resource; each watcher counts. Ended
	// are the watches that it has ended because their events were not taken as fast as they came.
	Events, Bytes, Ended map[string]float64
}

func empty() Traffic {
	return Traffic{Calls: map[string]float64{}, Failed: map[string]float64{}, Events: map[string]float64{}, Bytes: map[string]float64{},
		Ended: map[string]float64{}}
}

// Parse reads what the API server says at /metrics.
func Parse(raw []byte) (Traffic, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return Traffic{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	t := empty()
	each := func(family string, f func(labels map[string]string, value float64)) {
		for _, m := range families[family].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				f(labels, h.GetSampleSum())
			} else {
				f(labels, m.GetCounter().GetValue())
			}
		}
	}
	each("apiserver_request_total", func(l map[string]string, v float64) {
		if l["resource"] == "" {
			return
		}
		what := l["verb"] + " " + l["resource"]
		if l["verb"] == "POST" {
			what = "CREATE " + l["resource"]
		}
		t.Calls[what] += v
		if strings.HasPrefix(l["code"], "4") || strings.HasPrefix(l["code"], "5") {
			t.Failed[what] += v
		}
	})
	resource := func(l map[string]string) string {
		if r := l["resource"]; r != "" {
			return r
		}
		return l["kind"]
	}
	each("apiserver_watch_events_total", func(l map[string]string, v float64) { t.Events[resource(l)] += v })
	each("apiserver_watch_events_sizes", func(l map[string]string, v float64) { t.Bytes[resource(l)] += v })
	each("apiserver_terminated_watchers_total", func(l map[string]string, v float64) { t.Ended[resource(l)] += v })
	return t, nil
}

// Since returns what was done between two looks.
func (t Traffic) Since(before Traffic) Traffic {
	diff := func(now, was map[string]float64) map[string]float64 {
		out := map[string]float64{}
		for k, v := range now {
			if d := v - was[k]; d > 0 {
				out[k] = d
			}
		}
		return out
	}
	return Traffic{diff(t.Calls, before.Calls), diff(t.Failed, before.Failed), diff(t.Events, before.Events), diff(t.Bytes, before.Bytes),
		diff(t.Ended, before.Ended)}
}

// Writes counts the requests that change objects, of resources that are named, or of all.
func (t Traffic) Writes(resources ...string) float64 {
	sum := 0.0
	for what, n := range t.Calls {
		verb, resource, _ := strings.Cut(what, " ")
		if slices.Contains([]string{"CREATE", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}, verb) &&
			(len(resources) == 0 || slices.Contains(resources, resource)) {
			sum += n
		}
	}
	return sum
}

// CustomResources are the kinds of calls that the report shows: those for the custom resources.
func (t Traffic) CustomResources() []report.Call {
	var out []report.Call
	for _, what := range slices.Sorted(maps.Keys(t.Calls)) {
		verb, resource, _ := strings.Cut(what, " ")
		if strings.HasPrefix(resource, "cilium") && verb != "WATCH" {
			out = append(out, report.Call{Verb: verb, Resource: resource, Count: t.Calls[what], Refused: t.Failed[what]})
		}
	}
	return out
}

// Sum counts all requests for a resource but watches.
func (t Traffic) Sum(resource string) float64 {
	n := 0.0
	for what, v := range t.Calls {
		if verb, of, _ := strings.Cut(what, " "); of == resource && verb != "WATCH" && verb != "LIST" {
			n += v
		}
	}
	return n
}
