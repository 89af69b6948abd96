// Command hawser-bench measures Hawser against baselines of the machine it runs on. It is no part
// of the product: `make bench` builds and runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/bench"
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
	self, err := os.Executable()
	if err != nil {
		return report(err)
	}
	cfg := bench.Config{Self: []string{self, "etcd"}, Progress: os.Stderr}
	var out, file string
	fs := pflag.NewFlagSet("hawser-bench", pflag.ContinueOnError)
	fs.StringSliceVar(&cfg.Rows, "rows", nil, "groups of rows to measure, of "+strings.Join(bench.Groups(), ", ")+"; all by default")
	fs.BoolVar(&cfg.Quick, "quick", false, "fewer samples: a minute or two")
	fs.StringVar(&cfg.BinDir, "bin", "bin", "directory with the programs to measure")
	fs.BoolVar(&cfg.Keep, "keep", false, "leave the logs of the agents behind")
	fs.StringVarP(&out, "output", "o", "table", "what to print: table or json")
	fs.StringVar(&file, "json", "", "file to write the report to, as JSON")
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return report(err)
	case out != "table" && out != "json":
		return report(fmt.Errorf("--output: %q is neither table nor json", out))
	}
	r, err := bench.Run(ctx, cfg)
	if r == nil {
		return report(err)
	}
	if out == "json" {
		err = errors.Join(err, r.JSON(os.Stdout))
	} else {
		err = errors.Join(err, r.Table(os.Stdout))
	}
	if file != "" {
		f, ferr := os.Create(file)
		if ferr == nil {
			ferr = errors.Join(r.JSON(f), f.Close())
		}
		err = errors.Join(err, ferr)
	}
	return report(err)
}

// report prints an error and returns the exit code.
func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hawser-bench:", err)
		return 1
	}
	return 0
}
