package archtest

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	quoted     = regexp.MustCompile("`([^`]+)`|\\]\\(([^)]+)\\)")
	braces     = regexp.MustCompile(`^(.*)\{(.*)\}(.*)$`)
	sourceFile = regexp.MustCompile(`^[\w.-]+\.(?:go|c|h|proto|ts|yaml)$`)
	goName     = regexp.MustCompile(`^[A-Za-z_]\w*$`)
)

// paths returns the paths of the tree that a line names, with {a,b} written out.
func paths(root, line string) (out []string) {
	for _, m := range quoted.FindAllStringSubmatch(line, -1) {
		path := m[1] + m[2]
		top, _, slash := strings.Cut(path, "/")
		if _, err := os.Stat(filepath.Join(root, top)); !slash || top == "" || err != nil || strings.ContainsAny(path, " <") {
			continue
		}
		list := []string{path}
		if b := braces.FindStringSubmatch(path); b != nil {
			list = nil
			for alternative := range strings.SplitSeq(b[2], ",") {
				list = append(list, b[1]+alternative+b[3])
			}
		}
		out = append(out, list...)
	}
	return out
}

// sources are the names of the source files below directories, and the words in them.
type sources struct{ files, words map[string]bool }

// tree is what was read, by directory: rows name the same ones, and those that hold them.
type tree map[string]sources

// read returns the sources below a directory.
func (tr tree) read(t *testing.T, dir string) sources {
	t.Helper()
	if known, ok := tr[dir]; ok {
		return known
	}
	s := sources{map[string]bool{}, map[string]bool{}}
	tr[dir] = s
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			below := tr.read(t, path)
			maps.Copy(s.files, below.files)
			maps.Copy(s.words, below.words)
		case sourceFile.MatchString(e.Name()):
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s.files[e.Name()] = true
			for w := range strings.FieldsFuncSeq(string(data), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
				s.words[w] = true
			}
		}
	}
	return s
}

// below returns the sources of each directory that paths name, or that holds what they name.
func (tr tree) below(t *testing.T, root string, paths []string) (out []sources) {
	t.Helper()
	for _, path := range paths {
		list, _ := filepath.Glob(filepath.Join(root, path))
		for _, path := range list {
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				path = filepath.Dir(path)
			}
			out = append(out, tr.read(t, filepath.Clean(path)))
		}
	}
	return out
}

// TestArchitectureNamesWhatIsThere reads ARCHITECTURE.md: each path in it exists, and what a row
// calls by a file's name alone, or by the name of a function, is in a directory that the row names.
// A row that leads nowhere costs a newcomer more than none.
func TestArchitectureNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked, tr := 0, tree{}
	for i, line := range strings.Split(string(page), "\n") {
		at := paths(root, line)
		for _, path := range at {
			checked++
			if list, err := filepath.Glob(filepath.Join(root, path)); err != nil || len(list) == 0 {
				t.Errorf("ARCHITECTURE.md:%d: there is no %s", i+1, path)
			}
		}
		if cells(line) == nil || len(at) == 0 {
			continue
		}
		below := tr.below(t, root, at)
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			switch name := m[1]; {
			case sourceFile.MatchString(name):
				if !slices.ContainsFunc(below, func(s sources) bool { return s.files[name] }) {
					t.Errorf("ARCHITECTURE.md:%d: no directory of the row has a %s", i+1, name)
				}
			case goName.MatchString(name):
				if !slices.ContainsFunc(below, func(s sources) bool { return s.words[name] }) {
					t.Errorf("ARCHITECTURE.md:%d: no directory of the row has anything called %s", i+1, name)
				}
			default:
				continue
			}
			checked++
		}
	}
	if checked < 200 {
		t.Errorf("only %d names were checked: the page has another form, and this test reads nothing", checked)
	}
}
