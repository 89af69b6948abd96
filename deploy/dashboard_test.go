package deploy_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDashboardMetricsExist: every metric that the dashboard asks for is one that a program has.
func TestDashboardMetricsExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("helm/hawser/dashboards/hawser.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	var code bytes.Buffer
	for _, dir := range []string{"agent", "flowmetrics", "operator"} {
		err := filepath.WalkDir(filepath.Join("..", "internal", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			code.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// A name is written whole, or after a prefix.
	known := func(name string) bool {
		for _, prefix := range []string{"", "cilium_", "cilium_operator_", "cilium_operator_cid_controller_"} {
			if rest, ok := strings.CutPrefix(name, prefix); ok && bytes.Contains(code.Bytes(), []byte(`"`+rest+`"`)) {
				return true
			}
		}
		return false
	}
	ours, asked := regexp.MustCompile(`\b(?:cilium|hubble)_[a-z_]+`), 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			for _, name := range ours.FindAllString(target.Expr, -1) {
				asked++
				base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
				if !known(name) && !known(base) {
					t.Errorf("panel %q asks for %s, which no program has", p.Title, name)
				}
			}
		}
	}
	if asked < 20 {
		t.Errorf("the dashboard asks for %d metrics", asked)
	}
}
