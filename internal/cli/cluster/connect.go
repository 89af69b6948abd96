package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/admin/connect"
	"github.com/hawser-net/hawser/internal/admin/usage"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// Sandboxes finds clusters that run on this machine.
type Sandboxes interface {
	// Kubeconfig returns the path of the kubeconfig of the cluster of this name, and whether it is
	// there.
	Kubeconfig(name string) (path string, running bool, err error)
	// Link makes the nodes of two clusters reach each other, Unlink undoes that as far as the
	// clusters are there.
	Link(a, b string) error
	Unlink(a, b string) error
}

// mesh is what commands that connect clusters need.
type mesh struct {
	*command.App
	sandboxes Sandboxes
}

// pairFlags name the two clusters that a command is about.
type pairFlags struct {
	kube                   command.Kubeconfig
	destination, namespace string
	timeout                time.Duration
}

func (p *pairFlags) add(a *command.App, c *cobra.Command) {
	p.kube.AddFlags(a, c)
	fs := c.Flags()
	fs.Lookup("context").Usage = "`name` of the context of the first cluster, instead of the names of sandboxes"
	fs.StringVar(&p.destination, "destination-context", "", "`name` of the context of the second cluster")
	fs.StringVarP(&p.namespace, "namespace", "n", "kube-system", "`namespace` of the agents, in both clusters")
	fs.DurationVar(&p.timeout, "timeout", 2*time.Minute, "how long to wait for the agents")
	_ = c.RegisterFlagCompletionFunc("destination-context", p.kube.CompleteContexts(a))
}

// pair is two clusters. In a sandbox one may be missing, where that is allowed.
type pair struct {
	names   [2]string
	sides   [2]*connect.Cluster
	sandbox bool
}

// pair opens the two clusters that the command line names.
func (m mesh) pair(p *pairFlags, args []string, allowMissing bool) (pair, error) {
	var out pair
	switch {
	case len(args) == 2 && p.kube.Context == "" && p.destination == "":
		out.names, out.sandbox = [2]string(args), true
	case len(args) == 0 && p.kube.Context != "" && p.destination != "":
		out.names = [2]string{p.kube.Context, p.destination}
	default:
		return out, exitcode.Usagef("want the names of two sandboxes, or --context and --destination-context")
	}
	if out.names[0] == out.names[1] {
		return out, exitcode.Usagef("both are %s: a cluster is not connected with itself", out.names[0])
	}
	for i, name := range out.names {
		files, err := p.kube.Files(m.App)
		if err != nil {
			return out, err
		}
		kubeContext := name
		if out.sandbox {
			path, running, err := m.sandbox(name)
			if err != nil {
				return out, err
			}
			if !running && allowMissing {
				continue
			}
			if !running {
				return out, exitcode.With(exitcode.NotFound, fmt.Errorf("no sandbox with Kubernetes is called %s: start it with "+
					"`hawser sandbox up --kubernetes --name %s --cluster-id N`; other clusters are named with --context and --destination-context", name, name))
			}
			files, kubeContext = []string{path}, ""
		}
		client, err := usage.Connect(files, kubeContext)
		if err != nil {
			return out, exitcode.With(exitcode.Unreachable, fmt.Errorf("cluster %s: %w", name, err))
		}
		out.sides[i] = connect.New(name, client, p.namespace)
	}
	return out, nil
}

func (m mesh) sandbox(name string) (path string, running bool, err error) {
	if m.sandboxes == nil {
		return "", false, errors.New("there are no sandboxes here")
	}
	return m.sandboxes.Kubeconfig(name)
}

func (m mesh) connectCommand() *cobra.Command {
	var p pairFlags
	c := &cobra.Command{
		Use:   "connect [SANDBOX SANDBOX]",
		Short: "Connect two clusters, so that pods reach each other by policy",
		Long: `Connect two clusters, so that pods reach each other by policy and services can have
backends in both.

Sandboxes (hawser sandbox up --kubernetes --cluster-id N) are given by their names; the
command also connects the networks of their nodes.

Other clusters are given by contexts of the kubeconfig file. Their nodes must reach each
other already. Each needs a Secret clustermesh-remote-access for access to its store, with
endpoints, ca.crt, tls.crt and tls.key. See docs/user/clustermesh.md.

The command adds a file for the other cluster to the Secret that the agents of each mount and
watch, by default cilium-clustermesh. Then it waits until all agents have read everything of the
other cluster. You can run it again, for example when certificates have changed.`,
		Example: `  hawser clustermesh connect east west
  hawser clustermesh connect --context east --destination-context west`,
		Args: cobra.MaximumNArgs(2),
	}
	p.add(m.App, c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		two, err := m.pair(&p, args, false)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
		defer cancel()
		return m.connect(ctx, cmd, two)
	}
	return c
}

func (m mesh) connect(ctx context.Context, cmd *cobra.Command, two pair) error {
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(cmd.OutOrStdout(), "%6.2fs %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	var facts [2]connect.Facts
	for i, side := range two.sides {
		var err error
		if facts[i], err = side.Read(ctx); err != nil {
			return err
		}
	}
	if err := connect.Clash(facts[0], facts[1]); err != nil {
		return fmt.Errorf("these clusters cannot be connected: %w", err)
	}
	for i, side := range two.sides {
		followed, err := side.Followed(ctx)
		if err != nil {
			return err
		}
		other := facts[1-i]
		for name, id := range followed {
			if id == other.ID && name != other.Name {
				return fmt.Errorf("cluster %s is connected with %s, which has the ID %d as %s has: one of the two needs another --cluster-id",
					facts[i].Name, name, id, other.Name)
			}
		}
	}
	if two.sandbox {
		if err := m.sandboxes.Link(two.names[0], two.names[1]); err != nil {
			return err
		}
		say("nodes of %s and %s reach each other", facts[0].Name, facts[1].Name)
	}
	for i, side := range two.sides {
		if err := side.Follow(ctx, facts[i], facts[1-i]); err != nil {
			return err
		}
		say("%s is configured for %s", facts[i].Name, facts[1-i].Name)
	}
	for i, side := range two.sides {
		if err := side.WaitFollows(ctx, facts[1-i].Name); err != nil {
			return fmt.Errorf("%w\n(`hawser clustermesh disconnect` takes back what was done)", err)
		}
		say("every agent of %s has synced all of %s", facts[i].Name, facts[1-i].Name)
	}
	m.printConnected(cmd, two, facts)
	return nil
}

// printConnected suggests what to try next.
func (m mesh) printConnected(cmd *cobra.Command, two pair, facts [2]connect.Facts) {
	kubectl := "kubectl --context " + two.names[0]
	undo := fmt.Sprintf("--context %s --destination-context %s", two.names[0], two.names[1])
	if two.sandbox {
		kubectl = "hawser sandbox kubectl --name " + two.names[0] + " --"
		undo = two.names[0] + " " + two.names[1]
	}
	fmt.Fprintf(cmd.OutOrStdout(), `
Next:
  %[1]s -n kube-system exec daemonset/hawser-agent -- hawser clustermesh status
  policies name pods of %[2]s by the label io.cilium.k8s.policy.cluster: %[2]s
  Services with the annotation service.cilium.io/global: "true" have the backends of both
  hawser clustermesh disconnect %[3]s
`, kubectl, facts[1].Name, undo)
}

func (m mesh) disconnectCommand() *cobra.Command {
	var p pairFlags
	c := &cobra.Command{
		Use:   "disconnect [SANDBOX SANDBOX]",
		Short: "Disconnect two clusters",
		Long: `Disconnect two clusters. Afterwards each treats the pods of the other
as outside of the cluster.

You can also name a sandbox that no longer exists: the other one forgets it.`,
		Example: `  hawser clustermesh disconnect east west
  hawser clustermesh disconnect --context east --destination-context west`,
		Args: cobra.MaximumNArgs(2),
	}
	p.add(m.App, c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		two, err := m.pair(&p, args, true)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
		defer cancel()
		return m.disconnect(ctx, cmd, two)
	}
	return c
}

func (m mesh) disconnect(ctx context.Context, cmd *cobra.Command, two pair) error {
	// What agents follow is called by the cluster's own name, which need not be that of the
	// context.
	names := two.names
	for i, side := range two.sides {
		if side == nil || two.sandbox {
			continue
		}
		name, err := side.Name(ctx)
		if err != nil {
			return err
		}
		names[i] = name
	}
	if two.sides[0] == nil && two.sides[1] == nil {
		return exitcode.With(exitcode.NotFound, fmt.Errorf("neither %s nor %s is running", two.names[0], two.names[1]))
	}
	for i, side := range two.sides {
		if side == nil {
			continue
		}
		if err := side.Forget(ctx, names[1-i]); err != nil {
			return err
		}
	}
	for i, side := range two.sides {
		if side == nil {
			continue
		}
		if err := side.WaitForgotten(ctx, names[1-i]); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is disconnected from %s\n", names[i], names[1-i])
	}
	if two.sandbox {
		return m.sandboxes.Unlink(two.names[0], two.names[1])
	}
	return nil
}
