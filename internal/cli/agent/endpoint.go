package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
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
	"github.com/hawser-net/hawser/internal/identity"
)

const endpointIDHelp = `An endpoint is named by its number on this node or by a prefixed name:
  12                          number
  cep-name:default/web-1      namespace and pod
  cni-attachment-id:c0ffee:eth0   container and interface
  container-id:c0ffee         container
  ipv4:10.0.0.7, ipv6:fd00::7  address`

// EndpointCommand shows and changes endpoints.
func EndpointCommand(a *command.App) *cobra.Command {
	c := command.Group("endpoint", "Show and change the endpoints (pods) of this node", "Show and change the endpoints of this node.\n\n"+endpointIDHelp,
		endpointListCommand(a),
		endpointGetCommand(a),
		endpointLabelsCommand(a),
		endpointLogCommand(a),
		endpointHealthCommand(a),
		endpointConfigCommand(a),
		endpointDeleteCommand(a),
	)
	c.Aliases = []string{"ep"}
	return c
}

// completeEndpoints offers the numbers of the endpoints.
func completeEndpoints(a *command.App) cobra.CompletionFunc {
	return a.CompleteEndpoints(func(ep rest.Endpoint) string { return command.Described(strconv.Itoa(ep.ID), endpointName(ep)) })
}

// endpointName is the name people know an endpoint by.
func endpointName(ep rest.Endpoint) string {
	ids := ep.Status.ExternalIdentifiers
	return cmp.Or(command.PodName(ep), ids.PodName, ids.ContainerName, ids.ContainerID)
}

func endpointListCommand(a *command.App) *cobra.Command {
	var labels []string
	var noHeaders bool
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the endpoints",
		Example: `  hawser endpoint list
  hawser endpoint list -l k8s:app=web
  hawser endpoint list -o jsonpath='{range [*]}{.id} {.status.state}{"\n"}{end}'`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringSliceVarP(&labels, "labels", "l", nil, "only endpoints that have all of these `labels`")
	c.Flags().BoolVar(&noHeaders, "no-headers", false, "leave out the head of the table")
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		eps, err := c.Endpoints(cmd.Context(), labels)
		if err != nil {
			return err
		}
		slices.SortFunc(eps, func(x, y rest.Endpoint) int { return cmp.Compare(x.ID, y.ID) })
		return out.Print(cmd.OutOrStdout(), eps, func(w io.Writer) error { return writeEndpoints(a, w, eps, noHeaders) })
	})
	return c
}

func writeEndpoints(a *command.App, w io.Writer, eps []rest.Endpoint, noHeaders bool) error {
	t := a.Table("ENDPOINT", "POLICY (ingress)\nENFORCEMENT", "POLICY (egress)\nENFORCEMENT", "IDENTITY",
		"LABELS (source:key[=value])", "IPv6", "IPv4", "STATUS")
	if noHeaders {
		t.Header = nil
	}
	for _, ep := range eps {
		ingress, egress := enforcement(ep.Status.Policy.Realized.PolicyEnabled)
		v4, v6 := addresses(ep)
		t.Row(ep.ID, ingress, egress, identityText(ep.Status.Identity), endpointLabels(ep), v6, v4, endpointState(ep.Status.State))
	}
	return t.Write(w)
}

// identityText is an identity's number; an endpoint that has none yet shows so.
func identityText(id rest.Identity) string {
	switch {
	case id.ID == 0:
		return "<none>"
	case id.Temporary:
		return strconv.Itoa(id.ID) + " (temporary)"
	}
	return strconv.Itoa(id.ID)
}

func enforcement(p rest.EndpointPolicyEnabled) (ingress, egress string) {
	ingress, egress = "Disabled", "Disabled"
	switch p {
	case rest.EndpointPolicyEnabledIngress, rest.EndpointPolicyEnabledBoth:
		ingress = "Enabled"
	case rest.EndpointPolicyEnabledAuditIngress, rest.EndpointPolicyEnabledAuditBoth:
		ingress = "Disabled (Audit)"
	}
	switch p {
	case rest.EndpointPolicyEnabledEgress, rest.EndpointPolicyEnabledBoth:
		egress = "Enabled"
	case rest.EndpointPolicyEnabledAuditEgress, rest.EndpointPolicyEnabledAuditBoth:
		egress = "Disabled (Audit)"
	}
	return ingress, egress
}

func addresses(ep rest.Endpoint) (v4, v6 []string) {
	for _, pair := range ep.Status.Networking.Addressing {
		if pair.IPv4 != "" {
			v4 = append(v4, pair.IPv4)
		}
		if pair.IPv6 != "" {
			v6 = append(v6, pair.IPv6)
		}
	}
	return v4, v6
}

func endpointLabels(ep rest.Endpoint) []string {
	labels := ep.Status.Labels.SecurityRelevant
	if len(labels) == 0 {
		labels = ep.Status.Identity.Labels
	}
	return slices.Sorted(slices.Values(labels))
}

func endpointState(s rest.EndpointState) output.Cell {
	switch s {
	case rest.EndpointStateReady:
		return output.Good.Cell(string(s))
	case rest.EndpointStateInvalid:
		return output.Bad.Cell(string(s))
	}
	return output.Warn.Cell(string(s))
}

func endpointGetCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "get ID",
		Short: "Show everything about an endpoint",
		Long:  "Show everything about an endpoint.\n\n" + endpointIDHelp,
		Example: `  hawser endpoint get 12
  hawser endpoint get cep-name:default/web-1 -o jsonpath='{.status.identity.id}'`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeEndpoints(a),
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ep, err := c.Endpoint(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), ep, func(w io.Writer) error { return writeEndpoint(a, w, ep) })
	})
	return c
}

func writeEndpoint(a *command.App, w io.Writer, ep rest.Endpoint) error {
	st := ep.Status
	v4, v6 := addresses(ep)
	ingress, egress := enforcement(st.Policy.Realized.PolicyEnabled)
	f := a.Facts()
	f.Add("Endpoint", strconv.Itoa(ep.ID))
	f.Add("Name", endpointName(ep))
	f.Add("State", endpointState(st.State))
	f.Add("Health", healthCell(st.Health.OverallHealth))
	f.Add("Identity", identityText(st.Identity))
	if st.Identity.Temporary {
		f.Add("Seen by others as", identity.ID(st.Identity.SeenAs).String())
	}
	f.Add("Labels", endpointLabels(ep))
	f.Add("User labels", slices.Sorted(slices.Values(st.Labels.Realized.User)))
	f.Add("Information labels", slices.Sorted(slices.Values(st.Labels.Derived)))
	f.Add("IPv4", v4)
	f.Add("IPv6", v6)
	f.Add("MAC", st.Networking.MAC)
	f.Add("Interface", interfaceText(st.Networking.InterfaceName, st.Networking.InterfaceIndex))
	f.Add("Interface in the pod", st.Networking.ContainerInterfaceName)
	f.Add("Host-side MAC", st.Networking.HostMAC)
	f.Add("Container", st.ExternalIdentifiers.ContainerID)
	f.Add("Attachment", st.ExternalIdentifiers.CNIAttachmentID)
	f.Add("Ingress policy", ingress)
	f.Add("Egress policy", egress)
	f.Add("Policy revision", number(st.Policy.Realized.PolicyRevision))
	var ports []string
	for _, p := range st.NamedPorts {
		ports = append(ports, fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
	}
	f.Add("Named ports", ports)
	return f.Write(w)
}

func interfaceText(name string, index int) string {
	switch {
	case index == 0:
		return name
	case name == "":
		return fmt.Sprintf("index %d", index)
	}
	return fmt.Sprintf("%s (index %d)", name, index)
}

func healthCell(h rest.EndpointHealthStatus) output.Cell {
	switch h {
	case rest.EndpointHealthStatusOK:
		return output.Good.Cell(string(h))
	case rest.EndpointHealthStatusFailure:
		return output.Bad.Cell(string(h))
	case rest.EndpointHealthStatusDisabled, "":
		return output.Plain.Cell(string(h))
	}
	return output.Warn.Cell(string(h))
}

func endpointLabelsCommand(a *command.App) *cobra.Command {
	var add, remove []string
	c := &cobra.Command{
		Use:   "labels ID",
		Short: "Show an endpoint's labels, or change those set by users",
		Example: `  hawser endpoint labels 12
  hawser endpoint labels 12 --add team=red --delete team=blue`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeEndpoints(a),
	}
	c.Flags().StringSliceVarP(&add, "add", "a", nil, "user `labels` to add")
	c.Flags().StringSliceVarP(&remove, "delete", "d", nil, "user `labels` to delete")
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		labels, err := c.EndpointLabels(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if len(add)+len(remove) > 0 {
			user := slices.Clone(labels.Status.Realized.User)
			for _, l := range remove {
				i := slices.Index(user, l)
				if i < 0 {
					return exitcode.With(exitcode.NotFound, fmt.Errorf("endpoint %s has no user label %q", args[0], l))
				}
				user = slices.Delete(user, i, i+1)
			}
			for _, l := range add {
				if !slices.Contains(user, l) {
					user = append(user, l)
				}
			}
			if err := c.PatchEndpointLabels(cmd.Context(), args[0], user); err != nil {
				return err
			}
			if labels, err = c.EndpointLabels(cmd.Context(), args[0]); err != nil {
				return err
			}
		}
		return out.Print(cmd.OutOrStdout(), labels, func(w io.Writer) error {
			t := a.Table("KIND", "LABEL")
			for _, kind := range []struct {
				name   string
				labels []string
			}{
				{"identity", labels.Status.SecurityRelevant},
				{"information", labels.Status.Derived},
				{"user", labels.Status.Realized.User},
				{"disabled", labels.Status.Disabled},
			} {
				for _, l := range slices.Sorted(slices.Values(kind.labels)) {
					t.Row(kind.name, l)
				}
			}
			return t.Write(w)
		})
	})
	return c
}

func endpointLogCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:               "log ID",
		Short:             "Show what happened to an endpoint, newest first",
		Example:           "  hawser endpoint log 12",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeEndpoints(a),
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		log, err := c.EndpointLog(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), log, func(w io.Writer) error {
			t := a.Table("TIMESTAMP", "STATUS", "STATE", "MESSAGE")
			for _, e := range log {
				look := output.Good
				if !strings.EqualFold(e.Code, "ok") {
					look = output.Bad
				}
				t.Row(e.Timestamp, look.Cell(e.Code), string(e.State), e.Message)
			}
			return t.Write(w)
		})
	})
	return c
}

func endpointHealthCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:     "healthz ID",
		Aliases: []string{"health"},
		Short:   "Show an endpoint's health",
		Long: `Show an endpoint's health.

The exit code is 1 if the overall health is a failure.`,
		Example:           "  hawser endpoint healthz 12",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeEndpoints(a),
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		h, err := c.EndpointHealth(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		err = out.Print(cmd.OutOrStdout(), h, func(w io.Writer) error {
			f := a.Facts()
			f.Add("Overall", healthCell(h.OverallHealth))
			f.Add("Programs", healthCell(h.BPF))
			f.Add("Policy", healthCell(h.Policy))
			connected := "no"
			if h.Connected {
				connected = "yes"
			}
			f.Add("Connected", connected)
			return f.Write(w)
		})
		if err == nil && h.OverallHealth == rest.EndpointHealthStatusFailure {
			err = command.Silent(exitcode.Failure)
		}
		return err
	})
	return c
}

func endpointConfigCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "config ID [OPTION=VALUE...]",
		Short: "Show an endpoint's options, or change them",
		Long: `Show an endpoint's options, or change them.

PolicyAuditMode takes Enabled (packets that its policy refuses pass, and are reported), Disabled, or Inherited
(what the agent's option says).`,
		Example: `  hawser endpoint config 12
  hawser endpoint config 12 PolicyAuditMode=Enabled`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeEndpoints(a),
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if len(args) > 1 {
			spec := rest.EndpointConfigurationSpec{Options: rest.ConfigurationMap{}}
			for _, arg := range args[1:] {
				name, value, ok := strings.Cut(arg, "=")
				if !ok || name == "" {
					return exitcode.Usagef("%q is not OPTION=VALUE", arg)
				}
				spec.Options[name] = value
			}
			return c.PatchEndpointConfig(cmd.Context(), args[0], spec)
		}
		cfg, err := c.EndpointConfig(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.Print(cmd.OutOrStdout(), cfg, func(w io.Writer) error {
			return writeConfig(a, w, rest.DaemonConfiguration{Spec: rest.DaemonConfigurationSpec{Options: cfg.Realized.Options}}, false)
		})
	})
	return c
}

func endpointDeleteCommand(a *command.App) *cobra.Command {
	var container string
	c := &cobra.Command{
		Use:   "delete ID...",
		Short: "Delete endpoints",
		Long: `Delete endpoints: the pod loses its network until its runtime attaches it anew.

Every ID is tried, whatever happens to the others.

` + endpointIDHelp,
		Example: `  hawser endpoint delete 12 14
  hawser endpoint delete --container c0ffee`,
		ValidArgsFunction: completeEndpoints(a),
	}
	c.Flags().StringVar(&container, "container", "", "delete all endpoints of the container with this `id`")
	c.Args = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 0) == (container == "") {
			return errors.New("give either endpoints or --container")
		}
		return nil
	}
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		var failed []error
		report := func(what string, errs int, err error) {
			switch {
			case err != nil:
				failed = append(failed, err)
			case errs > 0:
				failed = append(failed, fmt.Errorf("%s is deleted, but %d things could not be cleaned up; see the agent's log", what, errs))
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", what)
			}
		}
		if container != "" {
			errs, err := c.DeleteEndpoints(cmd.Context(), container)
			report("container "+container, errs, err)
		}
		for _, id := range args {
			errs, err := c.DeleteEndpoint(cmd.Context(), id)
			report("endpoint "+id, errs, err)
			if client.Unreachable(err) {
				break
			}
		}
		return errors.Join(failed...)
	})
	return c
}

// sortedAddresses returns the keys of m in the order of addresses.
func sortedAddresses[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), compareAddresses)
}

// compareAddresses orders addresses and prefixes as numbers, and after them what is neither.
func compareAddresses(x, y string) int {
	px, xok := parsePrefix(x)
	py, yok := parsePrefix(y)
	switch {
	case xok && yok:
		return cmp.Or(px.Addr().Compare(py.Addr()), cmp.Compare(px.Bits(), py.Bits()), cmp.Compare(x, y))
	case xok:
		return -1
	case yok:
		return 1
	}
	return cmp.Compare(x, y)
}

func parsePrefix(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, true
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	return netip.Prefix{}, false
}
