package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flows"
)

// policyEvents are the types of events about policies.
var policyEvents = []flow.AgentEventType{flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_POLICY_DELETED}

func agentEventsCommand(a *command.App) *cobra.Command {
	var server Server
	var which window
	var types []string
	var format string
	c := &cobra.Command{
		Use:   "agent-events",
		Short: "Show what changed in agents: policies, endpoints, addresses, services",
		Long: `Show what happened in an agent, the latest ` + fmt.Sprint(lastFlows) + ` events unless something else is asked for. A relay
(--server) answers for the agents of all nodes, in the order of time.

Policies that an agent finds when it starts are not changes. Every agent reports every
policy, with its own revision.`,
		Example: `  hawser observe agent-events --type policy --since 1h
  hawser observe agent-events --follow -o json`,
		Args: cobra.NoArgs,
	}
	which.flags(c, "events")
	c.Flags().StringSliceVar(&types, "type", nil, "events of these `types`: policy for both of policies, or names such as endpoint-created")
	c.Flags().StringVarP(&format, "output", "o", "compact", "`format`: compact, json or jsonpb (the last two are the same)")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"compact", "json", "jsonpb"}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(eventTypeNames(), cobra.ShellCompDirectiveNoFileComp))
	server.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := which.asked(time.Now())
		if err != nil {
			return err
		}
		req := &observer.GetAgentEventsRequest{Number: q.number, First: q.first, Follow: which.follow, Since: q.since, Until: q.until}
		if req.Types, err = parseEventTypes(types); err != nil {
			return err
		}
		write, err := eventWriter(format, true, cmd.OutOrStdout())
		if err != nil {
			return err
		}
		conn, err := server.Dial(a)
		if err != nil {
			return err
		}
		defer conn.Close()
		err = readEvents(cmd.Context(), conn, req, write)
		// Being interrupted is how following ends well.
		if err = server.AnswerError(a, err); errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			return nil
		}
		return err
	}
	return c
}

// readEvents hands on events until their end.
func readEvents(ctx context.Context, conn grpc.ClientConnInterface, req *observer.GetAgentEventsRequest, write func(*observer.GetAgentEventsResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := observer.NewObserverClient(conn).GetAgentEvents(ctx, req)
	if err != nil {
		return err
	}
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// Hubble's servers do not know this filter and send all types. Node events are always
		// printed.
		if kind := res.GetAgentEvent().GetType(); len(req.GetTypes()) > 0 && kind != flow.AgentEventType_AGENT_EVENT_UNKNOWN && !slices.Contains(req.GetTypes(), kind) {
			continue
		}
		if err := write(res); err != nil {
			return err
		}
	}
}

// eventTypeNames are the names that --type takes.
func eventTypeNames() []string {
	out := []string{"policy"}
	for _, name := range flow.AgentEventType_name {
		out = append(out, strings.ReplaceAll(strings.ToLower(name), "_", "-"))
	}
	slices.Sort(out)
	return out
}

func parseEventTypes(names []string) (out []flow.AgentEventType, err error) {
	for _, name := range names {
		if name == "policy" {
			out = append(out, policyEvents...)
			continue
		}
		n, ok := flow.AgentEventType_value[strings.ReplaceAll(strings.ToUpper(name), "-", "_")]
		if !ok {
			return nil, exitcode.Usagef("--type: %q is not one of %s", name, strings.Join(eventTypeNames(), ", "))
		}
		out = append(out, flow.AgentEventType(n))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// eventWriter returns what shows an event, with the node that reports it if nodes is set.
func eventWriter(format string, nodes bool, w io.Writer) (func(*observer.GetAgentEventsResponse) error, error) {
	switch format {
	case "compact":
		return func(res *observer.GetAgentEventsResponse) error {
			_, err := fmt.Fprintln(w, eventLine(res, nodes))
			return err
		}, nil
	case "json", "jsonpb":
		return func(res *observer.GetAgentEventsResponse) error { return writeJSONLine(w, res) }, nil
	}
	return nil, exitcode.Usagef("--output: %q is not one of compact, json, jsonpb", format)
}

func eventLine(res *observer.GetAgentEventsResponse, nodes bool) string {
	when := whenText(res.GetTime())
	if nodes && res.GetNodeName() != "" {
		when += " [" + output.Printable(res.GetNodeName()) + "]"
	}
	return when + ": " + output.Printable(eventText(res.GetAgentEvent()))
}

// eventText describes an event.
func eventText(ev *flow.AgentEvent) string {
	what := strings.ReplaceAll(strings.ToLower(ev.GetType().String()), "_", " ")
	with := func(parts ...string) string {
		return strings.Join(append([]string{what}, slices.DeleteFunc(parts, func(s string) bool { return s == "" })...), " ")
	}
	failed := func(text string) string {
		if text == "" {
			return ""
		}
		return "(" + text + ")"
	}
	switch n := ev.GetNotification().(type) {
	case *flow.AgentEvent_PolicyUpdate:
		return policyEventText(ev.GetType(), n.PolicyUpdate)
	case *flow.AgentEvent_EndpointUpdate:
		u := n.EndpointUpdate
		return with(fmt.Sprint(u.GetId()), qualifiedName(u.GetNamespace(), u.GetPodName()), failed(u.GetError()))
	case *flow.AgentEvent_EndpointRegenerate:
		return with(fmt.Sprint(n.EndpointRegenerate.GetId()), failed(n.EndpointRegenerate.GetError()))
	case *flow.AgentEvent_IpcacheUpdate:
		u := n.IpcacheUpdate
		was := func(changed bool, before any) string {
			if !changed {
				return ""
			}
			return fmt.Sprintf("(was %v)", before)
		}
		return with(u.GetCidr(), "identity", fmt.Sprint(u.GetIdentity()), was(u.OldIdentity != nil && u.GetOldIdentity().GetValue() != u.GetIdentity(), u.GetOldIdentity().GetValue()),
			qualifiedName(u.GetNamespace(), u.GetPodName()), u.GetHostIp(), was(u.GetOldHostIp() != "" && u.GetOldHostIp() != u.GetHostIp(), u.GetOldHostIp()))
	case *flow.AgentEvent_ServiceUpsert:
		u := n.ServiceUpsert
		return with(qualifiedName(u.GetNamespace(), u.GetName()), u.GetType(), fmt.Sprintf("%s:%d", u.GetFrontendAddress().GetIp(), u.GetFrontendAddress().GetPort()),
			fmt.Sprintf("%d backends", len(u.GetBackendAddresses())))
	case *flow.AgentEvent_ServiceDelete:
		return with(fmt.Sprint(n.ServiceDelete.GetId()))
	case *flow.AgentEvent_Unknown:
		return n.Unknown.GetType() + ": " + n.Unknown.GetNotification()
	}
	return what
}

func qualifiedName(namespace, name string) string {
	if namespace == "" || name == "" {
		return name
	}
	return namespace + "/" + name
}

// policyEventText describes which policy changed, and how.
func policyEventText(kind flow.AgentEventType, u *flow.PolicyUpdateNotification) string {
	what := "updated"
	if kind == flow.AgentEventType_POLICY_DELETED {
		what = "deleted"
	}
	text := "policy "
	derived, policy := flows.PolicyOf(u)
	if derived != "" {
		text += derived + " "
	}
	text += policy + " " + what
	if kind != flow.AgentEventType_POLICY_DELETED {
		text += fmt.Sprintf(": %d rules", u.GetRuleCount())
	}
	return text + fmt.Sprintf(" (revision %d)", u.GetRevision())
}
