package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// MonitorCommand shows packets as they come.
func MonitorCommand(a *command.App) *cobra.Command {
	var kinds, from, to, related []string
	var count uint
	c := &cobra.Command{
		Use:   "monitor",
		Short: "Watch drops, policy verdicts and forwarded packets",
		Long: `Watch drops, policy verdicts and forwarded packets of this node, until interrupted.

Events may be lost when there are more than can be read: a line says how many, with any
filter, and the total is printed at the end. Counters (hawser bpf metrics list) stay exact.

--from, --to and --related-to take an endpoint (see hawser endpoint --help) or an
address. Several values of one flag mean any of them.`,
		Example: `  hawser monitor --type drop
  hawser monitor --related-to 12 --type drop,policy-verdict
  hawser monitor --from cep-name:default/front -o json`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringSliceVarP(&kinds, "type", "t", nil, "only these `kinds`: drop, policy-verdict, trace")
	c.Flags().StringSliceVar(&from, "from", nil, "only packets sent by these `endpoints`")
	c.Flags().StringSliceVar(&to, "to", nil, "only packets sent to these `endpoints`")
	c.Flags().StringSliceVar(&related, "related-to", nil, "only packets sent by or to these `endpoints`")
	c.Flags().UintVarP(&count, "count", "n", 0, "stop after this many events")
	for _, name := range []string{"from", "to", "related-to"} {
		_ = c.RegisterFlagCompletionFunc(name, completeEndpoints(a))
	}
	_ = c.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(
		[]cobra.Completion{"drop", "policy-verdict", "trace"}, cobra.ShellCompDirectiveNoFileComp))
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		types, err := eventTypes(kinds)
		if err != nil {
			return err
		}
		filter, err := newEventFilter(cmd.Context(), c, from, to, related)
		if err != nil {
			return err
		}
		return monitor(a, cmd, c, types, filter, count, out)
	})
	return c
}

func eventTypes(kinds []string) ([]rest.MonitorEventType, error) {
	var out []rest.MonitorEventType
	for _, k := range kinds {
		t := rest.MonitorEventType(k)
		if !t.Valid() || t == rest.MonitorEventTypeLost {
			return nil, exitcode.Usagef("unknown kind of event %q, want drop, policy-verdict or trace", k)
		}
		out = append(out, t)
	}
	return out, nil
}

// errEnough ends the stream after --count events.
var errEnough = errors.New("enough events")

func monitor(a *command.App, cmd *cobra.Command, c *client.Client, types []rest.MonitorEventType, filter *eventFilter, count uint, out *output.Format) error {
	w := cmd.OutOrStdout()
	var shown uint
	var lost uint64
	err := c.Monitor(cmd.Context(), types, func(ev rest.MonitorEvent) error {
		if ev.Type == rest.MonitorEventTypeLost {
			lost += ev.Lost
		} else if !filter.match(ev) {
			return nil
		} else {
			shown++
		}
		err := out.PrintNext(w, ev, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, eventText(a, ev))
			return err
		})
		if err != nil {
			return err
		}
		if count > 0 && shown >= count {
			return errEnough
		}
		return nil
	})
	if lost > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d events were lost\n", lost)
	}
	// Being interrupted or having enough is how a watch ends well.
	if errors.Is(err, errEnough) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// eventText is an event on one line.
func eventText(a *command.App, ev rest.MonitorEvent) string {
	when := ev.Time.Format("15:04:05.000")
	if ev.Type == rest.MonitorEventTypeLost {
		return when + " " + a.Paint(output.Warn, fmt.Sprintf("lost %d events: more came than could be read", ev.Lost))
	}
	look, what := output.Plain, string(ev.Type)
	switch {
	case ev.Type == rest.MonitorEventTypeDrop:
		look = output.Bad
	case ev.Type == rest.MonitorEventTypePolicyVerdict:
		what, look = "verdict "+string(ev.Verdict), output.Good
		switch ev.Verdict {
		case rest.PolicyVerdictDenied:
			look = output.Bad
		case rest.PolicyVerdictAudit:
			look = output.Warn
		}
	}
	parts := []string{when, a.Paint(look, what)}
	if ev.Endpoint != 0 {
		parts = append(parts, "endpoint "+strconv.Itoa(ev.Endpoint))
	}
	parts = append(parts, nonEmpty(output.Printable(ev.Direction), output.Printable(ev.Point), output.Printable(ev.Proto))...)
	if ev.Source != "" || ev.Destination != "" {
		parts = append(parts, flowEnd(ev.Source, ev.SourcePort, ev.SourceIdentity, ev.SourceLabels), "->",
			flowEnd(ev.Destination, ev.DestinationPort, ev.DestinationIdentity, ev.DestinationLabels))
	}
	if ev.Reason != "" {
		parts = append(parts, a.Paint(look, output.Printable(ev.Reason)))
	}
	if ev.Length != 0 {
		parts = append(parts, fmt.Sprintf("%d bytes", ev.Length))
	}
	return strings.Join(parts, " ")
}

// shortLabels distinguishes workloads at a glance: the namespace and the labels of
// its own. The JSON form has them all.
func shortLabels(labels []string) string {
	namespace := ""
	var own []string
	for _, l := range slices.Sorted(slices.Values(labels)) {
		key, found := strings.CutPrefix(l, "k8s:")
		switch {
		case !found:
			own = append(own, l)
		case strings.HasPrefix(key, "io.kubernetes.pod.namespace="):
			namespace = strings.TrimPrefix(key, "io.kubernetes.pod.namespace=") + "/"
		case strings.HasPrefix(key, "io.cilium.k8s."):
		default:
			own = append(own, key)
		}
	}
	return namespace + strings.Join(own, ",")
}

// flowEnd is one end of a flow: address and port, identity, and its labels if they are known.
func flowEnd(address string, port, identity int, labels []string) string {
	out := output.Printable(address)
	if port != 0 {
		out = net.JoinHostPort(out, strconv.Itoa(port))
	}
	who := strconv.Itoa(identity)
	if len(labels) > 0 {
		who += " " + output.Printable(shortLabels(labels))
	}
	return out + " (" + who + ")"
}

// eventFilter chooses events by the endpoints they concern. A nil list matches all.
type eventFilter struct{ from, to, related []party }

// party is an endpoint or an address.
type party struct {
	endpoint  int
	addresses []netip.Addr
}

func newEventFilter(ctx context.Context, c *client.Client, from, to, related []string) (*eventFilter, error) {
	f := &eventFilter{}
	for _, list := range []struct {
		names []string
		into  *[]party
	}{{from, &f.from}, {to, &f.to}, {related, &f.related}} {
		for _, name := range list.names {
			p, err := newParty(ctx, c, name)
			if err != nil {
				return nil, err
			}
			*list.into = append(*list.into, p)
		}
	}
	return f, nil
}

func newParty(ctx context.Context, c *client.Client, name string) (party, error) {
	if addr, err := netip.ParseAddr(name); err == nil {
		return party{addresses: []netip.Addr{addr.Unmap()}}, nil
	}
	ep, err := c.Endpoint(ctx, name)
	if err != nil {
		return party{}, err
	}
	p := party{endpoint: ep.ID}
	v4, v6 := addresses(ep)
	for _, text := range append(v4, v6...) {
		if addr, err := netip.ParseAddr(text); err == nil {
			p.addresses = append(p.addresses, addr)
		}
	}
	return p, nil
}

// sent reports whether the party sent the packet: it has the source address, or it is the endpoint
// whose egress was evaluated, which catches forged sources.
func (p party) sent(ev rest.MonitorEvent) bool {
	return p.has(ev.Source) || p.endpoint != 0 && ev.Endpoint == p.endpoint && ev.Direction == "egress"
}

func (p party) received(ev rest.MonitorEvent) bool {
	return p.has(ev.Destination) || p.endpoint != 0 && ev.Endpoint == p.endpoint && ev.Direction == "ingress"
}

func (p party) has(address string) bool {
	addr, err := netip.ParseAddr(address)
	return err == nil && slices.Contains(p.addresses, addr.Unmap())
}

func (f *eventFilter) match(ev rest.MonitorEvent) bool {
	anyOf := func(list []party, is func(party) bool) bool { return list == nil || slices.ContainsFunc(list, is) }
	return anyOf(f.from, func(p party) bool { return p.sent(ev) }) &&
		anyOf(f.to, func(p party) bool { return p.received(ev) }) &&
		anyOf(f.related, func(p party) bool {
			return p.sent(ev) || p.received(ev) || p.endpoint != 0 && ev.Endpoint == p.endpoint
		})
}
