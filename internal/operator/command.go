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
		Short: "Do the work of a cluster that belongs to no single node",
		Long: `hawser-operator does the work of a cluster that belongs to no single node. It maintains the
key-value store: it writes a heartbeat and the description of the cluster, and removes unused
identities and stale locks. In a Kubernetes cluster it defines the custom resources, assigns
addresses to nodes, marks the nodes that have a network, validates policies, and collects unused
endpoints, nodes and identities. You can run several operators; one of them leads.`,
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
