package deploy_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/agent"
	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/operator"
	"github.com/hawser-net/hawser/internal/storedial"
)

//go:generate go -C render test -count=1 -run TestOptionsOfRows . -args -update

// TestProgramsTakeOptions: values that the chart takes are taken by the programs, too. Otherwise an
// upgrade would restart agents that end at once. The file has what the chart renders of each row of
// values in its own test.
func TestProgramsTakeOptions(t *testing.T) {
	t.Parallel()
	var config corev1.ConfigMap
	one(t, "ConfigMap", "cilium-config", &config)
	data, err := os.ReadFile("testdata/options.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Name      string
		ConfigMap map[string]*string // what differs from the defaults; nil for what is not there
		Args      map[string][]string
	}
	if err := yaml.UnmarshalStrict(data, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 40 {
		t.Fatalf("only %d rows", len(rows))
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			all := maps.Clone(config.Data)
			for k, v := range row.ConfigMap {
				if delete(all, k); v != nil {
					all[k] = *v
				}
			}
			dir := t.TempDir()
			for k, v := range all {
				if err := os.WriteFile(filepath.Join(dir, k), []byte(v), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			strangers := slices.Sorted(maps.Keys(all)) // options that no program has
			for program, args := range row.Args {
				unknown, err := load(program, args, dir)
				if err != nil {
					t.Errorf("%s: %v", program, err)
				}
				strangers = slices.DeleteFunc(strangers, func(k string) bool { return !slices.Contains(unknown, k) })
			}
			if len(row.Args) < 2 || len(strangers) > 0 {
				t.Errorf("of the programs %v none has the options %v", slices.Sorted(maps.Keys(row.Args)), strangers)
			}
		})
	}
}

// load has a program read its configuration as in a pod, with the ConfigMap in dir, and check it.
func load(program string, args []string, dir string) (unknown []string, err error) {
	fs := pflag.NewFlagSet(program, pflag.ContinueOnError)
	var check func() error
	if program == "hawser-operator" {
		c := operator.Defaults()
		c.Kubernetes = true
		c.Flags(fs)
		check = c.Validate
	} else {
		c := agent.Defaults()
		c.NodeName = "n1"
		c.Flags(fs)
		check = c.Validate
	}
	err = errors.Join(fs.Parse(args), fs.Set(confdir.FlagName, dir))
	unknown, loadErr := confdir.Load(fs, func(string) string { return "" })
	return unknown, errors.Join(err, loadErr, check())
}

// TestSchemaNamesWhatProgramsTake: the schema of values lists names that programs take; the errors
// of these name all of them.
func TestSchemaNamesWhatProgramsTake(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("helm/hawser/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Hubble struct {
				Properties struct {
					Metrics struct {
						Properties struct {
							Enabled struct{ Items struct{ Pattern string } }
						}
					}
				}
			}
		}
		Definitions struct {
			StoreOptions struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	// named returns what an error lists behind a word.
	named := func(err error, behind string) []string {
		t.Helper()
		if err == nil {
			t.Fatal("a name that does not exist is taken")
		}
		_, list, ok := strings.Cut(err.Error(), behind)
		list, _, _ = strings.Cut(list, "\n")
		if !ok {
			t.Fatalf("%v lists no names", err)
		}
		return strings.Split(list, ", ")
	}
	pattern := schema.Properties.Hubble.Properties.Metrics.Properties.Enabled.Items.Pattern
	_, err = flowmetrics.Parse("none")
	metrics := named(err, "none of ")
	if want := strings.Join(metrics, "|"); !strings.HasPrefix(pattern, "^("+want+")(,("+want+"))*") {
		t.Errorf("hubble.metrics.enabled: the pattern %s is not of %s", pattern, want)
	}
	form := regexp.MustCompile(pattern)
	for text, want := range map[string]bool{
		"drop": true, "drop,tcp": true, "flow:sourceContext=workload|ip;labelsContext=source_namespace,destination_namespace": true,
		"dns": false, "drop tcp": false, "drop,": false, "dropped": false,
	} {
		if form.MatchString(text) != want {
			t.Errorf("hubble.metrics.enabled: %q fits: %v", text, !want)
		}
	}
	var options []string
	for _, kind := range storedial.Kinds() {
		c := storedial.Defaults()
		c.Kind, c.Options = kind, map[string]string{kind + ".none": ""}
		options = append(options, named(c.Validate(), "there are ")...)
	}
	slices.Sort(options)
	if diff := cmp.Diff(options, slices.Sorted(maps.Keys(schema.Definitions.StoreOptions.Properties))); diff != "" {
		t.Errorf("options of stores (-programs +schema):\n%s", diff)
	}
}
