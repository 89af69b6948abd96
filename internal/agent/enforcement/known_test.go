package enforcement

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// peerBench is a node whose pods have peers on other nodes, with identities that the node observes
// at any time.
type peerBench struct {
	*crashBench
	changes []policy.Change
	log     []string
}

// peerIDs are the identities of other nodes' pods, one of another cluster.
var peerIDs = []identity.ID{1000, 1001, 1002, 1003, 70000}

// peerAddress is that of each peer. The policy peersByAddress is about what is around it.
var peerAddress = netip.MustParseAddr("10.9.0.1")

const peersByAddress = "by address"

func (m *peerBench) labels(id identity.ID) labels.Set {
	app := []string{"evil", "good", "plain"}[int(id)%3]
	set, err := labels.PodLabels(labels.Pod{Namespace: "a", Cluster: "default", Labels: map[string]string{"app": app, "n": fmt.Sprint(id)}})
	if err != nil {
		m.t.Fatal(err)
	}
	return set
}

func newPeerBench(t *testing.T, seed uint64) *peerBench {
	m := &crashBench{t: t, rng: rand.New(rand.NewPCG(seed, 9)), node: fake.New(), dir: t.TempDir()}
	return &peerBench{m, []policy.Change{
		parsed(t, "x", `{"endpointSelector":{"matchLabels":{"app":"x"}},"ingress":[{"fromEntities":["all"]},{"fromEntities":["init","unmanaged"]}],
			"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"app":"evil"}}],"toPorts":[{"ports":[{"port":"80","protocol":"TCP"}]}]}]}`),
		parsed(t, "y", `{"endpointSelector":{"matchLabels":{"app":"y"}},"egressDeny":[{"toEndpoints":[{"matchExpressions":[{"key":"app","operator":"In","values":["evil","other"]}]}]}],
			"enableDefaultDeny":{"egress":false},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"good"}}]},{"fromEntities":["init","unmanaged"]}]}`),
		parsed(t, "z", `{"tier":"Admin","priority":1,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"z"}}}},
			"ingress":[{"action":"Accept","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"good"}}}}]},
			{"action":"Deny","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"evil"}}}}]}]}`),
		parsed(t, "by name", `{"endpointSelector":{"matchLabels":{"app":"x"}},"egress":[{"toEntities":["all"]}],
			"egressDeny":[{"toEndpoints":[{"matchLabels":{"app":"evil"}}],"toPorts":[{"ports":[{"port":"pg","protocol":"TCP"}]}]}]}`),
		parsed(t, "cluster", `{"endpointSelector":{"matchLabels":{"app":"y"}},"ingress":[{"fromEntities":["all"],"toPorts":[{"ports":[{"port":"443","protocol":"TCP"}]}]}],
			"ingressDeny":[{"fromEntities":["cluster"],"toPorts":[{"ports":[{"port":"443","protocol":"TCP"}]}]}]}`),
		parsed(t, "not evil", `{"endpointSelector":{"matchLabels":{"app":"z"}},"egress":[{"toEntities":["all"]}],"egressDeny":[{"toEndpoints":[{"matchLabels":{"app":"evil"}}]}]}`),
		parsed(t, peersByAddress, `{"tier":"Admin","priority":2,"subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"z"}}}},
			"egress":[{"action":"Pass","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"evil"}}}}]},
			{"action":"Accept","to":[{"networks":["10.9.0.0/16"]}]}]}`),
	}, []string{fmt.Sprint("seed ", seed)}}
}

// passes has for each peer a letter for each packet: + passes.
func (m *peerBench) passes() map[identity.ID]string {
	out := map[identity.ID]string{}
	for _, id := range append([]identity.ID{identity.Unobserved}, peerIDs...) {
		var b strings.Builder
		for _, pod := range benchPods {
			for _, dir := range []datapath.Direction{datapath.Ingress, datapath.Egress} {
				for _, port := range []uint16{80, 443} {
					if m.node.Maps.Verdict(pod, dir, uint32(id), peerAddress, 6, port) == datapath.ReasonForwarded {
						b.WriteByte('+')
					} else {
						b.WriteByte('-')
					}
				}
			}
		}
		out[id] = b.String()
	}
	return out
}

// observe has the agent know of identities that came and went, with the names of their ports.
func (m *peerBench) observe(come, gone []identity.ID) error {
	sets := map[identity.ID]labels.Set{}
	for _, id := range come {
		sets[id] = m.labels(id)
	}
	return errors.Join(m.policy.Change(func(e *policy.Engine) error {
		var errs []error
		for _, id := range come {
			errs = append(errs, e.SetNamedPorts(id, "pg.TCP.443"))
		}
		return errors.Join(errs...)
	}), m.policy.SetIdentities(sets, gone))
}

// TestUnknownPeers has an agent observe and forget identities of peers in any order, and kills it
// before any of its writes. At every moment a packet passes only if the rules let the peer's labels
// pass, whether the node has observed them or not. What it knows throughout is let pass all the
// time; what it does not know, in the end as a peer that is not observed.
func TestUnknownPeers(t *testing.T) {
	t.Parallel()
	for seed := range ruleSeeds() {
		all := newPeerBench(t, seed)
		all.start(all.changes)
		all.must(all.observe(peerIDs, nil))
		meant := all.passes()

		m := newPeerBench(t, seed)
		m.start(m.changes)
		known := map[identity.ID]bool{}
		for range 6 {
			var come, gone, stay []identity.ID
			for _, id := range peerIDs {
				switch {
				case m.rng.IntN(3) > 0 && known[id]:
					stay = append(stay, id)
				case known[id]:
					gone = append(gone, id)
				case m.rng.IntN(2) == 0:
					come = append(come, id)
				}
			}
			m.log = append(m.log, fmt.Sprintf("come %d, go %d, stay %d", come, gone, stay))
			check := func(op string) {
				now := m.passes()
				for _, id := range peerIDs {
					for i, c := range now[id] {
						if c == '+' && meant[id][i] != '+' {
							t.Fatalf("before %s: packet %d of %d (%s) passes\n%s", op, i, id, m.labels(id), strings.Join(m.log, "\n"))
						}
					}
				}
				for _, id := range stay {
					if now[id] != meant[id] {
						t.Fatalf("before %s: of %d (%s) passes %s, not %s\n%s", op, id, m.labels(id), now[id], meant[id], strings.Join(m.log, "\n"))
					}
				}
			}
			// What is gone for the agent may be there for it again after a restart, and not be
			// observed any more in the end.
			f := func() { m.must(m.observe(come, gone)) }
			for !m.killedAfter(m.rng.IntN(40), check, f) {
				m.log = append(m.log, "killed")
				f = func() {
					m.must(m.begin(m.changes))
					half := m.rng.IntN(len(come) + 1)
					m.must(m.observe(append(stay, come[:half]...), nil))
					m.finish()
					m.must(m.observe(come[half:], nil))
				}
			}
			for _, id := range come {
				known[id] = true
			}
			for _, id := range gone {
				delete(known, id)
			}
			now := m.passes()
			for _, id := range peerIDs {
				want := now[identity.Unobserved]
				if known[id] {
					want = meant[id]
				}
				if now[id] != want {
					t.Fatalf("in the end: of %d (%s, known %t) passes %s, not %s\n%s", id, m.labels(id), known[id], now[id], want, strings.Join(m.log, "\n"))
				}
			}
		}
	}
}

// TestKnownIdentitiesNotWritten: while the kernel takes no record of identities, what is new is
// evaluated as not observed, and what is gone does not open anything; a retry mends it.
func TestKnownIdentitiesNotWritten(t *testing.T) {
	t.Parallel()
	m := newPeerBench(t, 1)
	m.start(m.changes)
	m.must(m.observe([]identity.ID{1000, 1001}, nil))
	before := m.passes()
	full := errors.New("full")
	m.node.SetFault(func(op string, _ any) error {
		if op == "Maps.UpdateKnownIdentities" || op == "Maps.SetKnownIdentities" {
			return full
		}
		return nil
	})
	if err := m.observe([]identity.ID{1003}, []identity.ID{1000}); !errors.Is(err, full) {
		t.Errorf("the fault is reported as %v", err)
	}
	now := m.passes()
	if now[1003] != now[identity.Unobserved] || now[1001] != before[1001] {
		t.Errorf("verdicts %v, before %v", now, before)
	}
	if err := m.policy.Retry(); !errors.Is(err, full) {
		t.Errorf("a retry says %v", err)
	}
	m.node.SetFault(nil)
	m.must(m.policy.Retry())
	if now := m.passes(); now[1003] != before[1000] || now[1000] != now[identity.Unobserved] {
		t.Errorf("after the retry verdicts %v, before %v", now, before)
	}
}

// TestKnownIdentitiesAfterUpgrade: the agent of before has recorded no identities. Until the rules
// are synced each counts as known, so that nothing is dropped that was let pass.
func TestKnownIdentitiesAfterUpgrade(t *testing.T) {
	t.Parallel()
	m := newPeerBench(t, 1)
	// The agent of before is made without what gives blocks of addresses their identities.
	m.changes = slices.DeleteFunc(m.changes, func(ch policy.Change) bool { return ch.Owner == peersByAddress })
	engine, err := policy.New(policy.Defaults())
	m.must(err)
	old, err := NewPolicy(slog.New(slog.DiscardHandler), engine, recordsNothing{m.node.Maps})
	m.must(err)
	m.policy = old
	m.must(m.policy.Synced(), m.policy.Change(func(e *policy.Engine) error {
		for _, ch := range m.changes {
			m.must(e.SetRules(ch.Owner, ch.Rules))
		}
		return nil
	}), m.observe(peerIDs, nil))
	for i := range benchPods {
		_, _, err := m.policy.Attach(m.endpoint(i))
		m.must(err)
	}
	meant := m.passes()
	check := func(op string) {
		for id, want := range meant {
			if got := m.passes()[id]; got != want {
				t.Fatalf("before %s: of %d passes %s, not %s", op, id, got, want)
			}
		}
	}
	m.killedAfter(1<<20, check, func() {
		m.must(m.begin(m.changes), m.observe(peerIDs, nil))
		m.finish()
	})
	m.must(m.observe(nil, peerIDs[:1]))
	if now := m.passes(); now[peerIDs[0]] != now[identity.Unobserved] {
		t.Errorf("what is gone counts as known: %v", now)
	}
}

// recordsNothing is the kernel to an agent of before.
type recordsNothing struct{ *fake.Maps }

func (recordsNothing) SetKnownIdentities([]uint32) error         { return nil }
func (recordsNothing) UpdateKnownIdentities(_, _ []uint32) error { return nil }
func (recordsNothing) KnownIdentities() ([]uint32, bool, error)  { return nil, true, nil }
