package operator

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestMetricsPage compares the table of the manual with the metrics that the sources name: which of
// them one operator registers depends on its options.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("reference.md")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	rows := regexp.MustCompile("(?m)^\\| ((?:cilium_operator_|`(?:cilium_operator|hawser)_).*?) \\|")
	names := regexp.MustCompile("`([a-z_]*)(\\{[a-z_,]+\\}_[a-z_]+)?")
	for _, row := range rows.FindAllStringSubmatch(string(page), -1) {
		for _, m := range names.FindAllStringSubmatch(row[1], -1) {
			switch middle, after, some := strings.Cut(strings.TrimPrefix(m[2], "{"), "}"); {
			case some:
				for name := range strings.SplitSeq(middle, ",") {
					got[m[1]+name+after] = true
				}
			case strings.HasPrefix(m[1], "_"): // of one row, the rest of the name
				got["cilium_operator_ipam"+m[1]] = true
			case m[1] != "":
				got[m[1]] = true
			}
		}
	}

	// What is registered by a function that puts the names together.
	set, clouds := newMetrics(), prometheus.NewRegistry()
	set.watchStore(kvstore.NewMemory().Client())
	set.registry.MustRegister(&flowserver.Expiry{})
	for _, g := range newComparison().gauges() {
		set.registry.MustRegister(g)
	}
	if _, err := nodemanager.NewMetrics(clouds); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, r := range []*prometheus.Registry{set.registry, clouds} {
		ch := make(chan *prometheus.Desc)
		go func() {
			r.Describe(ch)
			close(ch)
		}()
		for d := range ch {
			want[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
		}
	}
	together := []string{
		"cilium_operator_kvstore_", "cilium_operator_ipam_", "cilium_operator_doublewrite_",
		"cilium_operator_identity_labels_", // those are on the page of identities
	}

	// The others are written out, or follow a prefix that is a constant.
	constant := regexp.MustCompile(`const prefix = "([a-z_]+)"`)
	follows := regexp.MustCompile(`prefix ?\+ ?"([a-z_]+)"`)
	whole := regexp.MustCompile(`"(cilium_operator_[a-z_]+)"( ?\+)?`)
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		prefix := constant.FindSubmatch(text)
		for _, m := range follows.FindAllSubmatch(text, -1) {
			want[string(prefix[1])+string(m[1])] = true
		}
		for _, m := range whole.FindAllSubmatch(text, -1) {
			switch name := string(m[1]); {
			case prefix != nil && name == string(prefix[1]):
			case len(m[2]) == 0:
				want[name] = true
			case !slices.Contains(together, name):
				t.Errorf("%s puts names together that begin with %s: add them to this test", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !got[name] {
			t.Errorf("reference.md lacks %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if !want[name] {
			t.Errorf("reference.md lists %s, and there is none", name)
		}
	}
	if len(got) < 45 {
		t.Errorf("reference.md lists only %d metrics", len(got))
	}
}
