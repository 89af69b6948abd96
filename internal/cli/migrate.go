package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-net/hawser/internal/admin/migration"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// migrateFlags say what is copied where.
type migrateFlags struct {
	store       storeFlags
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

func (a *app) migrateCommand() *cobra.Command {
	f := &migrateFlags{k8s: k8s.Defaults()}
	f.k8s.QPS, f.k8s.Burst, f.k8s.UserAgent = 50, 100, "hawser-migrate"
	c := &cobra.Command{
		Use:   "identity --to crd|kvstore",
		Short: "Copy identities between a key-value store and Kubernetes objects, with their numbers",
		Long: `Copy identities from a key-value store into CiliumIdentity objects, or back. Each
keeps its number. Nothing is deleted or changed: what is in the way is told.

It can be broken off and run again; what is there already is left as it is. Run it
while agents write to both places (--identity-allocation-mode=doublewrite-...), so
that what is made meanwhile is in both.

The exit code is 0 if all identities are in both places afterwards, and 1 if not.`,
		Example: `  hawser migrate identity --to crd --dry-run
  hawser migrate identity --to crd --kvstore-opt etcd.address=http://127.0.0.1:2379
  hawser migrate identity --to crd --check -o json`,
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringVar(&f.to, "to", "", "`place` to copy to: crd or kvstore; the other one is copied from")
	fs.BoolVar(&f.dryRun, "dry-run", false, "write nothing, and tell what would be written")
	fs.BoolVar(&f.check, "check", false, "write nothing, and fail unless all identities are in both places")
	fs.Uint32Var(&f.clusterID, "cluster-id", 0, "`number` of the cluster, as the agents have it: it says which identities are its own")
	fs.Uint32Var(&f.maxClusters, "max-connected-clusters", 255, "how many clusters can be connected: 255 or 511")
	f.store.flags(fs)
	f.store.timeout = 10 * time.Minute
	fs.Lookup("timeout").DefValue = f.store.timeout.String()
	f.k8s.Flags(fs)
	out := addOutput(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if f.to != toObjects && f.to != toKeys {
			return usagef("--to: %q is neither %s nor %s", f.to, toObjects, toKeys)
		}
		return a.withStore(&f.store, func(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, _ []string) error {
			return a.migrate(ctx, cmd, store, f, out)
		})(cmd, args)
	}
	return a.group("migrate", "Move what the cluster keeps from one place to another", "", c)
}

func (a *app) migrate(ctx context.Context, cmd *cobra.Command, store kvstore.Backend, f *migrateFlags, out *output) error {
	first, last, err := identity.Range(f.clusterID, f.maxClusters)
	if err != nil {
		return usagef("--cluster-id and --max-connected-clusters: %w", err)
	}
	if err := f.k8s.Validate(); err != nil {
		return &usageError{err}
	}
	rc, err := f.k8s.REST()
	if err != nil {
		return &usageError{err}
	}
	client, err := k8s.New(rc)
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
	if err := out.print(cmd.OutOrStdout(), report, func(w io.Writer) error { return a.writeMigration(w, f, report) }); err != nil {
		return err
	}
	if !report.Complete && !f.dryRun {
		return &silentError{ExitError}
	}
	return nil
}

// progress returns what tells how far a copy is, not more often than every pause.
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

func (a *app) writeMigration(w io.Writer, f *migrateFlags, r migration.Report) error {
	t := a.facts()
	t.add("Identities", fmt.Sprintf("%d to be in %s", r.Total, f.to))
	t.add("There", fmt.Sprint(r.Same))
	if r.Copied > 0 {
		t.add("Copied", fmt.Sprint(r.Copied))
	}
	if r.Missing > 0 {
		t.add("Missing", cell{fmt.Sprint(r.Missing), warn})
	}
	if r.Extra > 0 {
		t.add("Only there", fmt.Sprintf("%d", r.Extra))
	}
	if r.Foreign > 0 {
		t.add("Of others", fmt.Sprintf("%d with numbers of other clusters, left alone", r.Foreign))
	}
	for _, name := range r.Faulty {
		t.add("No identity", cell{name, warn})
	}
	state := cell{"all identities are in both places", good}
	if !r.Complete {
		state = cell{"not all identities are in both places", bad}
	}
	t.add("Result", state)
	if err := t.write(w); err != nil {
		return err
	}
	if len(r.Conflicts) == 0 {
		return nil
	}
	table := a.table("ID", "LABELS", "IN THE WAY")
	for _, c := range r.Conflicts {
		why := "the number has the labels " + c.Owner
		if c.Number != 0 {
			why = "the labels have the number " + c.Number.String()
		}
		table.row(c.ID, c.Labels, why)
	}
	return writeAfterBlank(w, table)
}
