package main

import (
	"bytes"
	"os"
	"path/filepath"
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
			if global := c.Root().PersistentFlags().Lookup(f.Name); global != nil && global != f {
				t.Errorf("%s: its --%s hides the option of all commands", path, f.Name)
			}
		})
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(root())
}

// runSandbox runs a command of hawser sandbox where there is none.
func runSandbox(t *testing.T, args string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), cli.Config{
		Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Commands: commands(),
	}, strings.Fields("sandbox --root-dir /nowhere "+args))
	return code, out.String(), errs.String()
}

// TestNoSandbox: a sandbox that does not run is one that does not exist.
func TestNoSandbox(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"status", "reach", "run web", "rm web", "exec n1 -- true", "shell n1", "kubectl -- get pods", "node kill n1", "cloud"} {
		if code, stdout, stderr := runSandbox(t, args); code != 4 || !strings.Contains(stderr, "start one with `hawser sandbox up") || stdout != "" {
			t.Errorf("hawser sandbox %s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// TestSandboxCompletions: completions are values of flags, and the places of the sandbox that is
// there, of either kind.
func TestSandboxCompletions(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, text := range map[string]string{
		"demo/state.json":   `{"nodes": [{"name": "n1"}, {"name": "n2"}], "pods": [{"name": "web"}, {"name": "db"}]}`,
		"kube/cluster.json": `{"nodes": [{"name": "n1"}, {"name": "n2"}, {"name": "n3"}]}`,
		"other/nothing":     "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"up --cni ":               "hawser ptp none :4",
		"up --cloud a":            "aws azure alibaba :4",
		"up --store ":             "etcd consul :4",
		"up --routing-mode ":      "tunnel native :4",
		"up --kubernetes=":        "full api :4",
		"up --enable-policy ":     "default always never :4",
		"status --name ":          "demo kube :4",
		"exec ":                   "n1 n2 web db world :4",
		"exec web -- ":            ":0",
		"exec --name kube ":       "n1 n2 n3 cp world :4",
		"shell w":                 "web world :4",
		"shell web ":              ":4",
		"rm web ":                 "web db :4",
		"run new --node ":         "n1 n2 :4",
		"reach --from ":           "web db world :4",
		"reach --protocol ":       "tcp udp icmp :4",
		"node kill ":              "n1 n2 n3 :4",
		"node start n3 ":          ":4",
		"node start --name none ": ":1",
		"cloud fail ":             "quota permission :4",
	} {
		var out, errs bytes.Buffer
		code := cli.Run(t.Context(), cli.Config{
			Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Commands: commands(),
		}, strings.Split("__complete sandbox --root-dir "+root+" "+args, " "))
		if got := strings.Join(strings.Fields(out.String()), " "); code != 0 || got != want {
			t.Errorf("hawser sandbox %s: exit code %d, %q, want %q\n%s", args, code, got, want, &errs)
		}
	}
}

// TestSandboxUsage: who writes a command line that cannot be meant gets exit code 2 and is told
// where to look, before anything is started.
func TestSandboxUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"nonsense":                      `unknown command "nonsense"`,
		"up --nodes 12":                 "12 nodes: want 1 to 9",
		"up --nodes many":               `"many"`,
		"up --kubernetes --nodes 21":    "21 nodes: want 1 to 20",
		"up --kubernetes --demo":        "--demo is not for --kubernetes",
		"up --kubernetes=half":          `kubernetes "half"`,
		"up --demo --dual-stack":        "--dual-stack is for --kubernetes",
		"up --store etcd":               "--store is for --kubernetes",
		"up --routing-mode both":        `routing mode "both"`,
		"down --name Upper":             `sandbox name "Upper"`,
		"run web --port 0":              "--port 0",
		"reach --protocol sctp":         `--protocol "sctp"`,
		"exec n1":                       "requires at least 2 arg(s)",
		"node kill":                     "accepts 1 arg(s)",
		"cloud fail --times many quota": `"many"`,
	} {
		code, stdout, stderr := runSandbox(t, args)
		if code != 2 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "See 'hawser sandbox") || stdout != "" {
			t.Errorf("hawser sandbox %s: exit code %d\n%s%swant 2 and %q", args, code, stdout, stderr, want)
		}
	}
}
