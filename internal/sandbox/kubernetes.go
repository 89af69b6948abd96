package sandbox

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

// kubernetesFlags are those of up that concern clusters with Kubernetes.
type kubernetesFlags struct {
	mode      string // empty: no Kubernetes
	dualStack bool
	cni       string
	kubeProxy bool
	manifest  string
	store     string
	cloud     string
	instance  string // type of instances
	id        int
	yes       bool
}

func (k *kubernetesFlags) flags(fs *pflag.FlagSet) {
	fs.StringVar(&k.mode, "kubernetes", "", "a real Kubernetes cluster: full, or api for an API server without nodes")
	fs.Lookup("kubernetes").NoOptDefVal = kube.Full
	fs.BoolVar(&k.dualStack, "dual-stack", false, "with --kubernetes: IPv6 for pods and Services, too")
	fs.StringVar(&k.cni, "cni", kube.Defaults().CNI, "with --kubernetes: the network, hawser, ptp (Debian's plugins ptp and host-local), or none to install one yourself")
	fs.BoolVar(&k.kubeProxy, "kube-proxy", false, "with --kubernetes: run kube-proxy (the default but with --cni hawser)")
	fs.StringVar(&k.manifest, "manifest", "", "with --kubernetes: a file of Hawser's objects, as the chart renders them, instead of deploy/hawser.yaml")
	fs.StringVar(&k.store, "store", "", "with --kubernetes: keep identities in etcd or consul, instead of objects of Kubernetes")
	fs.StringVar(&k.cloud, "cloud", "", "a Kubernetes cluster in a cloud of this machine, whose pods have that cloud's addresses: "+strings.Join(region.Providers(), ", "))
	fs.StringVar(&k.instance, "instance-type", "", "with --cloud: the type of the nodes' instances, which says how many interfaces and addresses they can have, such as m5.4xlarge or ecs.g7.4xlarge; the cloud's default is m5.xlarge or ecs.g7.xlarge")
	fs.IntVar(&k.id, "cluster-id", 0, "with --kubernetes: a number of 1 to 255 that no other cluster has, to connect clusters; addresses follow from it")
	fs.BoolVarP(&k.yes, "yes", "y", false, "with --kubernetes: install missing Debian packages")
}

// forKubernetesOnly reports an option that has no effect without --kubernetes.
func forKubernetesOnly(fs *pflag.FlagSet) (err error) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(kubernetesFlags).flags(own)
	own.VisitAll(func(f *pflag.Flag) {
		choice := f.Name == "kubernetes" || f.Name == "cloud" // which may be given and empty
		if err == nil && !choice && fs.Changed(f.Name) {
			err = exitcode.Usagef("--%s is for --kubernetes", f.Name)
		}
	})
	return err
}

// clusterConfig is the configuration of a cluster as far as all its commands share it.
func clusterConfig(cfg *Config, cmd *cobra.Command) kube.Config {
	c := kube.Defaults()
	c.Root, c.Self, c.StartTimeout = cfg.Root, cfg.Self, max(c.StartTimeout, cfg.StartTimeout)
	c.BinDir, c.Data = cfg.BinDir, cfg.Data
	if cmd.Flags().Changed("name") {
		c.Name = cfg.Name
	}
	c.Terminal = terminal(cmd.OutOrStdout())
	return c
}

// chooseCluster reports whether a command is about a cluster with Kubernetes: the one that is
// named, or the default one if no sandbox of the default name is there.
func chooseCluster(cfg *Config, cmd *cobra.Command) (kube.Config, bool) {
	c := clusterConfig(cfg, cmd)
	if cmd.Flags().Changed("name") {
		return c, kube.Exists(c.Root, c.Name)
	}
	if _, err := loadState(filepath.Join(cfg.Root, cfg.Name, "state.json")); err == nil {
		return c, false
	}
	return c, kube.Exists(c.Root, c.Name)
}

func openCluster(cfg kube.Config, cmd *cobra.Command) (*kube.Cluster, error) {
	cmd.SilenceUsage = true
	if err := cfg.Validate(); err != nil {
		return nil, exitcode.With(exitcode.Usage, err)
	}
	return kube.New(cfg, cmd.OutOrStdout(), colourful(cmd.OutOrStdout()))
}

// upKubernetes is up with --kubernetes.
func upKubernetes(cfg *Config, k *kubernetesFlags, cmd *cobra.Command) error {
	for _, name := range []string{"demo", "routing-mode", "enable-policy", "agent-arg", "ipv6"} {
		if cmd.Flags().Changed(name) {
			return exitcode.Usagef("--%s is not for --kubernetes", name)
		}
	}
	c := clusterConfig(cfg, cmd)
	c.Mode, c.Nodes, c.DualStack, c.CNI, c.KubeProxy, c.Install = k.mode, cfg.Nodes, k.dualStack, k.cni, k.kubeProxy, k.yes
	c.ID, c.Store, c.Cloud, c.InstanceType = k.id, k.store, k.cloud, k.instance
	if k.manifest != "" {
		path, err := filepath.Abs(k.manifest)
		if err != nil {
			return err
		}
		c.Manifest = path
	}
	if !cmd.Flags().Changed("kube-proxy") {
		c.KubeProxy = k.cni != kube.Hawser
	}
	cluster, err := openCluster(c, cmd)
	if err != nil {
		return err
	}
	if err := cluster.Up(cmd.Context()); err != nil {
		return err
	}
	cluster.PrintNext(cmd.OutOrStdout())
	return nil
}

// forCluster returns a command's RunE that runs onCluster if the command is about a cluster with
// Kubernetes, and otherwise what it did before.
func forCluster(cfg *Config, cmd *cobra.Command, onCluster func(*cobra.Command, *kube.Cluster, []string) error) *cobra.Command {
	other := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, ok := chooseCluster(cfg, cmd)
		if !ok {
			return other(cmd, args)
		}
		cluster, err := openCluster(c, cmd)
		if err != nil {
			return err
		}
		return onCluster(cmd, cluster, args)
	}
	return cmd
}

// notForCluster makes a command refuse clusters with Kubernetes.
func notForCluster(cfg *Config, cmd *cobra.Command, instead string) *cobra.Command {
	return forCluster(cfg, cmd, func(cmd *cobra.Command, _ *kube.Cluster, _ []string) error {
		return fmt.Errorf("%s is for sandboxes without Kubernetes; %s", cmd.Name(), instead)
	})
}

func clusterStatus(cmd *cobra.Command, c *kube.Cluster, format string) error {
	st, err := c.Status(cmd.Context())
	if err != nil {
		return err
	}
	if err := write(cmd.OutOrStdout(), machine.Palette(colourful(cmd.OutOrStdout())), format, st, st.Print); err != nil {
		return err
	}
	if !st.Healthy() {
		return fmt.Errorf("cluster %q is not well; `hawser sandbox up --kubernetes` starts again what has died", st.Name)
	}
	return nil
}

func kubectlCommand(cfg *Config) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl -- ARG...", Args: cobra.ArbitraryArgs, DisableFlagsInUseLine: true,
		Short:   "Run kubectl for a cluster with Kubernetes",
		Example: `  hawser sandbox kubectl -- get pods -A -o wide`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := openCluster(clusterConfig(cfg, cmd), cmd)
			if err != nil {
				return err
			}
			return cluster.Kubectl(args)
		},
	}
}

func nodeCommand(cfg *Config) *cobra.Command {
	with := func(run func(*cobra.Command, *kube.Cluster, string) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			cluster, err := openCluster(clusterConfig(cfg, cmd), cmd)
			if err != nil {
				return err
			}
			return run(cmd, cluster, args[0])
		}
	}
	cmd := &cobra.Command{
		Use: "node", Args: cobra.NoArgs,
		Short: "Switch nodes of a cluster with Kubernetes off and on",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	nodes := first(completeNodes(cfg), cobra.ShellCompDirectiveNoFileComp)
	cmd.AddCommand(&cobra.Command{
		Use: "kill NODE", Args: cobra.ExactArgs(1),
		Short:             "Simulate a power failure of a node; its disk stays",
		Example:           "  hawser sandbox node kill n2",
		ValidArgsFunction: nodes,
		RunE:              with(func(_ *cobra.Command, c *kube.Cluster, name string) error { return c.Kill(name) }),
	}, &cobra.Command{
		Use: "start NODE", Args: cobra.ExactArgs(1),
		Short:             "Boot a node that was killed, and wait until it is Ready",
		Example:           "  hawser sandbox node start n2",
		ValidArgsFunction: nodes,
		RunE:              with(func(cmd *cobra.Command, c *kube.Cluster, name string) error { return c.StartNode(cmd.Context(), name) }),
	})
	return cmd
}

// kubeNodeCommand and kubeForwardCommand are processes of a cluster; see package kube.
func kubeNodeCommand() *cobra.Command {
	var dir string
	var inside bool
	cmd := &cobra.Command{
		Use: "kube-node", Hidden: true, Args: cobra.NoArgs,
		Short: "be the first process of a node (run by up)",
		RunE:  func(cmd *cobra.Command, _ []string) error { return kube.RunNode(cmd.Context(), dir, inside) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the node")
	cmd.Flags().BoolVar(&inside, "inside", false, "it is in the node's cgroups")
	return cmd
}

func kubeForwardCommand() *cobra.Command {
	var readyFD, listenerFD int
	var to string
	cmd := &cobra.Command{
		Use: "kube-forward", Hidden: true, Args: cobra.NoArgs,
		Short: "serve a socket of the machine in a cluster (run by up)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := machine.SignalReady(readyFD); err != nil {
				return err
			}
			return kube.Forward(cmd.Context(), listenerFD, to)
		},
	}
	cmd.Flags().IntVar(&readyFD, "ready-fd", 0, "descriptor to notify when ready")
	cmd.Flags().IntVar(&listenerFD, "listener-fd", 0, "descriptor of the socket to serve")
	cmd.Flags().StringVar(&to, "to", "", "address to connect to")
	return cmd
}
