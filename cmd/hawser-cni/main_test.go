package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestArguments: a person who starts the plugin is told what it is for, and what is wrong.
func TestArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string // part of it
	}{
		{"--version", 0, "hawser-cni version devel", ""},
		{"--help", 0, "CNI_COMMAND=VERSION", ""},
		{"install --help", 0, "hawser-cni install --dir /opt/cni/bin", ""},
		{"nonsense", 2, "", `unknown argument "nonsense"`},
		{"install --nonsense", 2, "", "-nonsense"},
		{"install " + dir, 2, "", "name the directory with --dir"},
		{"install --dir " + filepath.Join(file, "below"), 1, "", file},
		{"install --dir " + filepath.Join(dir, "bin"), 0, "installed in " + filepath.Join(dir, "bin"), ""},
	} {
		var stdout, stderr strings.Builder
		code := run(strings.Fields(tt.args), &stdout, &stderr)
		if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) ||
			(code == 0) != (stderr.Len() == 0) || (code == 0) == (stdout.Len() == 0) {
			t.Errorf("hawser-cni %s: exit code %d\nstandard output: %s\nstandard error: %s\nwant %d with %q and %q",
				tt.args, code, &stdout, &stderr, tt.code, tt.stdout, tt.stderr)
		}
		if code == 2 && !strings.HasSuffix(stderr.String(), "See 'hawser-cni --help'.\n") {
			t.Errorf("hawser-cni %s does not say where to look: %s", tt.args, &stderr)
		}
	}
}
