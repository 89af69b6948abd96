package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// seed returns a new seed for each run, or the one in HAWSER_SEED, and prints it.
func seed(t *testing.T) uint64 {
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("HAWSER_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s = n
	}
	t.Logf("seed: HAWSER_SEED=%d", s)
	return s
}

// cases returns how many random packets to evaluate.
func cases(t *testing.T) int {
	switch {
	case os.Getenv("HAWSER_LONG") != "":
		return 1_000_000
	case testing.Short():
		return 5_000
	}
	return 40_000
}

// randomPeer picks an end of a packet at random, as the engine and as the oracle name it.
func (w *world) randomPeer(k *kernel) (identity.ID, oracle.End) {
	switch w.rng.IntN(4) {
	case 0:
		id := w.reserved[w.rng.IntN(len(w.reserved))]
		set, _ := identity.ReservedLabels(id)
		return id, oracle.End{Labels: set, Addr: w.outside[w.rng.IntN(len(w.outside))]} // a node may have any address
	case 1:
		a := w.outside[w.rng.IntN(len(w.outside))]
		return k.resolve(&w.cfg, a), oracle.End{Addr: a}
	}
	p := w.pods[w.rng.IntN(len(w.pods))]
	return p.id, oracle.End{Labels: p.set, Addr: p.addrs[w.rng.IntN(2)], NamedPorts: oraclePorts(p.ports)}
}

// subject picks a local endpoint.
func (w *world) subject() (Subject, oracle.End) {
	if w.chance(10) {
		id := identity.Health
		if w.chance(50) {
			id = identity.Init
		}
		set, _ := identity.ReservedLabels(id)
		return Subject{Identity: id}, oracle.End{Labels: set}
	}
	p := w.pods[w.rng.IntN(len(w.pods))]
	return Subject{Identity: p.id, NamedPorts: p.ports}, oracle.End{Labels: p.set, NamedPorts: oraclePorts(p.ports)}
}

// compare evaluates n random packets with the engine, with the kernel built from its updates, and
// with the oracle.
func (w *world) compare(e *Engine, k *kernel, n int) error {
	cfg, policies := w.oracleConfig(), w.oraclePolicies()
	for i := range n {
		sub, self := w.subject()
		id, other := w.randomPeer(k)
		proto, port := w.packet()
		dir := datapath.Direction(w.rng.IntN(2))
		want, why := oracle.Side(cfg, policies, dir == datapath.Ingress, self, other, proto, port)
		got := e.Lookup(k.bind[sub].RuleSet, dir, id, other.Addr, proto, port)
		inKernel := k.evaluate(sub, dir, id, other.Addr, proto, port)
		if got.Pass() != want || inKernel != want {
			return fmt.Errorf("%v %v peer %v (%v %v) proto %d port %d: oracle %v (%s), engine %v, kernel %v\n%s",
				sub, dir, id, other.Labels, other.Addr, proto, port, want, why, got, inKernel, w.describe())
		}
		if i%8 != 0 {
			continue
		}
		from, to := Party{Labels: self.Labels}, Party{Identity: id, Addr: other.Addr}
		if set, ok := e.Labels(id); ok {
			to.Labels = set
			to.NamedPorts = e.ports[id]
		}
		from.NamedPorts = sub.NamedPorts
		side := 0
		if dir == datapath.Ingress {
			from, to, side = to, from, 1
		}
		tr, err := e.Trace(from, to, proto, port)
		if err != nil {
			return err
		}
		if v := []TraceSide{tr.Egress, tr.Ingress}[side].Verdict; v.Pass() != got.Pass() {
			return fmt.Errorf("%v %v peer %v proto %d port %d: trace says %v, engine %v\n%s\n%s", sub, dir, id, proto, port, v, got, tr.String(), w.describe())
		}
	}
	return nil
}

func TestEngineAgreesWithOracle(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 1))
	const perWorld = 250
	for range cases(t) / perWorld {
		w := newWorld(rng)
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		k.sync(e)
		if err := w.compare(e, k, perWorld); err != nil {
			t.Fatal(err)
		}
		if u := e.Flush(); !u.Empty() {
			t.Fatalf("a second flush has changes: %+v", u)
		}
	}
}
