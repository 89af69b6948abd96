package sandbox

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

// complete offers for a flag what list gives, or nothing if that fails.
func complete(cmd *cobra.Command, flag string, list cobra.CompletionFunc) {
	// The only error is an unknown flag name.
	_ = cmd.RegisterFlagCompletionFunc(flag, list)
}

// oneOf offers fixed values.
func oneOf(values ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

// completeUp adds the completions of up.
func completeUp(cmd *cobra.Command) {
	complete(cmd, "kubernetes", oneOf(kube.Full, kube.APIOnly))
	complete(cmd, "cni", oneOf(kube.Hawser, kube.PTP, kube.None))
	complete(cmd, "store", oneOf(kube.Etcd, kube.Consul))
	complete(cmd, "cloud", oneOf(region.Providers()...))
	complete(cmd, "routing-mode", oneOf("tunnel", "native"))
	complete(cmd, "enable-policy", oneOf("default", "always", "never"))
}

// first offers what list gives for the first argument only; after it comes what next says.
func first(list cobra.CompletionFunc, next cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, next
		}
		return list(cmd, args, prefix)
	}
}

// offer offers what names gives that begins with what was typed; if it fails there are none.
func offer(names func(*cobra.Command) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		list, err := names(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.DeleteFunc(list, func(name string) bool { return !strings.HasPrefix(name, prefix) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// places are the names in a sandbox of either kind.
type places struct{ nodes, pods, others []string }

func (p places) all() []string          { return slices.Concat(p.nodes, p.pods, p.others) }
func (p places) onlyNodes() []string    { return p.nodes }
func (p places) onlyPods() []string     { return p.pods }
func (p places) podsAndWorld() []string { return append(p.pods, worldName) }

// completePlaces offers those places of the sandbox or cluster that choose takes.
func completePlaces(cfg *Config, choose func(places) []string) cobra.CompletionFunc {
	return offer(func(cmd *cobra.Command) ([]string, error) {
		p, err := readPlaces(cfg, cmd)
		return choose(p), err
	})
}

// completeNodes offers the nodes of the cluster with Kubernetes.
func completeNodes(cfg *Config) cobra.CompletionFunc {
	return offer(func(cmd *cobra.Command) ([]string, error) {
		p, err := clusterPlaces(clusterConfig(cfg, cmd))
		return p.nodes, err
	})
}

func readPlaces(cfg *Config, cmd *cobra.Command) (places, error) {
	if c, ok := chooseCluster(cfg, cmd); ok {
		return clusterPlaces(c)
	}
	st, err := loadState(filepath.Join(cfg.Root, cfg.Name, "state.json"))
	if err != nil {
		return places{}, err
	}
	p := places{others: []string{worldName}}
	for _, n := range st.Nodes {
		p.nodes = append(p.nodes, n.Name)
	}
	for _, pod := range st.Pods {
		p.pods = append(p.pods, pod.Name)
	}
	return p, nil
}

func clusterPlaces(cfg kube.Config) (places, error) {
	c, err := kube.New(cfg, io.Discard, false)
	if err != nil {
		return places{}, err
	}
	nodes, others, err := c.Places()
	return places{nodes: nodes, others: others}, err
}

// completeNames offers the sandboxes that are there, of both kinds.
func completeNames(cfg *Config) cobra.CompletionFunc {
	return offer(func(*cobra.Command) ([]string, error) {
		dirs, err := os.ReadDir(cfg.Root)
		var names []string
		for _, d := range dirs {
			name := d.Name()
			if _, err := os.Stat(filepath.Join(cfg.Root, name, "state.json")); err == nil || kube.Exists(cfg.Root, name) {
				names = append(names, name)
			}
		}
		return names, err
	})
}
