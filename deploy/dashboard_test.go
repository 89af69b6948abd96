package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// panel is a panel of a dashboard, or a row. A row that is collapsed has its panels in it.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
	Panels  []panel
}

// metricPrograms are the prefixes of metrics with where they are defined, the longest first, and
// what a name is written after there.
var metricPrograms = []struct {
	prefix, dir string
	written     []string
}{
	{"cilium_operator_", "operator", []string{"", "cilium_operator_", "cilium_operator_cid_controller_", "cilium_operator_kvstore_"}},
	{"hubble_relay_", "relay", []string{""}},
	{"hubble_", "flowmetrics", []string{"", "hubble_"}},
	{"hawser_", "flowserver", []string{""}},
	{"cilium_", "agent", []string{"", "cilium_"}},
}

var ourMetrics = regexp.MustCompile(`\b(?:cilium|hubble|hawser)_[a-z0-9_]+`)

// askedFor calls each with every metric of ours that panels ask for, and with the panel's title.
func askedFor(panels []panel, each func(title, metric string)) {
	for _, p := range panels {
		for _, target := range p.Targets {
			for _, name := range ourMetrics.FindAllString(target.Expr, -1) {
				each(p.Title, name)
			}
		}
		askedFor(p.Panels, each)
	}
}

// definedMetrics returns what reports whether a program has a metric.
func definedMetrics(t *testing.T) func(name string) bool {
	t.Helper()
	code := map[string]*bytes.Buffer{}
	for _, program := range metricPrograms {
		code[program.dir] = &bytes.Buffer{}
		err := filepath.WalkDir(filepath.Join("..", "internal", program.dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			code[program.dir].Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) bool {
		for _, program := range metricPrograms {
			if !strings.HasPrefix(name, program.prefix) {
				continue
			}
			return slices.ContainsFunc([]string{"", "_bucket", "_count", "_sum"}, func(suffix string) bool {
				base, ok := strings.CutSuffix(name, suffix)
				return ok && slices.ContainsFunc(program.written, func(prefix string) bool {
					rest, ok := strings.CutPrefix(base, prefix)
					return ok && bytes.Contains(code[program.dir].Bytes(), []byte(`"`+rest+`"`))
				})
			})
		}
		return false
	}
}

// TestDashboardMetricsExist: every metric that the dashboard asks for, also in collapsed rows, is
// one that the program has whose name it bears.
func TestDashboardMetricsExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("helm/hawser/dashboards/hawser.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels     []panel
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	known, asked := definedMetrics(t), map[string]bool{}
	check := func(title, name string) {
		if asked[name] = true; !known(name) {
			t.Errorf("%q asks for %s, which no program has", title, name)
		}
	}
	askedFor(board.Panels, check)
	for _, v := range board.Templating.List {
		for _, name := range ourMetrics.FindAllString(fmt.Sprint(v.Query), -1) {
			check("variable "+v.Name, name)
		}
	}
	for _, program := range metricPrograms {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(asked)), func(name string) bool { return strings.HasPrefix(name, program.prefix) }) {
			t.Errorf("the dashboard asks for no metric %s...", program.prefix)
		}
	}
	if len(asked) < 40 {
		t.Errorf("the dashboard asks for %d metrics", len(asked))
	}
	// What the check is worth.
	hidden := []panel{{Title: "collapsed", Panels: []panel{{Title: "hidden", Targets: []struct{ Expr string }{{"rate(hubble_relay_lost_total[5m]) + cilium_drop_count_total"}}}}}}
	var wrong []string
	askedFor(hidden, func(title, name string) {
		if !known(name) {
			wrong = append(wrong, title+" "+name)
		}
	})
	if want := []string{"hidden hubble_relay_lost_total"}; !slices.Equal(wrong, want) {
		t.Errorf("of panels that ask for unknown metrics, found %q, want %q", wrong, want)
	}
}
