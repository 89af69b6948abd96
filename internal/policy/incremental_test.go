package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// snapshot says what a kernel has for each subject: enforcement and entries, with the IDs of
// prefixes' identities replaced by the prefixes, since these depend on history.
func (k *kernel) snapshot() map[Subject]string {
	names := map[identity.ID]string{}
	for p, id := range k.blocks.ids {
		names[id] = "block " + p.String()
	}
	for p, id := range k.cidrs.ids {
		names[id] = p.String()
	}
	out := map[Subject]string{}
	for s, b := range k.bind {
		ks := k.sets[b.RuleSet]
		if ks == nil {
			out[s] = "none"
			continue
		}
		var lines []string
		for key, says := range ks.entries {
			id := identity.ID(key.Identity)
			peer := names[id]
			if peer == "" {
				peer = peerName(id)
			}
			lines = append(lines, fmt.Sprintf("%v %s %v %+v", key.Direction, peer, portKey{key.Proto, key.PortBits, key.Port}, says))
		}
		slices.Sort(lines)
		out[s] = fmt.Sprint(ks.enforced, lines)
	}
	return out
}

// mutate changes the world at random, and the engine with it.
func (w *world) mutate(t *testing.T, e *Engine, k *kernel) string {
	t.Helper()
	pick := w.rng.IntN(12)
	i := w.rng.IntN(len(w.pods))
	p := &w.pods[i]
	drop := func() {
		e.RemoveSubject(Subject{Identity: p.id, NamedPorts: p.ports})
		delete(k.bind, Subject{Identity: p.id, NamedPorts: p.ports})
	}
	switch {
	case pick < 4:
		o := Owner(fmt.Sprintf("p%d", w.rng.IntN(7)))
		w.setPolicy(o)
		if err := e.SetRules(o, w.policies[o].rules); err != nil {
			t.Fatal(err)
		}
		return "policy " + string(o)
	case pick < 5 && len(w.policies) > 0:
		o := slices.Sorted(maps.Keys(w.policies))[w.rng.IntN(len(w.policies))]
		delete(w.policies, o)
		if err := e.SetRules(o, nil); err != nil {
			t.Fatal(err)
		}
		return "no policy " + string(o)
	case pick < 6 && len(w.pods) > 2:
		drop()
		e.RemoveIdentity(p.id)
		id := p.id
		w.pods = slices.Delete(w.pods, i, i+1)
		return fmt.Sprintf("pod %v gone", id)
	case pick < 8:
		id := identity.ID(400 + w.rng.IntN(1000))
		for slices.ContainsFunc(w.pods, func(p pod) bool { return p.id == id }) {
			id++
		}
		n := w.newPod(id)
		w.pods = append(w.pods, n)
		add := []func(){
			func() { e.SetIdentity(n.id, n.set) },
			func() { e.AddSubject(Subject{Identity: n.id, NamedPorts: n.ports}) },
			func() {
				if err := e.SetNamedPorts(n.id, n.ports); err != nil {
					t.Fatal(err)
				}
			},
		}
		w.rng.Shuffle(len(add), func(i, j int) { add[i], add[j] = add[j], add[i] })
		for _, f := range add {
			f()
		}
		return fmt.Sprintf("pod %v", id)
	case pick < 9:
		p.set = w.podLabels()
		e.SetIdentity(p.id, p.set)
		return fmt.Sprintf("labels of %v", p.id)
	case pick < 10:
		drop()
		p.ports = w.namedPorts()
		if err := e.SetNamedPorts(p.id, p.ports); err != nil {
			t.Fatal(err)
		}
		e.AddSubject(Subject{Identity: p.id, NamedPorts: p.ports})
		return fmt.Sprintf("ports of %v", p.id)
	case pick < 11:
		w.cfg.Mode = []Mode{ModeDefault, ModeDefault, ModeAlways, ModeNever}[w.rng.IntN(4)]
		e.SetMode(w.cfg.Mode)
		return "mode " + w.cfg.Mode.String()
	}
	// The same again changes nothing.
	for o, p := range w.policies {
		if err := e.SetRules(o, p.rules); err != nil {
			t.Fatal(err)
		}
	}
	e.SetIdentity(p.id, p.set)
	return "nothing"
}

// TestIncrementalEqualsFresh: whatever the order of changes and flushes, what the kernel holds in
// the end is what a fresh engine gives, and flows are evaluated again whenever one must stop.
func TestIncrementalEqualsFresh(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 2))
	for range cases(t) / 500 {
		w := newWorld(rng)
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		k.sync(e)
		var history []string
		for range 12 {
			for range 1 + rng.IntN(3) {
				history = append(history, w.mutate(t, e, k))
			}
			probes := w.probes(k)
			gens := maps.Clone(k.bind)
			k.sync(e)
			for _, p := range probes {
				b, ok := k.bind[p.sub]
				if ok && p.passed && b.Generation == gens[p.sub].Generation && !k.evaluate(p.sub, p.dir, p.id, p.at, p.proto, p.port) {
					t.Fatalf("after %q: %+v stopped, but the generation stayed %d\n%s", history, p, b.Generation, w.describe())
				}
			}
			if err := w.compare(e, k, 20); err != nil {
				t.Fatalf("after %q: %v", history, err)
			}
		}
		// Identities of prefixes that the last update gave up leave the rule sets with the next.
		for u := k.sync(e); !u.Empty(); u = k.sync(e) {
		}
		fresh, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		fk := newKernel(t)
		w.load(t, fresh)
		fk.sync(fresh)
		got, want := k.snapshot(), fk.snapshot()
		if !maps.Equal(got, want) {
			for s := range want {
				if got[s] != want[s] {
					t.Errorf("%v: got  %s\nwant %s", s, got[s], want[s])
				}
			}
			t.Fatalf("after %q: the kernel differs from a fresh engine's\n%s", history, w.describe())
		}
		if len(k.sets) != len(fk.sets) {
			t.Fatalf("after %q: %d rule sets, a fresh engine has %d", history, len(k.sets), len(fk.sets))
		}
		if got, want := len(e.selectors), len(fresh.selectors); got != want {
			t.Fatalf("after %q: %d active selectors, a fresh engine has %d", history, got, want)
		}
		if len(k.cidrs.ids) != len(fk.cidrs.ids) {
			t.Fatalf("after %q: %d prefixes, a fresh engine has %d", history, len(k.cidrs.ids), len(fk.cidrs.ids))
		}
	}
}

type flow struct {
	sub    Subject
	dir    datapath.Direction
	id     identity.ID
	at     netip.Addr
	proto  uint8
	port   uint16
	passed bool
}

// probes evaluates random packets now, to be evaluated again later.
func (w *world) probes(k *kernel) []flow {
	var out []flow
	for range 40 {
		sub, _ := w.subject()
		id, end := w.randomPeer(k)
		if id.IsLocal() {
			continue // the prefix's identity may go
		}
		proto, port := w.packet()
		f := flow{sub: sub, dir: datapath.Direction(w.rng.IntN(2)), id: id, at: end.Addr, proto: proto, port: port}
		f.passed = k.evaluate(f.sub, f.dir, f.id, f.at, proto, port)
		out = append(out, f)
	}
	return out
}

// TestTeardown: when everything is gone, nothing is left.
func TestTeardown(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 3))
	for range 20 {
		w := newWorld(rng)
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		k.sync(e)
		for o := range w.policies {
			if err := e.SetRules(o, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range w.pods {
			e.RemoveSubject(Subject{Identity: p.id, NamedPorts: p.ports})
			e.RemoveIdentity(p.id)
			if err := e.SetNamedPorts(p.id, ""); err != nil {
				t.Fatal(err)
			}
		}
		e.RemoveSubject(Subject{Identity: identity.Health})
		e.RemoveSubject(Subject{Identity: identity.Init})
		clear(k.bind)
		k.sync(e)
		if len(k.sets) > 0 || len(e.selectors) > 0 || e.cidrs.sels.Len()+e.blocks.sels.Len() > 0 || len(e.ruleSets) > 0 ||
			len(e.byID) > 0 || len(e.subjects) > 0 || len(e.subjectsByID) > 0 || len(e.subjectsByNS) > 0 || len(e.byNS) > 0 ||
			len(e.ports) > 0 || e.rules != 0 || !e.ruleIndex.Empty() || !e.selIndex.Empty() ||
			len(e.peers) != len(identity.ReservedIDs())+1 || len(e.cidrs.peers)+len(e.blocks.peers) > 0 {
			t.Fatalf("something is left: %+v", e)
		}
		if u := e.Flush(); !u.Empty() {
			t.Fatalf("there are changes left: %+v", u)
		}
	}
}

// TestDeterministic: the same calls give the same updates.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	s := seed(t)
	run := func() (out []string) {
		rng := rand.New(rand.NewPCG(s, 4))
		w := newWorld(rng)
		e, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w.load(t, e)
		out = append(out, mustJSON(printable(k.sync(e))))
		for range 10 {
			w.mutate(t, e, k)
			out = append(out, mustJSON(printable(k.sync(e))))
		}
		return out
	}
	first := run()
	for range 3 {
		if again := run(); !slices.Equal(first, again) {
			t.Fatalf("updates differ:\n%q\n%q", first, again)
		}
	}
}

// printable makes an update fit for JSON, whose objects have strings as keys.
func printable(u Update) any {
	bind := map[string]Binding{}
	for s, b := range u.Bind {
		bind[fmt.Sprint(s)] = b
	}
	u.Bind = nil
	return []any{u, bind}
}

// TestSharing: subjects that the same rules select share a rule set; another namespace does not
// matter, another rule does.
func TestSharing(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(1, 1)))
	w.cfg = Defaults()
	e, err := New(w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	k := newKernel(t)
	for i := range 50 {
		id := identity.ID(300 + i)
		set, err := labels.PodLabels(labels.Pod{Namespace: fmt.Sprintf("ns%d", i%5), Cluster: "default", Labels: map[string]string{"n": fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		e.SetIdentity(id, set)
		e.AddSubject(Subject{Identity: id})
	}
	k.sync(e)
	if len(k.sets) != 1 {
		t.Fatalf("%d rule sets without rules, want 1", len(k.sets))
	}
	if err := e.SetRules("o", mustParse(t, "ns1", `{"endpointSelector":{},"ingress":[{"fromEndpoints":[{}]}]}`)); err != nil {
		t.Fatal(err)
	}
	u := k.sync(e)
	if len(k.sets) != 2 || len(u.Bind) != 10 || len(u.Install) != 1 {
		t.Fatalf("%d rule sets, %d bound, %d installed; want 2, 10, 1", len(k.sets), len(u.Bind), len(u.Install))
	}
	// An identity that comes is a delta without a new generation; one that goes needs one.
	set, _ := labels.PodLabels(labels.Pod{Namespace: "ns1", Cluster: "default", Labels: map[string]string{"n": "new"}})
	e.SetIdentity(999, set)
	if u := k.sync(e); len(u.Deltas) != 1 || len(u.Deltas[0].Upserts) != 1 || len(u.Bind)+len(u.Install)+len(u.Remove) > 0 {
		t.Fatalf("a new identity gives %+v", u)
	}
	e.RemoveIdentity(999)
	if u := k.sync(e); len(u.Deltas) != 1 || len(u.Deltas[0].Deletes) != 1 || len(u.Bind) != 10 || len(u.Install)+len(u.Remove) > 0 {
		t.Fatalf("a removed identity gives %+v", u)
	}
	// An identity elsewhere is nothing.
	set, _ = labels.PodLabels(labels.Pod{Namespace: "ns2", Cluster: "default", Labels: map[string]string{"n": "new"}})
	e.SetIdentity(998, set)
	if u := k.sync(e); !u.Empty() {
		t.Fatalf("an identity that no rule selects gives %+v", u)
	}
}

func peerName(id identity.ID) string {
	if id == 0 {
		return "any"
	}
	return id.String()
}
