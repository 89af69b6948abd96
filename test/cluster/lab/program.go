package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
)

// downTime bounds how long a cluster may take to go.
const downTime = time.Minute

// Main runs a program that does something to clusters until it ends or the process is to end, and
// returns the exit code: 0 if all was well, 1 if something was not as it must be, 2 if that could
// not be found out.
func Main(name string, run func(ctx context.Context) (ok bool, err error)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	case !ok:
		return 1
	}
	return 0
}

// Program is the path of hawser.
type Program string

// Run runs it to its end. What it prints goes to out, its errors to this process's.
func (p Program) Run(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, string(p), args...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}

// Open returns a handle on the cluster called name. Unless it is there, a dual-stack cluster of
// that name is made, with further arguments of `sandbox up`; what that prints goes to out. end
// closes the handle, and removes a cluster that was made here and is not to be kept; it works when
// ctx has ended, too.
func (p Program) Open(ctx context.Context, out io.Writer, name string, nodes int, keep bool, args ...string) (l *Lab, end func() error, err error) {
	down, err := p.up(ctx, out, name, nodes, keep, args)
	if err != nil {
		return nil, nil, err
	}
	l, err = open(name, string(p))
	if err != nil {
		return nil, nil, errors.Join(err, down())
	}
	return l, func() error { _ = l.Close(); return down() }, nil
}

// up makes the cluster unless it is there. down removes it if it was made here and is not to be
// kept.
func (p Program) up(ctx context.Context, out io.Writer, name string, nodes int, keep bool, args []string) (down func() error, err error) {
	down = func() error { return nil }
	if kube.Exists(kube.Defaults().Root, name) {
		return down, nil
	}
	up := append([]string{"sandbox", "up", "--kubernetes", "--yes", "--dual-stack", "--name", name, "--nodes", fmt.Sprint(nodes)}, args...)
	if err := p.Run(ctx, out, up...); err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", name, err)
	}
	if keep {
		return down, nil
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTime)
		defer cancel()
		if err := p.Run(ctx, out, "sandbox", "down", "--name", name); err != nil {
			return fmt.Errorf("remove cluster %s: %w", name, err)
		}
		return nil
	}, nil
}
