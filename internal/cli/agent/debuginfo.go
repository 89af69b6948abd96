package agent

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
)

// DebugInfoCommand prints the agent's state for a bug report.
func DebugInfoCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "debuginfo",
		Short: "Print the state of the agent, for a bug report",
		Long: `Print the state of the agent, for a bug report: its version, status and options,
endpoints, identities, addresses, policies and services, and the kernel's version.

The output is JSON unless -o yaml or -o jsonpath is given. It contains no secrets,
but the names, labels and addresses of pods and the policies.`,
		Example: `  hawser debuginfo > debuginfo.json`,
		Args:    cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.Flags().Lookup("output").Usage = "json (the default), yaml or jsonpath='{.field}'"
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		info, err := c.DebugInfo(cmd.Context())
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), info, func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			return enc.Encode(info)
		})
	})
	return c
}
