package agent

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
)

// NewCommand returns the command line of the agent. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	if name := getenv("K8S_NODE_NAME"); name != "" {
		cfg.NodeName = name
	}
	cmd := &cobra.Command{
		Use:   "hawser-agent",
		Short: "Attach pods to the network and enforce policy on this node",
		Long: `hawser-agent runs on every node, as root. It answers the CNI plugin, gives pods
addresses and identities, and keeps the kernel forwarding and enforcing. The kernel goes on
doing both when the agent stops.

Every option can also be given as an environment variable (--cluster-name is
CILIUM_CLUSTER_NAME) or as a file of --config-dir named like the option. The command line
comes first, then the environment, then the files.`,
		Example: `  # a node on its own
  hawser-agent --ipv4-range 10.0.1.0/24 --enable-ipv6=false

  # one of several nodes that share an etcd
  hawser-agent --ipv4-range 10.0.1.0/24 --ipv6-range fd00:1::/112 \
    --kvstore etcd --kvstore-opt etcd.address=http://192.0.2.1:2379`,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fs := cmd.Flags()
			unknown, err := confdir.Load(fs, getenv)
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
			a, err := New(cfg, log, version, flagValues(fs))
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
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

// flagValues returns every option with its value, for GET /config. The options of the key-value
// store, which may hold secrets, are left out: they are shown elsewhere, redacted.
func flagValues(fs *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != "kvstore-opt" && f.Name != "help" && f.Name != "version" {
			out[f.Name] = f.Value.String()
		}
	})
	return out
}
