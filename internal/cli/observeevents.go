package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/labels"
)

// observeRange is which part of what there is a command of observe shows.
type observeRange struct {
	follow, all  bool
	first, last  uint64
	since, until string
}

func (r *observeRange) flags(c *cobra.Command, what string) {
	fs := c.Flags()
	fs.BoolVarP(&r.follow, "follow", "f", false, "go on with the "+what+" to come, until interrupted")
	fs.Uint64Var(&r.last, "last", 0, "the latest `n` "+what)
	fs.Uint64Var(&r.first, "first", 0, "the oldest `n` "+what+" that are kept")
	fs.BoolVar(&r.all, "all", false, "all "+what+" that are kept")
	fs.StringVar(&r.since, "since", "", "nothing before this `time`: RFC 3339, or so long ago as in 10m")
	fs.StringVar(&r.until, "until", "", "nothing after this `time`")
	c.MarkFlagsMutuallyExclusive("last", "first", "all")
	c.MarkFlagsMutuallyExclusive("first", "follow")
}

// asked is a range as requests have it.
type asked struct {
	number       uint64
	first        bool
	since, until *timestamppb.Timestamp
}

func (r *observeRange) asked(now time.Time) (q asked, err error) {
	if q.number = r.last; r.first > 0 {
		q.number, q.first = r.first, true
	}
	if q.since, err = parseWhen("since", r.since, now); err != nil {
		return q, err
	}
	if q.until, err = parseWhen("until", r.until, now); err != nil {
		return q, err
	}
	switch {
	case q.number > 0 || q.since != nil:
	case r.all && r.follow:
		q.since = beginning()
	case !r.all && !r.follow:
		q.number = lastFlows
	}
	return q, nil
}

// policyEvents are the types of events that tell of policies.
var policyEvents = []flow.AgentEventType{flow.AgentEventType_POLICY_UPDATED, flow.AgentEventType_POLICY_DELETED}

func (a *app) observeAgentEventsCommand() *cobra.Command {
	var server flowServer
	var which observeRange
	var types []string
	var output string
	c := &cobra.Command{
		Use:   "agent-events",
		Short: "Show what changed in agents: policies, endpoints, addresses, services",
		Long: `Show what happened in an agent, the latest ` + fmt.Sprint(lastFlows) + ` events unless something else is asked for. A relay
(--server) answers for the agents of all nodes, in the order of time.

Policies that an agent finds when it starts are no change. Every agent tells of every policy,
with a revision of its own.`,
		Example: `  hawser observe agent-events --type policy --since 1h
  hawser observe agent-events --follow -o json`,
		Args: cobra.NoArgs,
	}
	which.flags(c, "events")
	c.Flags().StringSliceVar(&types, "type", nil, "events of these `types`: policy for both of policies, or names such as endpoint-created")
	c.Flags().StringVarP(&output, "output", "o", "compact", "`format`: compact, json or jsonpb (the last two are the same)")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]cobra.Completion{"compact", "json", "jsonpb"}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(eventTypeNames(), cobra.ShellCompDirectiveNoFileComp))
	server.flags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := which.asked(time.Now())
		if err != nil {
			return err
		}
		req := &observer.GetAgentEventsRequest{Number: q.number, First: q.first, Follow: which.follow, Since: q.since, Until: q.until}
		if req.Types, err = parseEventTypes(types); err != nil {
			return err
		}
		write, err := a.eventWriter(output, true, cmd.OutOrStdout())
		if err != nil {
			return err
		}
		address := cmp.Or(server.address, a.cfg.Getenv(envFlowServer), defaultFlowServer)
		conn, err := server.dial(a.cfg.Getenv)
		if err != nil {
			return err
		}
		defer conn.Close()
		err = readEvents(cmd.Context(), conn, req, write)
		// Being interrupted is how following ends well.
		if err = flowError(err, address); errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
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
		// Servers of the field do not know types, and send all. What became of nodes is always
		// told.
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
			return nil, usagef("--type: %q is not one of %s", name, strings.Join(eventTypeNames(), ", "))
		}
		out = append(out, flow.AgentEventType(n))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// eventWriter returns what shows an event, with the node that tells it if nodes is set.
func (a *app) eventWriter(format string, nodes bool, w io.Writer) (func(*observer.GetAgentEventsResponse) error, error) {
	switch format {
	case "compact":
		return func(res *observer.GetAgentEventsResponse) error {
			_, err := fmt.Fprintln(w, eventLine(res, nodes))
			return err
		}, nil
	case "json", "jsonpb":
		return func(res *observer.GetAgentEventsResponse) error { return writeJSONLine(w, res) }, nil
	}
	return nil, usagef("--output: %q is not one of compact, json, jsonpb", format)
}

// writeJSONLine writes a message as one line of JSON, with the names of the protobuf definitions.
func writeJSONLine(w io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // its blanks differ from one program to another
		return err
	}
	line.WriteByte('\n')
	_, err = line.WriteTo(w)
	return err
}

func eventLine(res *observer.GetAgentEventsResponse, nodes bool) string {
	when := whenText(res.GetTime())
	if nodes && res.GetNodeName() != "" {
		when += " [" + printable(res.GetNodeName()) + "]"
	}
	return when + ": " + printable(eventText(res.GetAgentEvent()))
}

// eventText says what happened.
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
		return with(u.GetCidr(), "identity", fmt.Sprint(u.GetIdentity()), qualifiedName(u.GetNamespace(), u.GetPodName()), u.GetHostIp())
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

// policyEventText says which policy changed, and how.
func policyEventText(kind flow.AgentEventType, u *flow.PolicyUpdateNotification) string {
	what := "updated"
	if kind == flow.AgentEventType_POLICY_DELETED {
		what = "deleted"
	}
	text := "policy " + policyOfLabels(u.GetLabels()) + " " + what
	if kind != flow.AgentEventType_POLICY_DELETED {
		text += fmt.Sprintf(": %d rules", u.GetRuleCount())
	}
	return text + fmt.Sprintf(" (revision %d)", u.GetRevision())
}

// policyOfLabels is the policy that labels name, as those of rules do.
func policyOfLabels(list []string) string {
	found := map[string]string{}
	for _, text := range list {
		key, value, _ := strings.Cut(strings.TrimPrefix(text, labels.SourceK8s+":"), "=")
		if name, ok := strings.CutPrefix(key, "io.cilium.k8s.policy."); ok {
			found[name] = value
		}
	}
	if found["name"] == "" {
		return strings.Join(list, ",")
	}
	name := qualifiedName(found["namespace"], found["name"])
	if found["derived-from"] != "" {
		name = found["derived-from"] + " " + name
	}
	return name
}

// changeWindow is for how long the same change, told by other nodes, is not told again.
const changeWindow = 10 * time.Second

// maxChanges is how many changes of policies are shown beside flows of the past, the latest.
const maxChanges = 10000

// maxTold is how many tellings of changes are remembered, each by one node.
const maxTold = 1 << 14

// policyChanges shows changes of policies between flows. Each node tells of each: the first counts.
type policyChanges struct {
	mu    sync.Mutex // guards what is written
	write func(*observer.GetAgentEventsResponse) error
	// told are the changes of each policy, in the order in which they were shown, and count how
	// many nodes they have together.
	told  map[string][]toldChange
	count int
	// past are those that were before the flows to come, in the order of time.
	past []*observer.GetAgentEventsResponse
}

// toldChange is a change that was shown, and the nodes that told of it.
type toldChange struct {
	what  string // how the policy changed
	at    time.Time
	nodes map[string]bool
}

// add shows a change, if no other node has told it. mu is held.
func (p *policyChanges) add(res *observer.GetAgentEventsResponse) error {
	if u := res.GetAgentEvent().GetPolicyUpdate(); u != nil {
		what := fmt.Sprint(res.GetAgentEvent().GetType(), u.GetRuleCount())
		if p.known(fmt.Sprint(u.GetLabels()), what, res.GetNodeName(), res.GetTime().AsTime()) {
			return nil
		}
	}
	return p.write(res)
}

// known says whether another node has told of a change, and remembers that this one has. A node
// tells of changes in their order: what it tells is the first alike after the last that it told.
func (p *policyChanges) known(policy, what, node string, at time.Time) bool {
	if p.count >= maxTold {
		p.forget(at)
	}
	if p.count >= maxTold { // shown too often rather than not at all
		return false
	}
	list := p.told[policy]
	next := len(list)
	for next > 0 && !list[next-1].nodes[node] {
		next--
	}
	p.count++
	for _, c := range list[next:] {
		if c.what == what && at.Sub(c.at).Abs() < changeWindow {
			c.nodes[node] = true
			return true
		}
	}
	p.told[policy] = append(list, toldChange{what, at, map[string]bool{node: true}})
	return false
}

// forget drops the changes to which nothing that is told of a time can belong.
func (p *policyChanges) forget(at time.Time) {
	p.count = 0
	for policy, list := range p.told {
		list = slices.DeleteFunc(list, func(c toldChange) bool { return at.Sub(c.at).Abs() >= changeWindow })
		if p.told[policy] = list; len(list) == 0 {
			delete(p.told, policy)
		}
		for _, c := range list {
			p.count += len(c.nodes)
		}
	}
}

// take returns those of the past that were not after a time. mu is held.
func (p *policyChanges) take(at time.Time) []*observer.GetAgentEventsResponse {
	n := 0
	for n < len(p.past) && !p.past[n].GetTime().AsTime().After(at) {
		n++
	}
	out := p.past[:n]
	p.past = p.past[n:]
	return out
}

func (p *policyChanges) addAll(list []*observer.GetAgentEventsResponse) error {
	for _, res := range list {
		if err := p.add(res); err != nil {
			return err
		}
	}
	return nil
}

// beside has changes of policies be shown between the flows that writer shows. What it returns is
// called at the end.
func (a *app) beside(ctx context.Context, writer *flowWriter, o *observeOptions, q asked, conn grpc.ClientConnInterface, w, errs io.Writer) (end func() error, err error) {
	format := o.output
	if format == "dict" {
		format = "compact"
	}
	show, err := a.eventWriter(format, true, w)
	if err != nil {
		return nil, err
	}
	p := &policyChanges{write: show, told: map[string][]toldChange{}}
	req := &observer.GetAgentEventsRequest{Types: policyEvents, Follow: o.follow, Since: q.since, Until: q.until}
	if !o.follow {
		req.Number = maxChanges
		if err := readEvents(ctx, conn, req, func(res *observer.GetAgentEventsResponse) error {
			if len(p.past) < maxChanges { // a server that sends more than it was asked for
				p.past = append(p.past, res)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	} else if q.number > 0 && q.since == nil {
		req.Since = timestamppb.Now()
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	if o.follow {
		following.Go(func() {
			err := readEvents(ctx, conn, req, func(res *observer.GetAgentEventsResponse) error {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.add(res)
			})
			if err != nil && ctx.Err() == nil {
				fmt.Fprintf(errs, "changes of policies are missing from now on: %s\n", printable(status.Convert(err).Message()))
			}
		})
	}
	// Without a beginning, what was before the first flow is not between flows.
	between := !o.follow && q.since == nil && !o.all
	inner := *writer
	writer.write = func(res *observer.GetFlowsResponse) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if res.GetFlow() != nil {
			list := p.take(res.GetTime().AsTime())
			if !between {
				if err := p.addAll(list); err != nil {
					return err
				}
			}
			between = false
		}
		return inner.write(res)
	}
	return func() error {
		cancel()
		following.Wait()
		if between || q.first { // there were no flows, or what follows is not between them
			return nil
		}
		return p.addAll(p.past)
	}, nil
}
