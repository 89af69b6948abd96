package policy

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/observe"
	"github.com/hawser-net/hawser/internal/cli/output"
)

func matrixCommand(a *command.App) *cobra.Command {
	q := &question{}
	req := &policypb.MatrixRequest{}
	c := &cobra.Command{
		Use:   "matrix",
		Short: "Show which connections policies allow",
		Long: `Show which connections the policies in force allow, between groups of pods with the same
labels, the world, nodes, and prefixes in policies. Pairs without any policy are only
counted; -o json lists them all.`,
		Example: `  hawser policy matrix -n shop
  hawser policy matrix --server 192.0.2.7:4245 -o json`,
		Args: cobra.NoArgs,
	}
	q.flags(c)
	c.Flags().StringSliceVarP(&req.Namespaces, "namespace", "n", nil, "only pairs of which one side is in these `namespaces`")
	c.Flags().Uint32Var(&req.Parties, "parties", 0, "at most `n` sorts of pods and the like (default and most: 2000)")
	_ = c.RegisterFlagCompletionFunc("namespace", observe.CompleteNamespaces(a, &q.server))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var res *policypb.MatrixResponse
		err := q.ask(a, func(c policypb.PolicyClient) (err error) {
			res, err = readAnswer(c.Matrix(cmd.Context(), req))
			return err
		})
		if err != nil {
			return err
		}
		if q.output == "json" {
			return writeAnswer(cmd.OutOrStdout(), res)
		}
		return writeMatrix(a, cmd.OutOrStdout(), res)
	}
	return c
}

func writeMatrix(a *command.App, w io.Writer, res *policypb.MatrixResponse) error {
	t := a.Table("SOURCE", "DESTINATION", "PASSES", "POLICIES")
	free := 0
	for _, row := range res.GetRows() {
		for i, n := range row.GetAccesses() {
			x := res.GetAccesses()[n]
			by := accessPolicies(x)
			passes := output.Good.Cell(strings.ToLower(x.GetVerdict().String()))
			switch {
			case x.GetVerdict() == policypb.Verdict_UNKNOWN:
				continue
			case x.GetVerdict() == policypb.Verdict_ALLOWED && by == "":
				free++
				continue
			case x.GetVerdict() == policypb.Verdict_DENIED:
				passes = output.Bad.Cell("nothing")
			case x.GetVerdict() == policypb.Verdict_PARTIAL:
				passes = output.Warn.Cell(listText(policypb.PortsText(x.GetPorts(), portOf)))
			default:
				passes = output.Good.Cell("everything")
			}
			if x.GetByAddress() {
				passes.Text += " (by address)"
			}
			t.Row(partyAt(res.GetParties(), row.GetSource()), partyAt(res.GetParties(), uint32(i)), passes, by)
		}
	}
	if err := t.Write(w); err != nil {
		return err
	}
	text := fmt.Sprintf("\n%d more pairs pass without any policy about them\n", free)
	if n := res.GetPartiesLeftOut(); n > 0 {
		text += fmt.Sprintf("%d identities are too many, and are not shown\n", n)
	}
	_, err := io.WriteString(w, text)
	return err
}
