package agent

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// kernelMap describes how a kernel map is shown.
type kernelMap struct {
	use, name, short string
	header           []string
	row              func(rest.BPFMapEntry) []any
	compare          func(x, y rest.BPFMapEntry) int
}

// BPFCommand shows the maps of the kernel.
func BPFCommand(a *command.App) *cobra.Command {
	maps := []kernelMap{
		{
			use: "endpoint", name: "endpoints", short: "endpoints as the kernel sees them",
			header: []string{"INTERFACE", "ENDPOINT", "IDENTITY", "RULE SET", "GENERATION", "IPv4", "IPv6", "MAC", "HOST MAC", "FLAGS"},
			row: func(e rest.BPFMapEntry) []any {
				ep := e.Endpoint
				return []any{interfaceText(ep.InterfaceName, ep.InterfaceIndex), ep.ID, ep.Identity, ep.RuleSet,
					ep.PolicyGeneration, ep.IPv4, ep.IPv6, ep.MAC, ep.HostMAC, flags("locked", ep.Locked)}
			},
			compare: func(x, y rest.BPFMapEntry) int {
				return cmp.Compare(x.Endpoint.InterfaceIndex, y.Endpoint.InterfaceIndex)
			},
		},
		{
			use: "policy", name: "policy", short: "rule sets: what is allowed and denied",
			header: []string{"RULE SET", "DIRECTION", "IDENTITY", "PROTO", "PORT", "VERDICT"},
			row:    policyRow, compare: comparePolicy,
		},
		{
			use: "ipcache", name: "ipcache", short: "the identity behind each address",
			header: []string{"PREFIX", "IDENTITY", "TUNNEL ENDPOINT"},
			row: func(e rest.BPFMapEntry) []any {
				return []any{e.IPCache.Prefix, e.IPCache.Identity, e.IPCache.TunnelEndpoint}
			},
			compare: func(x, y rest.BPFMapEntry) int { return compareAddresses(x.IPCache.Prefix, y.IPCache.Prefix) },
		},
		{
			use: "tunnel", name: "tunnel", short: "addresses of nodes whose tunnelled packets are taken",
			header:  []string{"ADDRESS", "SPEAKS FOR"},
			row:     func(e rest.BPFMapEntry) []any { return []any{e.Key, e.Value} },
			compare: func(x, y rest.BPFMapEntry) int { return compareAddresses(x.Key, y.Key) },
		},
		{
			use: "ct", name: "ct", short: "tracked flows",
			header: []string{"PROTO", "SOURCE", "DESTINATION", "IDENTITIES", "GENERATIONS", "EXPIRES", "PACKETS", "REPLIES", "FLAGS"},
			row: func(e rest.BPFMapEntry) []any {
				f := e.Flow
				return []any{f.Proto, f.Source, f.Destination,
					fmt.Sprintf("%d -> %d", f.SourceIdentity, f.DestinationIdentity),
					fmt.Sprintf("%d, %d", f.SourceGeneration, f.DestinationGeneration),
					(time.Duration(f.ExpiresSeconds) * time.Second).String(), f.ForwardPackets, f.ReversePackets,
					flags("replied", f.SeenReply, "closing", f.Closing)}
			},
			compare: func(x, y rest.BPFMapEntry) int {
				return cmp.Or(strings.Compare(x.Flow.Proto, y.Flow.Proto), strings.Compare(x.Flow.Source, y.Flow.Source),
					strings.Compare(x.Flow.Destination, y.Flow.Destination))
			},
		},
		{
			use: "share", name: "shares", short: "what each endpoint holds of conntrack, and may hold",
			header: []string{"ENDPOINT", "ENTRIES", "SHARE", "MADE BEYOND"},
			row: func(e rest.BPFMapEntry) []any {
				s := e.Share
				endpoint, share, excess := strconv.Itoa(s.Endpoint), strconv.Itoa(s.Share), output.Plain.Cell(strconv.Itoa(s.Excess))
				if s.Endpoint == 0 {
					endpoint = "the node"
				}
				if s.Share == 0 {
					share = "all"
				}
				if s.Excess > 0 {
					excess.Style = output.Bad
				}
				return []any{endpoint, s.Entries, share, excess}
			},
			compare: func(x, y rest.BPFMapEntry) int { return cmp.Compare(x.Share.Endpoint, y.Share.Endpoint) },
		},
		{
			use: "lb", name: "services", short: "frontends of services and their backends",
			header: []string{"FRONTEND", "PROTO", "FROM", "CHOICE", "BACKENDS"},
			row: func(e rest.BPFMapEntry) []any {
				s := e.Service
				choice := s.Algorithm
				if s.AffinitySeconds > 0 {
					choice += ", kept for " + (time.Duration(s.AffinitySeconds) * time.Second).String()
				}
				if s.Forwarding == "dsr" {
					choice += ", dsr"
				}
				backends := output.Plain.Cell(strings.Join(s.Backends, ", "))
				switch {
				case len(s.Backends) > 0:
				case s.Elsewhere:
					backends = output.Bad.Cell("none here: dropped")
				default:
					backends = output.Bad.Cell("none: refused")
				}
				from := s.Scope
				if s.Restricted {
					from += ", of " + cmp.Or(strings.Join(s.SourceRanges, ", "), "no client")
				}
				return []any{s.Frontend, s.Proto, from, choice, backends}
			},
			compare: func(x, y rest.BPFMapEntry) int {
				return cmp.Or(strings.Compare(x.Service.Frontend, y.Service.Frontend), strings.Compare(x.Service.Proto, y.Service.Proto),
					strings.Compare(x.Service.Scope, y.Service.Scope))
			},
		},
		{
			use: "metrics", name: "metrics", short: "packets and bytes by reason and direction",
			header: []string{"REASON", "DIRECTION", "PACKETS", "BYTES"},
			row: func(e rest.BPFMapEntry) []any {
				return []any{e.Metric.Reason, e.Metric.Direction, e.Metric.Packets, e.Metric.Bytes}
			},
			compare: func(x, y rest.BPFMapEntry) int {
				return cmp.Or(strings.Compare(x.Metric.Reason, y.Metric.Reason), strings.Compare(x.Metric.Direction, y.Metric.Direction))
			},
		},
	}
	c := command.Group("bpf", "Show the maps of the kernel", "Show the content of the kernel maps, which decide about packets.")
	for _, m := range maps {
		title := strings.ToUpper(m.short[:1]) + m.short[1:]
		c.AddCommand(command.Group(m.use, "Show "+m.short, title+", read from the kernel.", mapListCommand(a, m)))
	}
	return c
}

func mapListCommand(a *command.App, m kernelMap) *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List " + m.short,
		Example: "  hawser bpf " + m.use + " list\n  hawser bpf " + m.use + " list -o jsonpath='{.cache[*].key}'",
		Args:    cobra.NoArgs,
	}
	var ruleSet int
	var endpoint string
	if m.name == "policy" {
		c.Flags().IntVar(&ruleSet, "rule-set", 0, "only the rule set with this `number`")
		c.Flags().StringVar(&endpoint, "endpoint", "", "only the rule set of the endpoint with this `id`")
		c.MarkFlagsMutuallyExclusive("rule-set", "endpoint")
		_ = c.RegisterFlagCompletionFunc("endpoint", completeEndpoints(a))
		c.Example += "\n  hawser bpf policy list --endpoint 12"
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		if endpoint != "" {
			var err error
			if ruleSet, err = ruleSetOf(cmd, c, endpoint); err != nil {
				return err
			}
		}
		content, err := c.Map(cmd.Context(), m.name)
		if err != nil {
			return err
		}
		if ruleSet != 0 {
			content.Cache = slices.DeleteFunc(content.Cache, func(e rest.BPFMapEntry) bool { return e.Policy.RuleSet != ruleSet })
			if len(content.Cache) == 0 {
				return exitcode.With(exitcode.NotFound, fmt.Errorf("there is no rule set %d", ruleSet))
			}
		}
		slices.SortStableFunc(content.Cache, m.compare)
		return out.Print(cmd.OutOrStdout(), content, func(w io.Writer) error {
			t := a.Table(m.header...)
			for _, e := range content.Cache {
				t.Row(m.row(e)...)
			}
			return t.Write(w)
		})
	})
	return c
}

// ruleSetOf returns the number of the rule set that the kernel uses for an endpoint.
func ruleSetOf(cmd *cobra.Command, c *client.Client, id string) (int, error) {
	ep, err := c.Endpoint(cmd.Context(), id)
	if err != nil {
		return 0, err
	}
	eps, err := c.Map(cmd.Context(), "endpoints")
	if err != nil {
		return 0, err
	}
	for _, e := range eps.Cache {
		if e.Endpoint.ID == ep.ID {
			if e.Endpoint.RuleSet == 0 {
				return 0, fmt.Errorf("endpoint %d has no rule set yet, so all its packets are dropped", ep.ID)
			}
			return e.Endpoint.RuleSet, nil
		}
	}
	return 0, exitcode.With(exitcode.NotFound, fmt.Errorf("the kernel has no row for endpoint %d", ep.ID))
}

// flags lists the names whose value, which follows each, is true.
func flags(pairs ...any) string {
	var out []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if on, _ := pairs[i+1].(bool); on {
			out = append(out, pairs[i].(string))
		}
	}
	return strings.Join(out, ",")
}

func policyRow(e rest.BPFMapEntry) []any {
	p := e.Policy
	verdict := tieredVerdict(p)
	if p.Default {
		verdict = output.Plain.Cell("default allow")
		if p.Enforced {
			verdict.Text = "default deny"
		}
		return []any{p.RuleSet, string(p.Direction), "any", "ANY", "any", verdict}
	}
	identity := "any"
	if p.Identity != 0 {
		identity = strconv.Itoa(p.Identity)
	}
	if p.Block != "" {
		identity = p.Block
	}
	return []any{p.RuleSet, string(p.Direction), identity, p.Proto, portText(p.Port, p.PortBits), verdict}
}

// tieredVerdict shows the verdicts of an entry, tier by tier: "admin deny@3, allow". Its colour is
// that of the first tier.
func tieredVerdict(p rest.MapPolicy) output.Cell {
	var says []string
	if p.Admin != "" {
		says = append(says, "admin "+p.Admin)
	}
	switch p.Verdict {
	case rest.PolicyVerdictAllowed:
		says = append(says, "allow")
	case rest.PolicyVerdictDenied:
		says = append(says, "deny")
	}
	if p.Baseline != "" {
		says = append(says, "baseline "+p.Baseline)
	}
	out := output.Good.Cell(strings.Join(says, ", "))
	for _, s := range says {
		switch {
		case strings.Contains(s, "pass"):
			continue
		case strings.Contains(s, "deny"):
			out.Style = output.Bad
		}
		break
	}
	return out
}

// portText shows the ports that a prefix of bits leading bits covers.
func portText(port, bits int) string {
	switch {
	case bits <= 0:
		return "any"
	case bits >= 16:
		return strconv.Itoa(port)
	}
	return fmt.Sprintf("%d-%d", port, port|(1<<(16-bits)-1))
}

func comparePolicy(x, y rest.BPFMapEntry) int {
	p, q := x.Policy, y.Policy
	rank := func(m rest.MapPolicy) int {
		if m.Default {
			return 1
		}
		return 0
	}
	// "ingress" comes before "egress", as everywhere.
	return cmp.Or(cmp.Compare(p.RuleSet, q.RuleSet), -cmp.Compare(p.Direction, q.Direction), cmp.Compare(rank(p), rank(q)),
		cmp.Compare(p.Identity, q.Identity), cmp.Compare(p.Proto, q.Proto), cmp.Compare(p.Port, q.Port), cmp.Compare(p.PortBits, q.PortBits))
}
