package relay

import (
	"context"
	_ "embed"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/daemon"
)

//go:embed reference.md
var referenceText string

// NewCommand returns the command line of the relay. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	return daemon.Program{
		Name: "hawser-relay", Version: version,
		Short: "Serve the flows of all nodes of a cluster",
		Long: `hawser-relay gets the list of nodes from an agent, forwards the requests of clients to all
of them, and returns their flows sorted by time. It stores no flows, and needs no rights in
Kubernetes.`,
		Example: `  hawser-relay --listen-address unix:///run/hawser-relay.sock --disable-client-tls
  hawser observe --server unix:///run/hawser-relay.sock --follow`,
		Manual: referenceText, Config: &cfg, Options: &cfg.Options, Getenv: getenv,
		UnknownLevel: slog.LevelDebug,
		Run: func(ctx context.Context, log *slog.Logger, _ *pflag.FlagSet) error {
			r, err := New(cfg, log, version)
			if err != nil {
				return err
			}
			return r.Run(ctx)
		},
	}.Command()
}
