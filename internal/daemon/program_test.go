package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// options are those of a program that needs to know how many.
type options struct {
	Options
	count int
}

func (o *options) Flags(fs *pflag.FlagSet) {
	o.Options.Flags(fs)
	fs.IntVar(&o.count, "count", o.count, "how many")
}

func (o *options) Validate() error {
	if o.count < 0 {
		return errors.New("--count: is less than 0")
	}
	return o.Options.Validate()
}

// TestExitCodes: who starts a daemon learns from its exit code whether the same options fail again,
// and from its last lines what is wrong and where to look.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	fault := errors.New("cannot listen")
	const help = "\nSee 'hawser-test --help'.\n"
	for _, tt := range []struct {
		args   []string
		err    error // of the work
		code   int
		stderr string
	}{
		{nil, nil, 0, ""},
		{nil, fault, 1, "hawser-test: cannot listen\n"},
		{[]string{"--version"}, nil, 0, ""},
		{[]string{"--help"}, nil, 0, ""},
		{[]string{"--nonsense"}, nil, 2, "hawser-test: unknown flag: --nonsense" + help},
		{[]string{"--count", "many"}, nil, 2, `hawser-test: invalid argument "many" for "--count" flag: strconv.ParseInt: parsing "many": invalid syntax` + help},
		{[]string{"nonsense"}, nil, 2, `hawser-test: unknown command "nonsense" for "hawser-test"` + help},
		{[]string{"--count", "-1"}, nil, 2, "hawser-test: the configuration is not usable:\n--count: is less than 0" + help},
		{[]string{"--config-dir", "/nowhere"}, nil, 2, "hawser-test: --config-dir: open /nowhere: no such file or directory" + help},
		{[]string{"clean"}, fault, 1, "hawser-test: cannot listen\n"},
		{[]string{"clean", "nonsense"}, nil, 2, `hawser-test: unknown command "nonsense" for "hawser-test clean"` + "\nSee 'hawser-test clean --help'.\n"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			t.Parallel()
			cfg := options{Options: Defaults()}
			root := Program{
				Name: "hawser-test", Version: "v1", Config: &cfg, Options: &cfg.Options, Getenv: func(string) string { return "" },
				Run: func(context.Context, *slog.Logger, *pflag.FlagSet) error { return tt.err },
			}.Command()
			root.AddCommand(&cobra.Command{Use: "clean", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return tt.err }})
			var stdout, stderr strings.Builder
			root.SetOut(&stdout)
			root.SetArgs(append([]string{}, tt.args...))
			if code := execute(t.Context(), root, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if diff := cmp.Diff(tt.stderr, stderr.String()); diff != "" {
				t.Errorf("standard error (-want +got):\n%s", diff)
			}
		})
	}
}
