// Package policy holds the commands about policies. The agent of a node answers which are in force
// and why a verdict results; a server of flows answers, for one node or all, which connections are
// allowed and what other policies would change.
package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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

// Command shows policies and explains verdicts.
func Command(a *command.App) *cobra.Command {
	return command.Group("policy", "Show policy and explain verdicts", "Show the policies in force and explain why traffic passes or not.",
		listCommand(a),
		getCommand(a),
		selectorsCommand(a),
		traceCommand(a),
		matrixCommand(a),
		previewCommand(a),
	)
}

func listCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List where policies come from, and the policies",
		Long: `List the files of the static policy directory and the policy objects of
Kubernetes, with the policies in force of each.

A faulty file or object is shown with its fault. An object, or a file that was never
valid, is enforced as far as possible: it isolates the pods that it selects, and does not
grant what is at fault. Of other files the last good version stays in force. The exit
code is 0 in any case.`,
		Example: `  hawser policy list
  hawser policy list -o jsonpath='{[?(@.state=="faulty")].path}'`,
		Args: cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		files, err := c.PolicyFiles(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortFunc(files, func(x, y rest.PolicyFile) int { return strings.Compare(x.Path, y.Path) })
		return out.Print(cmd.OutOrStdout(), files, func(w io.Writer) error { return writePolicyFiles(a, w, files) })
	})
	return c
}

func writePolicyFiles(a *command.App, w io.Writer, files []rest.PolicyFile) error {
	t := a.Table("SOURCE", "STATE", "POLICY", "RULES", "DESCRIPTION")
	for _, f := range files {
		state := output.Good.Cell(string(f.State))
		if f.State == rest.PolicyFileStateFaulty {
			state.Style = output.Bad
			switch {
			case f.InForce && f.Loaded.IsZero():
				state.Text += ", not fully enforced"
			case f.InForce:
				state.Text += ", last good version in force"
			default:
				state.Text += ", not in force"
			}
		}
		if len(f.Policies) == 0 {
			t.Row(f.Path, state, "", "", "")
		}
		for i, p := range f.Policies {
			name := p.Name
			if p.Namespace != "" {
				name = p.Namespace + "/" + name
			}
			path := f.Path
			if i > 0 {
				path, state = "", output.Cell{}
			}
			t.Row(path, state, name, p.Rules, p.Description)
		}
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, f := range files {
		if f.Error == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s: %s\n", output.Printable(f.Path), a.Paint(output.Bad, printableLines(f.Error))); err != nil {
			return err
		}
	}
	return nil
}

// printableLines is printable for text whose lines are wanted.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = output.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

func getCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "get",
		Short: "Show all rules in force",
		Example: `  hawser policy get
  hawser policy get -o jsonpath='{.revision}'`,
		Args: cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		p, err := c.Policy(cmd.Context())
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), p, func(w io.Writer) error {
			var pretty bytes.Buffer
			if json.Indent(&pretty, []byte(p.Policy), "", "  ") != nil {
				pretty.Reset()
				pretty.WriteString(printableLines(p.Policy))
			}
			_, err := fmt.Fprintf(w, "%s\nRevision: %d\n", &pretty, p.Revision)
			return err
		})
	})
	return c
}

func selectorsCommand(a *command.App) *cobra.Command {
	var subjects bool
	c := &cobra.Command{
		Use:   "selectors",
		Short: "List selectors and the identities each selects",
		Long: `List the peer selectors in use, how many rules use each, and the identities each
selects; with --subjects those that choose the endpoints a rule is about.`,
		Example: `  hawser policy selectors
  hawser policy selectors --subjects`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVar(&subjects, "subjects", false, "selectors of endpoints instead of peers")
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		list := c.Selectors
		if subjects {
			list = c.SubjectSelectors
		}
		sels, err := list(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortStableFunc(sels, func(x, y rest.SelectorIdentityMapping) int { return strings.Compare(x.Selector, y.Selector) })
		return out.Print(cmd.OutOrStdout(), sels, func(w io.Writer) error {
			t := a.Table("SELECTOR", "LABELS", "USERS", "IDENTITIES")
			for _, s := range sels {
				var labels, ids []string
				for _, l := range s.Labels {
					labels = append(labels, l.Source+":"+l.Key+"="+l.Value)
				}
				for _, id := range slices.Sorted(slices.Values(s.Identities)) {
					ids = append(ids, strconv.Itoa(id))
				}
				t.Row(s.Selector, labels, s.Users, ids)
			}
			return t.Write(w)
		})
	})
	return c
}

func traceCommand(a *command.App) *cobra.Command {
	var params rest.TracePolicyParams
	c := &cobra.Command{
		Use:   "trace --from SIDE --to SIDE [--dport PORT[/PROTO]]",
		Short: "Explain, rule by rule, whether one side can reach another",
		Long: `Explain, rule by rule, why a flow from one side to the other would pass or not.
No packet is sent. The exit code is 0 for either verdict.

A side is one of
  12, cep-name:default/web-1, ...   an endpoint of this node
  10.0.0.7, fd00::7                 an address
  identity:16384                    an identity
  labels:k8s:app=web;k8s:tier=db    labels`,
		Example: `  hawser policy trace --from 12 --to 14 --dport 80
  hawser policy trace --from cep-name:default/front --to 10.0.1.4 --dport 53/UDP
  hawser policy trace --from identity:16384 --to 192.0.2.7 --proto ICMP --dport 8`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&params.From, "from", "", "`side` that opens the flow (required)")
	c.Flags().StringVar(&params.To, "to", "", "`side` it is opened to (required)")
	c.Flags().StringVar(&params.DPort, "dport", "", "destination `port` by number or name, as 80 or 53/UDP; for ICMP the message type")
	c.Flags().StringVar(&params.Proto, "proto", "", "`protocol`: TCP (default), UDP, SCTP, ICMP or ICMPv6")
	_ = c.RegisterFlagCompletionFunc("from", completeSides(a))
	_ = c.RegisterFlagCompletionFunc("to", completeSides(a))
	_ = c.RegisterFlagCompletionFunc("proto", cobra.FixedCompletions([]cobra.Completion{"TCP", "UDP", "SCTP", "ICMP", "ICMPv6"}, cobra.ShellCompDirectiveNoFileComp))
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		if params.From == "" || params.To == "" {
			return exitcode.Usagef("both --from and --to are needed")
		}
		if port, proto, ok := strings.Cut(params.DPort, "/"); ok {
			if params.Proto != "" && !strings.EqualFold(params.Proto, proto) {
				return exitcode.Usagef("--dport has %s and --proto has %s", proto, params.Proto)
			}
			params.DPort, params.Proto = port, proto
		}
		params.Proto = protocolName(params.Proto)
		trace, err := c.TracePolicy(cmd.Context(), params)
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), trace, func(w io.Writer) error { return writeTrace(a, w, trace) })
	})
	return c
}

// completeSides offers endpoints by number and by pod, and identities.
func completeSides(a *command.App) cobra.CompletionFunc {
	return command.AnyOf(
		a.CompleteEndpoints(func(ep rest.Endpoint) string { return command.Described(strconv.Itoa(ep.ID), command.PodName(ep)) }),
		a.CompleteEndpoints(func(ep rest.Endpoint) string {
			if pod := command.PodName(ep); pod != "" {
				return "cep-name:" + pod
			}
			return ""
		}),
		a.CompleteIdentities("identity:"))
}

// protocolName is a protocol in the spelling of the API.
func protocolName(s string) string {
	switch {
	case s == "":
		return "TCP"
	case strings.EqualFold(s, "icmpv6"):
		return "ICMPv6"
	}
	return strings.ToUpper(s)
}

func writeTrace(a *command.App, w io.Writer, tr rest.PolicyTrace) error {
	var b strings.Builder
	port := tr.Proto
	if tr.DPort != 0 {
		port = fmt.Sprintf("%d/%s", tr.DPort, tr.Proto)
	}
	fmt.Fprintf(&b, "From  %s\nTo    %s\nOn    %s\n", peerText(tr.From), peerText(tr.To), port)
	direction := func(name string, d rest.PolicyTraceDirection) error {
		if d.Verdict == "" {
			return nil
		}
		enforced := "what no rule allows passes"
		if d.Enforced {
			enforced = "what no rule allows is dropped"
		}
		fmt.Fprintf(&b, "\n%s: %s (%s)\n", name, verdict(a, d.Verdict), enforced)
		t := a.Table()
		for _, s := range d.Steps {
			effect := output.Plain.Cell(string(s.Effect))
			switch s.Effect {
			case rest.PolicyTraceStepEffectAllow:
				effect.Style = output.Good
			case rest.PolicyTraceStepEffectDeny:
				effect.Style = output.Bad
			case rest.PolicyTraceStepEffectPass:
			case rest.PolicyTraceStepEffectNone:
				effect.Text = "-"
			}
			t.Row(" ", effect, s.Rule, s.Reason)
		}
		if err := t.Write(&b); err != nil {
			return err
		}
		if d.Reason != "" {
			fmt.Fprintf(&b, "    %s\n", output.Printable(d.Reason))
		}
		return nil
	}
	if err := direction("Egress of the sender", tr.Egress); err != nil {
		return err
	}
	if err := direction("Ingress of the receiver", tr.Ingress); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nVerdict: %s\n", verdict(a, tr.Verdict))
	_, err := io.WriteString(w, b.String())
	return err
}

func verdict(a *command.App, v rest.PolicyVerdict) string {
	look := output.Bad
	if v == rest.PolicyVerdictAllowed {
		look = output.Good
	}
	return a.Paint(look, string(v))
}

func peerText(p rest.PolicyTracePeer) string {
	out := output.Printable(p.Name)
	var known []string
	if p.Endpoint != 0 {
		known = append(known, fmt.Sprintf("endpoint %d", p.Endpoint))
	}
	known = append(known, fmt.Sprintf("identity %d", p.Identity))
	known = append(known, slices.Sorted(slices.Values(p.Labels))...)
	return out + " (" + output.Printable(strings.Join(known, ", ")) + ")"
}
