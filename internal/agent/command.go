package agent

import (
	"errors"
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
comes first, then the environment, then the files. In the latter two blanks may separate the
items of a list, and a duration without a unit is in seconds.`,
		Example: `  # a node on its own
  hawser-agent --ipv4-range 10.0.1.0/24 --enable-ipv6=false

  # a node of a Kubernetes cluster; in a pod no option is needed
  hawser-agent --k8s-kubeconfig-path /etc/kubernetes/hawser.conf --ipam kubernetes

  # one of several nodes that share an etcd
  hawser-agent --ipv4-range 10.0.1.0/24 --ipv6-range fd00:1::/112 \
    --kvstore etcd --kvstore-opt etcd.address=http://192.0.2.1:2379`,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := cfg.load(cmd.Flags(), getenv)
			if err != nil {
				return err
			}
			a, err := New(cfg, log, version, flagValues(cmd.Flags()))
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	cfg.Flags(cmd.Flags())
	clean := &cobra.Command{
		Use: "cleanup", Short: "Remove what an agent leaves on the node when it stops",
		Long: `cleanup removes devices, routes, masquerading, pods' interfaces, pinned maps and programs,
state and the CNI configuration. It refuses while an agent runs on the same state directory.`,
		Args: cobra.NoArgs,
		RunE: func(sub *cobra.Command, _ []string) error {
			if _, err := confdir.Load(sub.Flags(), getenv); err != nil {
				return err
			}
			return CleanUp(cfg, newLogger(cfg), sub.OutOrStdout())
		},
	}
	// Of the agent's options only those that say where things are.
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.Flags(all)
	for _, name := range []string{"config-dir", "debug", "log-format", "state-dir", "bpf-root", "write-cni-conf-when-ready", "cni-exclusive"} {
		clean.Flags().AddFlag(all.Lookup(name))
	}
	cmd.AddCommand(clean, &cobra.Command{
		Use: "reference", Short: "Print the manual page of the options", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return WriteReference(cmd.OutOrStdout(), cmd) },
	})
	return cmd
}

// load completes the options and checks them.
func (c *Config) load(fs *pflag.FlagSet, getenv func(string) string) (*slog.Logger, error) {
	unknown, err := confdir.Load(fs, getenv)
	if err != nil {
		return nil, err
	}
	if !fs.Changed("enable-k8s") {
		c.EnableK8s = c.EnableK8s || c.K8s.KubeconfigPath != "" || c.K8s.APIServer != ""
	}
	if err := errors.Join(c.Validate(), confdir.Unprotected(fs, getenv)); err != nil {
		return nil, fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	log := newLogger(*c)
	if len(unknown) > 0 {
		log.Info("options of other programs, or without effect here, in the configuration directory are ignored", "options", unknown)
	}
	return log, nil
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
