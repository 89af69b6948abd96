package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/hawser-net/hawser"

// modules are the folders of the modules that the product is made of.
var modules = []string{"../..", "../../pkg"}

// pkg is a package of these modules; our own import paths are relative to the first.
type pkg struct {
	path, name, dir string
	files           []string // without tests
	imports, deps   []string // without those of tests
}

var listPackages = sync.OnceValues(func() ([]pkg, error) {
	var out []byte
	for _, dir := range modules {
		cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Dir,GoFiles,Imports,Deps", "./...")
		cmd.Dir = dir
		list, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list in %s: %w", dir, err)
		}
		out = append(out, list...)
	}
	short := func(in []string) []string {
		var out []string
		for _, p := range in {
			out = append(out, strings.TrimPrefix(p, module+"/"))
		}
		return out
	}
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Name, Dir  string
			GoFiles, Imports, Deps []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		all = append(all, pkg{
			path: strings.TrimPrefix(p.ImportPath, module+"/"), name: p.Name, dir: p.Dir,
			files: p.GoFiles, imports: short(p.Imports), deps: short(p.Deps),
		})
	}
})

func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listPackages()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parsed returns the files of a package that were written by hand.
func parsed(t *testing.T, p pkg) (*token.FileSet, []*ast.File) {
	t.Helper()
	fset := token.NewFileSet()
	var out []*ast.File
	for _, name := range p.files {
		f, err := parser.ParseFile(fset, filepath.Join(p.dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.IsGenerated(f) {
			out = append(out, f)
		}
	}
	return fset, out
}

// at is a position for a message, relative to the module.
func at(fset *token.FileSet, pos token.Pos) string {
	p := fset.Position(pos)
	if root, err := filepath.Abs("../.."); err == nil {
		if rel, err := filepath.Rel(root, p.Filename); err == nil {
			p.Filename = rel
		}
	}
	p.Column = 0
	return p.String()
}

func TestPackageNamesSayWhatIsInside(t *testing.T) {
	const reason = "the name says nothing about the content, so everything ends up there"
	bad := map[string]bool{}
	for _, n := range strings.Fields("types api cell util utils common helper helpers option options defaults testutils manager base core misc") {
		bad[n] = true
	}
	for _, p := range packages(t) {
		if bad[p.name] || bad[path.Base(p.path)] {
			t.Errorf("%s: %s", p.path, reason)
		}
	}
}

func TestEveryPackageIsDocumented(t *testing.T) {
	const reason = "the package comment says what the package promises, what it owns and which goroutines it starts"
	for _, p := range packages(t) {
		_, files := parsed(t, p)
		found := len(files) == 0 // all generated
		for _, f := range files {
			found = found || (f.Doc != nil && len(strings.Fields(f.Doc.Text())) > 5)
		}
		if !found {
			t.Errorf("%s has no package comment: %s", p.path, reason)
		}
	}
}

func TestEverythingExportedIsDocumented(t *testing.T) {
	const reason = "what is exported is a promise: units, errors, ownership, concurrency"
	for _, p := range packages(t) {
		if p.name == "main" {
			continue
		}
		fset, files := parsed(t, p)
		for _, f := range files {
			for _, d := range f.Decls {
				for _, id := range undocumented(d) {
					t.Errorf("%s: %s has no comment: %s", at(fset, id.Pos()), id.Name, reason)
				}
			}
		}
	}
}

// undocumented lists the exported names of a declaration that no comment explains. A comment on a
// group, or behind a constant, counts for all of it.
func undocumented(d ast.Decl) []*ast.Ident {
	var out []*ast.Ident
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Doc != nil || !d.Name.IsExported() {
			return nil
		}
		if d.Recv != nil {
			typ := d.Recv.List[0].Type
			if star, ok := typ.(*ast.StarExpr); ok {
				typ = star.X
			}
			if idx, ok := typ.(*ast.IndexExpr); ok {
				typ = idx.X
			}
			if id, ok := typ.(*ast.Ident); ok && !id.IsExported() {
				return nil
			}
			// These say all in their name; their contract is that of the interface.
			switch d.Name.Name {
			case "String", "Error", "Unwrap", "Len", "Less", "Swap", "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText":
				return nil
			}
		}
		return []*ast.Ident{d.Name}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if d.Doc == nil && s.Doc == nil && s.Comment == nil && s.Name.IsExported() {
					out = append(out, s.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if d.Doc == nil && s.Doc == nil && s.Comment == nil && n.IsExported() {
						out = append(out, n)
					}
				}
			}
		}
	}
	return out
}

func TestNoHiddenState(t *testing.T) {
	const (
		initReason = "work that happens because a package was linked can't be read from main, ordered or tested"
		varReason  = "a package variable that changes is shared by every test and every instance in the process"
		exitReason = "only main knows what has to be cleaned up first; return an error"
	)
	for _, p := range packages(t) {
		fset, files := parsed(t, p)
		// Types are checked without their imports: that is enough to distinguish a package variable
		// from a local one of the same name, and takes no time.
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
		conf := types.Config{Importer: noImporter{}, Error: func(error) {}}
		tp, _ := conf.Check(p.path, fset, files, info)

		packageVar := func(e ast.Expr) string {
			for {
				switch x := e.(type) {
				case *ast.SelectorExpr:
					e = x.X
				case *ast.IndexExpr:
					e = x.X
				case *ast.StarExpr:
					e = x.X
				case *ast.ParenExpr:
					e = x.X
				case *ast.Ident:
					if v, ok := info.Uses[x].(*types.Var); ok && tp != nil && v.Parent() == tp.Scope() {
						return v.Name()
					}
					return ""
				default:
					return ""
				}
			}
		}
		for _, f := range files {
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil && d.Name.Name == "init" {
						t.Errorf("%s: init(): %s", at(fset, d.Pos()), initReason)
					}
				case *ast.GenDecl:
					if d.Tok != token.VAR {
						continue
					}
					for _, s := range d.Specs {
						v := s.(*ast.ValueSpec)
						if sel, ok := v.Type.(*ast.SelectorExpr); ok {
							if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "sync" || x.Name == "atomic") {
								t.Errorf("%s: package variable %s of type %s.%s: %s", at(fset, v.Pos()), v.Names[0].Name, x.Name, sel.Sel.Name, varReason)
							}
						}
					}
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					if n.Tok == token.DEFINE {
						return true
					}
					for _, l := range n.Lhs {
						if name := packageVar(l); name != "" {
							t.Errorf("%s: changes the package variable %s: %s", at(fset, n.Pos()), name, varReason)
						}
					}
				case *ast.IncDecStmt:
					if name := packageVar(n.X); name != "" {
						t.Errorf("%s: changes the package variable %s: %s", at(fset, n.Pos()), name, varReason)
					}
				case *ast.CallExpr:
					sel, ok := n.Fun.(*ast.SelectorExpr)
					if !ok || p.name == "main" {
						return true
					}
					x, ok := sel.X.(*ast.Ident)
					if !ok {
						return true
					}
					switch call := x.Name + "." + sel.Sel.Name; call {
					case "os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln", "log.Panic", "log.Panicf":
						t.Errorf("%s: %s: %s", at(fset, n.Pos()), call, exitReason)
					}
				}
				return true
			})
		}
	}
}

// noImporter refuses every import.
type noImporter struct{}

func (noImporter) Import(string) (*types.Package, error) {
	return nil, errors.New("imports are not looked at")
}

func TestFilesHoldOneIdea(t *testing.T) {
	const limit = 800
	const reason = "a file that long holds more than one idea; cut it where the second one starts"
	for _, p := range packages(t) {
		fset, files := parsed(t, p)
		for _, f := range files {
			if n := fset.File(f.Pos()).LineCount(); n > limit+50 {
				t.Errorf("%s has %d lines, more than about %d: %s", at(fset, f.Pos()), n, limit, reason)
			}
		}
	}
}

func TestSourcesNameNoPrivatePlace(t *testing.T) {
	// Where a pattern does not begin with plain text the matcher looks at every byte: minutes, with
	// the race detector. part is plain text that each match has.
	rules := []struct {
		pattern string // in two halves where this file would match itself
		part    string
		reason  string
	}{
		{`(proxy|sum)\.` + `golang\.org`, "golang.org", "where modules come from is the builder's choice (GOPROXY), not the project's"},
		{`goproxy\.` + `(io|cn)`, "goproxy.", "where modules come from is the builder's choice (GOPROXY), not the project's"},
		{`registry\.npmjs` + `\.org`, "npmjs", "where packages come from is the machine's choice, not the project's"},
		{`pypi\.` + `org`, "pypi", "where packages come from is the machine's choice, not the project's"},
		{`deb\.debian\.` + `org`, "debian", "where packages come from is the machine's choice, not the project's"},
		{`/home/` + `[a-z]`, "/home/", "a path of one person's machine means nothing on another"},
		{`/Users/` + `[a-z]`, "/Users/", "a path of one person's machine means nothing on another"},
		{`(?:^|[\s"'(=])/wo` + `rk/`, "rk/", "a path of one person's machine means nothing on another"},
		{`BEGIN (RSA |EC |OPENSSH )?PRIVATE` + ` KEY`, "PRIVATE", "no secret belongs into the sources"},
		{`<<<<<` + `<< `, "<<<<", "a merge was left half done"},
		{`>>>>>` + `>> `, ">>>>", "a merge was left half done"},
		{`SPDX-` + `License-Identifier: (MIT|BSD)`, "SPDX", "files of others need their licence beside them and a decision"},
	}
	var compiled []*regexp.Regexp
	for _, r := range rules {
		compiled = append(compiled, regexp.MustCompile(`(?m)`+r.pattern))
	}
	root := "../.."
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Skipf("needs a git checkout to know the sources: %v", err)
	}
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0 {
			continue // deleted, or not text
		}
		for i, re := range compiled {
			if !bytes.Contains(data, []byte(rules[i].part)) {
				continue
			}
			if m := re.Find(data); m != nil {
				t.Errorf("%s contains %q: %s", name, m, rules[i].reason)
			}
		}
	}
}
