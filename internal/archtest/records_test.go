package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecordsHaveStatus: a decision record says, before anything else, whether it holds.
func TestRecordsHaveStatus(t *testing.T) {
	t.Parallel()
	records, err := filepath.Glob("../../docs/design/[0-9]*.md")
	if err != nil || len(records) == 0 {
		t.Fatalf("no records: %v", err)
	}
	for _, name := range records {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitN(string(text), "\n", 4)
		if number, _, _ := strings.Cut(filepath.Base(name), "-"); !strings.HasPrefix(lines[0], "# "+number+": ") ||
			len(lines) < 4 || lines[1] != "" || !strings.HasPrefix(lines[2], "Status: ") {
			t.Errorf("%s begins %q, want %q and a line %q", name, lines[:min(3, len(lines))], "# "+number+": TITLE", "Status: ...")
		}
	}
}
