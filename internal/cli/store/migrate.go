package store

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/admin/migration"
	"github.com/hawser-net/hawser/internal/admin/usage"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// migrateFlags select what to copy, and where.
type migrateFlags struct {
	store       Flags
	kube        command.Kubeconfig
	k8s         k8s.Config
	to          string
	dryRun      bool
	check       bool
	clusterID   uint32
	maxClusters uint32
}

// Places to copy to, as values of --to.
const (
	toObjects = "crd"
	toKeys    = "kvstore"
)

// MigrateCommand copies identities between a store and objects.
func MigrateCommand(a *command.App, open Opener) *cobra.Command {
	f := &migrateFlags{k8s: k8s.Defaults()}
	f.k8s.QPS, f.k8s.Burst, f.k8s.UserAgent = 50, 100, "hawser-migrate"
	c := &cobra.Command{
		Use:   "identity --to crd|kvstore",
		Short: "Copy identities between a key-value store and Kubernetes objects, with their IDs",
		Long: `Copy identities from a key-value store into CiliumIdentity objects, or back. Each
keeps its ID, and an ID in quarantine stays so. Nothing is deleted or changed:
conflicts are reported.

You can interrupt it and run it again; existing entries stay as they are. Run it while
agents write to both places (--identity-allocation-mode=doublewrite-...), so that new
identities are in both.

It reaches the API server with the kubeconfig file that kubectl uses, or with the service
account of the pod that it runs in.

The exit code is 0 if all identities are in both places afterwards, and 1 if not.`,
		Example: `  hawser migrate identity --to crd --dry-run
  hawser migrate identity --to crd --context east --kvstore-opt etcd.address=http://127.0.0.1:2379
  hawser migrate identity --to crd --check -o json`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringVar(&f.to, "to", "", "`place` to copy to: crd or kvstore; the other one is copied from")
	fs.BoolVar(&f.dryRun, "dry-run", false, "write nothing, and show what would be written")
	fs.BoolVar(&f.check, "check", false, "write nothing, and fail unless all identities are in both places")
	fs.Uint32Var(&f.clusterID, "cluster-id", 0, "`number` of the cluster, as the agents have it: it determines which identities are its own")
	fs.Uint32Var(&f.maxClusters, "max-connected-clusters", 255, "how many clusters can be connected: 255 or 511")
	f.store.Add(fs)
	f.store.timeout = 10 * time.Minute
	fs.Lookup("timeout").DefValue = f.store.timeout.String()
	f.kubernetesFlags(a, c)
	_ = c.RegisterFlagCompletionFunc("to", cobra.FixedCompletions([]cobra.Completion{toObjects, toKeys}, cobra.ShellCompDirectiveNoFileComp))
	out := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if f.to != toObjects && f.to != toKeys {
			return exitcode.Usagef("--to: %q is neither %s nor %s", f.to, toObjects, toKeys)
		}
		return withStore(open, &f.store, func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, _ []string) error {
			return migrate(ctx, a, cmd, store, f, out)
		})(cmd, args)
	}
	return command.Group("migrate", "Move what the cluster keeps from one place to another", "", c)
}

// kubernetesFlags adds the flags of the cluster. --k8s-kubeconfig-path, by which daemons name the
// file, is another name of --kubeconfig.
func (f *migrateFlags) kubernetesFlags(a *command.App, c *cobra.Command) {
	fs := c.Flags()
	f.k8s.Flags(fs)
	f.kube.AddFlags(a, c)
	fs.Lookup("k8s-kubeconfig-path").Hidden = true
	fs.Lookup("k8s-api-server").Usage = "`URL` of the Kubernetes API server, instead of the one in the kubeconfig file or the pod's environment"
	fs.Lookup("k8s-client-qps").Usage = "how many requests a second to send to the API server"
	fs.Lookup("k8s-client-burst").Usage = "how many requests to send to the API server at once"
	c.MarkFlagsMutuallyExclusive("kubeconfig", "k8s-kubeconfig-path")
}

// client returns a client for the cluster that the flags name.
func (f *migrateFlags) client(a *command.App) (*k8s.Client, error) {
	kube := f.kube
	kube.File = cmp.Or(kube.File, f.k8s.KubeconfigPath)
	// An address needs no file.
	if f.k8s.APIServer != "" && kube == (command.Kubeconfig{}) {
		rc, err := f.k8s.REST()
		if err != nil {
			return nil, exitcode.With(exitcode.Usage, err)
		}
		return k8s.New(rc)
	}
	files, err := kube.Files(a)
	if err != nil {
		return nil, err
	}
	client, err := usage.Connect(files, kube.Context)
	if err != nil {
		return nil, exitcode.With(exitcode.Unreachable, err)
	}
	rc := client.RESTConfig()
	rc.Host = cmp.Or(f.k8s.APIServer, rc.Host)
	rc.QPS, rc.Burst, rc.UserAgent = f.k8s.QPS, f.k8s.Burst, f.k8s.UserAgent
	return k8s.New(rc)
}

func migrate(ctx context.Context, a *command.App, cmd *cobra.Command, store kvstore.Backend, f *migrateFlags, out *output.Format) error {
	first, last, err := identity.Range(f.clusterID, f.maxClusters)
	if err != nil {
		return exitcode.Usagef("--cluster-id and --max-connected-clusters: %w", err)
	}
	if err := f.k8s.Validate(); err != nil {
		return exitcode.With(exitcode.Usage, err)
	}
	client, err := f.client(a)
	if err != nil {
		return err
	}
	keys := migration.Keys{Store: store, First: allocator.ID(first), Last: allocator.ID(last)}
	objects := migration.Objects{Client: client.V2, First: allocator.ID(first), Last: allocator.ID(last)}
	opts := migration.Options{Write: !f.dryRun && !f.check, Progress: progress(cmd.ErrOrStderr(), time.Second)}
	var report migration.Report
	if f.to == toObjects {
		report, err = migration.ToObjects(ctx, keys, objects, opts)
	} else {
		report, err = migration.ToKeys(ctx, objects, keys, opts)
	}
	if err != nil {
		return err
	}
	if err := out.Print(cmd.OutOrStdout(), report, func(w io.Writer) error { return writeMigration(a, w, f, report) }); err != nil {
		return err
	}
	if !report.Complete && !f.dryRun {
		return command.Silent(exitcode.Failure)
	}
	return nil
}

// progress returns a function that reports how far a copy is, at most once a pause.
func progress(w io.Writer, pause time.Duration) func(done, total int) {
	began, last := time.Now(), time.Now()
	return func(done, total int) {
		if time.Since(last) < pause {
			return
		}
		last = time.Now()
		left := time.Duration(float64(time.Since(began)) / float64(max(done, 1)) * float64(total-done)).Round(time.Second)
		fmt.Fprintf(w, "%d of %d identities, about %s left\n", done, total, left)
	}
}

func writeMigration(a *command.App, w io.Writer, f *migrateFlags, r migration.Report) error {
	t := a.Facts()
	t.Add("Identities", fmt.Sprintf("%d to be in %s", r.Total, f.to))
	t.Add("There", fmt.Sprint(r.Same))
	if r.Copied > 0 {
		t.Add("Copied", fmt.Sprint(r.Copied))
	}
	if r.Missing > 0 {
		t.Add("Missing", output.Warn.Cell(fmt.Sprint(r.Missing)))
	}
	if r.Extra > 0 {
		t.Add("Only there", fmt.Sprintf("%d", r.Extra))
	}
	if r.Foreign > 0 {
		t.Add("Of others", fmt.Sprintf("%d with IDs of other clusters, left alone", r.Foreign))
	}
	if r.Quarantined > 0 {
		t.Add("Quarantined", fmt.Sprintf("%d IDs, %d of them free in %s", r.Quarantined, r.Free, f.to))
	}
	for _, name := range r.Faulty {
		t.Add("No identity", output.Warn.Cell(name))
	}
	state := output.Good.Cell("all identities are in both places")
	if !r.Complete {
		state = output.Bad.Cell("not all identities are in both places")
	}
	t.Add("Result", state)
	if err := t.Write(w); err != nil {
		return err
	}
	if len(r.Conflicts) == 0 {
		return nil
	}
	table := a.Table("ID", "LABELS", "IN THE WAY")
	for _, c := range r.Conflicts {
		why := "the ID has the labels " + c.Owner
		if c.Number != 0 {
			why = "the labels have the ID " + c.Number.String()
		}
		table.Row(c.ID, c.Labels, why)
	}
	return table.WriteAfterBlank(w)
}
