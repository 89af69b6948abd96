package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quoted     = regexp.MustCompile("`([^`]+)`|\\]\\(([^)]+)\\)")
	braces     = regexp.MustCompile(`^(.*)\{(.*)\}(.*)$`)
	sourceFile = regexp.MustCompile(`^[\w.-]+\.(?:go|c|h|proto|ts)$`)
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

// sourcesBelow returns the names and the text of the sources in the directories of paths.
func sourcesBelow(t *testing.T, root string, paths []string) (names map[string]bool, text string) {
	t.Helper()
	names = map[string]bool{}
	var all strings.Builder
	for _, path := range paths {
		list, _ := filepath.Glob(filepath.Join(root, path))
		for _, path := range list {
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				path = filepath.Dir(path)
			}
			err := filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() || !sourceFile.MatchString(d.Name()) {
					return err
				}
				names[d.Name()] = true
				data, err := os.ReadFile(path)
				all.Write(data)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return names, all.String()
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
	checked := 0
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
		names, text := sourcesBelow(t, root, at)
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			switch name := m[1]; {
			case sourceFile.MatchString(name):
				if !names[name] {
					t.Errorf("ARCHITECTURE.md:%d: no directory of the row has a %s", i+1, name)
				}
			case goName.MatchString(name):
				if !regexp.MustCompile(`\b` + name + `\b`).MatchString(text) {
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
