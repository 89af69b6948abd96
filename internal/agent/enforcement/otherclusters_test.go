package enforcement

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	kernelmaps "github.com/hawser-net/hawser/internal/datapath/maps"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestIdentitiesOfOtherClusters: another cluster has more identities that a policy selects than a
// rule set may have entries. The pod is not locked: it keeps what others are allowed, and what is
// denied; that cluster is allowed nothing until there is room.
func TestIdentitiesOfOtherClusters(t *testing.T) {
	testenv.RequireRoot(t)
	const share = 256
	c := kernelmaps.Defaults()
	c.Dir, c.CTEntries, c.PolicyEntries, c.RuleSetEntries, c.IPCacheEntries, c.IPCachePrefixes, c.Blocks = "", 4096, 4096, share, 16, 16, 16
	kernel, pol, rules := kernelRules(t, c, 0)
	log := &testenv.Log{}
	pol.log = slog.New(slog.NewTextHandler(log, nil))
	if err := pol.SetCluster(1, 255); err != nil {
		t.Fatal(err)
	}
	attachPod(t, pol, 1, "a")
	if err := rules.Apply([]policy.Change{cnp(t, "api", "a", `{endpointSelector: {},
		ingress: [{fromEndpoints: [{matchExpressions: [{key: io.cilium.k8s.policy.cluster, operator: Exists}, {key: app, operator: In, values: [api, bad]}]}]}],
		ingressDeny: [{fromEndpoints: [{matchExpressions: [{key: io.cilium.k8s.policy.cluster, operator: Exists}, {key: app, operator: In, values: [bad]}]}]}]}`)}); err != nil {
		t.Fatal(err)
	}
	name := map[uint32]string{1: "default", 2: "east", 3: "west"}
	known := map[uint32]map[string]int{1: {}, 2: {}, 3: {}}
	set := func(app string, cluster uint32, from, n int, come bool) {
		t.Helper()
		l, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: name[cluster], Labels: map[string]string{"app": app}})
		if err != nil {
			t.Fatal(err)
		}
		sets, gone := map[identity.ID]labels.Set{}, []identity.ID{}
		for i := range n {
			id := identity.ID(int(cluster)<<16 + from + i)
			if sets[id] = l; !come {
				gone = append(gone, id)
			}
		}
		if known[cluster][app] += n; !come {
			clear(sets)
			known[cluster][app] -= 2 * n
		}
		if err := pol.SetIdentities(sets, gone); err != nil {
			t.Errorf("%d identities of %s: %v", n, name[cluster], err)
		}
	}
	check := func(when string, without ...uint32) {
		t.Helper()
		rows, err := kernel.Endpoints()
		if err != nil || len(rows) != 1 || rows[0].Locked {
			t.Fatal(when, rows, err)
		}
		sets, err := kernel.RuleSets()
		i := slices.IndexFunc(sets, func(rs datapath.RuleSet) bool { return rs.ID == rows[0].RuleSet })
		if err != nil || i < 0 {
			t.Fatal(when, sets, err)
		}
		got := map[uint32]map[string]int{1: {}, 2: {}, 3: {}}
		for k, e := range sets[i].Entries {
			if of := got[k.Identity>>16]; of != nil && k.Direction == datapath.Ingress {
				of[map[bool]string{true: "bad", false: "api"}[e.Deny]]++
			}
		}
		want := map[uint32]map[string]int{}
		for c, of := range known {
			want[c] = maps.Clone(of)
			maps.DeleteFunc(want[c], func(app string, n int) bool { return n == 0 || app == "api" && slices.Contains(without, c) })
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: entries by cluster %v, want %v", when, got, want)
		}
	}
	set("api", 1, 1, 20, true)
	set("api", 3, 1, 60, true)
	set("api", 2, 1, 100, true)
	check("there is room")
	set("api", 2, 101, 400, true)
	check("east has too many", 2)
	set("bad", 2, 1000, 5, true)
	set("api", 2, 2000, 1, true)
	set("api", 1, 100, 1, true)
	set("api", 1, 1, 1, false)
	check("changes meanwhile", 2)
	set("bad", 2, 1, 1, true) // an identity stands for other labels
	known[2]["api"]--
	check("one that was allowed is denied", 2)
	set("api", 2, 1, 1, true)
	known[2]["bad"]--
	check("and allowed again", 2)
	set("api", 3, 100, 200, true)
	check("west has too many, too", 2, 3)
	set("api", 3, 100, 200, false)
	check("west has no more than before", 2)
	set("api", 2, 101, 400, false)
	check("there is room again")
	for cluster, want := range map[int]int{2: 1, 3: 1} {
		if n := strings.Count(log.String(), fmt.Sprintf("cluster-id=%d ", cluster)); n != want {
			t.Errorf("%d complaints about cluster %d, want %d:\n%s", n, cluster, want, log.String())
		}
	}
	// This cluster's own count as before.
	l, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "default", Labels: map[string]string{"app": "api"}})
	if err != nil {
		t.Fatal(err)
	}
	own := map[identity.ID]labels.Set{}
	for i := range share {
		own[identity.ID(1<<16+3000+i)] = l
	}
	if err := pol.SetIdentities(own, nil); !errors.Is(err, datapath.ErrShare) {
		t.Errorf("too many of this cluster: %v", err)
	}
}

// TestNothingMorePasses: whatever the rules and the identities are, a rule set that does without
// what other clusters are allowed lets nothing pass that the whole does not, and has all else.
func TestNothingMorePasses(t *testing.T) {
	t.Parallel()
	var partials, compared int
	for seed := range ruleSeeds() {
		part, whole := newPeerBench(t, seed), newPeerBench(t, seed)
		changes := append(part.changes, // what a tier denies is allowed
			parsed(t, "z, too", `{"endpointSelector":{"matchLabels":{"app":"z"}},"ingress":[{"fromEntities":["all"]},{"fromEndpoints":[{"matchLabels":{"app":"evil"}}]}]}`),
			parsed(t, "y, too", `{"endpointSelector":{"matchLabels":{"app":"y"}},"ingress":[{"fromEndpoints":[{"matchExpressions":[{"key":"app","operator":"In","values":["good","plain"]}]}],
				"toPorts":[{"ports":[{"port":"80","protocol":"TCP"},{"port":"443","protocol":"TCP"}]}]}]}`))
		part.start(changes)
		whole.start(changes)
		part.must(part.policy.SetCluster(1, 255))
		rng := rand.New(rand.NewPCG(seed, 31))
		share := 32 + rng.IntN(24) // more than there is at first
		part.node.Maps.SetRuleSetShare(share)
		known := map[identity.ID]bool{}
		for step := range 30 {
			var what string
			if rng.IntN(4) == 0 {
				change, spec := part.randomRules("random")
				_, _ = part.rules.Apply([]policy.Change{change}), whole.rules.Apply([]policy.Change{change})
				what = spec
			} else {
				var come, gone []identity.ID
				from := identity.ID(rng.IntN(30))
				if from += 1 << 16; rng.IntN(5) > 0 { // mostly of others
					from += identity.ID(1+rng.IntN(2)) << 16
				}
				for i := range identity.ID(1 + rng.IntN(20)) {
					id := from + i
					if rng.IntN(3) > 0 {
						come, known[id] = append(come, id), true
					} else if known[id] {
						gone = append(gone, id)
						delete(known, id)
					}
				}
				_, _ = part.observe(come, gone), whole.observe(come, gone)
				what = fmt.Sprintf("come %d, gone %d", come, gone)
			}
			_ = part.policy.Retry()
			partials += len(part.policy.partial)
			for _, b := range part.policy.rows {
				id := b.binding.RuleSet
				rs, ok := part.policy.engine.RuleSet(id)
				if !ok {
					continue
				}
				least, want := 0, map[datapath.PolicyKey]datapath.PolicyEntry{}
				l := part.policy.partial[id]
				for k, e := range rs.Entries {
					if part.policy.others.allowed(k, e) == 0 {
						least++
					}
					if l == nil || !l.leftOut(k, e) {
						want[k] = e
					}
				}
				if b.kernel.Locked != (least > share) {
					t.Fatalf("seed %d, step %d, %s: endpoint %d is locked: %v; %d entries of the share of %d are not those of others", seed, step, what, b.endpoint.ID, b.kernel.Locked, least, share)
				}
				if b.kernel.Locked {
					continue
				}
				sets, err := part.node.Maps.RuleSets()
				part.must(err)
				i := slices.IndexFunc(sets, func(rs datapath.RuleSet) bool { return rs.ID == b.kernel.RuleSet })
				if i < 0 || !maps.Equal(sets[i].Entries, want) {
					t.Fatalf("seed %d, step %d, %s: endpoint %d: the kernel has not what it is to have", seed, step, what, b.endpoint.ID)
				}
			}
			for id := range known {
				for _, pod := range benchPods {
					for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
						for _, port := range []uint16{80, 443, 7} {
							compared++
							if part.node.Maps.Verdict(pod, dir, uint32(id), peerAddress, 6, port) == datapath.ReasonForwarded &&
								whole.node.Maps.Verdict(pod, dir, uint32(id), peerAddress, 6, port) != datapath.ReasonForwarded {
								t.Fatalf("seed %d, step %d, %s: %s of %v with %d passes at port %d, and by the whole it does not", seed, step, what, dir, pod, id, port)
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d rule sets in part, %d packets", partials, compared)
	if partials == 0 {
		t.Error("no rule set exceeded its share")
	}
}
