package lab

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// Options are those of every program that does something to one cluster in its modes. Use
// NewOptions.
type Options struct {
	Modes
	// Name of the cluster. It is made, with so many Nodes, unless it is there.
	Name  string
	Nodes int
	// Keep leaves a cluster that was made running.
	Keep bool

	program Program
	output  string // -o
}

// NewOptions returns the options of a program that was given none.
func NewOptions(name string, nodes int) Options {
	return Options{Modes: NewModes(), Name: name, Nodes: nodes}
}

// Flags adds the options -name, -bin, -o, -nodes and -keep to those of the modes.
func (o *Options) Flags(fs *flag.FlagSet) {
	o.Modes.Flags(fs)
	fs.StringVar(&o.Name, "name", o.Name, "name of the cluster; it is made unless it is there")
	fs.StringVar((*string)(&o.program), "bin", "bin/hawser", "the program hawser")
	fs.StringVar(&o.output, "o", "", "json: print the result as JSON, and progress to stderr")
	fs.IntVar(&o.Nodes, "nodes", o.Nodes, "nodes of a cluster that is made")
	fs.BoolVar(&o.Keep, "keep", false, "leave a cluster that was made running")
}

// Validate reports all faults of the options at once.
func (o Options) Validate() error {
	err := o.Modes.Validate()
	if o.output != "" && o.output != "json" {
		err = errors.Join(err, fmt.Errorf("-o %q: want json", o.output))
	}
	return err
}

// Progress is where to say what happens: standard output, unless that is for JSON alone.
func (o Options) Progress() io.Writer {
	if o.output == "json" {
		return os.Stderr
	}
	return os.Stdout
}

// Print writes a result to standard output: as JSON if that was asked for, else with text.
func (o Options) Print(result any, text func(io.Writer)) error {
	if o.output != "json" {
		text(os.Stdout)
		return nil
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(result)
}

// Open is [Program.Open] for the cluster of the options, in their modes. The operator gets further
// arguments, and so does `sandbox up`.
func (o Options) Open(ctx context.Context, operatorArgs []string, args ...string) (l *Lab, end func() error, err error) {
	manifest, err := o.manifest(ctx, operatorArgs)
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(manifest)
	args = append([]string{"--manifest", manifest}, args...)
	if o.Store != "objects" {
		args = append(args, "--store", o.Store)
	}
	return o.program.Open(ctx, o.Progress(), o.Name, o.Nodes, o.Keep, args...)
}
