package nodemanager

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// onlyNode is an API server that has one CiliumNode.
type onlyNode struct {
	client.Client
	instance string
}

func (c onlyNode) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	n := o.(*v2.CiliumNode)
	n.Name, n.Spec.InstanceID = key.Name, c.instance
	return nil
}

// TestMeasuresOfANodeWithoutInstance: what is measured of a node's addresses is not shown any more
// when its instance cannot be seen, is another node's, or is not named: alerts would go on about a
// deficit of an instance that is gone.
func TestMeasuresOfANodeWithoutInstance(t *testing.T) {
	t.Parallel()
	here := &Snapshot{Subnets: map[string]Subnet{}, Interfaces: []Interface{{ID: "eni", Instance: "i-1", Attachment: "a"}}}
	for name, gone := range map[string]func(*testing.T, *Manager){
		"cannot be seen": func(t *testing.T, m *Manager) {
			m.inv.replace(&Snapshot{Subnets: map[string]Subnet{}}, time.Now().Add(time.Hour))
			if w := turn(t, m, "n", "i-1"); !w.unseen {
				t.Fatal("the instance is still there")
			}
		},
		"is another's": func(t *testing.T, m *Manager) {
			turn(t, m, "other", "i-2")
			turn(t, m, "n", "i-2")
			m.metrics.forget("other")
		},
		"is not named": func(t *testing.T, m *Manager) {
			m.client = onlyNode{}
			if _, err := m.maintain(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "n"}}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newReads(t, &reads{instance: nothingThere})
			m.inv.replace(here, time.Now())
			turn(t, m, "n", "i-1")
			gauges := map[string]*prometheus.GaugeVec{"available": m.metrics.available, "used": m.metrics.used, "needed": m.metrics.needed}
			for what, g := range gauges {
				if testutil.CollectAndCount(g) != 1 {
					t.Fatalf("%s addresses are not measured", what)
				}
			}
			m.mu.Lock()
			m.nodes["n"].lacks, m.nodes["n"].atCapacity = true, true
			m.count()
			m.mu.Unlock()
			gone(t, m)
			for what, g := range gauges {
				if testutil.CollectAndCount(g) != 0 {
					t.Errorf("%s addresses of an instance that is gone are shown", what)
				}
			}
			for _, category := range []string{"in-deficit", "at-capacity"} {
				if got := testutil.ToFloat64(m.metrics.nodes.WithLabelValues(category)); got != 0 {
					t.Errorf("%s: %v nodes", category, got)
				}
			}
		})
	}
}
