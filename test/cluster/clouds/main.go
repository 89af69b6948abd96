// Command clouds runs a cluster in a cloud of this machine, with everything real but the cloud
// itself, and looks whether pods keep reaching each other while interfaces and addresses come and
// go, and whether afterwards the cloud, the operator, the agents and the pods agree about every
// address:
//
//	go run ./test/cluster/clouds                          AWS, on a cluster of its own
//	go run ./test/cluster/clouds -cloud azure,alibaba -short
//	go run ./test/cluster/clouds -nodes 6 -burst 130      more pods at once
//
// Each step says what it counted. The exit code is 0 only if all did what they should.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

type options struct {
	clouds, name, program string
	nodes, burst          int
	short, keep           bool
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	flag.StringVar(&o.clouds, "cloud", region.AWS, "the clouds to try, separated by commas: "+strings.Join(region.Providers(), ", "))
	flag.StringVar(&o.name, "name", "clouds", "name of the cluster; it is made unless it is there")
	flag.StringVar(&o.program, "bin", "bin/hawser", "the program hawser")
	flag.IntVar(&o.nodes, "nodes", 2, "nodes of the cluster, at least 2")
	flag.IntVar(&o.burst, "burst", 40, "pods to make at once, besides those that are there")
	flag.BoolVar(&o.short, "short", false, "leave out what takes minutes: throttling, and the end of an instance")
	flag.BoolVar(&o.keep, "keep", false, "leave a cluster that was made running")
	flag.Parse()
	return lab.Main("clouds", func(ctx context.Context) (bool, error) {
		if o.nodes < 2 {
			return false, errors.New("-nodes: packets between nodes need two of them")
		}
		all := true
		for _, cloud := range strings.Split(o.clouds, ",") {
			ok, err := o.one(ctx, cloud)
			if err != nil {
				return false, fmt.Errorf("%s: %w", cloud, err)
			}
			all = all && ok
		}
		return all, nil
	})
}

// one tries one cloud.
func (o *options) one(ctx context.Context, cloud string) (ok bool, err error) {
	down, err := lab.Program(o.program).Up(ctx, os.Stdout, o.name, o.nodes, o.keep, "--cloud", cloud, "--dual-stack=false")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, down()) }()
	l, err := lab.Open(o.name, o.program, io.Discard)
	if err != nil {
		return false, err
	}
	defer l.Close()
	c := &scene{Lab: l, out: os.Stdout, began: time.Now(), burst: o.burst}
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
		if o.short && s.long {
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
