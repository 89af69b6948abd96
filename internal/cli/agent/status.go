// Package agent holds the commands that ask the agent of a node through its REST API: what it is
// and does, the endpoints, identities, addresses, nodes and services that it knows, the maps of the
// kernel, and packets as they come.
package agent

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// StatusCommand shows the health of the agent.
func StatusCommand(a *command.App) *cobra.Command {
	var brief, addresses, controllers, verbose bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the agent and of its parts",
		Long: `Show the health of the agent and of its parts.

The exit code is 0 while the agent works, even with warnings, 1 if it reports a
failure, and 3 if it does not answer.

With --verbose, JSON and YAML have the field cluster-health, too: the nodes, and
whether this one reaches them. It is missing where nodes do not probe each other.`,
		Example: `  hawser status
  hawser status --brief
  hawser status --verbose
  hawser status -o jsonpath='{.cilium.state}'
  hawser status --verbose -o json`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVar(&brief, "brief", false, "only the overall state, on one line")
	c.Flags().BoolVar(&addresses, "all-addresses", false, "list the addresses given out, with their owners")
	c.Flags().BoolVar(&controllers, "all-controllers", false, "list all repeating tasks, not only failing ones")
	c.Flags().BoolVar(&verbose, "verbose", false, "list all of these, and which nodes this one reaches, or since when it does not")
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		st, err := c.Health(cmd.Context(), brief)
		if err != nil {
			return err
		}
		all := statusAndHealth{StatusResponse: st}
		if verbose && st.Cluster.CiliumHealth.State != rest.StateDisabled {
			health, err := c.ClusterHealth(cmd.Context())
			if err != nil {
				return err
			}
			all.ClusterHealth = &health
		}
		err = out.Print(cmd.OutOrStdout(), all, func(w io.Writer) error {
			if brief {
				return writeBrief(a, w, st.Cilium)
			}
			if err := writeStatus(a, w, st, addresses || verbose, controllers || verbose); err != nil || all.ClusterHealth == nil {
				return err
			}
			return writeHealth(a, w, *all.ClusterHealth)
		})
		if err == nil && st.Cilium.State == rest.StateFailure {
			err = command.Silent(exitcode.Failure)
		}
		return err
	})
	return c
}

// statusAndHealth is the agent's status, with which nodes this one reaches if that was asked for.
type statusAndHealth struct {
	rest.StatusResponse
	ClusterHealth *rest.HealthStatus `json:"cluster-health,omitempty"`
}

func stateStyle(s rest.State) output.Style {
	switch s {
	case rest.StateOk:
		return output.Good
	case rest.StateWarning:
		return output.Warn
	case rest.StateFailure:
		return output.Bad
	}
	return output.Plain
}

func writeBrief(a *command.App, w io.Writer, st rest.Status) error {
	text := string(st.State)
	switch st.State {
	case rest.StateOk:
		text = "OK" // as other tools print it and scripts compare it
	case "":
		text = "unknown"
	}
	line := a.Paint(stateStyle(st.State), text)
	if st.State != rest.StateOk && st.Msg != "" {
		line += ": " + output.Printable(st.Msg)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func writeStatus(a *command.App, w io.Writer, st rest.StatusResponse, addresses, controllers bool) error {
	t := a.Table()
	t.First = len("Masquerading:")
	part := func(name string, s rest.Status) {
		if s.State != "" {
			t.Row(name+":", stateStyle(s.State).Cell(string(s.State)), s.Msg)
		}
	}
	fact := func(name, value string) {
		if value != "" {
			t.Row(name+":", value)
		}
	}
	part("Agent", st.Cilium)
	part("KVStore", st.Kvstore)
	part("Kubernetes", rest.Status{State: st.Kubernetes.State, Msg: st.Kubernetes.Msg})
	part("CNI config", st.CNIFile)
	part("Flows", flowsStatus(st.Hubble))
	part("Reachable", st.Cluster.CiliumHealth)
	if err := t.Write(w); err != nil {
		return err
	}
	t = a.Table()
	t.First = len("Masquerading:")
	fact("IPAM", st.IPAM.Status)
	fact("Routing", routingText(st.Routing))
	fact("Kube-proxy", map[string]string{"True": "replaced", "False": "not replaced"}[st.KubeProxyReplacement.Mode])
	fact("Masquerading", masqueradingText(st.Masquerading))
	fact("Datapath", strings.Join(nonEmpty(string(st.DatapathMode), st.AttachMode), ", "))
	if r := st.IdentityRange; r.MaxIdentity != 0 {
		fact("Identities", fmt.Sprintf("%d to %d", r.MinIdentity, r.MaxIdentity))
	}
	if n := len(st.Cluster.Nodes); n > 0 || st.Cluster.Self != "" {
		fact("Nodes", fmt.Sprintf("%d, this one is %s", n, st.Cluster.Self))
	}
	if m := st.NodeMonitor; m != (rest.MonitorStatus{}) {
		fact("Events", fmt.Sprintf("%d lost, %d not understood", m.Lost, m.Unknown))
	}
	failing := 0
	for _, c := range st.Controllers {
		if c.Status.ConsecutiveFailureCount > 0 {
			failing++
		}
	}
	if n := len(st.Controllers); n > 0 {
		fact("Tasks", fmt.Sprintf("%d, %d of them failing", n, failing))
	}
	for _, name := range slices.Sorted(maps.Keys(st.Stale)) {
		t.Row("Stale:", output.Warn.Cell(fmt.Sprintf("%s has not reported since %s", name, st.Stale[name].Format(output.TimeFormat))))
	}
	if err := t.Write(w); err != nil {
		return err
	}

	if len(st.Parts) > 0 {
		t = a.Table("PART", "STATE", "SINCE", "MESSAGE")
		for _, p := range st.Parts {
			since := ""
			if !p.Since.IsZero() {
				since = p.Since.Format(output.TimeFormat)
			}
			t.Row(p.Name, stateStyle(p.State).Cell(string(p.State)), since, p.Msg)
		}
		if err := t.WriteAfterBlank(w); err != nil {
			return err
		}
	}
	if controllers && len(st.Controllers) > 0 || failing > 0 {
		t = a.Table("TASK", "RUNS", "FAILURES", "IN A ROW", "LAST FAILURE")
		for _, c := range st.Controllers {
			s, look := c.Status, output.Plain
			if s.ConsecutiveFailureCount > 0 {
				look = output.Bad
			} else if !controllers {
				continue
			}
			t.Row(look.Cell(c.Name), s.SuccessCount+s.FailureCount, s.FailureCount, s.ConsecutiveFailureCount, s.LastFailureMsg)
		}
		if err := t.WriteAfterBlank(w); err != nil {
			return err
		}
	}
	if addresses {
		t = a.Table("ADDRESS", "OWNER")
		for _, ip := range sortedAddresses(st.IPAM.Allocations) {
			t.Row(ip, st.IPAM.Allocations[ip])
		}
		return t.WriteAfterBlank(w)
	}
	return nil
}

// writeHealth lists the nodes: how long their answers take, or since when and why there is none.
// Those that do not answer come first.
func writeHealth(a *command.App, w io.Writer, st rest.HealthStatus) error {
	if len(st.Nodes) == 0 {
		return nil
	}
	t := a.Table("NODE", "ADDRESS", "ICMP", "HTTP", "SINCE")
	type row struct {
		failing bool
		cells   []any
	}
	var rows []row
	add := func(node, kind string, p rest.HealthPath) {
		if p.IP == "" {
			return
		}
		icmp, http := answerCell(p.ICMP), answerCell(p.HTTP)
		since := ""
		for _, c := range []rest.HealthConnectivity{p.ICMP, p.HTTP} {
			if c.Status != "" && (since == "" || c.Since.Format(output.TimeFormat) < since) {
				since = c.Since.Format(output.TimeFormat)
			}
		}
		rows = append(rows, row{since != "", []any{node, p.IP + " (" + kind + ")", icmp, http, since}})
	}
	for _, n := range st.Nodes {
		for _, of := range []struct {
			kind  string
			addrs rest.HealthAddresses
		}{{"node", n.Host}, {"endpoint", n.HealthEndpoint}} {
			for _, p := range append([]rest.HealthPath{of.addrs.PrimaryAddress}, of.addrs.SecondaryAddresses...) {
				add(n.Name, of.kind, p)
			}
		}
	}
	slices.SortStableFunc(rows, func(x, y row) int {
		switch {
		case x.failing == y.failing:
			return 0
		case x.failing:
			return -1
		}
		return 1
	})
	for _, r := range rows {
		t.Row(r.cells...)
	}
	return t.WriteAfterBlank(w)
}

func answerCell(c rest.HealthConnectivity) output.Cell {
	switch {
	case c.LastProbed.IsZero():
		return output.Plain.Cell("not probed yet")
	case c.Status != "":
		return output.Bad.Cell(c.Status)
	}
	return output.Good.Cell(time.Duration(c.Latency).Round(time.Microsecond).String())
}

func nonEmpty(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

// flowsStatus says how flows get recorded, where they are not.
func flowsStatus(st rest.Status) rest.Status {
	if st.State == rest.StateDisabled && st.Msg == "" {
		st.Msg = "not recorded; the agent records them with --enable-hubble"
	}
	return st
}

func routingText(r rest.Routing) string {
	out := r.InterHostRoutingMode
	if r.TunnelProtocol != "" {
		out += " (" + r.TunnelProtocol + ")"
	}
	if out != "" {
		out += " between nodes"
	}
	if r.IntraHostRoutingMode != "" {
		out = strings.Join(nonEmpty(out, r.IntraHostRoutingMode+" within the node"), ", ")
	}
	return out
}

func masqueradingText(m rest.Masquerading) string {
	if m == (rest.Masquerading{}) {
		return ""
	}
	if !m.Enabled {
		return "off"
	}
	var families []string
	if m.EnabledProtocols.IPv4 {
		families = append(families, "IPv4")
	}
	if m.EnabledProtocols.IPv6 {
		families = append(families, "IPv6")
	}
	out := strings.Join(families, " and ")
	if m.Mode != "" {
		out += " by " + m.Mode
	}
	if except := nonEmpty(m.SNATExclusionCIDRv4, m.SNATExclusionCIDRv6); len(except) > 0 {
		out += ", except to " + strings.Join(except, " and ")
	}
	return out
}
