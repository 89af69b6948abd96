package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxComment is how wide a line of comment may be: two files fit beside each other on a screen.
const maxComment = 100

// TestCommentsAreNarrow looks at every line of Go and C that is nothing but comment. A tab counts
// as 4 in Go, as editors show it, and as 8 in C, as the kernel has it.
func TestCommentsAreNarrow(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "testdata" || name == "bin" || len(name) > 2 && name[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		}
		ext := filepath.Ext(file)
		if ext != ".go" && ext != ".c" && ext != ".h" {
			return nil
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, line := range wideComments(string(source), ext == ".go") {
			t.Errorf("%s: a comment wider than %d columns: %s", strings.TrimPrefix(file, "../../"), maxComment, line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wideComments returns the lines of comment that are too wide and could be narrower.
func wideComments(source string, isGo bool) (wide []string) {
	tab := "        "
	if isGo {
		tab = "    "
	}
	inside := false // of a comment in C
	for line := range strings.Lines(source) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "// Code generated ") {
			return nil
		}
		comment := strings.HasPrefix(text, "//")
		if !isGo {
			comment = inside || strings.HasPrefix(text, "/*")
			inside = comment && !strings.Contains(text, "*/")
		}
		if !comment || len(strings.Fields(text)) < 3 || strings.HasPrefix(text, "// +") || strings.HasPrefix(text, "//go:") {
			continue
		}
		if len([]rune(strings.ReplaceAll(strings.TrimRight(line, "\r\n"), "\t", tab))) > maxComment {
			wide = append(wide, text)
		}
	}
	return wide
}
