package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// copies are what is kept of the store's data, to put it back.
type copies struct {
	dir  string // "" before the first one
	kept bool
}

func (c *copies) path() string { return filepath.Join(c.dir, "store") }

func (c *copies) remove() error {
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// storeProcess is the store as it runs now.
func (s *soak) storeProcess() (p machine.Process, dir string, err error) {
	info, err := s.Info()
	if err != nil {
		return machine.Process{}, "", err
	}
	return info.Processes["store"], info.StoreDir, nil
}

// takeCopy keeps the data of the store as a power cut would leave it now.
func (s *soak) takeCopy(ctx context.Context) (err error) {
	if s.copies.dir == "" {
		if s.copies.dir, err = os.MkdirTemp("", "hawser-soak-"); err != nil {
			return err
		}
	}
	p, dir, err := s.storeProcess()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(s.copies.path()); err != nil {
		return err
	}
	if err := p.Send(unix.SIGSTOP); err != nil {
		return err
	}
	err = errors.Join(copyDir(ctx, dir, s.copies.path()), p.Send(unix.SIGCONT))
	s.copies.kept = err == nil
	return err
}

// putCopyBack has the store go on from its copy.
func (s *soak) putCopyBack(ctx context.Context) error {
	p, dir, err := s.storeProcess()
	if err != nil {
		return err
	}
	if err := errors.Join(p.Send(unix.SIGKILL), p.WaitEnded(20*time.Second), os.RemoveAll(dir)); err != nil {
		return err
	}
	return errors.Join(copyDir(ctx, s.copies.path(), dir), s.storeUp(ctx))
}

// storeUp starts the store again and waits until it answers.
func (s *soak) storeUp(ctx context.Context) error {
	if err := s.Sandbox(ctx, "up", "--kubernetes", "--yes"); err != nil {
		return err
	}
	return lab.Eventually(ctx, time.Minute, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := s.Lab.Store.List(ctx, "cilium/.heartbeat")
		return err
	})
}

func copyDir(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// storeGone takes the store away, and may kill an agent meanwhile, which then has what it wrote down.
func (s *soak) storeGone(node string) disturbance {
	kill := s.rng.IntN(2) == 0
	what := "no store"
	if kill {
		what += ", and the agent of " + node + " is killed"
	}
	return disturbance{
		kind: "store-away", what: what, noStore: true, lasts: s.seconds(8, 20),
		begin: func(ctx context.Context) error {
			p, _, err := s.storeProcess()
			if err != nil {
				return err
			}
			if err := errors.Join(p.Send(unix.SIGKILL), p.WaitEnded(20*time.Second)); err != nil || !kill {
				return err
			}
			return s.signal(ctx, node, "KILL", "hawser-agent")
		},
		end: s.storeUp,
	}
}

// storeFrozen has the store stand still.
func (s *soak) storeFrozen() disturbance {
	lasts := s.seconds(3, 12)
	signal := func(sig unix.Signal) func(context.Context) error {
		return func(context.Context) error {
			p, _, err := s.storeProcess()
			return errors.Join(err, p.Send(sig))
		}
	}
	return disturbance{
		kind: "freeze-store", what: fmt.Sprintf("the store stands still for %s", lasts), noStore: true, lasts: lasts,
		begin: signal(unix.SIGSTOP), end: signal(unix.SIGCONT),
	}
}

// storeBack has the store forget what was written since a copy was made: since the step began, or since
// an earlier one.
func (s *soak) storeBack() disturbance {
	old := s.rng.IntN(2) == 0 && s.copies.kept
	what := "the store goes back to a copy of this step's beginning"
	if old {
		what = "the store goes back to an old copy"
	}
	return disturbance{
		kind: "store-back", what: what, lasts: s.seconds(3, 10),
		begin: func(ctx context.Context) error {
			if old {
				return nil
			}
			return s.takeCopy(ctx)
		},
		end: s.putCopyBack,
	}
}
