package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// Config is the configuration of a program. Flags binds it to command-line flags, whose defaults
// are the values it has; Validate checks what came of them and joins all faults in one error.
type Config interface {
	Flags(fs *pflag.FlagSet)
	Validate() error
}

// Program is what a daemon's command line is made from.
type Program struct {
	// Name is that of the binary. Short, Long and Example are the text of --help; where options
	// come from is added to Long.
	Name, Short, Long, Example, Version string
	// Manual begins the manual page. Empty for one that begins with Long and Example.
	Manual string
	// Config is filled in before Run, and Options are a part of it.
	Config  Config
	Options *Options
	// Getenv is the process's environment.
	Getenv func(string) string
	// Complete, if given, fills in unset options before Validate. It may look at which options were
	// given; its error is one of the configuration.
	Complete func(fs *pflag.FlagSet) error
	// UnknownLevel is how loudly options of the configuration directory that the program does not
	// know are logged.
	UnknownLevel slog.Level
	// Run works until ctx ends.
	Run func(ctx context.Context, log *slog.Logger, fs *pflag.FlagSet) error
}

const optionSources = `

You can also set every option as an environment variable (--cluster-name is
CILIUM_CLUSTER_NAME) or as a file of that name in --config-dir. The command line takes precedence
over the environment, and the environment over the files. In the latter two, blanks may separate
the items of a list, a duration without a unit is in seconds, and an empty value counts as not set.

The exit code is 0 after SIGINT or SIGTERM, 1 after a failure, and 2 if the options are wrong.`

// Command returns the command line of a program. Its subcommand "reference" prints the manual page.
func (p Program) Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: p.Name, Short: p.Short, Long: p.Long + optionSources, Example: p.Example,
		Version: p.Version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := p.Load(cmd.Flags())
			if err != nil {
				return exitcode.With(exitcode.Usage, err)
			}
			return p.Run(cmd.Context(), log, cmd.Flags())
		},
	}
	p.Config.Flags(cmd.Flags())
	cmd.AddCommand(&cobra.Command{
		Use: "reference", Short: "Print the manual page", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return writeReference(cmd.OutOrStdout(), cmd, p.Manual) },
	})
	return cmd
}

// Load completes the options, checks them, and opens the log.
func (p Program) Load(fs *pflag.FlagSet) (*slog.Logger, error) {
	unknown, err := confdir.Load(fs, p.Getenv)
	if err != nil {
		return nil, err
	}
	var incomplete error
	if p.Complete != nil {
		incomplete = p.Complete(fs)
	}
	if err := errors.Join(incomplete, p.Config.Validate()); err != nil {
		return nil, fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	log := p.Options.Logger()
	if len(unknown) > 0 {
		log.Log(context.Background(), p.UnknownLevel,
			"options of other programs, or without effect here, in the configuration directory are ignored", "options", unknown)
	}
	return log, nil
}

// Main runs a command line until it ends, or until the process gets SIGINT or SIGTERM, and returns
// the exit code.
func Main(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, cmd, os.Stderr)
}

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	cmd, err := exitcode.Execute(ctx, root)
	if err == nil {
		return exitcode.OK
	}
	fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	if !exitcode.IsUsage(err) {
		return exitcode.Failure
	}
	fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
	return exitcode.Usage
}
