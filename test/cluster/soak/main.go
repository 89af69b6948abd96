// Command soak keeps a cluster busy and compares all the time what passes with what the oracle of
// internal/policy says: pods, labels, namespaces and policies change, agents and operators are
// killed and frozen, the API server goes away, it or the store of identities goes back to an old
// copy of its data, and objects are edited and deleted by hand.
//
//	go run ./test/cluster/soak -for 3m
//	go run ./test/cluster/soak -identities operator -endpoints slim -for 1h
//	go run ./test/cluster/soak -seed 7 -steps 12
//
// What one change does not concern must hold in every moment; after each change everything must,
// and so must the invariants of package invariant. The exit code is 0 only if nothing was wrong.
// What was is printed with the arguments that repeat it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/test/cluster/lab"
	"github.com/hawser-net/hawser/test/cluster/world"
)

type options struct {
	cluster       lab.Options
	seed          uint64
	steps, pods   int
	lasts, settle time.Duration
}

func main() { os.Exit(run()) }

func run() int {
	o := options{cluster: lab.NewOptions("soak", 2)}
	o.cluster.Flags(flag.CommandLine)
	flag.Uint64Var(&o.seed, "seed", 0, "of the changes; 0 for a new one")
	flag.IntVar(&o.steps, "steps", 0, "how many changes; 0 for as many as fit in -for")
	flag.DurationVar(&o.lasts, "for", 10*time.Minute, "how long to go on")
	flag.IntVar(&o.pods, "pods", 8, "pods at the beginning")
	flag.DurationVar(&o.settle, "settle", 20*time.Second, "how long a difference may last after a change that concerns it")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	return lab.Main("soak", o.all)
}

// result is what came of all steps.
type result struct {
	Seed       uint64         `json:"seed"`
	Identities string         `json:"identities"`
	Endpoints  string         `json:"endpoints"`
	Store      string         `json:"store"`
	Steps      int            `json:"steps"`
	Kinds      map[string]int `json:"kinds"` // of changes and of disturbances
	// Settled probes were made when everything had settled, Meanwhile those while something
	// changed.
	Settled   int           `json:"settled"`
	Meanwhile int           `json:"meanwhile"`
	Took      time.Duration `json:"took"`
	// Faults are what was not as it must be.
	Faults []string `json:"faults"`
}

func (o *options) validate() error {
	err := o.cluster.Validate()
	if o.cluster.Nodes < 2 {
		err = errors.Join(err, fmt.Errorf("-nodes %d: want 2 or more", o.cluster.Nodes))
	}
	return err
}

func (o *options) all(ctx context.Context) (ok bool, err error) {
	if err := o.validate(); err != nil {
		return false, err
	}
	l, end, err := o.cluster.Open(ctx, operatorArgs())
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, end()) }()
	s := &soak{World: world.New(l, "soak"), options: *o, out: o.cluster.Progress(), began: time.Now(), result: result{
		Seed: o.seed, Identities: o.cluster.Identities, Endpoints: o.cluster.Endpoints, Store: o.cluster.Store, Kinds: map[string]int{}, Faults: []string{},
	}}
	s.say("repeat it with %s", o.again(0))
	runErr := errors.Join(s.run(ctx), s.copies.remove())
	if ctx.Err() != nil {
		runErr = nil // interrupted: what was compared until then counts
	}
	cleanCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	if o.cluster.Keep {
		s.Leave()
	} else {
		runErr = errors.Join(runErr, s.Remove(cleanCtx))
	}
	if runErr != nil {
		return false, runErr
	}
	s.result.Took = time.Since(s.began)
	return len(s.result.Faults) == 0, o.cluster.Print(s.result, s.result.print)
}

// operatorArgs have what is unused collected every few seconds, so that IDs go into quarantine
// and come back all the time.
func operatorArgs() []string {
	return []string{"--identity-gc-interval=5s", "--identity-heartbeat-timeout=10s", "--cilium-endpoint-gc-interval=10s", "--nodes-gc-interval=10s"}
}

// again is how to repeat the run, as far as a step if that is not 0.
func (o *options) again(step int) string {
	text := fmt.Sprintf("%s -nodes %d -pods %d -seed %d", o.cluster.Modes, o.cluster.Nodes, o.pods, o.seed)
	if step > 0 {
		text += fmt.Sprintf(" -steps %d", step)
	}
	return text
}

func (r *result) print(w io.Writer) {
	for _, f := range r.Faults {
		fmt.Fprintf(w, "\nFAULT\n%s\n", f)
	}
	var kinds []string
	for k := range r.Kinds {
		kinds = append(kinds, fmt.Sprintf("%s %d", k, r.Kinds[k]))
	}
	slices.Sort(kinds)
	fmt.Fprintf(w, "\nidentities by %s, endpoints by %s, store %s: %d steps (%s); %d probes while something changed, %d when all had settled; %d faults; %s, seed %d\n",
		r.Identities, r.Endpoints, r.Store, r.Steps, strings.Join(kinds, ", "), r.Meanwhile, r.Settled, len(r.Faults), r.Took.Round(time.Second), r.Seed)
}
