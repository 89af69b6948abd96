package nodemanager

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// empty is a cloud that confirms everything and assigns nothing.
type empty struct{ Provider }

func (empty) Instance(*v2.CiliumNode) string                            { return "m" }
func (empty) Assign(context.Context, Step) ([]netip.Prefix, error)      { return nil, nil }
func (empty) ReadInstance(context.Context, string) ([]Interface, error) { return nil, nil }

// TestNothingReadYet: before the cloud could be read there is nothing to be decided, and nothing
// that was set aside to be given back.
func TestNothingReadYet(t *testing.T) {
	t.Parallel()
	m := newReads(t, &reads{instance: nothingThere})
	m.inv = newInventory(time.Minute)
	m.fault = errors.New("the cloud does not answer")
	o := &v2.CiliumNode{}
	o.Name, o.Spec.InstanceID = "n", "i-1"
	w := m.decide(o, 0, Limits{})
	if w.status == nil || w.Step.Call != Nothing {
		t.Errorf("decided %+v", w)
	}
	m.restore(w) // as when the status was written
}

// TestNothingAssigned has a cloud confirm that it assigned, and name no address: this is a failure,
// after which a node waits, and what was set aside of the subnet is given back.
func TestNothingAssigned(t *testing.T) {
	t.Parallel()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	m := &Manager{provider: empty{}, metrics: metrics, log: slog.New(slog.DiscardHandler), inv: newInventory(time.Minute), nodes: map[string]*node{}}
	m.inv.replace(&Snapshot{Subnets: map[string]Subnet{"s": {ID: "s", Free: 10}}}, time.Now())
	w := &work{Decision: Decision{Step: Step{Call: Assign, Interface: Interface{ID: "a", Subnet: "s"}, Addresses: 4}}}
	w.subnet, w.spent = w.Step.cost()
	m.inv.spend(w.subnet, w.spent)
	var e *Error
	if err := m.make(t.Context(), &v2.CiliumNode{}, w); !errors.As(err, &e) {
		t.Errorf("no failure: %v", err)
	}
	if n := m.inv.snapshot.Subnets["s"].Free; n != 10 {
		t.Errorf("%d addresses are free, not 10", n)
	}
}
