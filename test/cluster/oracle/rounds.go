package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/testenv/policygen"
	"github.com/hawser-net/hawser/test/cluster/matrix"
	"github.com/hawser-net/hawser/test/cluster/world"
)

// rounds compares worlds, each of some pods and one set of policies after the other.
type rounds struct {
	*world.World
	options
	out    io.Writer
	began  time.Time
	result result
}

func (r *rounds) run(ctx context.Context) error {
	if err := r.Prepare(ctx); err != nil {
		return err
	}
	for n := uint64(0); ; n++ {
		seed := r.seed + n
		rng := rand.New(rand.NewPCG(seed, 0))
		if err := r.Populate(ctx, rng, r.options.pods); err != nil {
			return fmt.Errorf("world of seed %d: %w", seed, err)
		}
		r.result.Worlds++
		gen := &policygen.Generator{Rand: rng, Words: r.Words(), Refused: 8}
		for round := range r.each {
			if err := r.round(ctx, gen, fmt.Sprintf("seed %d, set %d", seed, round)); err != nil {
				return fmt.Errorf("seed %d, set %d: %w", seed, round, err)
			}
			if r.rounds > 0 && r.result.Rounds >= r.rounds || r.rounds == 0 && time.Since(r.began) > r.lasts || len(r.result.Differences) >= 5 {
				return nil
			}
		}
	}
}

// round compares one set of policies.
func (r *rounds) round(ctx context.Context, gen *policygen.Generator, name string) error {
	var objects []world.Object
	for i := range 1 + gen.Rand.IntN(6) {
		objects = append(objects, world.Random(gen, fmt.Sprintf("p%d", i)))
	}
	began := time.Now()
	kept, err := r.Replace(ctx, objects)
	if err != nil {
		return err
	}
	r.result.Rounds++
	r.result.Refused = r.World.Refused
	r.result.Policies += len(kept)
	probes := matrix.Plan(r.Parties, world.Ports(), r.Evaluator(kept))
	wrong, err := matrix.Measure(ctx, probes, r.settle)
	if err != nil {
		return err
	}
	r.count(probes)
	fmt.Fprintf(r.out, "%6.0fs %s: %d policies, %s, %d not as the oracle says (%.1f s)\n",
		time.Since(r.began).Seconds(), name, len(kept), matrix.Summary(probes), len(wrong), time.Since(began).Seconds())
	if r.Refusal != "" {
		fmt.Fprintf(r.out, "        the API server refused a policy: %s\n", r.Refusal)
		r.Refusal = ""
	}
	if len(wrong) == 0 {
		return nil
	}
	for i, p := range wrong {
		if i == 10 {
			fmt.Fprintf(r.out, "        and %d more\n", len(wrong)-i)
			break
		}
		fmt.Fprintf(r.out, "        %s\n", p)
	}
	text, err := r.smallest(ctx, kept, wrong[0])
	if err != nil {
		return err
	}
	r.result.Differences = append(r.result.Differences, name+": "+text)
	fmt.Fprintf(r.out, "%s\n", text)
	return nil
}

func (r *rounds) count(probes []*matrix.Probe) {
	for _, p := range probes {
		r.result.Probes++
		if p.Reached {
			r.result.Reached++
		} else {
			r.result.Denied++
		}
		if p.Addr.Is4() {
			r.result.Kinds.IPv4++
		} else {
			r.result.Kinds.IPv6++
		}
		switch p.Port.Protocol {
		case matrix.TCP:
			r.result.Kinds.TCP++
		case matrix.UDP:
			r.result.Kinds.UDP++
		case matrix.ICMP:
			r.result.Kinds.ICMP++
		}
	}
}

// smallest takes away what does not matter for a probe that came out wrong, and describes what is
// left.
func (r *rounds) smallest(ctx context.Context, objects []world.Object, wrong *matrix.Probe) (string, error) {
	began, last := time.Now(), *wrong
	differs := func(objects []world.Object) (bool, error) {
		kept, err := r.Replace(ctx, objects)
		if err != nil || len(kept) < len(objects) {
			return false, err
		}
		p := *wrong
		r.Evaluator(kept).Expect(&p)
		found, err := matrix.Measure(ctx, []*matrix.Probe{&p}, 2*time.Second)
		if len(found) > 0 {
			last = p
		}
		return len(found) > 0, err
	}
	objects, tries, err := world.Shrink(objects, func(o []world.Object) (bool, error) {
		if time.Since(began) > 4*time.Minute {
			return false, nil // small enough
		}
		return differs(o)
	})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", last.String())
	for _, p := range []*matrix.Party{wrong.From, wrong.To} {
		fmt.Fprintf(&b, "  %s on %s, %v, ports %v: %s\n", p.Name, p.Node, p.Addrs, p.NamedPorts, p.Labels)
	}
	fmt.Fprintf(&b, "  policies, after %d tries to make them smaller:\n", tries)
	for _, o := range objects {
		fmt.Fprintf(&b, "---\n%s", o.Text())
	}
	return b.String(), nil
}
