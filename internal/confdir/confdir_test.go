package confdir_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
)

type settings struct {
	name     string
	interval time.Duration
	on       bool
}

func flags(c *settings) *pflag.FlagSet {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.String("config-dir", "", "")
	fs.StringVar(&c.name, "cluster-name", "default", "")
	fs.DurationVar(&c.interval, "gc-interval", time.Minute, "")
	fs.BoolVar(&c.on, "on", false, "")
	return fs
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"cluster-name": "file\n", "gc-interval": "3s", "on": "true", "of-another-program": "1", "..data": "link"})
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args []string
		env  map[string]string
		want settings
	}{
		{"nothing", nil, nil, settings{"default", time.Minute, false}},
		{"files", []string{"--config-dir", dir}, nil, settings{"file", 3 * time.Second, true}},
		{"directory from the environment", nil, map[string]string{"CILIUM_CONFIG_DIR": dir}, settings{"file", 3 * time.Second, true}},
		{"environment before files", []string{"--config-dir", dir}, map[string]string{"CILIUM_CLUSTER_NAME": "env"}, settings{"env", 3 * time.Second, true}},
		{"command line before all", []string{"--config-dir", dir, "--cluster-name=line", "--on=false"},
			map[string]string{"CILIUM_CLUSTER_NAME": "env"}, settings{"line", 3 * time.Second, false}},
	} {
		var got settings
		fs := flags(&got)
		if err := fs.Parse(tt.args); err != nil {
			t.Fatal(err)
		}
		unknown, err := confdir.Load(fs, func(k string) string { return tt.env[k] })
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if tt.name == "files" {
			if diff := cmp.Diff([]string{"of-another-program"}, unknown); diff != "" {
				t.Errorf("unknown options (-want +got):\n%s", diff)
			}
		}
	}
}

// TestForms: lists and durations as ConfigMaps have them; the command line is stricter.
func TestForms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		list, interval string
		want           []string
		wantInterval   time.Duration
	}{
		{"k8s:app k8s:team", "15", []string{"k8s:app", "k8s:team"}, 15 * time.Second},
		{"10.0.0.0/8,fd00::/64", "1m30s", []string{"10.0.0.0/8", "fd00::/64"}, 90 * time.Second},
		{" a,\n b\tc ", "0", []string{"a", "b", "c"}, 0},
		{"one", "2h", []string{"one"}, 2 * time.Hour},
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"list": tt.list, "gc-interval": tt.interval})
		var got settings
		var list []string
		fs := flags(&got)
		fs.StringSliceVar(&list, "list", []string{"default"}, "")
		if err := fs.Parse([]string{"--config-dir", dir}); err != nil {
			t.Fatal(err)
		}
		if _, err := confdir.Load(fs, func(string) string { return "" }); err != nil {
			t.Errorf("%q, %q: %v", tt.list, tt.interval, err)
		}
		if diff := cmp.Diff(tt.want, list); diff != "" || got.interval != tt.wantInterval {
			t.Errorf("%q, %q: interval %v; list (-want +got):\n%s", tt.list, tt.interval, got.interval, diff)
		}
	}
	var got settings
	if err := flags(&got).Parse([]string{"--gc-interval=15"}); err == nil {
		t.Error("the command line takes a duration without a unit")
	}
}

func TestLoadTellsAllFaultsAndTheirPlaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"gc-interval": "soon", "cluster-name": strings.Repeat("x", 2<<20)})
	var got settings
	fs := flags(&got)
	if err := fs.Parse([]string{"--config-dir", dir}); err != nil {
		t.Fatal(err)
	}
	_, err := confdir.Load(fs, func(k string) string { return map[string]string{"CILIUM_ON": "perhaps"}[k] })
	for _, want := range []string{filepath.Join(dir, "gc-interval"), filepath.Join(dir, "cluster-name"), "CILIUM_ON"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
	fs = flags(&got)
	if err := fs.Parse([]string{"--config-dir", filepath.Join(dir, "none")}); err != nil {
		t.Fatal(err)
	}
	if _, err := confdir.Load(fs, func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "--config-dir") {
		t.Errorf("no such directory: %v", err)
	}
}
