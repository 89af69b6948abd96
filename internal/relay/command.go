package relay

import (
	_ "embed"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
)

// NewCommand returns the command line of the relay. getenv is the process's environment.
func NewCommand(version string, getenv func(string) string) *cobra.Command {
	cfg := Defaults()
	cmd := &cobra.Command{
		Use:   "hawser-relay",
		Short: "Answer for all nodes of a cluster who talks to whom",
		Long: `hawser-relay hears from an agent which nodes a cluster has, asks all of them what a client
asks, and answers with the flows of all nodes in the order of their times. It keeps none of
them, and needs no right in Kubernetes.

Every option can also be given as an environment variable (--cluster-name is
CILIUM_CLUSTER_NAME) or as a file of --config-dir named like the option. The command line
comes first, then the environment, then the files.`,
		Example: `  hawser-relay --listen-address unix:///run/hawser-relay.sock --disable-client-tls
  hawser observe --server unix:///run/hawser-relay.sock --follow`,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unknown, err := confdir.Load(cmd.Flags(), getenv)
			if err != nil {
				return err
			}
			if err := cfg.Validate(); err != nil {
				return fmt.Errorf("the configuration is not usable:\n%w", err)
			}
			opts := &slog.HandlerOptions{Level: slog.LevelInfo}
			if cfg.Debug {
				opts.Level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, opts))
			if cfg.LogFormat == "json" {
				log = slog.New(slog.NewJSONHandler(os.Stderr, opts))
			}
			if len(unknown) > 0 {
				log.Debug("options of other programs in the configuration directory are ignored", "options", unknown)
			}
			r, err := New(cfg, log, version)
			if err != nil {
				return err
			}
			return r.Run(cmd.Context())
		},
	}
	cfg.Flags(cmd.Flags())
	cmd.AddCommand(&cobra.Command{
		Use: "reference", Short: "Print the manual page", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return WriteReference(cmd.OutOrStdout(), cmd) },
	})
	return cmd
}

//go:embed reference.md
var referenceText string

// WriteReference writes the manual page of the relay, made from a text and from the options
// themselves.
func WriteReference(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString(referenceText)
	b.WriteString("| option | default | meaning |\n|---|---|---|\n")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		def := f.DefValue
		if def == "[]" {
			def = ""
		}
		if def != "" {
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, def, strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	_, err := io.WriteString(w, b.String())
	return err
}
