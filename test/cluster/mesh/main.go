// Command mesh connects two clusters of this machine and looks with real packets whether they are
// what docs/user/clustermesh.md says:
//
//	go run ./test/cluster/mesh                  two clusters of its own, which go afterwards
//	go run ./test/cluster/mesh -keep            and stay
//	go run ./test/cluster/mesh -run 'policy|store'
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
	"time"

	"github.com/hawser-net/hawser/test/cluster/lab"
)

type options struct {
	names        [2]string
	program, run string
	nodes        int
	keep         bool
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	flag.StringVar(&o.names[0], "a", "mesh-a", "name of the one cluster; it is made with number 1 unless it is there")
	flag.StringVar(&o.names[1], "b", "mesh-b", "name of the other one, with number 2")
	flag.StringVar(&o.program, "bin", "bin/hawser", "the program hawser")
	flag.StringVar(&o.run, "run", "", "regular expression of the steps to run; all if empty")
	flag.IntVar(&o.nodes, "nodes", 2, "nodes of each cluster that is made")
	flag.BoolVar(&o.keep, "keep", false, "leave clusters that were made running")
	flag.Parse()
	return lab.Main("mesh", o.all)
}

// all makes the clusters and runs the steps.
func (o *options) all(ctx context.Context) (ok bool, err error) {
	pattern, err := regexp.Compile(o.run)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	hawser := lab.Program(o.program)
	var sides [2]*side
	for i, name := range o.names {
		l, end, openErr := hawser.Open(ctx, os.Stdout, name, o.nodes, o.keep, "--cluster-id", fmt.Sprint(i+1))
		if openErr != nil {
			return false, openErr
		}
		defer func() { err = errors.Join(err, end()) }()
		sides[i] = &side{Lab: l}
	}
	m := &mesh{a: sides[0], b: sides[1], hawser: hawser.Run, out: os.Stdout, began: time.Now()}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, m.remove(ctx))
	}()
	if err := m.prepare(ctx); err != nil {
		return false, fmt.Errorf("prepare: %w", err)
	}
	failed := 0
	for _, s := range steps() {
		if !pattern.MatchString(s.name) {
			continue
		}
		m.say("%s: %s", s.name, s.about)
		began := time.Now()
		err := s.run(m, ctx)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		result := "ok"
		if err != nil {
			failed++
			result = fmt.Sprintf("FAILED: %v", err)
		}
		m.say("%s: %s (%.1f s)", s.name, result, time.Since(began).Seconds())
	}
	if failed == 0 {
		m.say("all steps did what they should")
	} else {
		m.say("%d steps failed", failed)
	}
	return failed == 0, nil
}
