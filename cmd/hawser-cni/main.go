// Command hawser-cni is the CNI plugin. Container runtimes start it with the command in the
// environment and the configuration on standard input; see package cni.
//
// With arguments it is its own installer: "hawser-cni install --dir DIRECTORY" puts it where the
// runtime looks for plugins.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/hawser-net/hawser/internal/cni"
)

// version is set by the linker.
var version = "devel"

const usage = `hawser-cni is the CNI plugin of Hawser. A container runtime starts it, with the command in the
environment (CNI_COMMAND) and the configuration on standard input.

Usage:
  hawser-cni install [--dir DIRECTORY]   copy the program to where the runtime looks for plugins
  hawser-cni --version

Examples:
  hawser-cni install --dir /opt/cni/bin
  CNI_COMMAND=VERSION hawser-cni </dev/null
`

func main() {
	if len(os.Args) > 1 { // runtimes give no arguments
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	p := &cni.Plugin{Getenv: os.Getenv, Step: step}
	os.Exit(p.Main())
}

// run is what a person starts. The exit code is 1 after a failure, and 2 if the command line is
// wrong.
func run(args []string, stdout, stderr io.Writer) int {
	switch args[0] {
	case "install":
		return install(args[1:], stdout, stderr)
	case "--version", "-version":
		fmt.Fprintln(stdout, "hawser-cni version", version)
		return 0
	case "--help", "-help", "-h", "help":
		fmt.Fprint(stdout, usage)
		return 0
	}
	return misused(stderr, fmt.Errorf("unknown argument %q", args[0]))
}

func misused(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "hawser-cni: %v\nSee 'hawser-cni --help'.\n", err)
	return 2
}

func install(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("hawser-cni install", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	dir := fs.String("dir", "/opt/cni/bin", "")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		return misused(stderr, err)
	case fs.NArg() > 0:
		return misused(stderr, fmt.Errorf("unexpected argument %q: name the directory with --dir", fs.Arg(0)))
	}
	self, err := os.Executable()
	if err == nil {
		err = cni.Install(self, *dir)
	}
	if err != nil {
		fmt.Fprintln(stderr, "hawser-cni:", err)
		return 1
	}
	fmt.Fprintf(stdout, "hawser-cni: installed in %s\n", *dir)
	return 0
}
