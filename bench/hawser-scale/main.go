// Command hawser-scale measures Hawser's control plane at the size of a data centre on one machine.
// It is no part of the product: `make scale` builds and runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/hawser-net/hawser/internal/bench"
	"github.com/hawser-net/hawser/internal/bench/scale"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) == 2 && args[0] == "etcd" {
		return report(bench.ServeEtcd(ctx, args[1]))
	}
	signal.Ignore(syscall.SIGPIPE) // whoever reads the output may go before what was started is ended
	klog.SetLogger(logr.Discard()) // client-go speaks of every request that a busy server does not answer in time
	self, err := os.Executable()
	if err != nil {
		return report(err)
	}
	cfg := scale.Defaults()
	cfg.Self, cfg.Progress = []string{self, "etcd"}, os.Stderr
	fs := pflag.NewFlagSet("hawser-scale", pflag.ContinueOnError)
	cfg.Flags(fs)
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return report(err)
	}
	r, err := scale.Run(ctx, cfg)
	if r == nil {
		return report(err)
	}
	err = errors.Join(err, r.Markdown(os.Stdout), r.Write(cfg.Out, scale.Scenarios()))
	fmt.Fprintln(os.Stderr, "the report is in", filepath.Join(cfg.Out, "report.md"))
	return report(err)
}

// report prints an error and returns the exit code.
func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hawser-scale:", err)
		return 1
	}
	return 0
}
