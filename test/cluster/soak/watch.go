package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-net/hawser/test/cluster/matrix"
	"github.com/hawser-net/hawser/test/cluster/world"
)

const (
	// sample is how many probes are under way at once while something changes.
	sample = 150
	// lostAfter is how long a probe that should get through is repeated before it counts as
	// lost: the machine is busy.
	lostAfter = 10 * time.Second
)

// watch probes, while a change is under way, what the change does not concern.
type watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	probes int // valid after stop
}

// stable lists the probes whose outcome is the same before and after a change and at any moment
// between: both ends keep their labels, and the same side refuses or both sides allow. Each node
// learns of the change in its own time, so a probe that one side refuses before and the other
// afterwards may get through in between.
func (s *soak) stable(c change) (out []*matrix.Probe) {
	before, after := s.Evaluator(s.Policies), s.Evaluator(s.Policies)
	if c.policies != nil {
		after = s.Evaluator(c.policies)
	}
	for _, p := range matrix.Plan(s.Parties, world.Ports(), before) {
		if c.concerns != nil && (c.concerns(p.From) || c.concerns(p.To)) {
			continue
		}
		later := *p
		after.Expect(&later)
		switch {
		case p.Expected && later.Expected, !p.Egress && !later.Egress, !p.Ingress && !later.Ingress:
			out = append(out, p)
		}
	}
	return out
}

// watch starts to probe. What is refused and gets through is a fault at once.
func (s *soak) watch(ctx context.Context, step int, c change) *watch {
	probes := s.stable(c)
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{cancel: cancel}
	// Not the generator of the changes: how often it is asked depends on time.
	rng := rand.New(rand.NewPCG(s.seed, uint64(step)))
	w.done.Go(func() {
		for ctx.Err() == nil && len(probes) > 0 {
			rng.Shuffle(len(probes), func(i, j int) { probes[i], probes[j] = probes[j], probes[i] })
			some := probes[:min(sample, len(probes))]
			wrong, err := matrix.Measure(ctx, some, 0)
			if err != nil {
				return
			}
			w.probes += len(some)
			var lost []*matrix.Probe
			for _, p := range wrong {
				if p.Reached {
					s.fault(step, "while something changed that does not concern it (%s): %s\n%s", c, p, s.described())
					return
				}
				lost = append(lost, p)
			}
			if len(lost) == 0 {
				continue
			}
			if lost, err = matrix.Measure(ctx, lost, lostAfter); err != nil {
				return
			}
			if len(lost) > 0 {
				s.fault(step, "while something changed that does not concern it (%s): %s\n%s", c, lost[0], s.described())
				return
			}
		}
	})
	return w
}

// stop ends the probing and waits for what is under way.
func (w *watch) stop() {
	w.cancel()
	w.done.Wait()
}
