// Command kubebuild builds programs of Kubernetes that tests and clusters on one machine need, into
// a cache directory, once:
//
//	go run ./hack/kubebuild kube-apiserver
//	go run ./hack/kubebuild -all
//	go run ./hack/kubebuild -images agnhost coredns
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/term"

	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
)

func main() { os.Exit(run()) }

func run() int {
	all := flag.Bool("all", false, "build everything, the upstream tests included")
	images := flag.Bool("images", false, "make the container images of what is named, too")
	flag.Parse()
	names := flag.Args()
	if *all {
		for _, p := range parts.All() {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		fmt.Fprintln(os.Stderr, "kubebuild: which programs? Their names, or -all")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := parts.Here(os.Stdout, term.IsTerminal(int(os.Stdout.Fd())))
	if err == nil {
		err = b.Build(ctx, names...)
	}
	if err == nil && *images {
		k := image.Kitchen{Dir: filepath.Join(b.Dir, "images"), Programs: b.Dir, Source: b.Source, Say: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
		_, err = k.Make(ctx, append(names, "pause")...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubebuild:", err)
		return 1
	}
	return 0
}
