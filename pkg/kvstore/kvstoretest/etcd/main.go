// Command etcd is a server of etcd for one test, in a process of its own: see
// [kvstoretest.StartEtcd], which starts it with what it is to serve.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "etcd: one argument must name what to serve")
		return 2
	}
	if err := kvstoretest.ServeEtcd(ctx, os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	return 0
}
