package cli

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
)

func (a *app) policyCommand() *cobra.Command {
	return a.group("policy", "Show policy and explain verdicts", "Show the policies in force and explain why traffic passes or not.",
		a.policyListCommand(),
		a.policyGetCommand(),
		a.policySelectorsCommand(),
		a.policyTraceCommand(),
		a.policyMatrixCommand(),
		a.policyPreviewCommand(),
	)
}

func (a *app) policyListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List where policies come from, and the policies",
		Long: `List the files of the static policy directory and the policy objects of
Kubernetes, with the policies in force of each.

A faulty file or object is shown with its fault. Of an object, and of a file that
was never good, what can be enforced is: it isolates whom it selects, and does
not grant what is at fault. Of another file the last good version stays in
force. The exit code is 0 all the same.`,
		Example: `  hawser policy list
  hawser policy list -o jsonpath='{[?(@.state=="faulty")].path}'`,
		Args: cobra.NoArgs,
	}
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		files, err := c.PolicyFiles(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortFunc(files, func(x, y rest.PolicyFile) int { return strings.Compare(x.Path, y.Path) })
		return out.print(cmd.OutOrStdout(), files, func(w io.Writer) error { return a.writePolicyFiles(w, files) })
	})
	return c
}

func (a *app) writePolicyFiles(w io.Writer, files []rest.PolicyFile) error {
	t := a.table("SOURCE", "STATE", "POLICY", "RULES", "DESCRIPTION")
	for _, f := range files {
		state := cell{string(f.State), good}
		if f.State == rest.PolicyFileStateFaulty {
			state.style = bad
			switch {
			case f.InForce && f.Loaded.IsZero():
				state.text += ", not fully enforced"
			case f.InForce:
				state.text += ", last good version in force"
			default:
				state.text += ", not in force"
			}
		}
		if len(f.Policies) == 0 {
			t.row(f.Path, state, "", "", "")
		}
		for i, p := range f.Policies {
			name := p.Name
			if p.Namespace != "" {
				name = p.Namespace + "/" + name
			}
			path := f.Path
			if i > 0 {
				path, state = "", cell{}
			}
			t.row(path, state, name, p.Rules, p.Description)
		}
	}
	if err := t.write(w); err != nil {
		return err
	}
	for _, f := range files {
		if f.Error == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s: %s\n", printable(f.Path), a.paint(bad, printableLines(f.Error))); err != nil {
			return err
		}
	}
	return nil
}

// printableLines is printable for text whose lines are wanted.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

func (a *app) policyGetCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "get",
		Short: "Show all rules in force",
		Example: `  hawser policy get
  hawser policy get -o jsonpath='{.revision}'`,
		Args: cobra.NoArgs,
	}
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		p, err := c.Policy(cmd.Context())
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), p, func(w io.Writer) error {
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

func (a *app) policySelectorsCommand() *cobra.Command {
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
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		list := c.Selectors
		if subjects {
			list = c.SubjectSelectors
		}
		sels, err := list(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortStableFunc(sels, func(x, y rest.SelectorIdentityMapping) int { return strings.Compare(x.Selector, y.Selector) })
		return out.print(cmd.OutOrStdout(), sels, func(w io.Writer) error {
			t := a.table("SELECTOR", "LABELS", "USERS", "IDENTITIES")
			for _, s := range sels {
				var labels, ids []string
				for _, l := range s.Labels {
					labels = append(labels, l.Source+":"+l.Key+"="+l.Value)
				}
				for _, id := range slices.Sorted(slices.Values(s.Identities)) {
					ids = append(ids, strconv.Itoa(id))
				}
				t.row(s.Selector, labels, s.Users, ids)
			}
			return t.write(w)
		})
	})
	return c
}

func (a *app) policyTraceCommand() *cobra.Command {
	var params rest.TracePolicyParams
	c := &cobra.Command{
		Use:   "trace --from SIDE --to SIDE [--dport PORT[/PROTO]]",
		Short: "Explain, rule by rule, why one side would reach another",
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
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		if params.From == "" || params.To == "" {
			return usagef("both --from and --to are needed")
		}
		if port, proto, ok := strings.Cut(params.DPort, "/"); ok {
			if params.Proto != "" && !strings.EqualFold(params.Proto, proto) {
				return usagef("--dport says %s and --proto says %s", proto, params.Proto)
			}
			params.DPort, params.Proto = port, proto
		}
		params.Proto = protocolName(params.Proto)
		trace, err := c.TracePolicy(cmd.Context(), params)
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), trace, func(w io.Writer) error { return a.writeTrace(w, trace) })
	})
	return c
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

func (a *app) writeTrace(w io.Writer, tr rest.PolicyTrace) error {
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
		fmt.Fprintf(&b, "\n%s: %s (%s)\n", name, a.verdict(d.Verdict), enforced)
		t := a.table()
		for _, s := range d.Steps {
			effect := cell{string(s.Effect), plain}
			switch s.Effect {
			case rest.PolicyTraceStepEffectAllow:
				effect.style = good
			case rest.PolicyTraceStepEffectDeny:
				effect.style = bad
			case rest.PolicyTraceStepEffectPass:
			case rest.PolicyTraceStepEffectNone:
				effect.text = "-"
			}
			t.row(" ", effect, s.Rule, s.Reason)
		}
		if err := t.write(&b); err != nil {
			return err
		}
		if d.Reason != "" {
			fmt.Fprintf(&b, "    %s\n", printable(d.Reason))
		}
		return nil
	}
	if err := direction("Egress of the sender", tr.Egress); err != nil {
		return err
	}
	if err := direction("Ingress of the receiver", tr.Ingress); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nVerdict: %s\n", a.verdict(tr.Verdict))
	_, err := io.WriteString(w, b.String())
	return err
}

func (a *app) verdict(v rest.PolicyVerdict) string {
	look := bad
	if v == rest.PolicyVerdictAllowed {
		look = good
	}
	return a.paint(look, string(v))
}

func peerText(p rest.PolicyTracePeer) string {
	out := printable(p.Name)
	var known []string
	if p.Endpoint != 0 {
		known = append(known, fmt.Sprintf("endpoint %d", p.Endpoint))
	}
	known = append(known, fmt.Sprintf("identity %d", p.Identity))
	known = append(known, slices.Sorted(slices.Values(p.Labels))...)
	return out + " (" + printable(strings.Join(known, ", ")) + ")"
}
