package confdir

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestEmptyIsNotSet: an empty value leaves an option as it is, wherever it comes from, so that a
// ConfigMap that exists goes on working. A word is a value like any other.
func TestEmptyIsNotSet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, value := range map[string]string{"address": "", "interval": " \n", "selector": "none\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.String(FlagName, dir, "")
	address, ports, selector := fs.String("address", ":1", ""), fs.String("ports", "auto", ""), fs.String("selector", "a=b", "")
	interval := fs.Duration("interval", time.Minute, "")
	env := map[string]string{"CILIUM_PORTS": "", "CILIUM_ADDRESS": ""}
	if _, err := Load(fs, func(name string) string { return env[name] }); err != nil {
		t.Fatal(err)
	}
	if *address != ":1" || *ports != "auto" || *interval != time.Minute || *selector != "none" {
		t.Errorf("address %q, ports %q, interval %v, selector %q", *address, *ports, *interval, *selector)
	}
}

// TestOptionsHaveAWordForEmpty: no option has a default, and another meaning when it is empty: only
// the command line could give it that one.
func TestOptionsHaveAWordForEmpty(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)` \\| (.*?) \\| (.*) \\|$")
	for _, program := range []string{"agent", "operator", "relay"} {
		page, err := os.ReadFile(filepath.Join("..", "..", "docs", "user", "hawser-"+program+".md"))
		if err != nil {
			t.Fatal(err)
		}
		options := row.FindAllStringSubmatch(string(page), -1)
		if len(options) < 20 {
			t.Errorf("the page of hawser-%s lists %d options", program, len(options))
		}
		for _, o := range options {
			if name, value, meaning := o[1], o[2], o[3]; value != "" && strings.Contains(meaning, "empty for") {
				t.Errorf("--%s of hawser-%s has the default %s and a meaning when empty (%s), which no ConfigMap can set: give that a word", name, program, value, meaning)
			}
		}
	}
}
