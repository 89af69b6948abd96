package cli

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
)

func (a *app) statusCommand() *cobra.Command {
	var brief, addresses, controllers, verbose bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the agent and of its parts",
		Long: `Show the health of the agent and of its parts.

The exit code is 0 while the agent works, even with warnings, 1 if it reports a
failure, and 3 if it does not answer.`,
		Example: `  hawser status
  hawser status --brief
  hawser status --verbose
  hawser status -o jsonpath='{.cilium.state}'`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVar(&brief, "brief", false, "only the overall state, on one line")
	c.Flags().BoolVar(&addresses, "all-addresses", false, "list the addresses given out, with their owners")
	c.Flags().BoolVar(&controllers, "all-controllers", false, "list all repeating tasks, not only failing ones")
	c.Flags().BoolVar(&verbose, "verbose", false, "list all of these, and which nodes this one reaches, or since when it does not")
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		st, err := c.Health(cmd.Context(), brief)
		if err != nil {
			return err
		}
		var health rest.HealthStatus
		if verbose && st.Cluster.CiliumHealth.State != rest.StateDisabled {
			if health, err = c.ClusterHealth(cmd.Context()); err != nil {
				return err
			}
		}
		err = out.print(cmd.OutOrStdout(), st, func(w io.Writer) error {
			if brief {
				return a.writeBrief(w, st.Cilium)
			}
			if err := a.writeStatus(w, st, addresses || verbose, controllers || verbose); err != nil || !verbose {
				return err
			}
			return a.writeHealth(w, health)
		})
		if err == nil && st.Cilium.State == rest.StateFailure {
			err = &silentError{ExitError}
		}
		return err
	})
	return c
}

func stateStyle(s rest.State) style {
	switch s {
	case rest.StateOk:
		return good
	case rest.StateWarning:
		return warn
	case rest.StateFailure:
		return bad
	}
	return plain
}

func (a *app) writeBrief(w io.Writer, st rest.Status) error {
	text := string(st.State)
	switch st.State {
	case rest.StateOk:
		text = "OK" // as other tools print it and scripts compare it
	case "":
		text = "unknown"
	}
	line := a.paint(stateStyle(st.State), text)
	if st.State != rest.StateOk && st.Msg != "" {
		line += ": " + printable(st.Msg)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

func (a *app) writeStatus(w io.Writer, st rest.StatusResponse, addresses, controllers bool) error {
	t := a.table()
	t.first = len("Masquerading:")
	part := func(name string, s rest.Status) {
		if s.State != "" {
			t.row(name+":", cell{string(s.State), stateStyle(s.State)}, s.Msg)
		}
	}
	fact := func(name, value string) {
		if value != "" {
			t.row(name+":", value)
		}
	}
	part("Agent", st.Cilium)
	part("KVStore", st.Kvstore)
	part("Kubernetes", rest.Status{State: st.Kubernetes.State, Msg: st.Kubernetes.Msg})
	part("CNI config", st.CNIFile)
	part("Reachable", st.Cluster.CiliumHealth)
	if err := t.write(w); err != nil {
		return err
	}
	t = a.table()
	t.first = len("Masquerading:")
	fact("IPAM", st.IPAM.Status)
	fact("Routing", routingText(st.Routing))
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
		t.row("Stale:", cell{fmt.Sprintf("%s has not reported since %s", name, st.Stale[name].Format(timeFormat)), warn})
	}
	if err := t.write(w); err != nil {
		return err
	}

	if len(st.Parts) > 0 {
		t = a.table("PART", "STATE", "SINCE", "MESSAGE")
		for _, p := range st.Parts {
			since := ""
			if !p.Since.IsZero() {
				since = p.Since.Format(timeFormat)
			}
			t.row(p.Name, cell{string(p.State), stateStyle(p.State)}, since, p.Msg)
		}
		if err := writeAfterBlank(w, t); err != nil {
			return err
		}
	}
	if controllers && len(st.Controllers) > 0 || failing > 0 {
		t = a.table("TASK", "RUNS", "FAILURES", "IN A ROW", "LAST FAILURE")
		for _, c := range st.Controllers {
			s, look := c.Status, plain
			if s.ConsecutiveFailureCount > 0 {
				look = bad
			} else if !controllers {
				continue
			}
			t.row(cell{c.Name, look}, s.SuccessCount+s.FailureCount, s.FailureCount, s.ConsecutiveFailureCount, s.LastFailureMsg)
		}
		if err := writeAfterBlank(w, t); err != nil {
			return err
		}
	}
	if addresses {
		t = a.table("ADDRESS", "OWNER")
		for _, ip := range sortedAddresses(st.IPAM.Allocations) {
			t.row(ip, st.IPAM.Allocations[ip])
		}
		return writeAfterBlank(w, t)
	}
	return nil
}

// writeHealth lists the nodes: how long their answers take, or since when and why there is none.
// Those that do not answer come first.
func (a *app) writeHealth(w io.Writer, st rest.HealthStatus) error {
	if len(st.Nodes) == 0 {
		return nil
	}
	t := a.table("NODE", "ADDRESS", "ICMP", "HTTP", "SINCE")
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
			if c.Status != "" && (since == "" || c.Since.Format(timeFormat) < since) {
				since = c.Since.Format(timeFormat)
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
		t.row(r.cells...)
	}
	return writeAfterBlank(w, t)
}

func answerCell(c rest.HealthConnectivity) cell {
	switch {
	case c.LastProbed.IsZero():
		return cell{"not probed yet", plain}
	case c.Status != "":
		return cell{c.Status, bad}
	}
	return cell{time.Duration(c.Latency).Round(time.Microsecond).String(), good}
}

// timeFormat is how times are shown to people, in the zone the agent gave.
const timeFormat = "2006-01-02 15:04:05Z07:00"

func writeAfterBlank(w io.Writer, t *table) error {
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return t.write(w)
}

func nonEmpty(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
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

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: "  hawser version -o jsonpath='{.version}'",
		Args:    cobra.NoArgs,
	}
	out := addOutput(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		version := a.cfg.Version
		if version == "" {
			version = "dev"
		}
		v := struct {
			Version  string `json:"version"`
			Go       string `json:"go"`
			Platform string `json:"platform"`
		}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
		return out.print(cmd.OutOrStdout(), v, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "hawser %s, %s, %s\n", v.Version, v.Go, v.Platform)
			return err
		})
	}
	return c
}
