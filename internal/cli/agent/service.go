package agent

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
)

// ServiceCommand shows services.
func ServiceCommand(a *command.App) *cobra.Command {
	return command.Group("service", "Show services", "Show the addresses of services and the backends behind each.", serviceListCommand(a))
}

func serviceListCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the frontends of services and their backends",
		Long: "List the frontends of services and their backends on this node. A frontend is an address, port and protocol; one that is for clients outside\n" +
			"of the cluster has a row of its own, because it may lead elsewhere; so has one that only the node's own processes have (127.0.0.1). A row without\n" +
			"backends shows how clients are treated: they are refused, or dropped if the service has backends that this row may not use. `hawser bpf lb list` shows the kernel's state.",
		Example: "  hawser service list\n  hawser service list -o jsonpath='{[*].spec.frontend-address.ip}'",
		Args:    cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		list, err := c.Services(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortStableFunc(list, func(x, y rest.Service) int {
			return cmp.Or(strings.Compare(serviceName(x.Spec), serviceName(y.Spec)), strings.Compare(x.Spec.Flags.Type, y.Spec.Flags.Type))
		})
		return out.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			t := a.Table("SERVICE", "PORT", "TYPE", "FRONTEND", "FROM", "BACKENDS")
			for _, s := range list {
				f := s.Spec.FrontendAddress
				t.Row(serviceName(s.Spec), s.Spec.Flags.PortName, serviceType(s.Spec.Flags), addressText(f.IP, f.Port)+"/"+f.Protocol,
					serviceFrom(f, s.Spec.Flags), backendsText(s.Spec))
			}
			return t.Write(w)
		})
	})
	return c
}

func serviceName(s rest.ServiceSpec) string { return s.Flags.Namespace + "/" + s.Flags.Name }

// serviceType is the type and what is special about it.
func serviceType(f rest.ServiceFlags) string {
	s := f.Type
	if f.TrafficPolicy == "Local" {
		s += ",local"
	}
	if f.Algorithm == "maglev" {
		s += ",maglev"
	}
	if f.Forwarding == "dsr" {
		s += ",dsr"
	}
	if f.AffinitySeconds > 0 {
		s += fmt.Sprintf(",affinity=%ds", f.AffinitySeconds)
	}
	return s
}

func addressText(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

// serviceFrom shows whose packets a frontend serves.
func serviceFrom(f rest.FrontendAddress, flags rest.ServiceFlags) string {
	from := "inside"
	switch f.Scope {
	case "external":
		from = "outside"
	case "node":
		from = "node"
	case "other-node":
		from = "pods, of another node"
	}
	if flags.Restricted {
		from += ", of " + cmp.Or(strings.Join(flags.SourceRanges, ", "), "no client")
	}
	return from
}

// backendsText shows the backends, or what happens to clients without one.
func backendsText(s rest.ServiceSpec) any {
	if len(s.BackendAddresses) == 0 && s.Flags.Elsewhere {
		return output.Bad.Cell("none here: dropped")
	}
	if len(s.BackendAddresses) == 0 {
		return output.Bad.Cell("none: refused")
	}
	var out []string
	for _, b := range s.BackendAddresses {
		out = append(out, addressText(b.IP, b.Port))
	}
	return strings.Join(out, ", ")
}
