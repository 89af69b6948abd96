package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/cli"
)

func root() *cobra.Command {
	return cli.NewCommand(cli.Config{
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
		Getenv:   func(string) string { return "" },
		Commands: commands(),
	})
}

// TestReferenceIsCurrent keeps the page of the manual and the commands one thing.
func TestReferenceIsCurrent(t *testing.T) {
	const page = "../../docs/user/cli.md"
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := cli.WriteReference(&got, root()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs from the commands: run `go generate ./cmd/hawser` and commit the change if it is wanted", page)
	}
}

// TestEveryCommandIsDescribed holds commands to what their help promises.
func TestEveryCommandIsDescribed(t *testing.T) {
	t.Parallel()
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Name() == "completion" || c.Name() == "help" {
			return // cobra's own
		}
		path := c.CommandPath()
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the short text is %q, want a phrase without a full stop", path, c.Short)
		}
		if !c.HasSubCommands() && !c.Hidden && !strings.Contains(c.Example, path) {
			t.Errorf("%s has no example of itself: %q", path, c.Example)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); strings.Contains(name, " ") {
				t.Errorf("%s: the value of --%s is called %q", path, f.Name, name)
			}
		})
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(root())
}

// TestSandboxUsage: who writes a command line that cannot be meant gets exit code 2 and is told
// where to look, before anything is started.
func TestSandboxUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"sandbox nonsense":                      `unknown command "nonsense"`,
		"sandbox up --nodes 12":                 "12 nodes: want 1 to 9",
		"sandbox up --nodes many":               `"many"`,
		"sandbox up --kubernetes --nodes 21":    "21 nodes: want 1 to 20",
		"sandbox up --kubernetes --demo":        "--demo is not for --kubernetes",
		"sandbox up --kubernetes=half":          `kubernetes "half"`,
		"sandbox up --demo --dual-stack":        "--dual-stack is for --kubernetes",
		"sandbox up --store etcd":               "--store is for --kubernetes",
		"sandbox up --routing-mode both":        `routing mode "both"`,
		"sandbox down --name Upper":             `sandbox name "Upper"`,
		"sandbox run web --port 0":              "--port 0",
		"sandbox reach --protocol sctp":         `--protocol "sctp"`,
		"sandbox exec n1":                       "requires at least 2 arg(s)",
		"sandbox node kill":                     "accepts 1 arg(s)",
		"sandbox cloud fail --times many quota": `"many"`,
	} {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), cli.Config{
			Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }, Commands: commands(),
		}, strings.Fields(args+" --root-dir /nowhere"))
		if code != 2 || !strings.Contains(stderr.String(), want) || !strings.Contains(stderr.String(), "See 'hawser sandbox") || stdout.Len() > 0 {
			t.Errorf("hawser %s: exit code %d\n%s%swant 2 and %q", args, code, &stdout, &stderr, want)
		}
	}
}
