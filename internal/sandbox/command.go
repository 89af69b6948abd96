package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// errUnexpected is returned by the reach command when the network did not do what the policies say.
var errUnexpected = errors.New("the network does not do what the policies say")

// NewCommand returns the command `sandbox` with its subcommands, to be put below the program's root
// command. Two hidden ones, etcd and serve, are how the sandbox runs its own processes.
func NewCommand() *cobra.Command {
	cfg := Defaults()
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Run a whole cluster of nodes and pods on this machine",
		Long: `Run a whole cluster on this machine, without Kubernetes: nodes and pods are network
namespaces, everything else is real: etcd, one agent a node, the CNI plugin, the kernel.

All of it lives below one directory and goes away with ` + "`hawser sandbox down`" + `.

With ` + "`up --kubernetes`" + ` it is a Kubernetes cluster instead, with kubelets and containers.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	p := cmd.PersistentFlags()
	p.StringVar(&cfg.Name, "name", cfg.Name, "name of the sandbox, to run several; with --kubernetes the default is \"kube\"")
	p.StringVar(&cfg.Root, "root-dir", cfg.Root, "directory of all sandboxes")
	p.StringVar(&cfg.Data, "data-dir", cfg.Data, "directory of what clusters with Kubernetes keep on disk")
	p.StringVar(&cfg.BinDir, "bin-dir", cfg.BinDir, "directory of hawser-agent and hawser-cni; that of this program by default")

	complete(cmd, "name", completeNames(&cfg))

	open := func(cmd *cobra.Command) (*Sandbox, error) {
		cmd.SilenceUsage = true // what follows is not about how the command was written
		if err := cfg.Validate(); err != nil {
			return nil, exitcode.With(exitcode.Usage, err)
		}
		return New(cfg, cmd.OutOrStdout(), colourful(cmd.OutOrStdout()))
	}
	const kubectl = "use kubectl, as in `hawser sandbox kubectl -- get pods`"
	cmd.AddCommand(upCommand(&cfg, open),
		forCluster(&cfg, downCommand(open), func(cmd *cobra.Command, c *kube.Cluster, _ []string) error { return c.Down(cmd.Context()) }),
		statusCommand(&cfg, open),
		notForCluster(&cfg, runCommand(&cfg, open), kubectl), notForCluster(&cfg, removeCommand(&cfg, open), kubectl),
		forCluster(&cfg, execCommand(&cfg, open), func(_ *cobra.Command, c *kube.Cluster, args []string) error { return c.Exec(args[0], args[1:]) }),
		forCluster(&cfg, shellCommand(&cfg, open), func(_ *cobra.Command, c *kube.Cluster, args []string) error { return c.Shell(args[0]) }),
		notForCluster(&cfg, reachCommand(&cfg, open), kubectl),
		kubectlCommand(&cfg), nodeCommand(&cfg), cloudCommand(&cfg))
	for _, hidden := range []*cobra.Command{etcdCommand(), serveCommand(), kubeNodeCommand(), kubeForwardCommand(), cloudServeCommand()} {
		run := hidden.RunE
		hidden.RunE = func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			cmd.SetContext(ctx)
			return run(cmd, args)
		}
		cmd.AddCommand(hidden)
	}
	return cmd
}

type opener func(*cobra.Command) (*Sandbox, error)

// colourful reports whether w is a terminal that wants colours (see https://no-color.org).
func colourful(w io.Writer) bool {
	return terminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func upCommand(cfg *Config, open opener) *cobra.Command {
	var k kubernetesFlags
	cmd := &cobra.Command{
		Use: "up", Args: cobra.NoArgs,
		Short: "Start the nodes, and with --demo three tiers of pods and their policies; or with --kubernetes a real cluster",
		Example: `  hawser sandbox up --demo
  hawser sandbox up --name big --nodes 5 --routing-mode native
  hawser sandbox up --kubernetes --nodes 3 --dual-stack --yes
  hawser sandbox up --cloud aws --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if k.mode == "" && k.cloud != "" {
				k.mode = kube.Full
			}
			if k.mode != "" {
				return upKubernetes(cfg, &k, cmd)
			}
			if err := forKubernetesOnly(cmd.Flags()); err != nil {
				return err
			}
			s, err := open(cmd)
			if err != nil {
				return err
			}
			if err := s.Up(cmd.Context()); err != nil {
				return err
			}
			if cfg.Demo {
				m, err := s.Reach(cmd.Context(), ReachOptions{})
				if err != nil {
					return err
				}
				m.Print(s.out, bool(s.paint))
				if m.Unexpected > 0 {
					return errUnexpected
				}
			}
			s.PrintNext(s.out, cfg.Demo)
			return nil
		},
	}
	cfg.Flags(cmd.Flags())
	k.flags(cmd.Flags())
	completeUp(cmd)
	return cmd
}

func downCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use: "down", Args: cobra.NoArgs,
		Short:   "Remove the sandbox, whatever state it is in",
		Example: "  hawser sandbox down\n  hawser sandbox down --name kube",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			return s.Down(cmd.Context())
		},
	}
}

func statusCommand(cfg *Config, open opener) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "status", Args: cobra.NoArgs,
		Short:   "Show nodes and pods; fails if something is not running",
		Example: "  hawser sandbox status\n  hawser sandbox status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			st, err := s.Status(cmd.Context())
			if err != nil {
				return err
			}
			if err := write(s.out, s.paint, format, st, st.Print); err != nil {
				return err
			}
			if !st.Healthy() {
				return fmt.Errorf("sandbox %q is not well; `hawser sandbox up` starts agents again", st.Name)
			}
			return nil
		},
	}
	outputFlag(cmd, &format)
	return forCluster(cfg, cmd, func(cmd *cobra.Command, c *kube.Cluster, _ []string) error { return clusterStatus(cmd, c, format) })
}

func runCommand(cfg *Config, open opener) *cobra.Command {
	var spec PodSpec
	var ports []uint
	cmd := &cobra.Command{
		Use: "run NAME", Args: cobra.ExactArgs(1),
		Short:   "Start a pod with a small server",
		Example: `  hawser sandbox run web --node n1 --labels app=web,tier=front --port 80`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			spec.Name = args[0]
			for _, p := range ports {
				if p < 1 || p > 65535 {
					return exitcode.Usagef("--port %d: want 1 to 65535", p)
				}
				spec.Ports = append(spec.Ports, uint16(p))
			}
			_, err = s.Run(cmd.Context(), spec)
			return err
		},
	}
	cmd.Flags().StringVar(&spec.Node, "node", "", "node to run on; the one with the fewest pods by default")
	cmd.Flags().StringVar(&spec.Namespace, "namespace", "default", "Kubernetes namespace that policies see")
	cmd.Flags().StringToStringVarP(&spec.Labels, "labels", "l", nil, "labels of the pod, such as app=web,tier=front")
	cmd.Flags().UintSliceVar(&ports, "port", []uint{80}, "ports to answer on, TCP and UDP")
	complete(cmd, "node", completePlaces(cfg, places.onlyNodes))
	return cmd
}

func removeCommand(cfg *Config, open opener) *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME...", Args: cobra.MinimumNArgs(1),
		Short:             "Stop pods and remove them",
		Example:           "  hawser sandbox rm guest",
		ValidArgsFunction: completePlaces(cfg, places.onlyPods),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args {
				errs = append(errs, s.Remove(cmd.Context(), name))
			}
			return errors.Join(errs...)
		},
	}
}

func execCommand(cfg *Config, open opener) *cobra.Command {
	return &cobra.Command{
		Use: "exec NAME -- COMMAND [ARG...]", Args: cobra.MinimumNArgs(2), DisableFlagsInUseLine: true,
		Short: "Run a command in a pod, on a node, or in the world outside",
		Example: `  hawser sandbox exec front-1 -- curl -s http://api-1:8080
  hawser sandbox exec n1 -- hawser endpoint list`,
		ValidArgsFunction: first(completePlaces(cfg, places.all), cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			return s.Exec(args[0], args[1:])
		},
	}
}

func shellCommand(cfg *Config, open opener) *cobra.Command {
	return &cobra.Command{
		Use: "shell NAME", Args: cobra.ExactArgs(1),
		Short:             "Open a shell in a pod, on a node, or in the world outside",
		Example:           "  hawser sandbox shell front-1\n  hawser sandbox shell n1",
		ValidArgsFunction: first(completePlaces(cfg, places.all), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			return s.Shell(args[0])
		},
	}
}

func reachCommand(cfg *Config, open opener) *cobra.Command {
	var opt ReachOptions
	var format string
	var protocols []string
	cmd := &cobra.Command{
		Use: "reach", Args: cobra.NoArgs,
		Short: "Probe every pair and compare with what the policies allow",
		Long: `Probe every ordered pair of pods, and the world outside, with real TCP connections, UDP
datagrams and ICMP echo requests over IPv4 and IPv6, from inside their namespaces. The outcome is
compared with what an independent reading of the policy files allows. The exit code is 1 if they differ.`,
		Example: "  hawser sandbox reach\n  hawser sandbox reach --from front-1 --to api-1,api-2 --protocol tcp",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd)
			if err != nil {
				return err
			}
			for _, p := range protocols {
				proto := Protocol(strings.ToLower(p))
				if proto != TCP && proto != UDP && proto != ICMP {
					return exitcode.Usagef("--protocol %q: want tcp, udp or icmp", p)
				}
				opt.Protocols = append(opt.Protocols, proto)
			}
			m, err := s.Reach(cmd.Context(), opt)
			if err != nil {
				return err
			}
			if err := write(s.out, s.paint, format, m, m.Print); err != nil {
				return err
			}
			if m.Unexpected > 0 {
				return errUnexpected
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&opt.From, "from", nil, "sources only (pods or world)")
	cmd.Flags().StringSliceVar(&opt.To, "to", nil, "targets only (pods or world)")
	cmd.Flags().StringSliceVar(&protocols, "protocol", nil, "protocols only: tcp, udp, icmp")
	cmd.Flags().DurationVar(&opt.DenyTimeout, "deny-timeout", 0, "how long to wait for what the policies forbid (750ms)")
	cmd.Flags().DurationVar(&opt.AllowTimeout, "allow-timeout", 0, "how long to wait for what the policies allow (5s)")
	outputFlag(cmd, &format)
	complete(cmd, "protocol", oneOf(string(TCP), string(UDP), string(ICMP)))
	complete(cmd, "from", completePlaces(cfg, places.podsAndWorld))
	complete(cmd, "to", completePlaces(cfg, places.podsAndWorld))
	return cmd
}

func outputFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "", "json or yaml instead of text for people")
	completeOutput(cmd)
}

func completeOutput(cmd *cobra.Command) {
	complete(cmd, "output", oneOf("json", "yaml"))
}

// write prints v for people or for programs.
func write(out io.Writer, paint machine.Palette, format string, v any, text func(io.Writer, bool)) error {
	switch format {
	case "":
		text(out, bool(paint))
		return nil
	case "json":
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	}
	return exitcode.Usagef("-o %q: want json or yaml", format)
}
