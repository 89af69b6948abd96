package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

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
	var check func(c *cobra.Command, example bool)
	check = func(c *cobra.Command, example bool) {
		if c.Name() == "completion" || c.Name() == "help" {
			return // cobra's own
		}
		if c.Name() == "sandbox" {
			example = true // a tour in order; its help says what to try next
		}
		path := c.CommandPath()
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the short text is %q, want a phrase without a full stop", path, c.Short)
		}
		if c.HasParent() {
			example = example || c.Example != ""
		}
		if !c.HasSubCommands() && !c.Hidden && !example {
			t.Errorf("neither %s nor the group it is in has an example", path)
		}
		for _, sub := range c.Commands() {
			check(sub, example)
		}
	}
	check(root(), false)
}
