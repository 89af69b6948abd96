package policy

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

// A copy of an engine evaluates as the engine, and what Side says passes is what the oracle lets
// pass; peers of one class are treated alike.
func TestSideAgreesWithOracle(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 7))
	for range cases(t) / 400 {
		w := newWorld(rng)
		live, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, live)
		k.sync(live)
		e, err := live.Snapshot().Engine()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range w.pods {
			e.AddSubject(Subject{Identity: p.id, NamedPorts: p.ports})
		}
		e.Flush()
		cfg, policies := w.oracleConfig(), w.oraclePolicies()
		for range 40 {
			p := w.pods[rng.IntN(len(w.pods))]
			sub, self := Subject{Identity: p.id, NamedPorts: p.ports}, oracle.End{Labels: p.set, NamedPorts: oraclePorts(p.ports)}
			id, other := w.randomPeer(k)
			dir := datapath.Direction(rng.IntN(2))
			b, _, _, _ := e.RuleSetOf(sub)
			side, ok := e.Side(b.RuleSet, dir, id, other.Addr)
			if !ok {
				t.Fatalf("no rule set for %v", sub)
			}
			for range 10 {
				proto, port := w.packet()
				named := proto
				if proto == 47 {
					named = datapath.ProtoAny
				}
				want, why := oracle.Side(cfg, policies, dir == datapath.Ingress, self, other, proto, port)
				got := slices.ContainsFunc(side.Passing, func(m PortMatch) bool { return m.Proto == named && m.First <= port && port <= m.Last })
				if got != want {
					t.Fatalf("%v %v peer %v: %d/%d passes: %v, and by the oracle %v (%s)\n%+v\n%s", sub, dir, id, port, proto, got, want, why, side, w.describe())
				}
			}
			theirs, their := w.randomPeer(k)
			c1, _ := e.ClassOf(b.RuleSet, dir, id, other.Addr)
			c2, _ := e.ClassOf(b.RuleSet, dir, theirs, their.Addr)
			if side2, _ := e.Side(b.RuleSet, dir, theirs, their.Addr); c1 == c2 && !slices.Equal(side.Passing, side2.Passing) {
				t.Fatalf("%v %v: peers %v and %v are of one class: %+v and %+v\n%s", sub, dir, id, theirs, side, side2, w.describe())
			}
		}
	}
}

func TestPortArithmetic(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 8))
	random := func() (list []PortMatch, has [64]bool) {
		for port := range has {
			if has[port] = rng.IntN(2) == 0; !has[port] {
				continue
			}
			if n := len(list); n > 0 && list[n-1].Last == uint16(port-1) {
				list[n-1].Last = uint16(port)
			} else {
				list = append(list, PortMatch{Proto: 6, First: uint16(port), Last: uint16(port)})
			}
		}
		return append(list, PortMatch{Proto: 17, First: 0, Last: 65535}), has
	}
	in := func(list []PortMatch, port int) bool {
		return slices.ContainsFunc(list, func(m PortMatch) bool { return m.Proto == 6 && int(m.First) <= port && port <= int(m.Last) })
	}
	for range 200 {
		a, inA := random()
		b, inB := random()
		both, only := Intersect(a, b), Subtract(a, b)
		for port := range inA {
			if in(both, port) != (inA[port] && inB[port]) || in(only, port) != (inA[port] && !inB[port]) {
				t.Fatalf("port %d of %v and %v: both %v, only the first %v", port, a, b, both, only)
			}
		}
		if slices.ContainsFunc(only, func(m PortMatch) bool { return m.Proto == 17 }) {
			t.Fatalf("what is the same in both is left over: %v", only)
		}
	}
}

func TestOwnerNamesItsPolicy(t *testing.T) {
	t.Parallel()
	for o, want := range map[Owner]Name{
		"k8s/NetworkPolicy/shop/db":               {"NetworkPolicy", "shop", "db"},
		"k8s/CiliumClusterwideNetworkPolicy/base": {"CiliumClusterwideNetworkPolicy", "", "base"},
		"web.yaml/shop/db":                        {"CiliumNetworkPolicy", "shop", "db"},
		"k8s/base":                                {"CiliumClusterwideNetworkPolicy", "", "base"},
		"odd":                                     {"CiliumClusterwideNetworkPolicy", "", "odd"},
	} {
		if got := o.Policy(); got != want {
			t.Errorf("%s is %+v, want %+v", o, got, want)
		}
	}
}

func TestOutsideIsTheLongestPrefix(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(seed(t), 9)))
	e, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	k := newKernel(t)
	w.load(t, e)
	k.sync(e)
	for _, a := range w.outside {
		if got, want := e.Outside(a), k.resolve(&w.cfg, a); got != want && want != identity.Unknown {
			t.Errorf("%v is %v, want %v", a, got, want)
		}
	}
}

// Long lists of entries are searched, short ones are scanned: both say the same.
func TestSearchIsScan(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 9))
	key := func() portKey {
		k := portKey{[]uint8{0, 6, 17}[rng.IntN(3)], uint8(8 + rng.IntN(9)), 0}
		if k.proto == 0 {
			return portKey{}
		}
		k.port = uint16(rng.IntN(1<<9)) & (0xffff << (16 - k.bits))
		return k
	}
	for range 200 {
		var allow, deny []portKey
		var list []decided
		for range scanLimit + rng.IntN(100) {
			k := key()
			if k == (portKey{}) && rng.IntN(20) > 0 {
				continue
			}
			if rng.IntN(2) == 0 {
				allow = append(allow, k)
			} else {
				deny = append(deny, k)
			}
			list = append(list, decided{k, datapath.PolicyEntry{Allow: rng.IntN(2) == 0, Deny: rng.IntN(3) == 0, Admin: datapath.TierRule(rng.IntN(4))}})
		}
		for _, s := range []*portSet{newPortSet(allow, deny, true, nil), newTieredSet(list)} {
			for range 200 {
				proto, port := []uint8{0, 6, 17, 47}[rng.IntN(4)], uint16(rng.IntN(1<<9))
				if got, want := s.search(proto, port), s.scan(proto, port); got != want {
					t.Fatalf("%d/%d in %+v: %+v, by a scan %+v", port, proto, s, got, want)
				}
			}
		}
	}
}
