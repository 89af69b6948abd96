// Command clouds runs a cluster in a cloud of this machine, with everything real but the cloud
// itself, and looks whether pods keep reaching each other while interfaces and addresses come and
// go, and whether afterwards the cloud, the operator, the agents and the pods agree about every
// address:
//
//	go run ./test/cluster/clouds                          AWS, on a cluster of its own
//	go run ./test/cluster/clouds -cloud azure,alibaba -short
//	go run ./test/cluster/clouds -rush 400 -run rush      more pods at once, and nothing else
//	go run ./test/cluster/clouds -dual-stack              AWS with IPv6
//
// Each step says what it counted. The exit code is 0 only if all did what they should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

type options struct {
	clouds, name, program, kind, run string
	nodes, burst, rush               int
	short, keep, dual                bool
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	flag.StringVar(&o.clouds, "cloud", region.AWS, "the clouds to try, separated by commas: "+strings.Join(region.Providers(), ", "))
	flag.StringVar(&o.name, "name", "clouds", "name of the cluster; it is made unless it is there")
	flag.StringVar(&o.program, "bin", "bin/hawser", "the program hawser")
	flag.StringVar(&o.kind, "instance-type", "", "type of a new cluster's instances; if empty the cloud's default with -short, else one that holds -rush pods on two nodes")
	flag.StringVar(&o.run, "run", "", "regular expression of the steps to run; all if empty")
	flag.IntVar(&o.nodes, "nodes", 2, "nodes of the cluster, at least 2")
	flag.IntVar(&o.burst, "burst", 40, "pods to make at once, besides those that are there")
	flag.IntVar(&o.rush, "rush", 200, "the same for the step rush, as far as the subnet has addresses for them")
	flag.BoolVar(&o.short, "short", false, "leave out what takes minutes: throttling, the rush, and the end of an instance")
	flag.BoolVar(&o.dual, "dual-stack", false, "give pods IPv6 addresses, too; with aws only")
	flag.BoolVar(&o.keep, "keep", false, "leave a cluster that was made running")
	flag.Parse()
	return lab.Main("clouds", func(ctx context.Context) (bool, error) {
		if o.nodes < 2 {
			return false, errors.New("-nodes: packets between nodes need two of them")
		}
		pattern, err := regexp.Compile(o.run)
		if err != nil {
			return false, fmt.Errorf("-run: %w", err)
		}
		all := true
		for _, cloud := range strings.Split(o.clouds, ",") {
			ok, err := o.one(ctx, cloud, pattern)
			if err != nil {
				return false, fmt.Errorf("%s: %w", cloud, err)
			}
			all = all && ok
		}
		return all, nil
	})
}

// one tries one cloud by the steps that match a pattern.
func (o *options) one(ctx context.Context, cloud string, pattern *regexp.Regexp) (ok bool, err error) {
	kind := o.kind
	if kind == "" && !o.short {
		kind = roomy[cloud]
	}
	l, end, err := lab.Program(o.program).Open(ctx, os.Stdout, o.name, o.nodes, o.keep, "--cloud", cloud, fmt.Sprint("--dual-stack=", o.dual), "--instance-type="+kind)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, end()) }()
	c := &scene{Lab: l, out: os.Stdout, began: time.Now(), burst: o.burst, most: o.rush}
	if err := c.prepare(ctx, cloud); err != nil {
		return false, fmt.Errorf("prepare: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, c.remove(ctx))
	}()
	failed := 0
	for _, s := range steps() {
		if o.short && s.long || !pattern.MatchString(s.name) {
			continue
		}
		c.say("%s: %s", s.name, s.about)
		began := time.Now()
		err := s.run(c, ctx)
		if err == nil {
			err = c.agree(ctx)
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		result := "ok"
		if err != nil {
			failed++
			result = fmt.Sprintf("FAILED: %v", err)
		}
		c.say("%s: %s (%.1f s)", s.name, result, time.Since(began).Seconds())
	}
	if failed == 0 {
		c.say("%s: all steps did what they should", cloud)
	} else {
		c.say("%s: %d steps failed", cloud, failed)
	}
	return failed == 0, nil
}
