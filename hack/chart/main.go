// Command chart tries the Helm chart as a user does: it installs, upgrades, rolls back and
// uninstalls it with helm in a cluster of namespaces, and looks each time whether pods, policies
// and services work, whether an upgrade loses a request, and whether anything is left in the end:
//
//	go run ./hack/chart                     beside kube-proxy, both ways of giving nodes addresses
//	go run ./hack/chart -replace            instead of kube-proxy
//	go run ./hack/chart -kvstore            identities in an etcd that demands certificates
//
// The cluster is brought up for it and removed afterwards. The exit code is 0 only if everything
// was as it should be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
)

func main() { os.Exit(run()) }

func run() int {
	var l lab
	flag.StringVar(&l.name, "name", "chart", "name of the cluster")
	flag.StringVar(&l.hawser, "bin", "bin/hawser", "the program hawser")
	flag.StringVar(&l.helm, "helm", "bin/helm", "the program helm")
	flag.StringVar(&l.chart, "chart", "deploy/helm/hawser", "directory of the chart")
	flag.BoolVar(&l.replace, "replace", false, "instead of kube-proxy")
	store := flag.Bool("kvstore", false, "with identities in an etcd that demands certificates, and the agents' files elsewhere")
	flag.IntVar(&l.from, "from", 1, "number of the step to begin with, in a cluster that was kept")
	flag.BoolVar(&l.keep, "keep", false, "leave the cluster running")
	flag.Parse()
	if *store {
		l.id, l.stateDir = storeCluster, "/var/run/hawser"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := l.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		return 1
	}
	return 0
}

// run brings the cluster up and goes through the steps. The first that fails ends it.
func (l *lab) run(ctx context.Context) (err error) {
	builder, err := parts.Here(os.Stdout, false)
	if err != nil {
		return err
	}
	l.kubectl = filepath.Join(builder.Dir, "kubectl")
	l.kubeconfig = filepath.Join(kube.Defaults().Root, l.name, "kubeconfig")
	there := kube.Exists(kube.Defaults().Root, l.name)
	up := []string{"sandbox", "up", "--kubernetes", "--yes", "--name", l.name, "--cni", kube.None, fmt.Sprintf("--kube-proxy=%v", !l.replace)}
	if l.id != 0 {
		up = append(up, "--cluster-id", fmt.Sprint(l.id))
	}
	if out, err := l.do(ctx, l.hawser, up...); err != nil {
		return fmt.Errorf("start the cluster: %w\n%s", err, out)
	}
	if !there && !l.keep {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			_, downErr := l.do(ctx, l.hawser, "sandbox", "down", "--name", l.name)
			err = errors.Join(err, downErr)
		}()
	}
	for i, s := range l.steps() {
		if i+1 < l.from {
			continue
		}
		began := time.Now()
		if err := s.do(ctx); err != nil {
			fmt.Printf("%2d %-82s FAILED after %.1f s\n", i+1, s.what, time.Since(began).Seconds())
			return fmt.Errorf("%s: %w", s.what, err)
		}
		fmt.Printf("%2d %-82s ok %6.1f s\n", i+1, s.what, time.Since(began).Seconds())
	}
	return nil
}
