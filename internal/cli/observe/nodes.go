package observe

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
)

func nodesCommand(a *command.App) *cobra.Command {
	return question(a, "nodes", "Show the nodes that flows come from",
		`Show the nodes that a relay asks, and whether they answer; an agent knows of its own node only.`,
		func(ctx context.Context, c grpc.ClientConnInterface) (*observer.GetNodesResponse, error) {
			return observer.NewObserverClient(c).GetNodes(ctx, &observer.GetNodesRequest{})
		},
		func(cmd *cobra.Command, res *observer.GetNodesResponse) error {
			t := a.Table("NAME", "STATE", "ADDRESS", "TLS", "FLOWS", "SEEN", "UPTIME", "VERSION")
			for _, n := range res.GetNodes() {
				look := output.Good
				if n.GetState() != relay.NodeState_NODE_CONNECTED {
					look = output.Bad
				}
				state := strings.ToLower(strings.TrimPrefix(n.GetState().String(), "NODE_"))
				secure := "off"
				if n.GetTls().GetEnabled() {
					secure = output.Printable(n.GetTls().GetServerName())
				}
				t.Row(output.Printable(n.GetName()), look.Cell(state), output.Printable(n.GetAddress()), secure,
					fmt.Sprintf("%d/%d", n.GetNumFlows(), n.GetMaxFlows()), n.GetSeenFlows(), flowUptime(n.GetUptimeNs()), output.Printable(n.GetVersion()))
			}
			return t.Write(cmd.OutOrStdout())
		})
}

func statusCommand(a *command.App) *cobra.Command {
	return question(a, "status", "Show how much is recorded, and from how many nodes",
		`Show how many flows there are. A relay answers for all nodes together.`,
		func(ctx context.Context, c grpc.ClientConnInterface) (*observer.ServerStatusResponse, error) {
			return observer.NewObserverClient(c).ServerStatus(ctx, &observer.ServerStatusRequest{})
		},
		func(cmd *cobra.Command, st *observer.ServerStatusResponse) error {
			out := a.Facts()
			least := Bounds(st.GetNumUnavailableNodes().GetValue() > 0, false) // of nodes that do not answer nothing is counted
			out.Add("Flows", fmt.Sprintf("%s%d of %d", least, st.GetNumFlows(), st.GetMaxFlows()))
			out.Add("Seen", least+fmt.Sprint(st.GetSeenFlows()))
			out.Add("Rate", fmt.Sprintf("%s%.1f/s", least, st.GetFlowsRate()))
			out.Add("Uptime", flowUptime(st.GetUptimeNs()))
			if st.GetNumConnectedNodes() != nil {
				look := output.Good
				if st.GetNumUnavailableNodes().GetValue() > 0 {
					look = output.Warn
				}
				out.Add("Nodes", look.Cell(fmt.Sprintf("%d connected, %d unavailable", st.GetNumConnectedNodes().GetValue(), st.GetNumUnavailableNodes().GetValue())))
				out.Add("Unavailable", output.Printable(strings.Join(st.GetUnavailableNodes(), ", ")))
			}
			out.Add("Version", output.Printable(st.GetVersion()))
			return out.Write(cmd.OutOrStdout())
		})
}

func namespacesCommand(a *command.App) *cobra.Command {
	return question(a, "namespaces", "Show namespaces with recent flows", "",
		func(ctx context.Context, c grpc.ClientConnInterface) (*observer.GetNamespacesResponse, error) {
			return observer.NewObserverClient(c).GetNamespaces(ctx, &observer.GetNamespacesRequest{})
		},
		func(cmd *cobra.Command, res *observer.GetNamespacesResponse) error {
			t := a.Table("NAMESPACE", "CLUSTER")
			for _, n := range res.GetNamespaces() {
				t.Row(output.Printable(n.GetNamespace()), output.Printable(n.GetCluster()))
			}
			return t.Write(cmd.OutOrStdout())
		})
}

func flowUptime(ns uint64) string {
	return time.Duration(min(ns, 1<<62)).Truncate(time.Second).String()
}
