package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestProofsExist reads the tables that say which test proves a capability. Their columns are the
// capability, where it is, the tests, and remarks.
func TestProofsExist(t *testing.T) {
	const reason = "the page promises that this test proves the row"
	var (
		folders = regexp.MustCompile("`((?:internal|pkg|cmd|test|hack|api|bpf|deploy)(?:/[\\w-]+)*)`")
		proofs  = regexp.MustCompile("`(?:([a-z][\\w/-]*)\\.)?((?:Test|Fuzz|Example)\\w*)(?:/[^`]*)?`")
		known   = map[string]string{}
	)
	source := func(dir string) string {
		if _, ok := known[dir]; !ok {
			files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, name := range files {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				b.Write(text)
			}
			known[dir] = b.String()
		}
		return known[dir]
	}
	for page, home := range map[string]string{"docs/design/seeds.md": "", "pkg/allocator/README.md": "pkg/allocator"} {
		text, err := os.ReadFile(filepath.Join("../..", page))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for n, line := range strings.Split(string(text), "\n") {
			cells := strings.Split(line, "|") // the first is what is before the table
			if len(cells) < 5 {
				continue
			}
			for _, p := range proofs.FindAllStringSubmatch(cells[3], -1) {
				dirs := []string{p[1]}
				if p[1] == "" && home != "" {
					dirs = []string{home}
				} else if p[1] == "" {
					dirs = nil
					for _, f := range folders.FindAllStringSubmatch(cells[2], -1) {
						dirs = append(dirs, f[1])
					}
				}
				ok := false
				for _, dir := range dirs {
					ok = ok || strings.Contains(source(dir), "\nfunc "+p[2]+"(")
				}
				if found++; !ok {
					t.Errorf("%s:%d: there is no %s in %v: %s", page, n+1, p[2], dirs, reason)
				}
			}
		}
		if found < 30 {
			t.Errorf("%s: %d tests were read", page, found)
		}
	}
}
