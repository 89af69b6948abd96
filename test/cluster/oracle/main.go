// Command oracle compares a cluster with the oracle of internal/policy: random pods in random
// namespaces, random policies of all kinds, and who reaches whom measured with real connections, by
// TCP, UDP and ICMP, IPv4 and IPv6.
//
//	go run ./test/cluster/oracle                  until 10 minutes are over
//	go run ./test/cluster/oracle -seed 7 -rounds 1
//	go run ./test/cluster/oracle -identities operator -endpoints slim
//
// Where cluster and oracle differ, it takes away from the policies what does not matter and prints
// the smallest case. The exit code is 0 only if they agree.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hawser-net/hawser/test/cluster/lab"
	"github.com/hawser-net/hawser/test/cluster/world"
)

type options struct {
	cluster            lab.Options
	seed               uint64
	rounds, pods, each int
	lasts, settle      time.Duration
	up                 []string // further arguments of `sandbox up`
}

func main() { os.Exit(run()) }

func run() int {
	o := options{cluster: lab.NewOptions("oracle", 2)}
	o.cluster.Flags(flag.CommandLine)
	flag.Uint64Var(&o.seed, "seed", 0, "of the first world; 0 for a new one")
	flag.IntVar(&o.rounds, "rounds", 0, "sets of policies to compare; 0 for as many as fit in -for")
	flag.DurationVar(&o.lasts, "for", 10*time.Minute, "how long to go on")
	flag.IntVar(&o.pods, "pods", 9, "pods of a world")
	flag.IntVar(&o.each, "each", 8, "sets of policies for a world, before there are other pods")
	flag.DurationVar(&o.settle, "settle", 15*time.Second, "how long a difference may last that goes away by itself")
	flag.Parse()
	o.up = flag.Args()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	return lab.Main("oracle", o.all)
}

// result is what came of all rounds.
type result struct {
	Seed     uint64        `json:"seed"`
	Worlds   int           `json:"worlds"`
	Rounds   int           `json:"rounds"`
	Policies int           `json:"policies"`
	Refused  int           `json:"refused"` // by the API server's validation
	Probes   int           `json:"probes"`
	Reached  int           `json:"reached"`
	Denied   int           `json:"denied"`
	Kinds    kinds         `json:"kinds"`
	Took     time.Duration `json:"took"`
	// Differences are cases made as small as possible.
	Differences []string `json:"differences"`
}

// kinds counts probes.
type kinds struct {
	TCP  int `json:"tcp"`
	UDP  int `json:"udp"`
	ICMP int `json:"icmp"`
	IPv4 int `json:"ipv4"`
	IPv6 int `json:"ipv6"`
}

func (o *options) all(ctx context.Context) (ok bool, err error) {
	if err := o.cluster.Validate(); err != nil {
		return false, err
	}
	l, end, err := o.cluster.Open(ctx, nil, o.up...)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, end()) }()
	progress := o.cluster.Progress()
	r := &rounds{World: world.New(l, "oracle"), options: *o, out: progress, began: time.Now(), result: result{Seed: o.seed, Differences: []string{}}}
	fmt.Fprintf(progress, "seed %d (-seed %d repeats the first world)\n", o.seed, o.seed)
	runErr := r.run(ctx)
	if ctx.Err() != nil {
		runErr = nil // interrupted: what was compared until then counts
	}
	cleanCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	if err := errors.Join(runErr, r.Remove(cleanCtx)); err != nil {
		return false, err
	}
	r.result.Took = time.Since(r.began)
	return len(r.result.Differences) == 0, o.cluster.Print(r.result, r.result.print)
}

func (r *result) print(w io.Writer) {
	for _, d := range r.Differences {
		fmt.Fprintf(w, "\nDIFFERENCE\n%s\n", d)
	}
	fmt.Fprintf(w, "\n%d worlds, %d rounds, %d policies (%d refused by the API server), %d probes (%d tcp, %d udp, %d icmp; %d IPv4, %d IPv6): %d reached, %d denied, "+
		"%d rounds differ from the oracle; %s, seed %d\n", r.Worlds, r.Rounds, r.Policies, r.Refused, r.Probes, r.Kinds.TCP, r.Kinds.UDP, r.Kinds.ICMP,
		r.Kinds.IPv4, r.Kinds.IPv6, r.Reached, r.Denied, len(r.Differences), r.Took.Round(time.Second), r.Seed)
}
