package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
)

// observeQuestion makes a command of hawser observe that asks a server of flows one question. show
// is nil where only JSON is of use.
func observeQuestion[T proto.Message](a *app, use, short, long string, ask func(context.Context, grpc.ClientConnInterface) (T, error), show func(*cobra.Command, T) error) *cobra.Command {
	var server flowServer
	var output string
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.NoArgs}
	server.flags(c)
	c.Flags().StringVarP(&output, "output", "o", "table", "`format`: table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if output != "table" && output != "json" {
			return usagef("--output: %q is neither table nor json", output)
		}
		address := cmp.Or(server.address, a.cfg.Getenv(envFlowServer), defaultFlowServer)
		conn, err := server.dial(a.cfg.Getenv)
		if err != nil {
			return err
		}
		defer conn.Close()
		res, err := ask(cmd.Context(), conn)
		if err != nil {
			return flowError(err, address)
		}
		if output == "table" {
			return show(cmd, res)
		}
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true, Indent: "  "}.Marshal(res)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), string(text))
		return err
	}
	return c
}

func (a *app) observeNodesCommand() *cobra.Command {
	return observeQuestion(a, "nodes", "Show from which nodes flows come",
		`Show the nodes that a relay asks, and whether they answer; an agent knows of its own node only.`,
		func(ctx context.Context, c grpc.ClientConnInterface) (*observer.GetNodesResponse, error) {
			return observer.NewObserverClient(c).GetNodes(ctx, &observer.GetNodesRequest{})
		},
		func(cmd *cobra.Command, res *observer.GetNodesResponse) error {
			t := a.table("NAME", "STATE", "ADDRESS", "TLS", "FLOWS", "SEEN", "UPTIME", "VERSION")
			for _, n := range res.GetNodes() {
				look := good
				if n.GetState() != relay.NodeState_NODE_CONNECTED {
					look = bad
				}
				state := strings.ToLower(strings.TrimPrefix(n.GetState().String(), "NODE_"))
				secure := "off"
				if n.GetTls().GetEnabled() {
					secure = printable(n.GetTls().GetServerName())
				}
				t.row(printable(n.GetName()), cell{state, look}, printable(n.GetAddress()), secure,
					fmt.Sprintf("%d/%d", n.GetNumFlows(), n.GetMaxFlows()), n.GetSeenFlows(), flowUptime(n.GetUptimeNs()), printable(n.GetVersion()))
			}
			return t.write(cmd.OutOrStdout())
		})
}

func (a *app) observeStatusCommand() *cobra.Command {
	return observeQuestion(a, "status", "Show how much is recorded, and from how many nodes",
		`Show how many flows there are. A relay answers for all nodes together.`,
		func(ctx context.Context, c grpc.ClientConnInterface) (*observer.ServerStatusResponse, error) {
			return observer.NewObserverClient(c).ServerStatus(ctx, &observer.ServerStatusRequest{})
		},
		func(cmd *cobra.Command, st *observer.ServerStatusResponse) error {
			out := a.facts()
			least := bounds(st.GetNumUnavailableNodes().GetValue() > 0, false) // of nodes that do not answer nothing is counted
			out.add("Flows", fmt.Sprintf("%s%d of %d", least, st.GetNumFlows(), st.GetMaxFlows()))
			out.add("Seen", least+fmt.Sprint(st.GetSeenFlows()))
			out.add("Rate", fmt.Sprintf("%s%.1f/s", least, st.GetFlowsRate()))
			out.add("Uptime", flowUptime(st.GetUptimeNs()))
			if st.GetNumConnectedNodes() != nil {
				look := good
				if st.GetNumUnavailableNodes().GetValue() > 0 {
					look = warn
				}
				out.add("Nodes", cell{fmt.Sprintf("%d connected, %d unavailable", st.GetNumConnectedNodes().GetValue(), st.GetNumUnavailableNodes().GetValue()), look})
				out.add("Unavailable", printable(strings.Join(st.GetUnavailableNodes(), ", ")))
			}
			out.add("Version", printable(st.GetVersion()))
			return out.write(cmd.OutOrStdout())
		})
}

func (a *app) observeNamespacesCommand() *cobra.Command {
	return observeQuestion(a, "namespaces", "Show of which namespaces there were flows lately", "",
		func(ctx context.Context, c grpc.ClientConnInterface) (*observer.GetNamespacesResponse, error) {
			return observer.NewObserverClient(c).GetNamespaces(ctx, &observer.GetNamespacesRequest{})
		},
		func(cmd *cobra.Command, res *observer.GetNamespacesResponse) error {
			t := a.table("NAMESPACE", "CLUSTER")
			for _, n := range res.GetNamespaces() {
				t.row(printable(n.GetNamespace()), printable(n.GetCluster()))
			}
			return t.write(cmd.OutOrStdout())
		})
}

func flowUptime(ns uint64) string {
	return time.Duration(min(ns, 1<<62)).Truncate(time.Second).String()
}
