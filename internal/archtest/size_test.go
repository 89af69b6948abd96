package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Lines that a function and a package may have. Blank lines and comments count; tests, and what is
// generated, do not count for a package.
const (
	maxFunction = 150
	maxPackage  = 5000
)

// goFiles calls fn for every file of Go in the tree that was written by hand.
func goFiles(t *testing.T, fn func(path string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); name == "testdata" || name == "bin" || name == "node_modules" || len(name) > 2 && name[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		case filepath.Ext(path) != ".go":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(f) {
			fn(strings.TrimPrefix(path, "../../"), fset, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFunctionsAreShort(t *testing.T) {
	t.Parallel()
	const reason = "a reader cannot keep in mind what so long a function has done so far; cut it where one step ends, or make the test a table or scenarios"
	goFiles(t, func(path string, fset *token.FileSet, f *ast.File) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFunction {
				t.Errorf("%s: %s has %d lines, more than %d: %s", path, fn.Name.Name, n, maxFunction, reason)
			}
		}
	})
}

func TestPackagesAreSmall(t *testing.T) {
	t.Parallel()
	const reason = "a package that large holds more than one idea; see how docs/design/0023-agent-packages.md cuts one"
	lines := map[string]int{}
	goFiles(t, func(path string, fset *token.FileSet, f *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			lines[filepath.Dir(path)] += fset.File(f.Pos()).LineCount()
		}
	})
	for dir, n := range lines {
		if n > maxPackage {
			t.Errorf("%s has %d lines, more than %d: %s", dir, n, maxPackage, reason)
		}
	}
}
