package agent

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/daemon"
)

// NewCommand returns the command line of the agent. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	if name := getenv("K8S_NODE_NAME"); name != "" {
		cfg.NodeName = name
	}
	cmd := program(&cfg, version, getenv).Command()
	cmd.Flags().Lookup("node-name").DefValue = "" // this host's name means nothing to others
	clean := &cobra.Command{
		Use: "cleanup", Short: "Remove everything that the agent has left on this node",
		Long: `cleanup removes devices, routes, masquerading, interfaces of pods, pinned maps and programs,
state and the CNI configuration. It refuses to run while an agent uses the same state directory or
answers at its socket, and leaves alone what another network plugin has there. Call it before the
next plugin is installed on the node.`,
		Example: `  # after the agent has stopped, to take the node out of the network
  hawser-agent cleanup`,
		Args: cobra.NoArgs,
		RunE: func(sub *cobra.Command, _ []string) error {
			if _, err := confdir.Load(sub.Flags(), getenv); err != nil {
				return err
			}
			return CleanUp(cfg, cfg.Logger(), sub.OutOrStdout())
		},
	}
	// Of the agent's options only those with paths.
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.Flags(all)
	for _, name := range []string{"config-dir", "debug", "log-format", "state-dir", "bpf-root", "write-cni-conf-when-ready", "cni-exclusive",
		"socket-path", "cni-log-file", "hubble-socket-path"} {
		clean.Flags().AddFlag(all.Lookup(name))
	}
	cmd.AddCommand(clean)
	return cmd
}

// program is the agent as a daemon.
func program(cfg *Config, version string, getenv func(string) string) daemon.Program {
	return daemon.Program{
		Name: "hawser-agent", Version: version,
		Short: "Attach pods to the network and enforce policy on this node",
		Long: `hawser-agent runs on every node, as root. It serves the CNI plugin, gives pods addresses
and identities, and configures the kernel to forward packets and enforce policies. The kernel
continues to do both when the agent stops.`,
		Example: `  # a node on its own
  hawser-agent --ipv4-range 10.0.1.0/24 --enable-ipv6=false

  # a node of a Kubernetes cluster; in a pod no option is needed
  hawser-agent --k8s-kubeconfig-path /etc/kubernetes/hawser.conf --ipam kubernetes

  # one of several nodes that share an etcd
  hawser-agent --ipv4-range 10.0.1.0/24 --ipv6-range fd00:1::/112 \
    --kvstore etcd --kvstore-opt etcd.address=http://192.0.2.1:2379`,
		Config: cfg, Options: &cfg.Options, Getenv: getenv,
		Complete: func(fs *pflag.FlagSet) error {
			if !fs.Changed("enable-k8s") {
				cfg.EnableK8s = cfg.EnableK8s || cfg.K8s.KubeconfigPath != "" || cfg.K8s.APIServer != ""
			}
			cfg.forMode()
			return confdir.Unprotected(fs, getenv)
		},
		Run: func(ctx context.Context, log *slog.Logger, fs *pflag.FlagSet) error {
			a, err := New(*cfg, log, version, flagValues(fs))
			if err != nil {
				return err
			}
			return a.Run(ctx)
		},
	}
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
