package scale

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// traffic is what the API server has done since it started, by its own count.
type traffic struct {
	// calls are the requests that it has answered, by verb and resource such as "CREATE
	// ciliumidentities". Watches count when they end.
	calls map[string]float64
	// failed are those of them that it refused: 409 for one that exists, 404, 422.
	failed map[string]float64
	// events and bytes are what it has sent over watches, by resource; each watcher counts. ended
	// are the watches that it has ended because their events were not taken as fast as they came.
	events, bytes, ended map[string]float64
}

func newTraffic() traffic {
	return traffic{calls: map[string]float64{}, failed: map[string]float64{}, events: map[string]float64{}, bytes: map[string]float64{},
		ended: map[string]float64{}}
}

// traffic asks the API server for its metrics.
func (c *cluster) traffic(ctx context.Context) (traffic, error) {
	raw, err := c.client.Urgent.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return traffic{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	return parseTraffic(raw)
}

// parseTraffic reads what the API server says at /metrics.
func parseTraffic(raw []byte) (traffic, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
	if err != nil {
		return traffic{}, fmt.Errorf("metrics of the API server: %w", err)
	}
	t := newTraffic()
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
		t.calls[what] += v
		if strings.HasPrefix(l["code"], "4") || strings.HasPrefix(l["code"], "5") {
			t.failed[what] += v
		}
	})
	resource := func(l map[string]string) string {
		if r := l["resource"]; r != "" {
			return r
		}
		return l["kind"]
	}
	each("apiserver_watch_events_total", func(l map[string]string, v float64) { t.events[resource(l)] += v })
	each("apiserver_watch_events_sizes", func(l map[string]string, v float64) { t.bytes[resource(l)] += v })
	each("apiserver_terminated_watchers_total", func(l map[string]string, v float64) { t.ended[resource(l)] += v })
	return t, nil
}

// since returns what was done between two looks.
func (t traffic) since(before traffic) traffic {
	diff := func(now, was map[string]float64) map[string]float64 {
		out := map[string]float64{}
		for k, v := range now {
			if d := v - was[k]; d > 0 {
				out[k] = d
			}
		}
		return out
	}
	return traffic{diff(t.calls, before.calls), diff(t.failed, before.failed), diff(t.events, before.events), diff(t.bytes, before.bytes),
		diff(t.ended, before.ended)}
}

// writes counts the requests that change objects, of resources that are named, or of all.
func (t traffic) writes(resources ...string) float64 {
	sum := 0.0
	for what, n := range t.calls {
		verb, resource, _ := strings.Cut(what, " ")
		if slices.Contains([]string{"CREATE", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}, verb) &&
			(len(resources) == 0 || slices.Contains(resources, resource)) {
			sum += n
		}
	}
	return sum
}

// calledFor are the kinds of calls that the report shows: those for the custom resources.
func (t traffic) calledFor() []Call {
	var out []Call
	for _, what := range slices.Sorted(maps.Keys(t.calls)) {
		verb, resource, _ := strings.Cut(what, " ")
		if strings.HasPrefix(resource, "cilium") && verb != "WATCH" {
			out = append(out, Call{Verb: verb, Resource: resource, Count: t.calls[what], Refused: t.failed[what]})
		}
	}
	return out
}

// load is what the processes of a cluster, and this one, used of the machine during a stretch of
// time.
type load struct {
	began time.Time
	first map[string]time.Duration
}

// processes returns the processes that take part, by the name that the report has for them.
func (c *cluster) processes() map[string][]*process {
	out := map[string][]*process{"etcd": {c.etcd}, "kube-apiserver": {c.api}}
	for _, p := range c.operators {
		if !p.ended() {
			out["operators"] = append(out["operators"], p)
		}
	}
	return out
}

// harness is this process's name in the report.
const harness = "harness, with all stub agents"

func (c *cluster) processorTime() map[string]time.Duration {
	out := map[string]time.Duration{}
	for name, list := range c.processes() {
		for _, p := range list {
			if u, err := p.usage(); err == nil {
				out[name] += u.cpu
			}
		}
	}
	if u, err := usage(selfPID()); err == nil {
		out[harness] = u.cpu
	}
	return out
}

// startLoad begins a stretch.
func (c *cluster) startLoad() load { return load{time.Now(), c.processorTime()} }

// end returns processors used by each on average: 2 on two cores is all there is. A process that
// ended on the way counts for nothing.
func (l load) end(c *cluster) map[string]float64 {
	took := time.Since(l.began).Seconds()
	out := map[string]float64{}
	for name, d := range c.processorTime() {
		out[name] = max(0, (d-l.first[name]).Seconds()/took)
	}
	return out
}

// sum counts all requests for a resource but watches.
func (t traffic) sum(resource string) float64 {
	n := 0.0
	for what, v := range t.calls {
		if verb, of, _ := strings.Cut(what, " "); of == resource && verb != "WATCH" && verb != "LIST" {
			n += v
		}
	}
	return n
}
