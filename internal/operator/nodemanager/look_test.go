package nodemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/retry"
)

// reads is a cloud that is only read: what it answers, and how often it was asked.
type reads struct {
	Provider
	all, one int
	read     func() error
	instance func(id string) ([]Interface, error)
}

func (*reads) Instance(n *v2.CiliumNode) string          { return n.Spec.InstanceID }
func (*reads) InstanceType(*v2.CiliumNode) string        { return "" }
func (*reads) Describe(*v2.CiliumNode, *Snapshot, *View) {}
func (r *reads) Read(context.Context) (*Snapshot, error) { r.all++; return &Snapshot{}, r.read() }
func (*reads) Status(*v2.CiliumNode, *Snapshot, []Interface) (string, any, bool) {
	return "", nil, true
}

func (r *reads) ReadInstance(_ context.Context, id string) ([]Interface, error) {
	r.one++
	return r.instance(id)
}

func newReads(t *testing.T, r *reads) *Manager {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	m := newManager(Defaults(), r, metrics, slog.New(slog.DiscardHandler))
	m.inv.replace(&Snapshot{Subnets: map[string]Subnet{}}, time.Now())
	m.fault = nil
	return m
}

// turn decides about a node and looks for its instance, as a turn of the node does.
func turn(t *testing.T, m *Manager, name, instance string) *work {
	o := &v2.CiliumNode{}
	o.Name, o.Spec.InstanceID = name, instance
	if w := m.decide(o, 0, Limits{}); !w.unseen {
		return w
	}
	if err := m.lookFor(t.Context(), o); err != nil {
		m.backoff(name, err.Error())
	}
	return m.decide(o, 0, Limits{})
}

func nothingThere(string) ([]Interface, error) { return nil, nil }

// TestLooksAreBounded has nodes name instances that there are not, another one each time: neither
// one node nor all together have the cloud asked without end.
func TestLooksAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &reads{instance: nothingThere}
		m := newReads(t, r)
		for k := range 600 {
			turn(t, m, "n", fmt.Sprint("i-", k))
			time.Sleep(100 * time.Millisecond)
		}
		if r.one != maxLooks {
			t.Errorf("looked %d times for the instances of one node", r.one)
		}
		r.one = 0
		for k := range 60 * 300 {
			turn(t, m, fmt.Sprint("n-", k%300), fmt.Sprint("i-", k))
			time.Sleep(time.Minute / (60 * 300))
		}
		if r.one < 50 || r.one > 60+lookBurst {
			t.Errorf("looked %d times within a minute", r.one)
		}
	})
}

// TestLooksForWhatComesLate has interfaces appear when everything cannot be read any more: looks
// that fail count for nothing, and after the last quick one there are others as long as that lasts.
func TestLooksForWhatComesLate(t *testing.T) {
	t.Parallel()
	list := []Interface{{ID: "eni", Instance: "i-1", Attachment: "a"}}
	synctest.Test(t, func(t *testing.T) {
		r := &reads{}
		r.instance = func(string) ([]Interface, error) {
			if r.one <= maxLooks+2 {
				return nil, &Error{Text: "no answer"}
			}
			return list, nil
		}
		m := newReads(t, r)
		begun := time.Now()
		for w := turn(t, m, "n", "i-1"); w.unseen; w = turn(t, m, "n", "i-1") {
			if m.nodes["n"].failures > 0 && !strings.Contains(fmt.Sprint(w.status), "no answer") {
				t.Fatalf("the status says %v", w.status)
			}
			if time.Since(begun) > time.Hour {
				t.Fatalf("not found after %d looks", r.one)
			}
			time.Sleep(w.next)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		begun, late := time.Now(), 10*time.Minute
		r := &reads{instance: func(string) ([]Interface, error) {
			if time.Since(begun) < late {
				return nil, nil
			}
			return list, nil
		}}
		m := newReads(t, r)
		m.fault = errors.New("cannot be read")
		for w := turn(t, m, "n", "i-1"); w.unseen; w = turn(t, m, "n", "i-1") {
			if time.Since(begun) > late+2*refreshInterval {
				t.Fatalf("not found after %d looks", r.one)
			}
			time.Sleep(w.next)
		}
		if r.one > 20 {
			t.Errorf("%d looks", r.one)
		}
	})
}

// TestReadOfAnInstance has the cloud say of one instance what is another's, or what is older than
// the last description of everything: this changes nothing.
func TestReadOfAnInstance(t *testing.T) {
	t.Parallel()
	v, now := newInventory(time.Minute), time.Now()
	held := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}
	v.replace(&Snapshot{Interfaces: []Interface{{ID: "a", Instance: "i-a", Attachment: "x", Held: held}, {ID: "b", Instance: "i-b", Attachment: "x"}}}, now)
	v.replaceInstance("i-a", nil, now.Add(-time.Second))
	if list, _ := v.of("i-a"); len(list) != 1 {
		t.Errorf("an older description has taken away what is newer: %v", list)
	}
	v.replaceInstance("i-b", []Interface{{ID: "a", Instance: "i-a", Attachment: "x"}, {ID: "b", Instance: "i-b", Attachment: "x", Held: held}}, now.Add(time.Second))
	if list, _ := v.of("i-a"); len(list) != 1 || len(list[0].Held) != 1 {
		t.Errorf("the description of another instance has changed %v", list)
	}
	if list, _ := v.of("i-b"); len(list) != 1 || len(list[0].Held) != 1 {
		t.Errorf("the instance itself: %v", list)
	}
}

// TestLongDescription has a description of everything take minutes: what was changed meanwhile, or
// read of one instance, is not lost when it has come to its end.
func TestLongDescription(t *testing.T) {
	t.Parallel()
	v, now := newInventory(time.Minute), time.Now()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	a, c := Interface{ID: "a", Instance: "i-a", Attachment: "x"}, Interface{ID: "c", Instance: "i-c", Attachment: "x"}
	v.replace(&Snapshot{Interfaces: []Interface{a}}, at(0))
	v.note(change{at: at(10), call: Assign, iface: a, units: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}})
	v.replaceInstance("i-b", nil, at(200))
	v.replaceInstance("i-c", []Interface{c}, at(300))
	check := func(when string, held, others int) {
		t.Helper()
		list, _ := v.of("i-a")
		if len(list) != 1 || len(list[0].Held) != held {
			t.Errorf("%s: changed is %+v", when, list)
		}
		if list, _ = v.of("i-c"); len(list) != others {
			t.Errorf("%s: read alone is %+v", when, list)
		}
	}
	check("before", 1, 1)
	v.replace(&Snapshot{Interfaces: []Interface{a}}, at(5))
	check("begun before both", 1, 1)
	v.replace(&Snapshot{Interfaces: []Interface{a}}, at(290))
	check("begun long after the change", 0, 1)
	v.replace(&Snapshot{Interfaces: []Interface{a}}, at(310))
	check("begun after both", 0, 0)
	for k := range 2 * maxChanges {
		v.note(change{at: at(320 + k), call: Modify, iface: a})
	}
	if len(v.changes) != maxChanges || !v.changes[len(v.changes)-1].at.Equal(at(319+2*maxChanges)) {
		t.Errorf("%d changes are remembered", len(v.changes))
	}
}

// TestRereads has everything be wanted before its time: a cloud that fails is given its rest
// nevertheless, and what has been wanted before a description began is not wanted after it.
func TestRereads(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		err   error
		often bool
		most  int
	}{{nil, false, 10}, {errors.New("no answer"), true, 32}} {
		synctest.Test(t, func(t *testing.T) {
			r := &reads{read: func() error { return x.err }}
			m := newReads(t, r)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute-time.Second)
			defer cancel()
			m.rereads()
			if x.often {
				go func() {
					for retry.Sleep(ctx, 100*time.Millisecond) {
						m.rereads()
					}
				}()
			}
			if err := m.resync(ctx); err != nil {
				t.Error(err)
			}
			if r.all > x.most {
				t.Errorf("%v: read %d times within 10 minutes", x.err, r.all)
			}
		})
	}
}
