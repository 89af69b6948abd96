package identities

import (
	"context"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// forgetful is a server that answers with one object a page, and has forgotten every list when the
// next page is asked for.
type forgetful struct {
	client.Reader
	expired int
}

func (f *forgetful) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	if o.Continue != "" {
		f.expired++
		return apierrors.NewResourceExpired("the list is too old")
	}
	if o.Limit > 0 {
		o.Limit = 1
	}
	return f.Reader.List(ctx, list, &o)
}

// TestExpiredList: what agents have confirmed is read anew when the list expires between two pages,
// and no confirmation is then taken for superfluous because it was read twice.
func TestExpiredList(t *testing.T) {
	env := controllers.Start(t)
	cfg := testConfig()
	cfg.Namespace = "default"
	for _, node := range []string{"n1", "n2"} {
		env.Create(t, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}})
		l := k8sids.Confirmation{Node: node, Version: 1}.Lease(cfg.Namespace)
		env.Create(t, l)
	}
	server := &forgetful{Reader: env.Client}
	c := newCollector(&asker{client: env.Client, live: server}, cfg, slog.New(slog.DiscardHandler))
	confirmed, needless, err := c.confirmed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]uint64{"n1": 1, "n2": 1}, confirmed); diff != "" {
		t.Errorf("confirmed (-want +got):\n%s", diff)
	}
	if server.expired != 2 || len(needless) != 0 {
		t.Errorf("%d lists expired, want those of nodes and of Leases; superfluous: %v", server.expired, names(needless))
	}
}

func names(list []*coordinationv1.Lease) (out []string) {
	for _, l := range list {
		out = append(out, l.Name)
	}
	return out
}
