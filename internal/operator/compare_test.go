package operator

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/admin/migration"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestComparison counts identities that are in one place, the other, or both.
func TestComparison(t *testing.T) {
	t.Parallel()
	env := controllers.Start(t)
	store := kvstore.NewMemory().Client()
	defer store.Close()
	for id, app := range map[string]string{"300": "same", "301": "keys", "302": "differs", "70000": "foreign"} {
		if err := kvstore.Put(t.Context(), store, storekeys.IdentitiesPrefix+"/id/"+id, []byte("k8s:app="+app+";"), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	for id, app := range map[string]string{"300": "same", "302": "other", "303": "object", "304": "object-too"} {
		env.Create(t, &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id}, SecurityLabels: map[string]string{"k8s:app": app}})
	}
	gauge := func() prometheus.Gauge { return prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}) }
	c := &comparison{
		objects: client.Reader(env.Client), keys: migration.Keys{Store: store, First: 256, Last: 65535},
		inObjects: gauge(), inKeys: gauge(), objectsOnly: gauge(), keysOnly: gauge(),
	}
	if err := c.compare(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []float64
	for _, g := range []prometheus.Gauge{c.inObjects, c.inKeys, c.objectsOnly, c.keysOnly} {
		got = append(got, testutil.ToFloat64(g))
	}
	if diff := cmp.Diff([]float64{4, 3, 3, 2}, got); diff != "" {
		t.Errorf("crd, kvstore, only crd, only kvstore: %s", diff)
	}
}
