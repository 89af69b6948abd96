package operator

import (
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:embed reference.md
var referenceText string

// WriteReference writes the manual page of the operator, made from a text and from the options
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
