package operator

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/operator/kube"
)

//go:embed reference.md
var referenceText string

// NewCommand returns the command line of the operator. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	return daemon.Program{
		Name: "hawser-operator", Version: version,
		Short: "Look after what no node of the cluster owns",
		Long: `hawser-operator looks after what no node of a cluster owns. It keeps the key-value store in
order: a heartbeat, the cluster's description, identities that nobody uses any more, locks that
were left behind. In a Kubernetes cluster it defines the custom resources, gives nodes addresses
for their pods, tells which nodes have a network, validates policies, and collects endpoints,
nodes and identities that nobody needs any more. Several may run at once; one of them leads.`,
		Example: `  hawser-operator --kvstore etcd --kvstore-opt etcd.address=http://192.0.2.1:2379
  hawser-operator --identity-allocation-mode crd --cluster-pool-ipv4-cidr 10.0.0.0/8   # in a pod`,
		Manual: referenceText, Config: &cfg, Options: &cfg.Options, Getenv: getenv,
		Complete: func(fs *pflag.FlagSet) error {
			cfg.Kubernetes = cfg.Kube.InUse(getenv)
			if !cfg.Kubernetes && cfg.Kube.Enable && fs.Changed(kube.EnableFlag) {
				return fmt.Errorf("--%s: this is no pod of a cluster, so --k8s-kubeconfig-path or --k8s-api-server must say where the cluster is", kube.EnableFlag)
			}
			var err error
			if cfg.Hostname, err = os.Hostname(); err != nil {
				return fmt.Errorf("name of this machine: %w", err)
			}
			return nil
		},
		// The agent's options are in the same directory.
		UnknownLevel: slog.LevelDebug,
		Run: func(ctx context.Context, log *slog.Logger, _ *pflag.FlagSet) error {
			// The libraries of Kubernetes have one log in a process.
			klog.SetSlogLogger(log)
			ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
			o, err := New(cfg, log, version)
			if err != nil {
				return err
			}
			return o.Run(ctx)
		},
	}.Command()
}
