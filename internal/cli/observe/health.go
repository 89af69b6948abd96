package observe

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
)

func healthCommand(a *command.App) *cobra.Command {
	return question(a, "health", "Show which nodes reach each other",
		`Show which nodes reach each other, from the probes that they send each other. A relay shows
the results of all nodes, an agent its own. Pairs that do not reach each other are listed,
with the paths that fail and since when.`,
		func(ctx context.Context, c grpc.ClientConnInterface) (*health.GetResponse, error) {
			return health.NewNodeHealthClient(c).Get(ctx, &health.GetRequest{})
		},
		func(cmd *cobra.Command, res *health.GetResponse) error {
			t := a.Table("NODE", "REACHES", "UNREACHED BY", "LATENCY", "NOTE")
			for _, n := range res.GetNodes() {
				all := n.GetReachable() + n.GetUnreachable() + n.GetSilent() + n.GetUnknown()
				reaches := output.Good.Cell(fmt.Sprintf("%d of %d", n.GetReachable(), all))
				var notes []string
				if n.GetSilent() > 0 {
					notes = append(notes, fmt.Sprintf("%d answer no health checks", n.GetSilent()))
				}
				if n.GetUnknown() > 0 {
					notes = append(notes, fmt.Sprintf("%d not probed yet (a round takes %v)", n.GetUnknown(), n.GetRound().AsDuration()))
				}
				switch {
				case n.GetProblem() != "":
					reaches = output.Warn.Cell("unknown")
					notes = append(notes, output.Printable(n.GetProblem()))
				case n.GetUnreachable() > 0:
					reaches.Style = output.Bad
				}
				by := output.Good.Cell(fmt.Sprint(n.GetUnreachedBy()))
				if n.GetUnreachedBy() > 0 {
					by.Style = output.Bad
				}
				t.Row(output.Printable(n.GetName()), reaches, by, healthLatency(n.GetLatency().AsDuration()), strings.Join(notes, ", "))
			}
			if err := t.Write(cmd.OutOrStdout()); err != nil || len(res.GetFailures()) == 0 {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout())
			t = a.Table("FROM", "TO", "SINCE", "WHAT DOES NOT WORK")
			for _, f := range res.GetFailures() {
				var ways []string
				for _, w := range f.GetWays() {
					where := "node"
					if w.GetEndpoint() {
						where = "endpoint"
					}
					ways = append(ways, output.Printable(fmt.Sprintf("%s %s %s: %s", where, w.GetKind(), w.GetAddress(), w.GetProblem())))
				}
				t.Row(output.Printable(f.GetFrom()), output.Bad.Cell(output.Printable(f.GetTo())), f.GetSince().AsTime().UTC().Format(time.RFC3339), ways)
			}
			if err := t.Write(cmd.OutOrStdout()); err != nil {
				return err
			}
			if n := res.GetFailuresLeftOut(); n > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "and %d more\n", n)
			}
			return nil
		})
}

// healthLatency is a latency for people; none is nothing.
func healthLatency(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return d.Round(10 * time.Microsecond).String()
}
