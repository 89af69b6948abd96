package relevance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/labels"
)

func TestNext(t *testing.T) {
	t.Parallel()
	all, none := labels.AllKeys(), labels.Keys{}
	app, both := labels.KeysOf("app"), labels.KeysOf("app", "tier")
	three := labels.KeysOf("app", "tier", "new")
	var many []string
	for i := range 1600 {
		many = append(many, fmt.Sprintf("%0300d", i))
	}
	yes, no := func() bool { return true }, func() bool { return false }
	for _, c := range []struct {
		name          string
		keys, ready   labels.Keys
		f             facts
		keys2, ready2 labels.Keys
		changed       bool
	}{
		{"nothing to do", app, app, facts{need: app}, app, app, false},
		{"a key comes", app, app, facts{need: both}, both, app, true},
		{"it is not made by all agents", both, app, facts{need: both, applied: yes}, both, app, false},
		{"it is not applied to all endpoints", both, app, facts{need: both, made: true, applied: no}, both, app, false},
		{"it is evaluated by", both, app, facts{need: both, made: true, applied: yes}, both, both, true},
		{"a key goes", both, both, facts{need: app, made: true, enforced: true}, both, app, true},
		{"an agent still goes by it", both, app, facts{need: app, made: true}, both, app, false},
		{"it is left out", both, app, facts{need: app, enforced: true}, app, app, true},
		{"it comes back while it goes", both, app, facts{need: both, made: true, applied: yes}, both, both, true},
		{"it goes while it comes", both, app, facts{need: app}, both, app, false},
		{"the first narrowing", all, all, facts{need: app}, all, app, true},
		{"the first narrowing, everybody follows", all, app, facts{need: app, enforced: true}, app, app, true},
		{"no labels at all", all, none, facts{need: none, enforced: true}, none, none, true},
		{"a rule that needs all", app, app, facts{need: all}, all, app, true},
		{"a rule that needs all may be evaluated", all, app, facts{need: all, made: true, applied: yes}, all, all, true},
		{"another key comes while one goes", both, app, facts{need: labels.KeysOf("app", "new")}, three, app, true},
		{"another key comes before one is ready", both, app, facts{need: three, applied: yes}, both, app, false},
		{"the first is ready", both, app, facts{need: three, made: true, applied: yes}, both, both, true},
		{"then comes the other", both, both, facts{need: three}, three, both, true},
		{"more keys than a ConfigMap has room for", app, app, facts{need: labels.KeysOf(many...)}, all, app, true},
	} {
		got, changed := next(k8skeys.State{Generation: 4, Keys: c.keys, Ready: c.ready}, c.f)
		want := uint64(4)
		if c.changed {
			want++
		}
		if changed != c.changed || !got.Keys.Equal(c.keys2) || !got.Ready.Equal(c.ready2) || got.Generation != want {
			t.Errorf("%s: %v, keys %q, ready %q, generation %d", c.name, changed, got.Keys, got.Ready, got.Generation)
		}
	}
}

// node is an agent of the model below.
type node struct {
	seen     k8skeys.State
	made     labels.Keys // by which its pods have their identities
	relabels labels.Keys // to which it is changing them
	inForce  labels.Keys // that its rules use
	api      labels.Keys // that the rules need which it has observed
	answer   k8skeys.Answer
}

// Whatever the order in which agents observe and do things, no agent judges by a key by which some
// other agent's pods are not made. Agents observe late, change pods in steps of their own, and
// answer when they have.
func TestNoRuleIsEvaluatedByAMissingLabel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		published := k8skeys.Everything()
		published.Generation = 1
		nodes := make([]*node, 3)
		for i := range nodes {
			nodes[i] = &node{seen: published, made: published.Keys, relabels: published.Keys}
		}
		var api labels.Keys
		narrowed, enforced := 0, 0
		for step := range 600 {
			n := nodes[rng.IntN(len(nodes))]
			switch rng.IntN(6) {
			case 0: // a user changes the rules
				api = labels.Keys{}
				for i := range 3 {
					if rng.IntN(2) == 0 {
						api = api.Union(labels.KeysOf(fmt.Sprint("k", i)))
					}
				}
				if rng.IntN(8) == 0 {
					api = labels.AllKeys()
				}
			case 1: // the operator looks
				made, j := true, true
				for _, n := range nodes {
					made, j = made && n.answer.Made >= published.Generation, j && n.answer.Enforced >= published.Generation
				}
				published, _ = next(published, facts{need: api, made: made, enforced: j, applied: func() bool { return true }})
			case 2: // an agent observes what is published
				n.seen = published
				n.relabels = published.Keys
			case 3: // it has changed its pods
				n.made = n.relabels
			case 4: // it observes rules, and puts them in force if it may
				if n.api = api; n.seen.Ready.Covers(n.api) {
					n.inForce = n.api
				}
			case 5: // it answers
				if n.made.Equal(n.seen.Keys) {
					n.answer.Made = n.seen.Generation
				}
				if n.seen.Ready.Covers(n.inForce) {
					n.answer.Enforced = n.seen.Generation
				}
			}
			for i, judge := range nodes {
				if len(judge.inForce.List()) > 0 || judge.inForce.All() {
					enforced++
				}
				for j, owner := range nodes {
					if !owner.made.Covers(judge.inForce) {
						t.Fatalf("seed %d, step %d: node %d judges by %q, the pods of node %d have %q", seed, step, i, judge.inForce, j, owner.made)
					}
				}
			}
			if !published.Keys.All() {
				narrowed++
			}
		}
		if narrowed == 0 || enforced == 0 {
			t.Logf("seed %d: narrowed in %d steps, enforced in %d", seed, narrowed, enforced)
		}
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := since(10*time.Minute, labels.AllKeys(), began)
	check := func(minute int, now, want labels.Keys, at int) {
		t.Helper()
		got, until := m.need(now, began.Add(time.Duration(minute)*time.Minute))
		wantAt := time.Time{}
		if at != 0 {
			wantAt = began.Add(time.Duration(at) * time.Minute)
		}
		if !got.Equal(want) || !until.Equal(wantAt) {
			t.Errorf("minute %d: %q until %v, want %q until %v", minute, got, until, want, wantAt)
		}
	}
	app, tier := labels.KeysOf("app"), labels.KeysOf("tier")
	check(0, app, labels.AllKeys(), 10)
	check(9, app, labels.AllKeys(), 10)
	check(10, app, app, 0)
	check(11, tier, labels.KeysOf("app", "tier"), 20)
	check(19, tier, labels.KeysOf("app", "tier"), 20)
	check(20, tier, tier, 0)
	check(21, labels.AllKeys(), labels.AllKeys(), 0)
	check(22, app, labels.AllKeys(), 30)
	check(31, app, app, 0)
}
