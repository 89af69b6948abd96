// Command hawser-cni is the CNI plugin. Container runtimes start it with the command in the environment
// and the configuration on standard input; see package cni.
package main

import (
	"os"

	"github.com/hawser-net/hawser/internal/cni"
)

func main() {
	p := &cni.Plugin{Getenv: os.Getenv, Step: step}
	os.Exit(p.Main())
}
