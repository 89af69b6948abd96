// Command chaos injects faults into a cluster under traffic, and counts what became of
// every message:
//
//	go run ./test/cluster/chaos                     all scenarios, on a cluster of their own
//	go run ./test/cluster/chaos -run 'agent|node'   some of them
//	go run ./test/cluster/chaos -list
//	go run ./test/cluster/chaos -identities operator -endpoints slices
//	go run ./test/cluster/chaos -store etcd
//
// Before and after each scenario the invariants of test/cluster/invariant must hold, and the matrix
// of who reaches whom must be that of the policies. During it no message that is allowed may be
// lost, and none that is forbidden may arrive, except through a node that is off. The exit code is
// 0 only if so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

type options struct {
	cluster lab.Options
	run     string
	repeat  int
	list    bool
	up      []string // further arguments of `sandbox up`
}

func main() { os.Exit(run()) }

func run() int {
	o := options{cluster: lab.NewOptions("chaos", 3)} // or more: one of them is lost
	o.cluster.Flags(flag.CommandLine)
	flag.StringVar(&o.run, "run", "", "regular expression of the scenarios to run; all if empty")
	flag.IntVar(&o.repeat, "repeat", 1, "how often to run each")
	flag.BoolVar(&o.list, "list", false, "list the scenarios")
	flag.Parse()
	o.up = flag.Args()
	if o.list {
		for _, s := range scenarios() {
			fmt.Printf("%-18s %s\n", s.name, s.about)
		}
		return 0
	}
	return lab.Main("chaos", o.all)
}

// all runs the chosen scenarios and prints what came out.
func (o *options) all(ctx context.Context) (ok bool, err error) {
	pattern, err := regexp.Compile(o.run)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	if err := o.cluster.Validate(); err != nil {
		return false, err
	}
	var chosen []scenario
	for _, s := range scenarios() {
		if pattern.MatchString(s.name) && (!s.store || o.cluster.Store != "objects") {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return false, fmt.Errorf("no scenario matches %q", o.run)
	}
	l, end, err := o.cluster.Open(ctx, nil, o.up...)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, end()) }()
	d := newDay(l, o.cluster.Progress())
	if err := d.prepare(ctx); err != nil {
		return false, fmt.Errorf("prepare: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		defer cancel()
		err = errors.Join(err, d.remove(ctx))
	}()
	var outcomes []outcome
	for i := range len(chosen) * o.repeat {
		s := chosen[i%len(chosen)]
		out := d.play(ctx, s)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		outcomes = append(outcomes, out)
	}
	ok = true
	for _, out := range outcomes {
		ok = ok && out.Passed
	}
	return ok, o.cluster.Print(outcomes, func(w io.Writer) { table(w, outcomes) })
}

// outcome is what came of one scenario.
type outcome struct {
	Scenario string        `json:"scenario"`
	Passed   bool          `json:"passed"`
	Took     time.Duration `json:"took"`
	// Sent counts messages that are allowed; established flows of UDP and TCP, and new ones.
	Flows         int           `json:"flows"`
	Sent          int           `json:"sent"`
	Lost          int           `json:"lost"`
	Forbidden     int           `json:"forbidden"`
	Wrong         int           `json:"wrong"`
	Retransmitted int           `json:"retransmitted"`
	Gap           time.Duration `json:"gap"` // the longest time without an answer on an established flow
	Probes        int           `json:"probes"`
	// Notes are figures of the scenario's own. Faults are why it failed.
	Notes  []string       `json:"notes,omitempty"`
	Faults []string       `json:"faults,omitempty"`
	Bad    []flows.Result `json:"bad,omitempty"`
}

// add counts what became of flows.
func (o *outcome) add(results []flows.Result) {
	for _, r := range results {
		o.Flows++
		if r.Allowed {
			o.Sent += r.Sent
		} else {
			o.Forbidden += r.Sent
		}
		o.Lost += r.Lost
		o.Wrong += r.Wrong
		o.Retransmitted += r.Retransmitted
		o.Gap = max(o.Gap, r.Gap)
		if r.Bad() {
			o.Bad = append(o.Bad, r)
		}
	}
}

func table(w io.Writer, outcomes []outcome) {
	fmt.Fprintf(w, "\n%-18s %-6s %6s %6s %8s %5s %9s %6s %7s %8s %7s\n",
		"SCENARIO", "RESULT", "TIME", "FLOWS", "SENT", "LOST", "FORBIDDEN", "WRONG", "RETRANS", "GAP", "PROBES")
	passed := 0
	for _, o := range outcomes {
		result := "FAILED"
		if o.Passed {
			result = "ok"
			passed++
		}
		fmt.Fprintf(w, "%-18s %-6s %5.0fs %6d %8d %5d %9d %6d %7d %6dms %7d\n",
			o.Scenario, result, o.Took.Seconds(), o.Flows, o.Sent, o.Lost, o.Forbidden, o.Wrong, o.Retransmitted, o.Gap.Milliseconds(), o.Probes)
		for _, note := range o.Notes {
			fmt.Fprintf(w, "%18s %s\n", "", note)
		}
		for _, fault := range o.Faults {
			fmt.Fprintf(w, "%18s ! %s\n", "", strings.ReplaceAll(fault, "\n", "\n"+strings.Repeat(" ", 21)))
		}
		for i, r := range o.Bad {
			if i == 8 {
				fmt.Fprintf(w, "%18s ! and %d more flows\n", "", len(o.Bad)-i)
				break
			}
			fmt.Fprintf(w, "%18s ! %s: %d of %d lost, %d wrong: %s\n", "", r.Name, r.Lost, r.Sent, r.Wrong, strings.Join(r.Why, "; "))
		}
	}
	fmt.Fprintf(w, "\n%d of %d passed. SENT and LOST are messages that are allowed, FORBIDDEN and WRONG those that are not; RETRANS are segments that TCP sent again\n",
		passed, len(outcomes))
}
