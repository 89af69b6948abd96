package archtest

import (
	"encoding/json"
	"go/version"
	"os/exec"
	"strings"
	"testing"
)

// gomod is what go.mod says.
type gomod struct {
	Module    struct{ Path string }
	Go        string
	Require   []struct{ Path, Version string }
	Replace   []struct{ Old, New struct{ Path string } }
	Toolchain string
}

func readModule(t *testing.T, dir string) gomod {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit in %s: %v", dir, err)
	}
	var m gomod
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestModulesNameTheSameVersions: the libraries are tested with the versions of their own go.mod,
// and run in the product with those of the other.
func TestModulesNameTheSameVersions(t *testing.T) {
	product, libraries := readModule(t, modules[0]), readModule(t, modules[1])
	versions := map[string]string{}
	for _, r := range product.Require {
		versions[r.Path] = r.Version
	}
	if versions[libraries.Module.Path] == "" {
		t.Fatalf("go.mod does not require %s", libraries.Module.Path)
	}
	for _, r := range libraries.Require {
		if v, ok := versions[r.Path]; ok && v != r.Version {
			t.Errorf("%s: go.mod has %s, pkg/go.mod %s; `go -C pkg get %s@%s && go -C pkg mod tidy`", r.Path, v, r.Version, r.Path, v)
		}
	}
	if version.Compare("go"+libraries.Go, "go"+product.Go) > 0 {
		t.Errorf("pkg/go.mod asks for Go %s, go.mod for %s only", libraries.Go, product.Go)
	}
	if len(libraries.Replace) > 0 || libraries.Toolchain != "" {
		t.Errorf("pkg/go.mod replaces %v and names toolchain %q: neither counts for those who use the libraries", libraries.Replace, libraries.Toolchain)
	}
}

// TestLibrariesLinkLittle: what a program links that uses the libraries with one kind of store.
func TestLibrariesLinkLittle(t *testing.T) {
	const reason = "others use the libraries for what they do, not for their dependencies"
	allowed := map[string][]string{
		"pkg/allocator": {"golang.org/x/time"},
		"pkg/kvstore":   {},
	}
	seen := 0
	for _, p := range packages(t) {
		libs, ok := allowed[p.path]
		if !ok {
			continue
		}
		seen++
		for _, d := range p.deps {
			if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") && !under(d, libs...) {
				t.Errorf("%s links %s: %s", p.path, d, reason)
			}
		}
	}
	if seen != len(allowed) {
		t.Errorf("%d of %d packages were found", seen, len(allowed))
	}
}
