package operator

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/operator/kube"
)

// NewCommand returns the command line of the operator. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	cmd := &cobra.Command{
		Use:   "hawser-operator",
		Short: "Look after what no node of the cluster owns",
		Long: `hawser-operator looks after what no node of a cluster owns. It keeps the key-value store in
order: a heartbeat, the cluster's description, identities that nobody uses any more, locks that
were left behind. In a Kubernetes cluster it defines the custom resources, gives nodes addresses
for their pods, tells which nodes have a network, validates policies, and collects endpoints,
nodes and identities that nobody needs any more. Several may run at once; one of them leads.

Every option can also be given as an environment variable (--cluster-name is
CILIUM_CLUSTER_NAME) or as a file of --config-dir named like the option. The command line
comes first, then the environment, then the files. In the latter two blanks may separate the
items of a list, and a duration without a unit is in seconds.`,
		Example: `  hawser-operator --kvstore etcd --kvstore-opt etcd.address=http://192.0.2.1:2379
  hawser-operator --identity-allocation-mode crd --cluster-pool-ipv4-cidr 10.0.0.0/8   # in a pod`,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unknown, err := confdir.Load(cmd.Flags(), getenv)
			if err != nil {
				return err
			}
			cfg.Kubernetes = cfg.Kube.InUse(getenv)
			if !cfg.Kubernetes && cfg.Kube.Enable && cmd.Flags().Changed(kube.EnableFlag) {
				return fmt.Errorf("--%s: this is no pod of a cluster, so --k8s-kubeconfig-path or --k8s-api-server must say where the cluster is", kube.EnableFlag)
			}
			if cfg.Hostname, err = os.Hostname(); err != nil {
				return fmt.Errorf("name of this machine: %w", err)
			}
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("the configuration is not usable:\n%w", err)
			}
			log := newLogger(cfg)
			if len(unknown) > 0 {
				log.Debug("options of other programs in the configuration directory are ignored", "options", unknown)
			}
			// The libraries of Kubernetes have one log in a process.
			klog.SetSlogLogger(log)
			ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
			o, err := New(cfg, log, version)
			if err != nil {
				return err
			}
			return o.Run(cmd.Context())
		},
	}
	cfg.Flags(cmd.Flags())
	cmd.AddCommand(&cobra.Command{
		Use: "reference", Short: "Print the manual page", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return WriteReference(cmd.OutOrStdout(), cmd) },
	})
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
