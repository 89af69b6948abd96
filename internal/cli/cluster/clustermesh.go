// Package cluster holds the commands about a cluster as a whole: the operator's status, connections
// to other clusters, and the users of an identity. They query the API server, the operator and the
// agent.
package cluster

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// MeshCommand shows other clusters, and connects clusters; sandboxes is nil where there are none.
func MeshCommand(a *command.App, sandboxes Sandboxes) *cobra.Command {
	m := mesh{a, sandboxes}
	return command.Group("clustermesh", "Show other clusters, connect clusters", "Show the other clusters that this node follows, connect clusters and undo it.",
		statusCommand(a), m.connectCommand(), m.disconnectCommand())
}

func statusCommand(a *command.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of connected clusters",
		Long: `Show the state of connected clusters.

CONNECTED shows whether the store of the cluster answers, and since when. READY shows whether the agent has
read all of it at least once; this state stays in force while the cluster is unreachable. REFUSED counts
entries that the agent refuses, because they are not about that cluster itself; the agent's log names them.

The exit code is 1 if a cluster is not connected or not ready.`,
		Example: `  hawser clustermesh status
  hawser clustermesh status -o jsonpath='{.clusters[*].name}'`,
		Args: cobra.NoArgs,
	}
	out := output.AddFlag(c)
	c.RunE = a.WithClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		st, err := c.Health(cmd.Context(), false)
		if err != nil {
			return err
		}
		mesh := st.ClusterMesh
		err = out.Print(cmd.OutOrStdout(), mesh, func(w io.Writer) error { return writeClusterMesh(a, w, mesh) })
		for _, r := range mesh.Clusters {
			if err == nil && (!r.Connected || !r.Ready) {
				err = command.Silent(exitcode.Failure)
			}
		}
		return err
	})
	return c
}

func writeClusterMesh(a *command.App, w io.Writer, mesh rest.ClusterMeshStatus) error {
	if mesh.Fault != "" {
		if _, err := fmt.Fprintln(w, a.Paint(output.Bad, "The directory of clusters cannot be read: ")+output.Printable(mesh.Fault)); err != nil {
			return err
		}
	}
	if len(mesh.Clusters) == 0 {
		_, err := fmt.Fprintln(w, "This node follows no other cluster (--clustermesh-config).")
		return err
	}
	t := a.Table("CLUSTER", "ID", "CONNECTED", "READY", "NODES", "IDENTITIES", "ENDPOINTS", "SERVICES", "REFUSED", "LAST ERROR")
	for _, r := range mesh.Clusters {
		id := "unknown"
		if r.Config.ClusterID != 0 {
			id = fmt.Sprint(r.Config.ClusterID)
		}
		refused := output.Plain.Cell(fmt.Sprint(r.NumRefused))
		if r.NumRefused > 0 {
			refused.Style = output.Warn
		}
		t.Row(r.Name, id, yesNo(r.Connected, since(r.Since)), yesNo(r.Ready, ""), r.NumNodes, r.NumIdentities, r.NumEndpoints, r.NumSharedServices, refused, r.LastError)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d services of this cluster take backends of others.\n", mesh.NumGlobalServices)
	return err
}

func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", since " + t.Local().Format(time.DateTime)
}

func yesNo(ok bool, more string) output.Cell {
	if ok {
		return output.Good.Cell("yes" + more)
	}
	return output.Bad.Cell("no" + more)
}
