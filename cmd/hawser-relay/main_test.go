package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/hawser-net/hawser/internal/relay"
)

// TestReferenceIsCurrent keeps the manual page and the options one thing.
func TestReferenceIsCurrent(t *testing.T) {
	const page = "../../docs/user/hawser-relay.md"
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	cmd := relay.NewCommand(version, func(string) string { return "" })
	cmd.SetArgs([]string{"reference"})
	cmd.SetOut(&got)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs from the options: run `go generate ./cmd/hawser-relay` and commit the change if it is wanted", page)
	}
}
