package agent

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/cli/store"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// IdentityCommand shows identities; open connects to the store where they are read from there.
// Commands about identities that query something else than the agent are added to the same group.
func IdentityCommand(a *command.App, open store.Opener, others ...*cobra.Command) *cobra.Command {
	c := command.Group("identity", "Show security identities", "Show the security identities this node knows.",
		identityListCommand(a, open), identityGetCommand(a))
	c.AddCommand(others...)
	c.Aliases = []string{"id"}
	return c
}

func sortIdentities(ids []rest.Identity) {
	slices.SortFunc(ids, func(x, y rest.Identity) int { return cmp.Compare(x.ID, y.ID) })
}

func writeIdentities(a *command.App, w io.Writer, ids []rest.Identity) error {
	t := a.Table("ID", "LABELS")
	for _, id := range ids {
		t.Row(identityText(id), slices.Sorted(slices.Values(id.Labels)))
	}
	return t.Write(w)
}

func identityListCommand(a *command.App, open store.Opener) *cobra.Command {
	var endpoints bool
	f := &store.Flags{}
	c := &cobra.Command{
		Use:     "list [LABEL...]",
		Aliases: []string{"ls"},
		Short:   "List the identities, or the one of exactly these labels",
		Long: `List the identities this node knows, or the one of exactly these labels. With --kvstore,
read them from the key-value store itself, without the agent, and show how many nodes use each.`,
		Example: `  hawser identity list
  hawser identity list k8s:app=web k8s:io.kubernetes.pod.namespace=default
  hawser identity list --endpoints
  hawser identity list --kvstore --kvstore-opt etcd.address=http://127.0.0.1:2379`,
	}
	f.Add(c.Flags())
	c.Flags().Lookup("kvstore").NoOptDefVal = "etcd"
	c.Flags().Lookup("kvstore").DefValue = "" // shown as no default: without the flag the agent is asked
	c.Flags().BoolVar(&endpoints, "endpoints", false, "only identities of endpoints of this node, with how many have each")
	c.Args = func(cmd *cobra.Command, args []string) error {
		if endpoints && len(args) > 0 {
			return fmt.Errorf("--endpoints takes no labels")
		}
		stored := cmd.Flags().Changed("kvstore")
		if endpoints && stored {
			return fmt.Errorf("--endpoints asks the agent: it does not go with --kvstore")
		}
		if !stored && (cmd.Flags().Changed("kvstore-opt") || cmd.Flags().Changed("timeout")) {
			return fmt.Errorf("--kvstore-opt and --timeout have no effect without --kvstore")
		}
		return nil
	}
	out := output.AddFlag(c)
	fromStore := store.ListIdentities(a, open, f, out)
	fromAgent := a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if endpoints {
			return listIdentityEndpoints(a, cmd, c, out)
		}
		ids, err := c.Identities(cmd.Context(), args)
		if err != nil {
			return err
		}
		sortIdentities(ids)
		return out.Print(cmd.OutOrStdout(), ids, func(w io.Writer) error { return writeIdentities(a, w, ids) })
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("kvstore") {
			return fromStore(cmd, args)
		}
		return fromAgent(cmd, args)
	}
	return c
}

func listIdentityEndpoints(a *command.App, cmd *cobra.Command, c *client.Client, out *output.Format) error {
	ids, err := c.IdentityEndpoints(cmd.Context())
	if err != nil {
		return err
	}
	slices.SortFunc(ids, func(x, y rest.IdentityEndpoints) int { return cmp.Compare(x.Identity.ID, y.Identity.ID) })
	return out.Print(cmd.OutOrStdout(), ids, func(w io.Writer) error {
		t := a.Table("ID", "LABELS", "REFCOUNT")
		for _, id := range ids {
			t.Row(identityText(id.Identity), slices.Sorted(slices.Values(id.Identity.Labels)), id.RefCount)
		}
		return t.Write(w)
	})
}

func identityGetCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:               "get ID...",
		Short:             "Show identities by their numbers",
		Long:              "Show identities by their numbers. With -o, one is shown as an object and several as a list.",
		Example:           "  hawser identity get 16384",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.CompleteIdentities(""),
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		var ids []rest.Identity
		for _, arg := range args {
			if _, err := strconv.ParseUint(arg, 10, 32); err != nil {
				return exitcode.Usagef("%q is not the number of an identity", arg)
			}
			id, err := c.Identity(cmd.Context(), arg)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		var data any = ids
		if len(ids) == 1 {
			data = ids[0]
		}
		return out.Print(cmd.OutOrStdout(), data, func(w io.Writer) error { return writeIdentities(a, w, ids) })
	})
	return c
}

// IPCommand shows the identity behind each address.
func IPCommand(a *command.App) *cobra.Command {
	return command.Group("ip", "Show the identity behind each address", "Show the addresses this node knows and the identity behind each.",
		ipListCommand(a))
}

func ipListCommand(a *command.App) *cobra.Command {
	var verbose, names bool
	var labels []string
	c := &cobra.Command{
		Use:     "list [CIDR]",
		Aliases: []string{"ls"},
		Short:   "List addresses with the identity behind each",
		Example: `  hawser ip list
  hawser ip list 10.0.1.0/24 -v
  hawser ip list -l k8s:app=web`,
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also the node that hosts the address, and its key")
	c.Flags().BoolVar(&names, "labels-of-identity", false, "the identity's labels instead of its number")
	c.Flags().StringSliceVarP(&labels, "labels", "l", nil, "only addresses whose identity has all of these `labels`")
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		cidr := ""
		if len(args) == 1 {
			cidr = args[0]
		}
		ips, err := c.IPs(cmd.Context(), cidr, labels)
		if err != nil {
			return err
		}
		slices.SortFunc(ips, func(x, y rest.IPListEntry) int { return compareAddresses(x.CIDR, y.CIDR) })
		byID := map[int][]string{}
		if names {
			ids, err := c.Identities(cmd.Context(), nil)
			if err != nil {
				return err
			}
			for _, id := range ids {
				byID[id.ID] = slices.Sorted(slices.Values(id.Labels))
			}
		}
		return out.Print(cmd.OutOrStdout(), ips, func(w io.Writer) error {
			header := []string{"IP", "IDENTITY", "SOURCE"}
			if verbose {
				header = append(header, "HOST", "ENCRYPT_KEY")
			}
			t := a.Table(header...)
			for _, ip := range ips {
				identity := []string{strconv.Itoa(ip.Identity)}
				if l := byID[ip.Identity]; len(l) > 0 {
					identity = l
				}
				row := []any{ip.CIDR, identity, ip.Metadata.Source}
				if verbose {
					row = append(row, ip.HostIP, ip.EncryptKey)
				}
				t.Row(row...)
			}
			return t.Write(w)
		})
	})
	return c
}

// NodeCommand shows the nodes.
func NodeCommand(a *command.App) *cobra.Command {
	return command.Group("node", "Show the nodes", "Show the nodes this node knows.",
		nodeListCommand(a), nodeIDsCommand(a))
}

func nodeListCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes",
		Example: "  hawser node list",
		Args:    cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		st, err := c.ClusterNodes(cmd.Context(), 0)
		if err != nil {
			return err
		}
		nodes := st.NodesAdded
		if nodes == nil {
			nodes = []rest.NodeElement{}
		}
		slices.SortFunc(nodes, func(x, y rest.NodeElement) int { return cmp.Compare(x.Name, y.Name) })
		return out.Print(cmd.OutOrStdout(), nodes, func(w io.Writer) error {
			t := a.Table("Name", "IPv4 Address", "Endpoint CIDR", "IPv6 Address", "Endpoint CIDR", "Source")
			for _, n := range nodes {
				name := output.Plain.Cell(n.Name)
				if n.Name == st.Self {
					name.Style = output.Bold
				}
				v4, v6 := n.PrimaryAddress.IPv4, n.PrimaryAddress.IPv6
				t.Row(name, v4.IP, v4.AllocRange, v6.IP, v6.AllocRange, n.Source)
			}
			return t.Write(w)
		})
	})
	return c
}

func nodeIDsCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:     "ids",
		Short:   "List the numbers this node gave to nodes",
		Example: "  hawser node ids",
		Args:    cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		ids, err := c.NodeIDs(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortFunc(ids, func(x, y rest.NodeID) int { return cmp.Compare(x.ID, y.ID) })
		return out.Print(cmd.OutOrStdout(), ids, func(w io.Writer) error {
			t := a.Table("NODE ID", "IP ADDRESSES")
			for _, id := range ids {
				t.Row(id.ID, id.IPs)
			}
			return t.Write(w)
		})
	})
	return c
}
