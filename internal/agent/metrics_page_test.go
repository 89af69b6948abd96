package agent

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/clustermesh"
)

// TestMetricsPage: docs/user/metrics.md lists every metric of the agent with its type and labels,
// and no other.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/user/metrics.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ?(.*?) ?\\| (.+) \\|$")
	got := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		if _, twice := got[m[1]]; twice {
			t.Errorf("%s lists %s twice", path, m[1])
		}
		got[m[1]] = m[2] + " " + strings.NewReplacer("`", "", ", ", ",").Replace(m[3])
	}

	want := map[string]string{}
	set := newMetrics()
	for kind, list := range map[string][]prometheus.Collector{
		"counter":   {set.policyUp, set.reattached, set.edited},
		"histogram": {set.apiTime, set.known, set.temporary},
		"gauge":     {(&clustermesh.Mesh{}).Collector("", nil)},
	} {
		for _, c := range list {
			for name, labels := range described(t, c) {
				want[name] = kind + " " + labels
			}
		}
	}
	state := newStateCollector(nil)
	for _, m := range state.all {
		kind := "gauge"
		if m.kind == prometheus.CounterValue {
			kind = "counter"
		}
		name, labels := nameAndLabels(t, m.Desc)
		want[name] = kind + " " + labels
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs from the metrics of the agent (-metrics +page):\n%s", path, diff)
	}

	// Nothing else is registered, but the metrics of the process.
	for name := range described(t, set.registry) {
		if _, ok := want[name]; !ok && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s is registered and is not among the metrics that this test knows: add it here and to %s", name, path)
		}
	}
}

// described returns the labels of each metric of a collector.
func described(t *testing.T, c prometheus.Collector) map[string]string {
	t.Helper()
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	out := map[string]string{}
	for d := range ch {
		name, labels := nameAndLabels(t, d)
		out[name] = labels
	}
	return out
}

var descText = regexp.MustCompile(`^Desc\{fqName: "([a-z_]+)", .*variableLabels: \{(.*)\}\}$`)

// nameAndLabels reads a description, which has its name and labels in its text alone.
func nameAndLabels(t *testing.T, d *prometheus.Desc) (name, labels string) {
	t.Helper()
	m := descText.FindStringSubmatch(d.String())
	if m == nil {
		t.Fatalf("a description of a metric in another form: %s", d)
	}
	return m[1], m[2]
}
