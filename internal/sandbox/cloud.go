package sandbox

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

// cloudCommand shows the cloud that a cluster is in, and has it fail.
func cloudCommand(cfg *Config) *cobra.Command {
	var format string
	run := func(order func(args []string) (region.Order, error)) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			cluster, err := openCluster(clusterConfig(cfg, cmd), cmd)
			if err != nil {
				return err
			}
			client, err := cluster.Cloud()
			if err != nil {
				return err
			}
			st, err := client.Status(cmd.Context())
			if order != nil {
				var o region.Order
				if o, err = order(args); err == nil {
					st, err = client.Order(cmd.Context(), o)
				}
			}
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), machine.Palette(colourful(cmd.OutOrStdout())), format, st, func(w io.Writer, _ bool) { printCloud(w, st) })
		}
	}
	cmd := &cobra.Command{
		Use: "cloud", Args: cobra.NoArgs,
		Short: "Show the cloud of the nodes, and inject faults",
		Long: `Show the instances, interfaces, subnets and addresses of the cloud of a cluster that was started
with ` + "`up --cloud`" + `, and the number of API calls. The subcommands inject faults of
clouds; status.ipam.operator-status of the CiliumNodes shows how the operator reacts.`,
		Example: `  hawser sandbox cloud
  hawser sandbox cloud fail quota
  hawser sandbox cloud fill subnet-pods --free 3
  hawser sandbox kubectl -- get ciliumnodes -o custom-columns=NODE:.metadata.name,ERROR:.status.ipam.operator-status.error
  hawser sandbox cloud calm`,
		RunE: run(nil),
	}
	cmd.PersistentFlags().StringVarP(&format, "output", "o", "", "json or yaml instead of text for people")
	completeOutput(cmd)
	var times int
	var message string
	fail := &cobra.Command{
		Use: "fail " + strings.Join(region.Reasons(), "|") + "|ACTION CODE", Args: cobra.RangeArgs(1, 2),
		Short:   "Refuse requests: with an exhausted quota, a missing permission, or an error code for one action",
		Example: "  hawser sandbox cloud fail CreateNetworkInterface InternalError --times 3",
		RunE: run(func(args []string) (region.Order, error) {
			if len(args) == 1 {
				return region.Order{Do: "fail", Reason: args[0], Times: times}, nil
			}
			return region.Order{Do: "fail", Action: args[0], Code: args[1], Message: message, Times: times}, nil
		}),
	}
	fail.ValidArgsFunction = first(oneOf(region.Reasons()...), cobra.ShellCompDirectiveNoFileComp)
	fail.Flags().IntVar(&times, "times", 0, "how many requests; 0 for all of them, until calm ends it")
	fail.Flags().StringVar(&message, "message", "", "text of the error")
	var free int
	fill := &cobra.Command{
		Use: "fill [SUBNET]", Args: cobra.MaximumNArgs(1),
		Short:   "Exhaust the addresses of a subnet, or of all",
		Example: "  hawser sandbox cloud fill subnet-pods --free 3",
		RunE: run(func(args []string) (region.Order, error) {
			return region.Order{Do: "fill", Subnet: strings.Join(args, ""), Free: free}, nil
		}),
	}
	fill.Flags().IntVar(&free, "free", 0, "how many addresses are left")
	cmd.AddCommand(fail, fill, &cobra.Command{
		Use: "throttle RATE", Args: cobra.ExactArgs(1),
		Short:   "Limit the requests a second; 0 for no limit",
		Example: "  hawser sandbox cloud throttle 0.5",
		RunE: run(func(args []string) (region.Order, error) {
			rate, err := strconv.ParseFloat(args[0], 64)
			if err != nil || rate < 0 {
				return region.Order{}, exitcode.Usagef("%q is no number of requests", args[0])
			}
			return region.Order{Do: "throttle", Rate: rate}, nil
		}),
	}, &cobra.Command{
		Use: "slow DURATION", Args: cobra.ExactArgs(1),
		Short:   "Delay each answer, such as by 2s; 0s for no delay",
		Example: "  hawser sandbox cloud slow 3s",
		RunE: run(func(args []string) (region.Order, error) {
			d, err := time.ParseDuration(args[0])
			if err != nil {
				return region.Order{}, exitcode.Usagef("%q is no duration, such as 2s", args[0])
			}
			return region.Order{Do: "slow", Latency: d}, nil
		}),
	}, &cobra.Command{
		Use: "terminate INSTANCE", Args: cobra.ExactArgs(1),
		Short:   "Terminate an instance in the cloud: its interfaces are removed, and its node continues without them",
		Example: "  hawser sandbox cloud terminate i-n2",
		RunE: run(func(args []string) (region.Order, error) {
			return region.Order{Do: "terminate", Instance: args[0]}, nil
		}),
	}, &cobra.Command{
		Use: "elastic-ip [KEY=VALUE]...", Args: cobra.ArbitraryArgs,
		Short:   "Allocate an elastic IP with tags, for nodes with static-ip-tags (AWS)",
		Example: "  hawser sandbox cloud elastic-ip for=edge",
		RunE: run(func(args []string) (region.Order, error) {
			o := region.Order{Do: "allocate", Tags: map[string]string{}}
			for _, a := range args {
				k, v, ok := strings.Cut(a, "=")
				if !ok || k == "" {
					return o, exitcode.Usagef("%q is no tag: want KEY=VALUE", a)
				}
				o.Tags[k] = v
			}
			return o, nil
		}),
	}, &cobra.Command{
		Use: "calm", Args: cobra.NoArgs,
		Short:   "End all injected faults",
		Example: "  hawser sandbox cloud calm",
		RunE:    run(func([]string) (region.Order, error) { return region.Order{Do: "calm"}, nil }),
	})
	return cmd
}

// printCloud shows a cloud to people.
func printCloud(w io.Writer, st region.Status) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintf(t, "SUBNET (%s)\tCIDR\tFREE\n", st.Provider)
	for _, s := range st.Subnets {
		cidr := s.CIDR.String()
		if s.IPv6.IsValid() {
			cidr += " " + s.IPv6.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%d\n", short(s.ID), cidr, s.Free)
	}
	fmt.Fprintf(t, "\nINSTANCE\tTYPE\tINTERFACE\tSUBNET\tADDRESSES\n")
	show := func(i cloud.Interface, instance, kind string) {
		list := []string{i.Primary.String()}
		for _, a := range i.Addresses {
			list = append(list, a.String())
		}
		for _, p := range slices.Concat(i.Prefixes, i.IPv6Prefixes) {
			list = append(list, p.String())
		}
		fmt.Fprintf(t, "%s\t%s\t%d: %s\t%s\t%d: %s\n", instance, kind, i.Index, short(i.ID), short(i.Subnet), len(list), strings.Join(list, " "))
	}
	for _, x := range st.Instances {
		instance, kind := short(x.ID), x.Type
		for _, i := range st.Interfaces {
			if i.Instance == x.ID {
				show(i, instance, kind)
				instance, kind = "", ""
			}
		}
	}
	for _, i := range st.Interfaces {
		if i.Instance == "" {
			show(i, "(none)", "")
		}
	}
	if len(st.StaticIPs) > 0 {
		fmt.Fprintf(t, "\nELASTIC IP\tTAGS\tINTERFACE\tADDRESS\n")
	}
	for _, a := range st.StaticIPs {
		var tags []string
		for _, k := range slices.Sorted(maps.Keys(a.Tags)) {
			tags = append(tags, k+"="+a.Tags[k])
		}
		to := []string{"(none)", ""}
		if a.Interface != "" {
			to[0] = short(a.Interface)
		}
		if a.Private.IsValid() {
			to[1] = a.Private.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", a.IP, strings.Join(tags, " "), to[0], to[1])
	}
	fmt.Fprintf(t, "\nCALL\tTIMES\n")
	for _, action := range slices.Sorted(maps.Keys(st.Calls)) {
		fmt.Fprintf(t, "%s\t%d\n", action, st.Calls[action])
	}
	for _, d := range st.Disturbances {
		fmt.Fprintf(t, "\n%s", d)
	}
	if len(st.Disturbances) > 0 {
		fmt.Fprintf(t, "\n(`hawser sandbox cloud calm` ends it)\n")
	}
}

// short is the last part of a path: Azure's names are long.
func short(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// cloudServeCommand is the process of a cloud; see package region.
func cloudServeCommand() *cobra.Command {
	var spec string
	var readyFD int
	cmd := &cobra.Command{
		Use: "cloud-serve", Hidden: true, Args: cobra.NoArgs,
		Short: "be a cloud (run by up)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := region.Load(spec)
			if err != nil {
				return err
			}
			return region.Serve(cmd.Context(), s, func() error { return machine.SignalReady(readyFD) }, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		},
	}
	cmd.Flags().StringVar(&spec, "spec", "", "file that says what is in it")
	cmd.Flags().IntVar(&readyFD, "ready-fd", 0, "descriptor to notify when ready")
	return cmd
}
