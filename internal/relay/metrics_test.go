package relay

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/flowserver"
)

// TestMetricsPage compares the table of the manual with the metrics that are registered.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("reference.md")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)").FindAllStringSubmatch(string(page), -1) {
		got[m[1]] = true
	}
	ch := make(chan *prometheus.Desc)
	go func() {
		newMetrics(&Relay{expiry: &flowserver.Expiry{}}).registry.Describe(ch)
		close(ch)
	}()
	want := map[string]bool{}
	for d := range ch {
		want[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	if !maps.Equal(want, got) {
		t.Errorf("reference.md lists\n%q, there are\n%q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
