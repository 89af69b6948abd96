package cli

import (
	"cmp"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/cli/output"
)

// versionCommand shows the version of the program itself.
func versionCommand(version string) *cobra.Command {
	c := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: "  hawser version -o jsonpath='{.version}'",
		Args:    cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		v := struct {
			Version  string `json:"version"`
			Go       string `json:"go"`
			Platform string `json:"platform"`
		}{cmp.Or(version, "dev"), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
		return out.Print(cmd.OutOrStdout(), v, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "hawser %s, %s, %s\n", v.Version, v.Go, v.Platform)
			return err
		})
	}
	return c
}
