package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
)

func (a *app) identityCommand() *cobra.Command {
	c := a.group("identity", "Show security identities", "Show the security identities this node knows.",
		a.identityListCommand(), a.identityGetCommand(), a.identityWhyCommand())
	c.Aliases = []string{"id"}
	return c
}

func sortIdentities(ids []rest.Identity) {
	slices.SortFunc(ids, func(x, y rest.Identity) int { return cmp.Compare(x.ID, y.ID) })
}

func (a *app) writeIdentities(w io.Writer, ids []rest.Identity) error {
	t := a.table("ID", "LABELS")
	for _, id := range ids {
		t.row(identityText(id), slices.Sorted(slices.Values(id.Labels)))
	}
	return t.write(w)
}

func (a *app) identityListCommand() *cobra.Command {
	var endpoints bool
	f := &storeFlags{}
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
	f.flags(c.Flags())
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
	out := addOutput(c)
	fromStore := a.listStoredIdentities(f, out)
	fromAgent := a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if endpoints {
			return a.listIdentityEndpoints(cmd, c, out)
		}
		ids, err := c.Identities(cmd.Context(), args)
		if err != nil {
			return err
		}
		sortIdentities(ids)
		return out.print(cmd.OutOrStdout(), ids, func(w io.Writer) error { return a.writeIdentities(w, ids) })
	})
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("kvstore") {
			return fromStore(cmd, args)
		}
		return fromAgent(cmd, args)
	}
	return c
}

func (a *app) listIdentityEndpoints(cmd *cobra.Command, c *client.Client, out *output) error {
	ids, err := c.IdentityEndpoints(cmd.Context())
	if err != nil {
		return err
	}
	slices.SortFunc(ids, func(x, y rest.IdentityEndpoints) int { return cmp.Compare(x.Identity.ID, y.Identity.ID) })
	return out.print(cmd.OutOrStdout(), ids, func(w io.Writer) error {
		t := a.table("ID", "LABELS", "REFCOUNT")
		for _, id := range ids {
			t.row(identityText(id.Identity), slices.Sorted(slices.Values(id.Identity.Labels)), id.RefCount)
		}
		return t.write(w)
	})
}

func (a *app) identityGetCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "get ID...",
		Short:   "Show identities by their numbers",
		Long:    "Show identities by their numbers. With -o, one is shown as an object and several as a list.",
		Example: "  hawser identity get 16384",
		Args:    cobra.MinimumNArgs(1),
	}
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		var ids []rest.Identity
		for _, arg := range args {
			if _, err := strconv.ParseUint(arg, 10, 32); err != nil {
				return usagef("%q is not the number of an identity", arg)
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
		return out.print(cmd.OutOrStdout(), data, func(w io.Writer) error { return a.writeIdentities(w, ids) })
	})
	return c
}

func (a *app) ipCommand() *cobra.Command {
	return a.group("ip", "Show who is behind which address", "Show the addresses this node knows and the identity behind each.",
		a.ipListCommand())
}

func (a *app) ipListCommand() *cobra.Command {
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
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
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
		return out.print(cmd.OutOrStdout(), ips, func(w io.Writer) error {
			header := []string{"IP", "IDENTITY", "SOURCE"}
			if verbose {
				header = append(header, "HOST", "ENCRYPT_KEY")
			}
			t := a.table(header...)
			for _, ip := range ips {
				identity := []string{strconv.Itoa(ip.Identity)}
				if l := byID[ip.Identity]; len(l) > 0 {
					identity = l
				}
				row := []any{ip.CIDR, identity, ip.Metadata.Source}
				if verbose {
					row = append(row, ip.HostIP, ip.EncryptKey)
				}
				t.row(row...)
			}
			return t.write(w)
		})
	})
	return c
}

func (a *app) nodeCommand() *cobra.Command {
	return a.group("node", "Show the nodes", "Show the nodes this node knows.",
		a.nodeListCommand(), a.nodeIDsCommand())
}

func (a *app) nodeListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes",
		Example: "  hawser node list",
		Args:    cobra.NoArgs,
	}
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		st, err := c.ClusterNodes(cmd.Context(), 0)
		if err != nil {
			return err
		}
		nodes := st.NodesAdded
		if nodes == nil {
			nodes = []rest.NodeElement{}
		}
		slices.SortFunc(nodes, func(x, y rest.NodeElement) int { return cmp.Compare(x.Name, y.Name) })
		return out.print(cmd.OutOrStdout(), nodes, func(w io.Writer) error {
			t := a.table("Name", "IPv4 Address", "Endpoint CIDR", "IPv6 Address", "Endpoint CIDR", "Source")
			for _, n := range nodes {
				name := cell{text: n.Name}
				if n.Name == st.Self {
					name.style = bold
				}
				v4, v6 := n.PrimaryAddress.IPv4, n.PrimaryAddress.IPv6
				t.row(name, v4.IP, v4.AllocRange, v6.IP, v6.AllocRange, n.Source)
			}
			return t.write(w)
		})
	})
	return c
}

func (a *app) nodeIDsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ids",
		Short:   "List the numbers this node gave to nodes",
		Example: "  hawser node ids",
		Args:    cobra.NoArgs,
	}
	out := addOutput(c)
	c.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		ids, err := c.NodeIDs(cmd.Context())
		if err != nil {
			return err
		}
		slices.SortFunc(ids, func(x, y rest.NodeID) int { return cmp.Compare(x.ID, y.ID) })
		return out.print(cmd.OutOrStdout(), ids, func(w io.Writer) error {
			t := a.table("NODE ID", "IP ADDRESSES")
			for _, id := range ids {
				t.row(id.ID, id.IPs)
			}
			return t.write(w)
		})
	})
	return c
}
