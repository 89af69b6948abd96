package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/testenv/policygen"
	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/matrix"
	"github.com/hawser-net/hawser/test/cluster/world"
)

const (
	system = "kube-system"
	// maxFaults ends a run: what comes after many faults says little.
	maxFaults = 5
	// maxPolicies at once; more of them deny nearly everything.
	maxPolicies = 6
	// convergence bounds how long agents, objects and kernels may take to agree after a change. A
	// frozen leader's lease has to run out first.
	convergence = 3 * time.Minute
)

// soak is one run. Choices come from rng only, so that a seed repeats them.
type soak struct {
	*world.World
	options
	out    io.Writer
	began  time.Time
	result result

	mu       sync.Mutex // of out and result.Faults
	rng      *rand.Rand
	gen      *policygen.Generator
	pods     int // names given
	meanings map[string]meaning
	copies   copies
}

// meaning is what an ID stood for when it was seen last.
type meaning struct {
	labels string
	seen   time.Time
}

func (s *soak) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%7.1fs %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *soak) fault(step int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.say("  FAULT: %s", text)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result.Faults = append(s.result.Faults, fmt.Sprintf("step %d: %s\nrepeat it with: %s", step, text, s.again(step)))
}

func (s *soak) run(ctx context.Context) error {
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	// Policies by random cut it off from the API server, so that it is never ready again; no
	// probe here asks for names.
	if _, err := s.Kubectl(ctx, "", "-n", system, "scale", "deployment/coredns", "--replicas=0"); err != nil {
		return err
	}
	s.rng = rand.New(rand.NewPCG(s.seed, 0))
	s.meanings = map[string]meaning{}
	if err := s.Populate(ctx, s.rng, s.options.pods); err != nil {
		return err
	}
	s.pods = s.options.pods
	s.gen = &policygen.Generator{Rand: s.rng, Words: s.Words()}
	if err := s.check(ctx, 0); err != nil {
		return err
	}
	for step := 1; ; step++ {
		if len(s.result.Faults) >= maxFaults || s.steps > 0 && step > s.steps || s.steps == 0 && time.Since(s.began) > s.lasts {
			return nil
		}
		if err := s.step(ctx, step); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		s.result.Steps++
	}
}

// step makes one change, perhaps while something is disturbed, and probes before, meanwhile and
// afterwards.
func (s *soak) step(ctx context.Context, step int) error {
	d, c, err := s.choose(ctx)
	if err != nil {
		return err
	}
	s.result.Kinds[d.kind]++
	s.result.Kinds[c.kind]++
	s.say("step %d: %s; %s", step, d, c)
	began := time.Now()
	watch := s.watch(ctx, step, c)
	err = s.disturbed(ctx, d, c)
	if err == nil {
		if convergeErr := s.converge(ctx); convergeErr != nil {
			s.fault(step, "%s; %s: not converged: %v\n%s", d, c, convergeErr, s.described())
		}
	}
	watch.stop()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	s.say("  %d probes meanwhile; converged after %.1f s", watch.probes, time.Since(began).Seconds())
	s.result.Meanwhile += watch.probes
	return s.check(ctx, step)
}

// disturbed makes the change while the disturbance lasts. The disturbance always ends.
func (s *soak) disturbed(ctx context.Context, d disturbance, c change) (err error) {
	if err := d.begin(ctx); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", d, err), d.end(context.WithoutCancel(ctx)))
	}
	if err = c.make(ctx); err != nil {
		err = fmt.Errorf("%s: %w", c, err)
	}
	if err == nil && d.changed != nil {
		err = d.changed(ctx)
	}
	retry.Sleep(ctx, d.lasts)
	if endErr := d.end(context.WithoutCancel(ctx)); endErr != nil {
		err = errors.Join(err, fmt.Errorf("end of: %s: %w", d, endErr))
	}
	if err == nil && c.undo != nil {
		err = c.undo(ctx)
	}
	return err
}

// converge waits until agents are well, have the policies, and everything fits together.
func (s *soak) converge(ctx context.Context) error {
	if err := invariant.AgentsAnswer(ctx, s.Lab, convergence); err != nil {
		return err
	}
	if err := s.Arrived(ctx, convergence); err != nil {
		return err
	}
	return invariant.Hold(ctx, s.Lab, convergence)
}

// check compares everything when nothing is under way.
func (s *soak) check(ctx context.Context, step int) error {
	if err := s.Enter(ctx); err != nil {
		return err
	}
	probes := matrix.Plan(s.Parties, world.Ports(), s.Evaluator(s.Policies))
	wrong, err := matrix.Measure(ctx, probes, s.settle)
	if err != nil {
		return err
	}
	s.result.Settled += len(probes)
	if len(wrong) > 0 {
		s.fault(step, "%d of %d probes differ when all has settled: %s\n%s", len(wrong), len(probes), wrong[0], s.described())
	}
	return s.numbers(ctx, step)
}

// described lists the policies in force.
func (s *soak) described() string {
	var b strings.Builder
	for _, o := range s.Policies {
		fmt.Fprintf(&b, "---\n%s", o.Text())
	}
	return b.String()
}

// quarantine is for how long an ID that was collected must not get another meaning.
const quarantine = 10 * time.Minute

// numbers sees that no ID that was in use a moment ago means something else now.
func (s *soak) numbers(ctx context.Context, step int) error {
	w, err := invariant.Read(ctx, s.Lab)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, id := range w.Identities {
		text := invariant.IdentityLabels(&id).String()
		if len(id.SecurityLabels) == 0 {
			continue // in quarantine
		}
		if last, ok := s.meanings[id.Name]; ok && last.labels != text && now.Sub(last.seen) < quarantine {
			s.fault(step, "identity %s was %s %s ago and is %s", id.Name, last.labels, now.Sub(last.seen).Round(time.Second), text)
		}
		s.meanings[id.Name] = meaning{text, now}
	}
	return nil
}
