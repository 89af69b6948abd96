package operator

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/confdir"
)

// NewCommand returns the command line of the operator. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	cmd := &cobra.Command{
		Use:   "hawser-operator",
		Short: "Look after what no node of the cluster owns",
		Long: `hawser-operator looks after what no node of a cluster owns. It keeps the key-value store in
order: a heartbeat, the cluster's description, identities that nobody uses any more, locks that
were left behind. Several may run at once.

Every option can also be given as an environment variable (--cluster-name is
CILIUM_CLUSTER_NAME) or as a file of --config-dir named like the option. The command line
comes first, then the environment, then the files.`,
		Example: `  hawser-operator --kvstore etcd --kvstore-opt etcd.address=http://192.0.2.1:2379`,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unknown, err := confdir.Load(cmd.Flags(), getenv)
			if err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("the configuration is not usable:\n%w", err)
			}
			log := newLogger(cfg)
			if len(unknown) > 0 {
				log.Debug("options of other programs in the configuration directory are ignored", "options", unknown)
			}
			o, err := New(cfg, log, version)
			if err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	cfg.Flags(cmd.Flags())
	return cmd
}

// newLogger writes to standard error, where the container runtime or systemd collects it.
func newLogger(cfg Config) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if cfg.Debug {
		opts.Level = slog.LevelDebug
	}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}
