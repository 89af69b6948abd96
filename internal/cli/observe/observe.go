// Package observe holds the commands that ask a server of flows, an agent or a relay: who talks to
// whom, what is refused and why, what changed in agents, which nodes reach each other, and the page
// that shows it.
package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// options are those of hawser observe besides its filters.
type options struct {
	server Server
	filter flowFilter
	window
	explain  bool
	policies bool
	nodeName bool
	output   string
}

// Command shows flows, and what else a server of flows knows.
func Command(a *command.App) *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "observe",
		Short: "Show who talks to whom, and what is dropped",
		Long: `Show flows that a node has recorded, by default the latest ` + fmt.Sprint(lastFlows) + `: verdicts of policy on
new connections, and dropped packets, with the pods, labels and services of both sides and
the policies that decided. The agent records
them with --enable-hubble.

A filter with --from or --to in its name matches that side of a flow. Others match either
side, and several of them the same side. Several values of one flag are alternatives;
several flags must all match.

A relay (--server) answers for all nodes: their names follow the time, and a line names
nodes that cannot be reached.

With --policy-changes a line between the flows shows when a policy changed, with the
revision on the node that reported it first.

With --explain a flow that policy dropped is followed by the current rules that deny it, and
by a policy that would allow it.

A slow reader misses flows: a line says how many, with any filter.`,
		Example: `  hawser observe --verdict DROPPED --follow
  hawser observe --to-pod shop/db --since 10m
  hawser observe --verdict DROPPED --to-namespace shop --explain
  hawser observe --to-pod shop/db --since 1h --policy-changes
  hawser observe --pod shop/front --protocol tcp --to-port 5432 -o json
  hawser observe --label app=front,tier!=test --type policy-verdict --last 100
  hawser observe --server 192.0.2.7:4244 --tls-ca-cert-files ca.crt --tls-client-cert-file me.crt \
    --tls-client-key-file me.key --tls-server-name n1.default.hubble-grpc.cilium.io`,
		Args: cobra.NoArgs,
	}
	o.window.flags(c, "flows")
	fs := c.Flags()
	fs.StringVarP(&o.output, "output", "o", "compact", "`format`: compact, dict, table, json or jsonpb (the last two are the same)")
	fs.BoolVar(&o.nodeName, "print-node-name", false, "name the node that saw a flow also where there is only one; those of a relay are always named")
	fs.BoolVar(&o.explain, "explain", false, "explain for flows that policy denied which rules decided, and what would allow them; not with json or table")
	o.filter.flags(c)
	o.server.AddFlags(c)
	fs.BoolVar(&o.policies, "policy-changes", false, "show between the flows which policies changed, once for all nodes; not with table")
	c.AddCommand(nodesCommand(a), healthCommand(a), statusCommand(a), namespacesCommand(a), agentEventsCommand(a))
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]cobra.Completion{"compact", "dict", "table", "json", "jsonpb"}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"pod", "from-pod", "to-pod"} {
		_ = c.RegisterFlagCompletionFunc(name, completePods(a))
	}
	for _, name := range []string{"namespace", "from-namespace", "to-namespace"} {
		_ = c.RegisterFlagCompletionFunc(name, CompleteNamespaces(a, &o.server))
	}
	_ = c.RegisterFlagCompletionFunc("node-name", completeNodes(a, &o.server))
	c.RunE = func(cmd *cobra.Command, _ []string) error { return showFlows(a, cmd, o) }
	return c
}

// request is what the options ask of the server.
func (o *options) request(q asked) (*observer.GetFlowsRequest, error) {
	white, err := o.filter.lists()
	if err != nil {
		return nil, err
	}
	return &observer.GetFlowsRequest{Whitelist: white, Follow: o.follow, Number: q.number, First: q.first, Since: q.since, Until: q.until}, nil
}

func showFlows(a *command.App, cmd *cobra.Command, o *options) error {
	q, err := o.asked(time.Now())
	if err != nil {
		return err
	}
	req, err := o.request(q)
	if err != nil {
		return err
	}
	if o.policies && o.output == "table" {
		return exitcode.Usagef("--policy-changes: a table has a row for each flow; use compact, dict or json")
	}
	if o.follow && o.output == "table" {
		return exitcode.Usagef("--output: a table is as wide as all that it shows, so it cannot follow; use compact")
	}
	if o.explain && o.output != "compact" && o.output != "dict" {
		return exitcode.Usagef("--explain: explanations are for people; use --output compact or dict")
	}
	writer, err := newFlowWriter(a, o.output, o.nodeName, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	conn, err := o.server.Dial(a)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if o.explain {
		explainRefusals(ctx, a, &writer, policypb.NewPolicyClient(conn), cmd.OutOrStdout())
	}
	if o.policies {
		end, err := interleaveChanges(ctx, &writer, o.output, o.window, q, conn, cmd.OutOrStdout(), cmd.ErrOrStderr())
		if err != nil {
			return o.server.AnswerError(a, err)
		}
		last := writer.end
		writer.end = func() error { return errors.Join(end(), last()) }
	}
	stream, err := observer.NewObserverClient(conn).GetFlows(ctx, req)
	if err != nil {
		return errors.Join(o.server.AnswerError(a, err), writer.end())
	}
	for {
		res, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return writer.end()
			}
			err = o.server.AnswerError(a, err)
			// Being interrupted is how following ends well.
			if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
				return writer.end()
			}
			return errors.Join(err, writer.end())
		}
		if err := writer.write(res); err != nil {
			return err
		}
	}
}

// completePods offers the pods of this node.
func completePods(a *command.App) cobra.CompletionFunc {
	return a.CompleteEndpoints(command.PodName)
}
