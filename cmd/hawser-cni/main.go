// Command hawser-cni is the CNI plugin. Container runtimes start it with the command in the
// environment and the configuration on standard input; see package cni.
//
// With arguments it is its own installer: "hawser-cni install --dir DIRECTORY" puts it where the
// runtime looks for plugins.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/hawser-net/hawser/internal/cni"
)

func main() {
	// Runtimes give no arguments.
	if len(os.Args) > 1 && os.Args[1] == "install" {
		os.Exit(install(os.Args[2:]))
	}
	p := &cni.Plugin{Getenv: os.Getenv, Step: step}
	os.Exit(p.Main())
}

func install(args []string) int {
	fs := flag.NewFlagSet("hawser-cni install", flag.ContinueOnError)
	dir := fs.String("dir", "/opt/cni/bin", "`directory` where the container runtime looks for plugins")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "hawser-cni install: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	self, err := os.Executable()
	if err == nil {
		err = cni.Install(self, *dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hawser-cni:", err)
		return 1
	}
	fmt.Printf("hawser-cni: installed in %s\n", *dir)
	return 0
}
