package archtest

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// namedTest is how pages name a test: with or without its package, and with or without a part.
var namedTest = regexp.MustCompile("`(?:([\\w./-]+)\\.)?((?:Test|Fuzz|Example|Benchmark)[A-Z]\\w*)((?:/[\\w -]+)*)`")

// testsOf returns the tests in the tree by directory, each with the text of its files.
func testsOf(t *testing.T, root string) map[string]map[string]string {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example|Benchmark)\w*)\(`)
	out := map[string]map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root, d.IsDir() && d.Name() == "testdata":
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			if out[dir] == nil {
				out[dir] = map[string]string{}
			}
			out[dir][m[1]] = string(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// find returns the text of a test's file. Without a package it is in one of dirs, or anywhere if
// there are none.
func find(tests map[string]map[string]string, pkg, name string, dirs []string) (text string, ok bool) {
	for dir, in := range tests {
		if pkg != "" && dir != pkg && !strings.HasSuffix(dir, "/"+pkg) || pkg == "" && len(dirs) > 0 && !slices.Contains(dirs, dir) {
			continue
		}
		if text, ok = in[name]; ok {
			return text, true
		}
	}
	return "", false
}

// cells splits the row of a table; nil if it is none.
func cells(line string) []string {
	if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
		return nil
	}
	list := strings.Split(strings.Trim(line, "|"), "|")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// TestNamedTestsExist reads the pages that say what is proved by which test: these exist, with
// their parts, in docs/design/seeds.md in the packages of their rows, and on the page of a package
// in that.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	const root = "../.."
	tests := testsOf(t, root)
	pages := []string{"SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "pkg/README.md", "pkg/allocator/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range list {
			pages = append(pages, strings.TrimPrefix(page, root+"/"))
		}
	}
	packages := regexp.MustCompile("`([\\w./-]+)`")
	named := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			var dirs []string
			row := cells(line)
			if len(row) > 2 && page == "docs/design/seeds.md" {
				for _, m := range packages.FindAllStringSubmatch(row[1], -1) {
					if _, ok := tests[m[1]]; ok {
						dirs = append(dirs, m[1])
					}
				}
			}
			if folder := filepath.Dir(page); tests[folder] != nil {
				dirs = []string{folder}
			}
			given := len(dirs) > 0
			for _, m := range namedTest.FindAllStringSubmatch(line, -1) {
				pkg, name, parts := m[1], m[2], strings.Split(m[3], "/")[1:]
				if name == "TestX" { // how to read the page
					continue
				}
				named[page]++
				file, ok := find(tests, pkg, name, dirs)
				if !ok {
					t.Errorf("%s:%d: there is no test %s in %s: the page promises that it proves something", page, i+1, name, cmp.Or(pkg, strings.Join(dirs, ", "), "the tree"))
					continue
				}
				if row != nil && !given && strings.Contains(pkg, "/") {
					dirs = []string{pkg} // those that follow without a package are in this one
				}
				for _, part := range parts {
					if !strings.Contains(file, `"`+part+`"`) && !strings.Contains(file, `"`+strings.ReplaceAll(part, "_", " ")+`"`) {
						t.Errorf("%s:%d: %s has no part %q", page, i+1, name, part)
					}
				}
			}
		}
	}
	if named["docs/design/seeds.md"] < 100 || named["SECURITY.md"] < 50 || named["pkg/allocator/README.md"] < 50 {
		t.Errorf("the pages were not read as they should be: %v", slices.Sorted(maps.Keys(named)))
	}
}

// TestCapabilitiesAreProved: each row of docs/design/seeds.md says where a capability is and what
// proves it, or that it is missing or untested.
func TestCapabilitiesAreProved(t *testing.T) {
	t.Parallel()
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs/design/seeds.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for i, line := range strings.Split(string(text), "\n") {
		row := cells(line)
		if len(row) < 4 || row[2] == "Proved by" {
			continue
		}
		rows++
		where, proof, differs := row[1], row[2], row[3]
		switch {
		case where == "":
			t.Errorf("line %d: %q is nowhere", i+1, row[0])
		case strings.Contains(where, "missing"), strings.Contains(differs, "untested"), namedTest.MatchString(proof), strings.Contains(differs, "`make "):
		default:
			t.Errorf("line %d: nothing proves %q", i+1, row[0])
		}
		for _, m := range regexp.MustCompile("`((?:internal|pkg|api|bpf|cmd|deploy|test)[\\w/-]*)[.`]").FindAllStringSubmatch(where, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("line %d: %q is said to be in %s, which does not exist", i+1, row[0], m[1])
			}
		}
	}
	if rows < 150 {
		t.Errorf("%d rows were read", rows)
	}
}
