package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/enforcement"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/retry"
)

// identityLabels follows which labels make identities in this cluster
// (docs/design/0007-lazy-identities.md): it has the node's endpoints made by them, holds back rules
// that need others, and reports to the operator how far the node is. Where agents make identities
// for themselves all labels count.
type identityLabels struct {
	kubeConfig
	put       func([]policy.Change)
	published *relevance.Published
	gate      *enforcement.LabelGate // nil if all labels count

	// observed opens when it is known by which keys endpoints are made, ready when rules may be put
	// in force; open opens when policy for new pods can be evaluated.
	observed, ready, open *latch
	trigger               chan struct{}

	mu       sync.Mutex
	known    bool
	there    bool
	state    relevance.State
	answered relevance.Answer
}

// newIdentityLabels returns what puts rules in force by way of put, at once if this agent's
// identities are not the operator's business.
func newIdentityLabels(c kubeConfig, put func([]policy.Change), open *latch) (*identityLabels, error) {
	l := &identityLabels{kubeConfig: c, put: put, open: open, observed: newLatch(), ready: newLatch(), trigger: make(chan struct{}, 1)}
	if !c.cfg.management().Operator() || c.cfg.identityMode() != identityCRD || c.cfg.KVStore != "" {
		return l, nil
	}
	var err error
	l.published, err = relevance.New(c.cluster.client, c.cfg.inNamespace(), c.cfg.NodeName, c.log)
	l.gate = enforcement.NewLabelGate(put)
	return l, err
}

// apply puts rules of the cluster in force as far as identities have the labels that they need.
func (l *identityLabels) apply(ctx context.Context, list []policy.Change) {
	if l.gate == nil {
		l.put(list)
		return
	}
	if l.ready.wait(ctx) == nil {
		l.gate.Apply(list)
		l.notify()
	}
}

// start begins to follow. known is called when it is known by which labels endpoints are made.
func (l *identityLabels) start(run *group, known func()) {
	if l.gate == nil {
		known()
		return
	}
	run.start("identity-labels", func(ctx context.Context) error {
		if !l.cfg.narrowLabels() {
			narrowed, err := l.published.Narrowed(ctx)
			if err != nil {
				return nil // ctx has ended
			}
			if !narrowed {
				l.gate.Permit(labels.AllKeys())
				l.observed.open()
				l.ready.open()
				known()
				return nil
			}
			if l.cfg.StaticCNPPath != "" {
				return fmt.Errorf("identities of this cluster are made by the labels that its policies select (ConfigMap %s/%s), and rules of files "+
					"(--static-cnp-path) may select others; turn --%s of the operator to %s first, and wait until that ConfigMap is gone",
					l.cfg.inNamespace(), relevance.ConfigMapName, relevance.Flag, relevance.AllLabels)
			}
			l.log.Warn("identities of this cluster are made by the labels that policies select, and so they are on this node, whatever its option",
				"option", relevance.Flag, "configmap", l.cfg.inNamespace()+"/"+relevance.ConfigMapName)
		}
		return l.published.Run(ctx, func(s relevance.State, there bool) { l.observe(s, there, known) })
	})
	run.start("identity-labels-follow", l.follow)
}

// await returns when endpoints from before a restart may be taken up, or ctx ends: they would
// change their identity twice otherwise.
func (l *identityLabels) await(ctx context.Context) {
	if l.gate != nil && l.cfg.narrowLabels() {
		_ = l.observed.wait(ctx) // it ends with ctx as well
	}
}

// observe is called with what is published. New endpoints are made by it from here on.
func (l *identityLabels) observe(s relevance.State, there bool, known func()) {
	l.mu.Lock()
	switch {
	case there:
	case l.known: // it was deleted: what is in force stays, and nothing is evaluated by more
		s = relevance.State{Keys: labels.AllKeys(), Ready: l.gate.Permitted()}
	default:
		s = relevance.Everything()
	}
	first := !l.known
	l.state, l.there, l.known = s, there, true
	l.lifecycle.SetFilter(l.filter.Narrow(s.Keys))
	l.gate.Restrict(s.Ready)
	l.mu.Unlock()
	l.log.Info("labels of identities", "generation", s.Generation, "keys", s.Keys.List(), "all", s.Keys.All(), "ready", s.Ready.List(), "allReady", s.Ready.All())
	if first {
		l.observed.open()
		known()
	}
	l.notify()
}

// policyLabels returns the keys of the labels by which rules are evaluated.
func (l *identityLabels) policyLabels() labels.Keys {
	if l.gate == nil {
		return labels.AllKeys()
	}
	return l.gate.Permitted()
}

// notify has follow look.
func (l *identityLabels) notify() {
	retry.Notify(l.trigger)
}

// Pauses between looks: while something is under way, and when nothing is, because endpoints get
// their identities without a notification.
const (
	labelsBusy = 100 * time.Millisecond
	labelsIdle = 5 * time.Second
)

// follow does what is to be done after observe, until ctx ends.
func (l *identityLabels) follow(ctx context.Context) error {
	if l.observed.wait(ctx) != nil {
		return nil
	}
	l.mu.Lock()
	nothing := !l.known
	l.mu.Unlock()
	if nothing { // to follow: all labels count
		return nil
	}
	failing := false
	for ctx.Err() == nil {
		busy, err := l.advance(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			l.log.Warn("this node does not follow the labels of identities yet; trying again", "error", err)
		}
		failing = err != nil
		pause := labelsIdle
		if busy || failing {
			pause = labelsBusy
		}
		retry.SleepUnless(ctx, pause, l.trigger)
	}
	return nil
}

// advance does what can be done now. busy means that something is left.
func (l *identityLabels) advance(ctx context.Context) (busy bool, err error) {
	l.mu.Lock()
	s, there := l.state, l.there
	l.mu.Unlock()
	begun := l.ready.isOpen()
	if !begun || !l.gate.Permitted().Covers(s.Ready) {
		switch ok, err := l.caughtUp(ctx, s); {
		case err != nil:
			return true, err
		case !ok:
			busy = true
		default:
			l.permit(s)
		}
	}
	if !l.open.isOpen() { // Refilter's condition
		busy = true
	} else if err := l.lifecycle.Refilter(ctx); err != nil {
		return true, err
	}
	held := l.gate.Waiting()
	l.report(held, s)
	relabelling := l.lifecycle.Relabelling()
	busy = busy || relabelling > 0
	if !there || s.Generation == 0 {
		return busy, nil
	}
	return l.answer(ctx, s, relabelling == 0, busy)
}

// permit lets rules be evaluated by the ready keys of a state, unless there is another one by
// now.
func (l *identityLabels) permit(s relevance.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.same(s) {
		return
	}
	l.gate.Permit(s.Ready)
	l.ready.open()
}

// same reports whether a state is still the one that was observed last. It must be called with mu
// held.
func (l *identityLabels) same(s relevance.State) bool {
	return l.state.Generation == s.Generation && l.state.Keys.Equal(s.Keys) && l.state.Ready.Equal(s.Ready)
}

// answer reports to the operator how far this node is, if that is further than it knows.
func (l *identityLabels) answer(ctx context.Context, s relevance.State, made, busy bool) (bool, error) {
	l.mu.Lock()
	if !l.same(s) { // what was looked at is not what is published now
		l.mu.Unlock()
		return true, nil
	}
	now := l.answered
	if made {
		now.Made = s.Generation
	}
	if s.Ready.Covers(l.gate.Needed()) {
		now.Enforced = s.Generation
	} else {
		busy = true
	}
	before := l.answered
	l.mu.Unlock()
	if now == before {
		return busy, nil
	}
	if err := l.published.Confirm(ctx, now); err != nil {
		return true, err
	}
	l.mu.Lock()
	l.answered = now
	l.mu.Unlock()
	return busy, nil
}

// caughtUp reports whether this node knows an identity by the ready keys of a state for every pod
// of the cluster, and its kernel does.
func (l *identityLabels) caughtUp(ctx context.Context, s relevance.State) (bool, error) {
	observed := s.Endpoints
	if l.cfg.EndpointSlices {
		observed = s.Slices
	}
	if l.objects.endpoints.Reached() < observed || l.tables.objects.Reached() < s.Identities {
		return false, nil
	}
	// What was observed of identities is handed on a moment later.
	missing := map[identity.ID]string{}
	l.tables.policy.View(func(e *policy.Engine) {
		l.tables.objects.Live(func(id allocator.ID, text string) bool {
			if !e.Knows(identity.ID(id)) {
				missing[identity.ID(id)] = text
			}
			return true
		})
	})
	for id, text := range missing {
		if set, err := labels.ParseKV(text); err == nil && l.tables.identities.Validate(id, set) == nil {
			return false, nil
		}
	}
	if err := l.tables.addresses.WaitTried(ctx, l.tables.cache.Table().Revision()); err != nil {
		return false, fmt.Errorf("write the identities of other nodes' pods to the kernel: %w", err)
	}
	return true, nil
}

// partLabels is the name under which the status shows policies that wait for identities.
const partLabels = "identity-labels"

// report shows in the status what is held back.
func (l *identityLabels) report(held []policy.Owner, s relevance.State) {
	switch {
	case len(held) > 0:
		l.tables.components.Set(partLabels, rest.StateWarning, fmt.Sprintf("%d policies wait until the identities of all pods have the labels that they select, among them %s; "+
			"hawser operator status shows for whom", len(held), held[0]))
	case s.Keys.All():
		l.tables.components.Set(partLabels, rest.StateOk, "all labels make identities")
	default:
		l.tables.components.Set(partLabels, rest.StateOk, fmt.Sprintf("labels with %d keys make identities", len(s.Keys.List())))
	}
}

// waits reports whether the rules of an owner, as they are now, are held back.
func (l *identityLabels) waits(o policy.Owner) bool {
	return l.gate != nil && slices.Contains(l.gate.Waiting(), o)
}
