package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestProposalIsProved reads docs/design/cfp-27752.md: every part of the proposal has a test, which
// exists and names the part in a comment, in quotes.
func TestProposalIsProved(t *testing.T) {
	const reason = "the page promises that this test proves the part"
	page, err := os.ReadFile("../../docs/design/cfp-27752.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$`)
	test := regexp.MustCompile("`([^`]+)\\.([A-Z]\\w+)`")
	tests := map[string]map[string]string{} // package -> function -> its comments
	rows := 0
	for _, r := range row.FindAllStringSubmatch(string(page), -1) {
		part := r[1]
		if part == "Part" {
			continue
		}
		rows++
		proofs := test.FindAllStringSubmatch(r[2], -1)
		if len(proofs) == 0 {
			t.Errorf("%q has no test: every part needs one", part)
		}
		for _, p := range proofs {
			dir, name := p[1], p[2]
			if tests[dir] == nil {
				tests[dir] = commentsOfTests(t, filepath.Join("../..", dir))
			}
			text, ok := tests[dir][name]
			switch {
			case !ok:
				t.Errorf("%q: there is no %s in %s: %s", part, name, dir, reason)
			case !strings.Contains(text, `"`+part+`"`) || !strings.Contains(text, "CFP-27752"):
				t.Errorf("%q: no comment of %s in %s names CFP-27752 and %q: %s", part, name, dir, part, reason)
			}
		}
	}
	if rows < 25 {
		t.Errorf("%d parts were read", rows)
	}
}

// commentsOfTests returns the comments before and in each test of a directory, on one line.
func commentsOfTests(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || fn.Doc == nil {
				continue
			}
			var b strings.Builder
			for _, c := range f.Comments {
				if c.Pos() >= fn.Doc.Pos() && c.End() <= fn.End() {
					b.WriteString(c.Text() + " ")
				}
			}
			out[fn.Name.Name] = strings.Join(strings.Fields(b.String()), " ")
		}
	}
	return out
}
