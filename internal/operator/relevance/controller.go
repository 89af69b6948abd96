package relevance

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	api "github.com/hawser-net/hawser/api/operator"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Identities is what makes identities: the controller of package identities.
type Identities interface {
	SetKeys(labels.Keys)
	LabelSets() (now, full int)
	Applied(context.Context) (v identities.Versions, why string, err error)
}

// Controller leads the cluster from one choice of keys to the next. It runs in a manager, which
// [Controller.Setup] adds it to.
type Controller struct {
	cfg       Config
	namespace string
	log       *slog.Logger

	client client.Client // with a cache
	live   client.Reader
	ids    Identities
	rules  *policies.Policies
	// known is closed when it is known by which keys identities are made.
	known chan struct{}
	// moved is sent to when policies have changed.
	moved chan struct{}
	// absent is since when nodes are not there whose agents have answered, swept when those were
	// looked for last that are gone. They are run's.
	absent map[string]time.Time
	swept  time.Time

	mu      sync.Mutex
	synced  bool // all policies
	byOwner map[policy.Owner]labels.Keys
	state   k8skeys.State
	object  *corev1.ConfigMap // as last read or written; nil if there is none
	waits   []string          // for what the next step waits
}

// New returns a controller that does nothing yet. namespace is that of the operator and the agents.
func New(cfg Config, namespace string, log *slog.Logger) *Controller {
	return &Controller{
		cfg: cfg, namespace: namespace, log: log, known: make(chan struct{}), moved: make(chan struct{}, 1), byOwner: map[policy.Owner]labels.Keys{},
		state: k8skeys.Everything(),
	}
}

// Await returns when ids knows by which keys identities are made, or ctx ends. See
// identities.Control.
func (c *Controller) Await(ctx context.Context) {
	select {
	case <-c.known:
	case <-ctx.Done():
	}
}

// Setup adds the controller to m.
func (c *Controller) Setup(m manager.Manager, ids Identities, reg prometheus.Registerer) error {
	c.client, c.live, c.ids = m.GetClient(), m.GetAPIReader(), ids
	conn, err := k8s.New(m.GetConfig())
	if err != nil {
		return err
	}
	if c.rules, err = policies.New(policies.Defaults(), conn, c.log); err != nil {
		return err
	}
	if err := reg.Register(collector{c}); err != nil {
		return fmt.Errorf("metrics of the labels of identities: %w", err)
	}
	return m.Add(manager.RunnableFunc(c.run))
}

// errPause is the pause after a request that failed.
const errPause = time.Second

// run does everything until ctx ends.
func (c *Controller) run(ctx context.Context) error {
	for {
		there, err := c.begin(ctx)
		if err == nil && !there {
			c.ids.SetKeys(labels.AllKeys())
			close(c.known)
			return nil
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		c.log.Warn("cannot find out which labels make identities; none is made until then", "error", err)
		if !retry.Sleep(ctx, errPause) {
			return nil
		}
	}
	c.ids.SetKeys(c.state.Keys)
	close(c.known)
	c.log.Info("labels of identities", "keys", c.state.Keys.List(), "all", c.state.Keys.All(), "generation", c.state.Generation)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.cfg.Narrow() {
		wg.Go(func() {
			if err := c.rules.Run(ctx, c.changed); err != nil {
				c.log.Error("policies cannot be followed; no label is left out of identities any more, and none is added", "error", err)
			}
		})
	}
	c.lead(ctx)
	stop()
	return nil
}

// changed is called with changes of policies.
func (c *Controller) changed(list []policy.Change) {
	c.mu.Lock()
	c.synced = true
	for _, ch := range list {
		if delete(c.byOwner, ch.Owner); len(ch.Rules) > 0 {
			c.byOwner[ch.Owner] = policy.LabelKeys(ch.Rules)
		}
	}
	c.mu.Unlock()
	retry.Notify(c.moved)
}

// wanted returns the keys that policies use now; ok is false as long as that is not known.
func (c *Controller) wanted() (keys labels.Keys, ok bool) {
	if !c.cfg.Narrow() {
		return labels.AllKeys(), true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.byOwner {
		keys = keys.Union(k)
	}
	return keys, c.synced
}

// begin reads what is published, or publishes the first state. there is false if nothing is
// published, and nothing is to be.
func (c *Controller) begin(ctx context.Context) (there bool, err error) {
	found, err := c.read(ctx)
	switch {
	case err != nil && apierrors.IsForbidden(err) && !c.cfg.Narrow():
		return false, nil // of a cluster that never had the option
	case err != nil || found:
		return found, err
	case !c.cfg.Narrow():
		return false, nil
	}
	return true, c.restart(ctx)
}

// restart publishes a state where there is none, or none that can be read. If agents have answered
// before, some may make identities by some keys only. Which ones is not known, so identities are
// made by all keys first, and no new policy is evaluated until they are.
func (c *Controller) restart(ctx context.Context) error {
	answers, err := c.answers(ctx)
	if err != nil {
		return err
	}
	s := k8skeys.Everything()
	for _, a := range answers {
		s.Generation = max(s.Generation, a.Made, a.Enforced)
	}
	s.Generation++
	if len(answers) > 0 {
		s.Ready = labels.Keys{}
		c.log.Warn("the published labels of identities are gone; all labels count until it is known that identities have them")
	}
	return c.publish(ctx, s)
}

// read reads what is published. found is false if there is nothing that makes sense.
func (c *Controller) read(ctx context.Context) (found bool, err error) {
	o := &corev1.ConfigMap{}
	err = c.live.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: k8skeys.ConfigMapName}, o)
	if apierrors.IsNotFound(err) {
		c.object = nil
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read ConfigMap %s/%s: %w", c.namespace, k8skeys.ConfigMapName, err)
	}
	c.object = o
	s, err := k8skeys.Read(o)
	if err != nil {
		c.log.Error("the published labels of identities were changed by hand; writing them again", "error", err)
		return false, nil
	}
	c.mu.Lock()
	c.state = s
	c.mu.Unlock()
	return true, nil
}

// publish writes a state, unless there is a conflict, and has identities made by it.
func (c *Controller) publish(ctx context.Context, s k8skeys.State) error {
	var err error
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: k8skeys.ConfigMapName}}
	if c.object != nil {
		o = c.object.DeepCopy()
	}
	s.Fill(o)
	if c.object == nil {
		err = c.client.Create(ctx, o)
	} else {
		err = c.client.Update(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("publish the labels of identities in ConfigMap %s/%s: %w", c.namespace, k8skeys.ConfigMapName, err)
	}
	c.object = o
	c.mu.Lock()
	c.state = s
	c.mu.Unlock()
	c.ids.SetKeys(s.Keys)
	c.log.Info("published the labels of identities", "generation", s.Generation, "keys", s.Keys.List(), "all", s.Keys.All(),
		"ready", s.Ready.List(), "allReady", s.Ready.All())
	return nil
}

// minPause is the pause before the second check of those waited for.
const minPause = 50 * time.Millisecond

// lead goes from state to state until ctx ends, or until all labels count for good.
func (c *Controller) lead(ctx context.Context) {
	past := since(c.cfg.GracePeriod, c.state.Keys, time.Now())
	if !c.cfg.Narrow() {
		past = since(0, labels.Keys{}, time.Now())
	}
	pause := minPause
	for ctx.Err() == nil {
		keys, known := c.wanted()
		if !known {
			if !retry.SleepUnless(ctx, c.cfg.MaxPause, c.moved) {
				return
			}
			continue
		}
		need, until := past.need(keys, time.Now())
		step, waits, err := c.step(ctx, need)
		c.mu.Lock()
		c.waits = waits
		c.mu.Unlock()
		wait := c.cfg.Idle
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.log.Warn("the labels of identities stay as they are for now", "error", err)
			wait = errPause
		case step:
			pause = minPause
			continue
		case len(waits) > 0:
			wait = pause
			if pause >= c.cfg.MaxPause {
				c.log.Info("policies wait for labels of identities", "waitingFor", waits)
			}
			pause = min(2*pause, c.cfg.MaxPause)
		case !c.cfg.Narrow():
			c.finish(ctx)
			return
		default:
			pause = minPause
			if err := c.sweep(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("cannot look for agents whose nodes are gone; policies with new labels may wait for them", "error", err)
			}
		}
		if !until.IsZero() {
			wait = min(wait, max(time.Until(until), 0)+time.Millisecond)
		}
		if !retry.SleepUnless(ctx, wait, c.moved) {
			return
		}
	}
}

// step publishes the next state if there is one and its conditions hold. waits is what it waits
// for.
func (c *Controller) step(ctx context.Context, need labels.Keys) (changed bool, waits []string, err error) {
	before := c.state
	if found, err := c.read(ctx); err != nil {
		return false, nil, err
	} else if !found {
		return true, nil, c.restart(ctx)
	}
	if c.state.Generation != before.Generation {
		c.ids.SetKeys(c.state.Keys)
	}
	f := facts{need: need}
	adding := !c.state.Ready.Covers(need.Intersect(c.state.Keys)) // whatever else is new: see next
	removing := c.state.Ready.Equal(need) && !c.state.Keys.Equal(need)
	if adding || removing {
		made, enforced, err := c.behind(ctx, c.state.Generation)
		if err != nil {
			return false, nil, err
		}
		f.made, f.enforced = len(made) == 0, len(enforced) == 0
		if adding {
			waits = made
		} else {
			waits = enforced
		}
	}
	var seen identities.Versions
	f.applied = func() bool {
		var why string
		if seen, why, err = c.ids.Applied(ctx); err != nil || why == "" {
			return err == nil
		}
		waits = append(waits, why)
		return false
	}
	s, changed := next(c.state, f)
	if err != nil || !changed {
		return false, waits, err
	}
	if seen != (identities.Versions{}) {
		s.Endpoints, s.Slices, s.Identities = seen.Endpoints, seen.Slices, seen.Identities
	}
	return true, nil, c.publish(ctx, s)
}

// finish deletes the published state when all labels count and no agent needs it.
func (c *Controller) finish(ctx context.Context) {
	if err := c.client.Delete(ctx, c.object); err != nil && !apierrors.IsNotFound(err) {
		c.log.Warn("cannot remove the published labels of identities; all labels count anyway", "error", err)
		return
	}
	if err := c.forget(ctx, func(string) bool { return true }); err != nil {
		c.log.Warn("cannot remove the agents' confirmations of identity labels", "error", err)
	}
	c.mu.Lock()
	c.state = k8skeys.Everything()
	c.mu.Unlock()
	c.log.Info("all labels make identities")
}

// Status reports how far it is, nil if all labels count and nothing else is meant to be.
func (c *Controller) Status() *api.IdentityLabels {
	c.mu.Lock()
	s, published, waits := c.state, c.state.Generation > 0, c.waits
	c.mu.Unlock()
	if !published {
		return nil
	}
	now, full := c.ids.LabelSets()
	return &api.IdentityLabels{
		Generation: s.Generation, All: s.Keys.All(), Keys: s.Keys.List(), AllReady: s.Ready.All(), Ready: s.Ready.List(),
		Identities: now, WithAllLabels: full, WaitingFor: waits,
	}
}
